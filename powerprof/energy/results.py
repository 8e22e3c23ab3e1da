# SPDX-License-Identifier: Apache-2.0
"""Published results of whole servers, and predictions of one more server from them. Pure.

A server with a known kind of CPU is predicted from the results of that kind, another one from the results of its
generation. Both are prediction intervals of the logarithms (mean ± t · s · √(1 + 1/n), as in any textbook on
regression). Few results of a kind, and few kinds of a generation, look more alike than they are. Their variance is
pooled with the variance of all kinds and generations (`Deviations`), each weighted by its number. No interval is
narrower than the middle nine tenths of the published results. Tests that leave one result or one kind out check the
coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec

from powerprof.statistics.distributions import student_quantile
from powerprof.system.errors import DataError

_CONFIDENCE = 0.95
_OUTER = 0.05
# The weight of all generations (kinds) in the pooled variance, as a number of kinds (results of a kind).
_PRIOR_KINDS = 6
_PRIOR_RESULTS = 4
QUANTITIES = ("idle", "full", "slope", "odds")


class PowerResult(msgspec.Struct, frozen=True):
    """One server: watts at the wall when idle and at full load, its logical CPUs, and the threads per core."""

    cpu: str
    cpus: int
    idle_watts: float
    full_watts: float
    threads: int = 1

    def per_cpu(self, what: str) -> float:
        """Return the watts of one logical CPU: `idle`, `full`, or `slope` (running above idle).

        `odds` is idle ÷ slope. It has no unit and does not depend on the number of CPUs.
        """
        slope = self.full_watts - self.idle_watts
        if what == "odds":
            return self.idle_watts / slope
        return {"idle": self.idle_watts, "full": self.full_watts, "slope": slope}[what] / self.cpus


class Spread(msgspec.Struct, frozen=True):
    """The typical value (geometric mean) and the 95 % prediction interval of one more server."""

    typical: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def parse_results(text: str, path: Path | str) -> dict[str, list[PowerResult]]:
    """Return results by generation. Raise DataError with the line.

    A line is `CPU CORES THREADS_PER_CORE: IDLE/FULL …`.
    """
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
            threads_per_core = int(threads)
            servers = [
                PowerResult(cpu, int(cores) * threads_per_core, float(idle), float(full), threads_per_core)
                for idle, full in pairs
            ]
        except ValueError:
            raise DataError(path, "not a line of results", number) from None
        if family is None or any(not 0 < result.idle_watts < result.full_watts for result in servers):
            raise DataError(path, "a result without a generation, or with impossible watts", number)
        family += servers
    return families


class Deviations(msgspec.Struct, frozen=True):
    """Standard deviations of the logarithms by quantity.

    Attributes:
        between: between the kinds of one generation: the median of the generations with three kinds or more.
        within: within one kind, over all kinds.
    """

    between: Mapping[str, float]
    within: Mapping[str, float]


def compute_deviations(generations: Iterable[Sequence[PowerResult]]) -> Deviations:
    """Return the deviations of all these generations."""
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    kinds = [list(group_by_kind(results).values()) for results in generations]
    for what in QUANTITIES:
        logs = [[_list_logs(kind, what) for kind in generation] for generation in kinds]
        between[what] = median(stdev([fmean(kind) for kind in family]) for family in logs if len(family) > 2)
        squares = fsum((x - fmean(kind)) ** 2 for generation in logs for kind in generation for x in kind)
        within[what] = math.sqrt(squares / sum(len(kind) - 1 for generation in logs for kind in generation))
    return Deviations(between, within)


def group_by_kind(results: Iterable[PowerResult]) -> dict[str, list[PowerResult]]:
    """Return the results of each kind of CPU."""
    kinds: dict[str, list[PowerResult]] = {}
    for result in results:
        kinds.setdefault(result.cpu, []).append(result)
    return kinds


def predict_new_kind(results: Sequence[PowerResult], what: str, known: Deviations) -> Spread:
    """Predict a server with a CPU of this generation, of any kind."""
    means = [fmean(_list_logs(kind, what)) for kind in group_by_kind(results).values()]
    freedom = _PRIOR_KINDS + len(means) - 1
    middle = fmean(means)
    squares = _PRIOR_KINDS * known.between[what] ** 2 + fsum((mean - middle) ** 2 for mean in means)
    variance = squares / freedom * (1 + 1 / len(means)) + known.within[what] ** 2
    return _widen(_list_logs(results, what), student_quantile(_CONFIDENCE, freedom) * math.sqrt(variance))


def predict_known_kind(results: Sequence[PowerResult], what: str, known: Deviations) -> Spread:
    """Predict one more server with the same CPU."""
    logs = _list_logs(results, what)
    freedom = _PRIOR_RESULTS + len(logs) - 1
    squares = _PRIOR_RESULTS * known.within[what] ** 2 + fsum((x - fmean(logs)) ** 2 for x in logs)
    return _widen(logs, student_quantile(_CONFIDENCE, freedom) * math.sqrt(squares / freedom * (1 + 1 / len(logs))))


def _list_logs(results: Iterable[PowerResult], what: str) -> list[float]:
    return [math.log(result.per_cpu(what)) for result in results]


def _widen(logs: Sequence[float], half: float) -> Spread:
    mean = fmean(logs)
    low, high = min(mean - half, _find_quantile(logs, _OUTER)), max(mean + half, _find_quantile(logs, 1 - _OUTER))
    return Spread(math.exp(mean), math.exp(low), math.exp(high))


def _find_quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation of the ordered values (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    return ordered[below] + (position - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])
