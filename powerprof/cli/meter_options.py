# SPDX-License-Identifier: Apache-2.0
"""Options of meters: sources of energy and of idle states."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from powerprof.cli.parameters import EXPERT_HEADING, group, option
from powerprof.energy.request import DEFAULT_REQUEST, EnergyRequest
from powerprof.system.errors import PowerprofError, UsageError


def _check_source(text: str) -> str:
    from powerprof.measure.residency_sources import check_name

    try:
        check_name(text)
    except UsageError as error:
        error.message = f"--residency-source: {error.message}"
        raise
    return text


def residency_source(default: str | None = "cpuidle") -> Any:
    """Return the field of --residency-source."""
    text = "Source of idle states: cpuidle (default), powertop, turbostat or procfs."
    return option("--residency-source", "NAME", text, convert=_check_source, default=default, heading=EXPERT_HEADING)


def _parse_meter(text: str) -> EnergyRequest:
    from powerprof.energy.request import parse_meter

    return parse_meter(text)


class EnergyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The meters to read, or the parameters of the estimate."""

    HEADING: ClassVar[str] = "Energy"

    meter: EnergyRequest | None = option(
        "--meter",
        "SOURCE",
        "Meters to read (doctor lists them), a CSV log of a meter (FILE[#COLUMN]), both with a comma, none, or the "
        "estimate with the CPU that a guest hides: 'model:EPYC 7763@thread' (default: the best meter).",
        convert=_parse_meter,
    )

    @property
    def request(self) -> EnergyRequest:
        """The request for the meters. Raises UsageError, PowerprofError and DataError for a wrong default."""
        if self.meter is not None:
            return self.meter
        from powerprof.cli.defaults import default_meter

        default = default_meter()
        if default is None:
            return DEFAULT_REQUEST
        text, place = default
        try:
            return _parse_meter(text)
        except PowerprofError as error:
            error.message = f"{place}: {error.message}"
            raise


class MeterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The meters of each window."""

    HEADING: ClassVar[str] = "Measurement"

    energy: EnergyOptions = group(EnergyOptions)
    residency_source: str = residency_source()
