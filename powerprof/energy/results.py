# SPDX-License-Identifier: Apache-2.0
"""Published results of whole servers, and what they say of one more server. Pure.

A server of a known kind of CPU is predicted from the results of that kind, one of another kind from those of its
generation. Both are prediction intervals of the logarithms (mean ± t · s · √(1 + 1/n), as in any textbook on
regression). Few results of a kind, and few kinds of a generation, look more alike than they are: their variance is
taken together with what all kinds and generations show (`Deviations`), each by its number. No interval is narrower
than the middle nine tenths of what was published. How well they hold is tested by leaving a result (`coverage`) or a
whole kind (`coverage_of_new_kinds`) out in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import fmean, median, stdev

from powerprof.statistics.intervals import two_sided
from powerprof.system.errors import DataError

_CONFIDENCE = 0.95
_OUTER = 0.05
# How many kinds (results of a kind) what all generations (kinds) show counts for.
_PRIOR_KINDS = 6
_PRIOR_RESULTS = 4
QUANTITIES = ("idle", "full", "slope", "odds")


@dataclass(frozen=True)
class PowerResult:
    """One server: watts at the wall when idle and under full load, its logical CPUs, and how many share a core."""

    cpu: str
    cpus: int
    idle_watts: float
    full_watts: float
    threads: int = 1

    def per_cpu(self, what: str) -> float:
        """Watts of one logical CPU: `idle`, `full`, or `slope`, by which a running one draws more than an idle one.

        `odds` is idle ÷ slope, which has no unit and does not depend on the number of CPUs.
        """
        slope = self.full_watts - self.idle_watts
        if what == "odds":
            return self.idle_watts / slope
        return {"idle": self.idle_watts, "full": self.full_watts, "slope": slope}[what] / self.cpus


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
            shared = int(threads)
            made = [PowerResult(cpu, int(cores) * shared, float(idle), float(full), shared) for idle, full in pairs]
        except ValueError:
            raise DataError(path, "not a line of results", number) from None
        if family is None or any(not 0 < result.idle_watts < result.full_watts for result in made):
            raise DataError(path, "a result without a generation, or with impossible watts", number)
        family += made
    return families


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the logarithms, by quantity: `between` the kinds of one generation (the median of the
    generations with three kinds or more), and `within` one kind (all kinds together)."""

    between: Mapping[str, float]
    within: Mapping[str, float]


def compute_deviations(generations: Iterable[Sequence[PowerResult]]) -> Deviations:
    """What these generations show together."""
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    kinds = [list(group_by_kind(results).values()) for results in generations]
    for what in QUANTITIES:
        logs = [[_logs(kind, what) for kind in generation] for generation in kinds]
        between[what] = median(stdev([fmean(kind) for kind in one]) for one in logs if len(one) > 2)
        squares = fsum((x - fmean(kind)) ** 2 for one in logs for kind in one for x in kind)
        within[what] = math.sqrt(squares / sum(len(kind) - 1 for one in logs for kind in one))
    return Deviations(between, within)


def group_by_kind(results: Iterable[PowerResult]) -> dict[str, list[PowerResult]]:
    """The results of each kind of CPU."""
    kinds: dict[str, list[PowerResult]] = {}
    for result in results:
        kinds.setdefault(result.cpu, []).append(result)
    return kinds


def predict_new_kind(results: Sequence[PowerResult], what: str, known: Deviations) -> Spread:
    """A server with a CPU of this generation, of whatever kind."""
    means = [fmean(_logs(kind, what)) for kind in group_by_kind(results).values()]
    freedom = _PRIOR_KINDS + len(means) - 1
    middle = fmean(means)
    squares = _PRIOR_KINDS * known.between[what] ** 2 + fsum((mean - middle) ** 2 for mean in means)
    variance = squares / freedom * (1 + 1 / len(means)) + known.within[what] ** 2
    return _spread(_logs(results, what), two_sided(_CONFIDENCE, freedom) * math.sqrt(variance))


def predict_known_kind(results: Sequence[PowerResult], what: str, known: Deviations) -> Spread:
    """One more server with the same CPU."""
    logs = _logs(results, what)
    freedom = _PRIOR_RESULTS + len(logs) - 1
    squares = _PRIOR_RESULTS * known.within[what] ** 2 + fsum((x - fmean(logs)) ** 2 for x in logs)
    return _spread(logs, two_sided(_CONFIDENCE, freedom) * math.sqrt(squares / freedom * (1 + 1 / len(logs))))


def _logs(results: Iterable[PowerResult], what: str) -> list[float]:
    return [math.log(result.per_cpu(what)) for result in results]


def _spread(logs: Sequence[float], half: float) -> Spread:
    mean = fmean(logs)
    low, high = min(mean - half, _quantile(logs, _OUTER)), max(mean + half, _quantile(logs, 1 - _OUTER))
    return Spread(math.exp(mean), math.exp(low), math.exp(high))


def _quantile(values: Sequence[float], share: float) -> float:
    """By straight lines between the ordered values (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


Predicted = Callable[[Sequence[PowerResult]], Spread]


def measure_coverage(results: Sequence[PowerResult], what: str, of: Predicted) -> float:
    """The share of results, in percent, that lie in the interval which the others give."""
    held = [of([*results[:i], *results[i + 1 :]]).holds(result.per_cpu(what)) for i, result in enumerate(results)]
    return 100 * sum(held) / len(held)


def measure_new_kind_coverage(results: Sequence[PowerResult], what: str, of: Predicted) -> float:
    """The share of results, in percent, that lie in the interval which the other kinds of CPU give."""
    held = 0
    for kind, mine in group_by_kind(results).items():
        predicted = of([result for result in results if result.cpu != kind])
        held += sum(predicted.holds(result.per_cpu(what)) for result in mine)
    return 100 * held / len(results)
