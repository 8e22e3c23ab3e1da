"""What metrics and units are called in reports, and the prefix with which a small figure is readable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

_METRICS = {
    "c0_ms_per_query_server": "C0 per query, server",
    "c0_ms_per_query": "C0 per query, all",
    "c0_ms_per_query_net": "C0 per query, net of idle",
    "c0_ms_per_query_client": "C0 per query, client",
    "joules_per_query": "energy per query",
    "joules_per_query_net": "energy per query, net of idle",
    "energy_to_solution_joules": "energy to solution",
    "time_to_solution_s": "time to solution",
    "wakeups_per_query": "wake-ups per query",
    "latency_p50_ms": "latency, median",
    "latency_p95_ms": "latency, p95",
    "latency_p99_ms": "latency, p99",
    "edp_joule_seconds": "energy-delay product",
    "rows_examined_per_query": "rows examined per query",
    "queries_hz": "queries per second",
    "c0_percent": "C0 (running)",
    "idle_percent": "idle",
    "wakeups_hz": "wake-ups from idle",
    "watts": "power",
}
_RESIDENCY = re.compile(r"residency_percent:(.+)|(.+) residency_percent", re.DOTALL)
_UNIT_SUFFIX = re.compile(r"_(s|ms|us|ns|hz|percent|joules|watts|bytes|count|mhz)$")
_UNITS = {"us": "µs", "hz": "/s", "percent": "%", "joules": "J", "watts": "W", "count": "", "mhz": "MHz"}
_PREFIXED = {"J", "s", "J·s", "W"}


def metric(name: str) -> str:
    """A metric's name in words; an unknown one is its own."""
    found = _RESIDENCY.fullmatch(name)
    return _METRICS.get(name) or (f"residency in {found[1] or found[2]}" if found else name.replace("_", " "))


def key(name: str) -> tuple[str, str]:
    """A JSON key as words and the unit that its suffix names: `cpu_percent` → ("cpu", "%")."""
    found = _UNIT_SUFFIX.search(name)
    if found is None:
        return name.replace("_", " "), ""
    return name[: found.start()].replace("_", " "), _UNITS.get(found[1], found[1])


def prefix(unit: str, largest: float) -> tuple[str, float]:
    """The unit with m or µ where the figures are small, and what to multiply them by."""
    if unit not in _PREFIXED or not 0 < abs(largest) < 0.1:
        return ("" if unit == "1" else unit), 1.0
    return (f"m{unit}", 1e3) if abs(largest) >= 1e-4 else (f"µ{unit}", 1e6)


def digits(largest: float, significant: int = 3) -> int:
    """Decimals that show that many significant digits of the largest figure of a row, at most six."""
    if not largest:
        return 0 if significant < 3 else 2
    return min(6, max(0, significant - 1 - floor(log10(abs(largest)))))


@dataclass(frozen=True)
class Shown:
    """How the figures of one row are shown: in this unit, times `factor`, with so many decimals."""

    unit: str
    factor: float
    decimals: int


def shown(unit: str, values: Iterable[float | None]) -> Shown:
    """Three significant digits of the largest figure of a row, and two of the smallest as far as four decimals go."""
    known = [abs(value) for value in values if value]
    largest = max(known, default=0.0)
    name, factor = prefix(unit, largest)
    if largest * factor >= 1000:
        return Shown(name, factor, 0)
    least = digits(min(known, default=0.0) * factor, 2)
    return Shown(name, factor, max(digits(largest * factor), min(4, least)))
