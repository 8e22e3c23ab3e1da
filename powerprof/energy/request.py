# SPDX-License-Identifier: Apache-2.0
"""What a caller asks of energy: which meters, and facts for the estimate that this host does not show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Vcpu = Literal["thread", "core"]


@dataclass(frozen=True, kw_only=True)
class EnergyRequest:
    """`source` is that of `--energy-source`, `meter_log` the CSV that an external meter writes.

    `cpu_model` names the CPU under a guest that hides it, as `named.result_of` reads it; `vcpu` says whether one of
    this host's CPUs is a hardware thread or a whole core. None: what can be seen here is gone by.
    """

    source: str = "auto"
    meter_log: Path | None = None
    cpu_model: str | None = None
    vcpu: Vcpu | None = None


# The best meter, and what can be seen.
AS_SEEN = EnergyRequest()
NO_METER = EnergyRequest(source="none")
