# SPDX-License-Identifier: Apache-2.0
"""How well the estimate's intervals hold, and how wide they are.

Published results are left out in turn, and whole kinds of CPU, and are predicted from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from powerprof.energy.families import model_generation, model_kind, published_results, shipped_models
from powerprof.energy.models_file import PowerModel, estimate_range_of
from powerprof.energy.results import PowerResult, compute_deviations, group_by_kind
from powerprof.energy.uncertainty import bound_over_range
from tools.bench.figures import Verdict

WANTED_PERCENT = 90.0
ENOUGH = 10
LOADS_PERCENT = (0, 5, 20, 50, 100)


@dataclass(frozen=True)
class Held:
    """Of so many results that were left out, the percentage within the interval of the others, at each load; the least
    of idle, slope and idle ÷ slope as well.
    """

    name: str
    results: int
    loads: tuple[float, ...]
    slope: float
    odds: float

    @property
    def least(self) -> float:
        return min(*self.loads, self.slope, self.odds)


def watts_ends(model: PowerModel, load_percent: float) -> tuple[float, float]:
    """The interval of the watts of one logical CPU that runs so long."""
    return bound_over_range(estimate_range_of(model), lambda idle, slope: idle + slope * load_percent / 100)


def new_kinds() -> list[Held]:
    """Each generation with ten results and three kinds or more, each kind left out of it and of all that is known."""
    published = published_results()
    rows = []
    for name, results in published.items():
        kinds = group_by_kind(results)
        if len(results) < ENOUGH or len(kinds) < 3:
            continue
        tried = []
        for kind, mine in kinds.items():
            rest = [result for result in results if result.cpu != kind]
            known = compute_deviations([rest if other == name else all_of for other, all_of in published.items()])
            tried += [(result, model_generation(name, rest, [], 1, known)) for result in mine]
        rows.append(_held(name, tried))
    return rows


def known_kinds() -> list[Held]:
    """Each kind with so many results that one can be left out, by generation."""
    rows = []
    for name, results in published_results().items():
        tried = []
        for mine in group_by_kind(results).values():
            if len(mine) > 1:
                for number, result in enumerate(mine):
                    rest = [*mine[:number], *mine[number + 1 :]]
                    tried.append((result, model_kind(name, rest)))
        if len(tried) >= ENOUGH:
            rows.append(_held(name, tried))
    return rows


def _held(name: str, tried: Sequence[tuple[PowerResult, PowerModel]]) -> Held:
    def percent(within: Callable[[PowerResult, PowerModel], bool]) -> float:
        return 100 * sum(within(result, model) for result, model in tried) / len(tried)

    def at(load: int) -> Callable[[PowerResult, PowerModel], bool]:
        def within(result: PowerResult, model: PowerModel) -> bool:
            low, high = watts_ends(model, load)
            return low <= result.per_cpu("idle") + result.per_cpu("slope") * load / 100 <= high

        return within

    def between(what: str) -> Callable[[PowerResult, PowerModel], bool]:
        def within(result: PowerResult, model: PowerModel) -> bool:
            low, high = (model.slope_range_watts if what == "slope" else model.odds_range) or (0.0, 0.0)
            return low <= result.per_cpu(what) <= high

        return within

    loads = tuple(percent(at(load)) for load in LOADS_PERCENT)
    return Held(name, len(tried), loads, percent(between("slope")), percent(between("odds")))


def folds(models: Sequence[PowerModel]) -> list[tuple[float, float]]:
    """At each load how many times the lower end the upper one is: the median of the models, and the widest."""
    rows = []
    for load in LOADS_PERCENT:
        each = [high / low for low, high in (watts_ends(model, load) for model in models)]
        rows.append((median(each), max(each)))
    return rows


def run(quick: bool) -> Verdict:
    """Prints both tables; misses where a generation is covered by less than 90 %."""
    del quick  # it measures nothing
    kinds = [
        model_kind(kind, mine)
        for all_of in published_results().values()
        for kind, mine in group_by_kind(all_of).items()
    ]
    for title, found in (("one kind more of a generation", new_kinds()), ("one server more of a kind", known_kinds())):
        print(f"{title}: % of the results that were left out within the interval of the others")
        heads = "".join(f"{f'{load} %':>7}" for load in LOADS_PERCENT)
        print(f"{'':<34}{'n':>4}{heads}{'slope':>8}{'ratio':>8}")
        for row in found:
            cells = "".join(f"{share:7.0f}" for share in row.loads)
            print(f"{row.name:<34}{row.results:>4}{cells}{row.slope:8.0f}{row.odds:8.0f}")
        least = min(row.least for row in found)
        if least < WANTED_PERCENT:
            return Verdict(f"{title}: {least:.0f} % at the least, {WANTED_PERCENT:.0f} % wanted", met=False)
    print("upper ÷ lower end of the watts by C0: median (widest)")
    for title, models in (("by generation", shipped_models()[:-1]), ("by kind", kinds)):
        print(f"{title:<38}{''.join(f'{middle:7.1f} ({most:.1f})' for middle, most in folds(models))}")
    return Verdict(f"every generation is covered to {WANTED_PERCENT:.0f} % or more", met=True)
