# SPDX-License-Identifier: Apache-2.0
"""Published results of whole servers, and what they say of one more server of the same generation. Pure.

The interval is a prediction interval for a single further result (mean ± t · s · √(1 + 1/n) of the logarithms, as in
any textbook on regression), and no narrower than the middle nine tenths of what was published: single results may lie
far out. How well it holds is told by leaving each result out in turn (`coverage`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from powerprof.errors import DataError
from powerprof.statistics.student import two_sided

_CONFIDENCE = 0.95
_OUTER = 0.05
# Below it Student's t grows without measure: the least spread, which is of all generations, says enough.
_FREEDOM = 3
# The medians over the generations with ten results and more: where few results, or those of one CPU, are alike,
# other models of their generation are not known to be.
_LEAST_SPREAD = {"idle": 0.30, "full": 0.16, "slope": 0.18}


@dataclass(frozen=True)
class PowerResult:
    """One server: watts at the wall when idle and under full load, and its logical CPUs."""

    cpu: str
    cpus: int
    idle_watts: float
    full_watts: float

    def per_cpu(self, what: str) -> float:
        """Watts of one logical CPU: `idle`, `full`, or `slope`, by which a running one draws more than an idle one."""
        watts = {"idle": self.idle_watts, "full": self.full_watts, "slope": self.full_watts - self.idle_watts}[what]
        return watts / self.cpus


@dataclass(frozen=True)
class Spread:
    """The typical figure (geometric mean) and the interval in which one more server lies in 95 of 100 cases."""

    typical: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def parse_results(text: str, path: Path | str) -> dict[str, list[PowerResult]]:
    """Results by generation, from lines `CPU CORES THREADS_PER_CORE: IDLE/FULL …`. Raises DataError with the line."""
    families: dict[str, list[PowerResult]] = {}
    family: list[PowerResult] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            family = families.setdefault(line[1:-1], [])
            continue
        try:
            head, _, figures = line.partition(":")
            cpu, cores, threads = head.split()
            pairs = [figure.split("/") for figure in figures.split()]
            made = [PowerResult(cpu, int(cores) * int(threads), float(idle), float(full)) for idle, full in pairs]
        except ValueError:
            raise DataError(path, "not a line of results", number) from None
        if family is None or any(not 0 < result.idle_watts < result.full_watts for result in made):
            raise DataError(path, "a result without a generation, or with impossible watts", number)
        family += made
    return families


def spread(values: Sequence[float], kinds: int, least: float = 0.0) -> Spread:
    """Of at least one value, from servers with so many `kinds` of CPU.

    Results of one CPU are alike: the kinds, not the results, are the degrees of freedom. `least` is the standard
    deviation of the logarithms that is assumed at the least.
    """
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    deviation = max(stdev(logs) if len(logs) > 1 else 0.0, least)
    half = two_sided(_CONFIDENCE, max(kinds - 1, _FREEDOM)) * deviation * math.sqrt(1 + 1 / kinds)
    low, high = min(mean - half, _quantile(logs, _OUTER)), max(mean + half, _quantile(logs, 1 - _OUTER))
    return Spread(math.exp(mean), math.exp(low), math.exp(high))


def _quantile(values: Sequence[float], share: float) -> float:
    """By straight lines between the ordered values (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def spread_of(results: Sequence[PowerResult], what: str) -> Spread:
    """The spread of `idle`, `full` or `slope` watts of one logical CPU."""
    return spread(
        [result.per_cpu(what) for result in results], len({result.cpu for result in results}), _LEAST_SPREAD[what]
    )


def coverage(
    results: Sequence[PowerResult], what: str, of: Callable[[Sequence[PowerResult], str], Spread] = spread_of
) -> float:
    """The share of results, in percent, that lie in the interval which the others give."""
    held = [of([*results[:i], *results[i + 1 :]], what).holds(result.per_cpu(what)) for i, result in enumerate(results)]
    return 100 * sum(held) / len(held)
