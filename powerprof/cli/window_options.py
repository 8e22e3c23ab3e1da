# SPDX-License-Identifier: Apache-2.0
"""Options of windows and experiments: lengths, repetitions, rates and seeds."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import msgspec

from powerprof.cli.parameters import EXPERT_HEADING, finite_number, flag, option, time_span, whole_number
from powerprof.system.errors import UnknownNameError

_MAX_DURATION_S = 7 * 24 * 3600.0
# No server of today answers more; calculations need a limit.
_MAX_RATE_HZ = 10_000_000.0
_MAX_QUERIES = 1_000_000_000
_MAX_SEED = (1 << 32) - 1  # a record holds 64 bits


def duration(default: float) -> Any:
    """Return the field of --duration in seconds."""
    return time_span("--duration", "Length of a window.", default=default, low=0.05, high=_MAX_DURATION_S)


def own_duration() -> Any:
    """Return the field of --duration in seconds, with a default that depends on the load."""
    text = "Length of each window (default: 6.4 s; for a command 2 s, or one execution)."
    return time_span("--duration", text, low=0.3, high=3600)


def windows_repeat(default: int, text: str, *, least: int = 2) -> Any:
    """Return the field of --repeat. Fewer than two windows have no interval."""
    return whole_number("--repeat", "N", text, default=default, low=least, high=1000, needed_by="an interval")


def _parse_rate(text: str) -> float:
    value = finite_number(text)
    if not 0 < value <= _MAX_RATE_HZ:
        raise ValueError(f"must be above 0 and at most {_MAX_RATE_HZ:,.0f} queries/s")
    return value


def rate() -> Any:
    """Return the field of --rate in queries/s."""
    return option(
        "--rate", "HZ", "Queries per second (default: calibrated).", convert=_parse_rate, heading=EXPERT_HEADING
    )


def seed(text: str = "Random seed of the order and the intervals.", **declared: Any) -> Any:
    """Return the field of --seed."""
    return whole_number("--seed", "N", text, default=1, low=0, high=_MAX_SEED, heading=EXPERT_HEADING, **declared)


def trace_after() -> Any:
    """Return the field of --attribute in seconds."""
    return time_span("--attribute", "Trace each server for this time afterwards.", low=0.5, high=3600)


def allow_failure() -> Any:
    """Return the field of --allow-failure."""
    return flag("--allow-failure", "Keep measuring if the command exits with a non-zero code.", needs=("--",))


class OfferedLoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The load of each condition."""

    HEADING: ClassVar[str] = "Load"

    design: str | None = option(
        "--design", "rate|work", "Equal query rate (default), or equal number of queries.", heading=EXPERT_HEADING
    )
    rate: float | None = rate()
    queries: int | None = whole_number(
        "--queries",
        "N",
        "Queries per window (implies --design work).",
        low=1,
        high=_MAX_QUERIES,
        heading=EXPERT_HEADING,
        excludes=("--rate",),
    )

    @property
    def chosen(self) -> Literal["rate", "work"] | None:
        """The design; None if the options leave it open. Raises UsageError."""
        if self.design not in (None, "rate", "work"):
            raise UnknownNameError(f"--design {self.design} is not a choice", str(self.design), ("rate", "work"))
        return cast(Literal["rate", "work"] | None, self.design or ("work" if self.queries is not None else None))
