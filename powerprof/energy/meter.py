# SPDX-License-Identifier: Apache-2.0
"""What every energy meter is to the rest: something that can be sampled, and energies by domain afterwards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from powerprof.measure.counters import EnergySeries
from powerprof.model.records import Scope


@dataclass(frozen=True)
class DomainEnergy:
    """Energy of one domain of one meter. `inside` names the domain of the same meter that includes it.

    `scope` is what the domain is known to measure: sums go by it, never by the name.
    """

    domain: str
    scope: Scope
    energy: EnergySeries
    inside: str | None = None


class Meter(Protocol):
    """One meter of this host, opened. Times are those of CLOCK_MONOTONIC in seconds."""

    @property
    def name(self) -> str: ...

    @property
    def max_interval_s(self) -> float | None: ...

    def sample(self, now_s: float) -> None: ...

    def is_counting(self) -> bool | None:
        """Whether some figure moved (a counter) or is not zero (watts) so far; None before there are two samples."""
        ...

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]: ...

    def drop_samples(self, before_s: float) -> None:
        """Let go of what no window after `before_s` needs."""
        ...

    def notes(self) -> list[str]: ...

    def close(self) -> None: ...


def rapl_scope(name: str) -> Scope:
    """What a RAPL zone of that name measures (powercap's `name` files; later packages have psys-1 or, as written by
    some kernels, psys-%d)."""
    if re.fullmatch(r"package-\d+(-die-\d+)?", name):
        return "package"
    if re.fullmatch(r"psys(-(\d+|%d))?", name):
        return "psys"
    return "dram" if name == "dram" else "core" if name in ("core", "uncore") else "other"


def distinct_names(domains: list[tuple[str, str | None]]) -> list[str]:
    """Domain names as the meter gives them; those that occur twice (`dram` of two sockets) get their parent before."""
    seen = [name for name, _ in domains]
    return [f"{parent}/{name}" if parent and seen.count(name) > 1 else name for name, parent in domains]
