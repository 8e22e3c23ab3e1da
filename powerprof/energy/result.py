# SPDX-License-Identifier: Apache-2.0
"""What `powerprof energy` finds: the JSON of `powerprof.energy/1`."""

from __future__ import annotations

from typing import Literal

import msgspec

from powerprof.energy.domains import Total
from powerprof.records import EnergyReading, Notes


class EnergyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Every domain of every meter in one window, what was summed, and what is to be known of it."""

    schema: Literal["powerprof.energy/1"] = "powerprof.energy/1"
    window_s: float | None
    meters: list[EnergyReading]
    total: Total
    notes: Notes = []
