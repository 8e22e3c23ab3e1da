# SPDX-License-Identifier: Apache-2.0
"""One metric over the windows of one condition: what is judged, and what is saved of it."""

from __future__ import annotations

import msgspec

from powerprof.records import Estimate, Kind


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one condition: a value a window, None where unknown."""

    name: str
    unit: str
    kind: Kind
    values: list[float | None]
    source: str | None = None

    @property
    def known(self) -> list[float]:
        """The values that are known."""
        return [value for value in self.values if value is not None]

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The least and the most that it can be."""
        # What is net of idle may be below 0 by chance; nothing else can.
        floor = None if self.name.endswith("_net") or self.name.startswith("watts:") else 0.0
        return floor, 100.0 if self.unit == "%" else None


class RunMetric(Figures, frozen=True, kw_only=True):
    """A metric of a run under load, with the mean of its values and the interval of that."""

    estimate: Estimate
