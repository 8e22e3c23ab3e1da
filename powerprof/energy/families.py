# SPDX-License-Identifier: Apache-2.0
"""The models that come with powerprof, from published results of whole servers: one a generation of CPUs,
and one a kind of CPU for hosts that say which they have."""

from __future__ import annotations

import difflib
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from powerprof.energy.models_file import CpuIdentity, CpuMatch, PowerModel, estimate_range_of
from powerprof.energy.results import (
    Deviations,
    PowerResult,
    Spread,
    compute_deviations,
    group_by_kind,
    parse_results,
    predict_known_kind,
    predict_new_kind,
)
from powerprof.model.records import EstimateRange
from powerprof.model.text import join_words, shorten
from powerprof.system.errors import UsageError
from powerprof.system.files import printable

# What the model does not know, taken together: which pairs of idle watts and slope are possible. Pure.
#
# Three intervals are known: of the idle watts, of the slope (what a running CPU draws above an idle one) and of their
# ratio. A server lies in all three, so the pairs that are possible fill a polygon. A difference or a ratio between two
# loads is judged with one pair for both, never with one end for one of them and the other end for the other: that is
# why it is known better than the watts themselves. Joules are linear in the pair, and the quotient of two linear
# functions has its extremes where they have theirs, so that the corners are enough.

# Idle watts and slope.
Pair = tuple[float, float]


def find_corners(span: EstimateRange) -> list[Pair]:
    """The corners of what is possible; those of the box where the ratio's interval is unknown or contradicts it."""
    box = [
        (span.idle_low_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_low_watts),
        (span.idle_high_watts, span.slope_high_watts),
        (span.idle_low_watts, span.slope_high_watts),
    ]
    if span.odds_low is None or span.odds_high is None:
        return box
    low, high = span.odds_low, span.odds_high
    cut = _clipped(box, lambda pair: pair[0] - low * pair[1])
    return _clipped(cut, lambda pair: high * pair[1] - pair[0]) or box


def _clipped(polygon: list[Pair], inside: Callable[[Pair], float]) -> list[Pair]:
    """The part of a convex polygon where a linear function is not below 0 (Sutherland and Hodgman)."""
    kept: list[Pair] = []
    for number, here in enumerate(polygon):
        before = polygon[number - 1]
        this, last = inside(here), inside(before)
        if (this >= 0) != (last >= 0):
            part = last / (last - this)
            kept.append((before[0] + part * (here[0] - before[0]), before[1] + part * (here[1] - before[1])))
        if this >= 0:
            kept.append(here)
    return kept


def bound_over_range(span: EstimateRange, of: Callable[[float, float], float]) -> tuple[float, float]:
    """The least and the most that a function of idle watts and slope can be: joules, or a quotient of joules."""
    values = [of(idle, slope) for idle, slope in find_corners(span)]
    return min(values), max(values)


GENERIC = "generic"
_SOURCE = (
    "{count} SPECpower_ssj2008 results of {kinds} kinds of CPU, published until 2026-02, as listed by "
    "ccf-coefficients, data/SPECpower-2026-03-09.csv"
)


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    cpus: list[CpuMatch]
    threads_per_core: int = 2


class _Delivered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    family: str
    cpus: int
    idle_watts: float
    beside: tuple[str, int]
    source: str


class _Families(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    family: list[_Family]
    delivered: list[_Delivered]


@cache
def published_results() -> dict[str, list[PowerResult]]:
    """Single results by generation."""
    return parse_results(_text("results.txt"), "results.txt")


@cache
def _families() -> _Families:
    return msgspec.convert(tomllib.loads(_text("families.toml")), _Families)


def list_generations() -> list[tuple[str, list[CpuMatch]]]:
    """The names of the generations, and the CPUs that are of them."""
    return [(family.name, family.cpus) for family in _families().family]


def _text(name: str) -> str:
    return files("powerprof.energy").joinpath("models", name).read_text(encoding="utf-8")


@cache
def published_deviations() -> Deviations:
    """What all published results show of one kind of CPU and of one generation."""
    return compute_deviations(published_results().values())


@cache
def delivered_ratio() -> float:
    """How many times as much as the typical published server of its generation a server drew idle as delivered, by
    logical CPU: for a host of which no more than the generation is known.

    The largest of those that were metered: benchmarks are run on servers that are tuned to idle well.
    """
    results = published_results()
    typical = {name: _typical([one.per_cpu("idle") for one in mine]) for name, mine in results.items()}
    return max(server.idle_watts / server.cpus / typical[server.family] for server in _families().delivered)


@cache
def delivered_excess() -> float:
    """As `delivered_ratio`, of a whole server beside the published one of as many chips: where the kind is known, the
    number of its cores is no doubt any more."""
    every = [result for results in published_results().values() for result in results]
    found = []
    for server in _families().delivered:
        beside = [one.idle_watts for one in every if (one.cpu, one.cpus) == server.beside]
        found.append(server.idle_watts / _typical(beside))
    return max(found)


def _typical(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def model_generation(
    name: str, results: Sequence[PowerResult], cpus: list[CpuMatch], threads_per_core: int, known: Deviations
) -> PowerModel:
    """The model of a generation with these results, for CPUs of whatever kind.

    A server as delivered may idle at `delivered_ratio` times the typical figure, but at no more than others draw
    under full load.
    """
    idle = predict_new_kind(results, "idle", known)
    full, slope, odds = (predict_new_kind(results, what, known) for what in ("full", "slope", "odds"))
    high = max(idle.high, min(delivered_ratio() * idle.typical, full.high))
    return _model(name, results, Spread(idle.typical, idle.low, high), slope, odds, threads_per_core, cpus)


def model_kind(name: str, results: Sequence[PowerResult], known: Deviations | None = None) -> PowerModel:
    """The model of one kind of CPU with these results; as delivered it may idle at `delivered_excess` times as much."""
    among = known or published_deviations()
    idle, slope, odds = (predict_known_kind(results, what, among) for what in ("idle", "slope", "odds"))
    return _model(name, results, _delivered_too(idle), slope, odds, max(result.threads for result in results), [])


def _delivered_too(idle: Spread) -> Spread:
    """Two doubts that have nothing to do with each other: of the tuning and of the server. Their logarithms add up as
    squares do."""
    doubt = math.hypot(math.log(idle.high / idle.typical), math.log(delivered_excess()))
    return Spread(idle.typical, idle.low, idle.typical * math.exp(doubt))


def _model(
    name: str,
    results: Sequence[PowerResult],
    idle: Spread,
    slope: Spread,
    odds: Spread,
    threads_per_core: int,
    cpus: list[CpuMatch],
) -> PowerModel:
    odds = _delivered_too(odds)
    model = PowerModel(
        name=name,
        idle_watts=idle.typical,
        full_watts=idle.typical + slope.typical,
        slope_range_watts=(slope.low, slope.high),
        idle_range_watts=(idle.low, idle.high),
        full_range_watts=(idle.low + slope.low, idle.high + slope.high),
        odds_range=(odds.low, odds.high),
        range_from="results",
        results_count=len(results),
        threads_per_core=threads_per_core,
        cpus=cpus,
        source=_SOURCE.format(count=len(results), kinds=len({result.cpu for result in results})),
    )
    # What is possible under full load is less than the sum of the ends.
    return msgspec.structs.replace(
        model, full_range_watts=bound_over_range(estimate_range_of(model), lambda idle, slope: idle + slope)
    )


@cache
def shipped_models() -> tuple[PowerModel, ...]:
    """One model a generation; the last is for every other CPU, with the widest interval."""
    results = published_results()
    models = [
        model_generation(
            family.name, results[family.name], family.cpus, family.threads_per_core, published_deviations()
        )
        for family in _families().family
    ]
    return (*models, _generic(models))


def _generic(models: Sequence[PowerModel]) -> PowerModel:
    def widest(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    return PowerModel(
        name=GENERIC,
        idle_watts=statistics.median(m.idle_watts for m in models),
        full_watts=statistics.median(m.full_watts for m in models),
        slope_range_watts=widest([m.slope_range_watts for m in models if m.slope_range_watts]),
        idle_range_watts=widest([m.idle_range_watts for m in models]),
        full_range_watts=widest([m.full_range_watts for m in models]),
        odds_range=widest([m.odds_range for m in models if m.odds_range]),
        range_from="results",
        source="the median of all generations, and the widest of their intervals",
    )


# Kinds of CPU by name: which published results are of the CPU that a host shows or that a person names.

_LONGEST = 120
_SHOWN = 4
# What makers write beside the number: marks, words of the brand, the clock and the number of cores.
_NOISE = re.compile(r"\((r|tm|c)\)|[®™]|@.*|\b\d+-core\b|\b(cpu|processor|genuine)\b", re.I)
_BRANDS = {
    "AMD": ("AMD", "EPYC"),
    "Intel": ("INTEL", "XEON", "CORE", "PLATINUM", "GOLD", "SILVER", "BRONZE", "ULTRA", "MAX"),
    "Ampere": ("AMPERE", "ALTRA", "MAX"),
}


@dataclass(frozen=True)
class CpuKind:
    """One kind of CPU of the table, and its published results, of servers of one size where that was asked for."""

    name: str
    generation: str
    results: tuple[PowerResult, ...]
    cpus: int | None = None

    @property
    def title(self) -> str:
        size = f", servers of {self.cpus} CPUs" if self.cpus is not None else ""
        return f"{_full_name(self.name, self.generation)} ({self.generation}{size})"

    def model(self) -> PowerModel:
        """What the results say of one more server with this CPU."""
        return model_kind(self.title, self.results)

    def doubts_on(self, cpu: CpuIdentity) -> tuple[str, ...]:
        """What speaks against it on a host that shows this CPU."""
        here = next((name for name, cpus in list_generations() if any(match.holds(cpu) for match in cpus)), None)
        if here is None or here == self.generation:
            return ()
        return (f"this host shows a CPU of {here}, and --cpu-model names one of {self.generation}",)


@cache
def _kinds() -> dict[str, CpuKind]:
    return {
        name.upper(): CpuKind(name, generation, tuple(mine))
        for generation, results in published_results().items()
        for name, mine in group_by_kind(results).items()
    }


def find_kind(text: str) -> CpuKind:
    """The CPU that a person names: `EPYC 7763`, `xeon e5-2699 v4`, as /proc/cpuinfo has it, or by the number alone.

    With `:256` behind it only servers of so many logical CPUs. Raises UsageError, with names that are near.
    """
    shown = shorten(printable(text), _LONGEST)
    named, colon, size = text.rpartition(":")
    if not colon:
        named = text
    kind = _kinds().get(_number(named)) if len(text) <= _LONGEST else None
    if kind is None or not _brand_fits(named, kind.generation):
        raise UsageError(f'--cpu-model "{shown}": no published result is of such a CPU', _near(named[:_LONGEST]))
    if not colon:
        return kind
    sizes = sorted({result.cpus for result in kind.results})
    if not re.fullmatch(r"[0-9]{1,5}", size.strip()) or int(size) not in sizes:
        published = join_words([str(number) for number in sizes])
        raise UsageError(
            f'--cpu-model "{shown}": "{shorten(printable(size), 20)}" is no number of logical CPUs of a '
            "published server",
            f"published are servers of {published}; or leave out the colon and what follows",
        )
    mine = tuple(result for result in kind.results if result.cpus == int(size))
    return CpuKind(kind.name, kind.generation, mine, int(size))


def identify_kind(cpu: CpuIdentity) -> CpuKind | None:
    """The kind that this CPU says it is; None where a guest hides the name, or no result is published."""
    name = (cpu.name or "")[:_LONGEST]
    kind = _kinds().get(_number(name))
    if kind is None or not _brand_fits(name, kind.generation) or kind.doubts_on(cpu):
        return None
    return kind


def _words(text: str) -> list[str]:
    return _NOISE.sub(" ", text).upper().split()


def _number(text: str) -> str:
    """What is left of a name without its brand: `E5-2699V4`, `7763`."""
    brands = {word for words in _BRANDS.values() for word in words}
    # Intel wrote a 0 behind the number where later CPUs have a v2, and a class before it (Core Ultra 7 255H).
    words = [word for word in _words(text) if word not in brands and not re.fullmatch(r"[0-9]", word)]
    return "".join(words)


def _brand_fits(text: str, generation: str) -> bool:
    """Whether the brand's words, where there are any, are of that generation's maker."""
    mine = _BRANDS[generation.split(maxsplit=1)[0]]
    others = {word for words in _BRANDS.values() for word in words} - set(mine)
    return not others & set(_words(text))


def _full_name(name: str, generation: str) -> str:
    if generation.startswith("Intel"):
        return f"{'Core' if re.match(r'i[0-9]|[0-9]{3}H', name) else 'Xeon'} {name}"
    return f"{'EPYC' if generation.startswith('AMD') else 'Altra'} {name}"


def _near(text: str) -> str:
    """A remedy that names CPUs which the text may mean: alike by their numbers, or of the generation that it names."""
    kinds = _kinds()
    alike = difflib.get_close_matches(_number(text), list(kinds), _SHOWN, 0.5)
    words = set(_words(text))
    found: Sequence[CpuKind] = [kinds[name] for name in alike if _brand_fits(text, kinds[name].generation)]
    if not found:
        found = [kind for kind in kinds.values() if words & set(kind.generation.upper().split()[1:])]
        found = sorted(found, key=lambda kind: -len(kind.results))[:_SHOWN]
    if not found:
        return 'write the CPU\'s number as its maker does: --cpu-model "EPYC 7763", or leave --cpu-model out'
    names = join_words([_full_name(kind.name, kind.generation) for kind in found])
    return f"near are {names}; a CPU without results is estimated by its generation: leave --cpu-model out"
