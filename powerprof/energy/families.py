# SPDX-License-Identifier: Apache-2.0
"""Published results of whole servers, and the models that follow from them: one per generation of CPUs, one per kind.

A server with a known kind of CPU is predicted from the results of that kind, another one from the results of its
generation. Both are prediction intervals of the logarithms (mean ± t · s · √(1 + 1/n), as in any textbook on
regression). Few results of a kind, and few kinds of a generation, look more alike than they are. Their variance is
pooled with the variance of all kinds and generations (`Deviations`), each weighted by its number. No interval is
narrower than the middle nine tenths of the published results. Tests that leave one result or one kind out check the
coverage.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import fsum
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec

from powerprof.energy.models_file import CpuIdentity, CpuMatch, PowerModel, bound_over_range, estimate_range_of
from powerprof.model.text import join_words, shorten
from powerprof.statistics.intervals import two_sided_quantile
from powerprof.system.errors import DataError, UsageError
from powerprof.system.files import printable

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
        logs = [[_logs(kind, what) for kind in generation] for generation in kinds]
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
    means = [fmean(_logs(kind, what)) for kind in group_by_kind(results).values()]
    freedom = _PRIOR_KINDS + len(means) - 1
    middle = fmean(means)
    squares = _PRIOR_KINDS * known.between[what] ** 2 + fsum((mean - middle) ** 2 for mean in means)
    variance = squares / freedom * (1 + 1 / len(means)) + known.within[what] ** 2
    return _spread(_logs(results, what), two_sided_quantile(_CONFIDENCE, freedom) * math.sqrt(variance))


def predict_known_kind(results: Sequence[PowerResult], what: str, known: Deviations) -> Spread:
    """Predict one more server with the same CPU."""
    logs = _logs(results, what)
    freedom = _PRIOR_RESULTS + len(logs) - 1
    squares = _PRIOR_RESULTS * known.within[what] ** 2 + fsum((x - fmean(logs)) ** 2 for x in logs)
    return _spread(logs, two_sided_quantile(_CONFIDENCE, freedom) * math.sqrt(squares / freedom * (1 + 1 / len(logs))))


def _logs(results: Iterable[PowerResult], what: str) -> list[float]:
    return [math.log(result.per_cpu(what)) for result in results]


def _spread(logs: Sequence[float], half: float) -> Spread:
    mean = fmean(logs)
    low, high = min(mean - half, _quantile(logs, _OUTER)), max(mean + half, _quantile(logs, 1 - _OUTER))
    return Spread(math.exp(mean), math.exp(low), math.exp(high))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation of the ordered values (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    return ordered[below] + (position - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


# The shipped models.

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
    """Return the published results by generation."""
    return parse_results(_text("results.txt"), "results.txt")


@cache
def _families() -> _Families:
    return msgspec.convert(tomllib.loads(_text("families.toml")), _Families)


def list_generations() -> list[tuple[str, list[CpuMatch]]]:
    """Return the name and the CPUs of every generation."""
    return [(family.name, family.cpus) for family in _families().family]


def _text(name: str) -> str:
    return files("powerprof.energy").joinpath("models", name).read_text(encoding="utf-8")


@cache
def published_deviations() -> Deviations:
    """Return the deviations within one kind of CPU and within one generation, over all published results."""
    return compute_deviations(published_results().values())


@cache
def delivered_ratio() -> float:
    """Return the largest ratio of a delivered server's idle watts per CPU to its generation's typical ones.

    It applies to hosts with a known generation only. Benchmarks run on servers that are tuned to idle well, so the
    largest metered ratio counts.
    """
    results = published_results()
    typical = {name: _geometric_mean([result.per_cpu("idle") for result in family]) for name, family in results.items()}
    return max(server.idle_watts / server.cpus / typical[server.family] for server in _families().delivered)


@cache
def delivered_excess() -> float:
    """Return the largest ratio of a delivered server's idle watts to a published server with the same CPUs.

    It applies to hosts with a known kind of CPU: the number of cores is then certain.
    """
    published = [result for results in published_results().values() for result in results]
    ratios = []
    for server in _families().delivered:
        same = [result.idle_watts for result in published if (result.cpu, result.cpus) == server.beside]
        ratios.append(server.idle_watts / _geometric_mean(same))
    return max(ratios)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def model_generation(
    name: str, results: Sequence[PowerResult], cpus: list[CpuMatch], threads_per_core: int, known: Deviations
) -> PowerModel:
    """Return the model of a generation with these results, for CPUs of any kind.

    A delivered server may idle at `delivered_ratio` times the typical watts, but at no more than others draw at full
    load.
    """
    idle = predict_new_kind(results, "idle", known)
    full, slope, odds = (predict_new_kind(results, what, known) for what in ("full", "slope", "odds"))
    high = max(idle.high, min(delivered_ratio() * idle.typical, full.high))
    return _model(name, results, Spread(idle.typical, idle.low, high), slope, odds, threads_per_core, cpus)


def model_kind(name: str, results: Sequence[PowerResult]) -> PowerModel:
    """Return the model of one kind of CPU. Delivered servers may idle at `delivered_excess` times the typical watts."""
    deviations = published_deviations()
    idle, slope, odds = (predict_known_kind(results, what, deviations) for what in ("idle", "slope", "odds"))
    return _model(name, results, _widen_as_delivered(idle), slope, odds, max(result.threads for result in results), [])


def _widen_as_delivered(idle: Spread) -> Spread:
    """Return a spread with the doubt about tuning.

    It is independent of the doubt about the server: logarithms add as squares.
    """
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
    odds = _widen_as_delivered(odds)
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
    # The possible power at full load is less than the sum of the two ends.
    return msgspec.structs.replace(
        model, full_range_watts=bound_over_range(estimate_range_of(model), lambda idle, slope: idle + slope)
    )


@cache
def shipped_models() -> tuple[PowerModel, ...]:
    """Return one model per generation. The last one is for all other CPUs, with the widest interval."""
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
        idle_watts=median(m.idle_watts for m in models),
        full_watts=median(m.full_watts for m in models),
        slope_range_watts=widest([m.slope_range_watts for m in models if m.slope_range_watts]),
        idle_range_watts=widest([m.idle_range_watts for m in models]),
        full_range_watts=widest([m.full_range_watts for m in models]),
        odds_range=widest([m.odds_range for m in models if m.odds_range]),
        range_from="results",
        source="the median of all generations, and the widest of their intervals",
    )


# Kinds of CPU by name.
_LONGEST = 120
_SHOWN = 4
# Makers add marks, brand words, the clock and the number of cores to the number.
_NOISE = re.compile(r"\((r|tm|c)\)|[®™]|@.*|\b\d+-core\b|\b(cpu|processor|genuine)\b", re.I)
_BRANDS = {
    "AMD": ("AMD", "EPYC"),
    "Intel": ("INTEL", "XEON", "CORE", "PLATINUM", "GOLD", "SILVER", "BRONZE", "ULTRA", "MAX"),
    "Ampere": ("AMPERE", "ALTRA", "MAX"),
}


class CpuKind(msgspec.Struct, frozen=True):
    """One kind of CPU with its published results. `cpus` is set if they are limited to servers of this size."""

    name: str
    generation: str
    results: tuple[PowerResult, ...]
    cpus: int | None = None

    @property
    def title(self) -> str:
        """The name, generation and size for reports."""
        size = f", servers of {self.cpus} CPUs" if self.cpus is not None else ""
        return f"{_full_name(self.name, self.generation)} ({self.generation}{size})"

    def model(self) -> PowerModel:
        """Return the prediction for one more server with this CPU."""
        return model_kind(self.title, self.results)

    def doubts_on(self, cpu: CpuIdentity) -> tuple[str, ...]:
        """Return the reasons against this kind on a host that shows `cpu`."""
        here = next((name for name, cpus in list_generations() if any(match.holds(cpu) for match in cpus)), None)
        if here is None or here == self.generation:
            return ()
        return (f"this host shows a CPU of {here}, and --meter names one of {self.generation}",)


@cache
def _kinds() -> dict[str, CpuKind]:
    return {
        name.upper(): CpuKind(name, generation, tuple(kind))
        for generation, results in published_results().items()
        for name, kind in group_by_kind(results).items()
    }


def find_kind(text: str) -> CpuKind:
    """Return the kind with the given name: `EPYC 7763`, `xeon e5-2699 v4`, as in /proc/cpuinfo, or the number alone.

    A suffix `:256` selects servers with this number of logical CPUs. Raise UsageError with similar names.
    """
    shown = shorten(printable(text), _LONGEST)
    named, colon, size = text.rpartition(":")
    if not colon:
        named = text
    kind = _kinds().get(_model_number(named)) if len(text) <= _LONGEST else None
    if kind is None or not _brand_fits(named, kind.generation):
        raise UsageError(
            f'--meter "model:{shown}": no published result is of such a CPU', _suggest_kinds(named[:_LONGEST])
        )
    if not colon:
        return kind
    sizes = sorted({result.cpus for result in kind.results})
    if not re.fullmatch(r"[0-9]{1,5}", size.strip()) or int(size) not in sizes:
        published = join_words([str(number) for number in sizes])
        raise UsageError(
            f'--meter "model:{shown}": "{shorten(printable(size), 20)}" is not the number of logical CPUs of '
            "a published server",
            f"published are servers of {published}; or leave out the colon and the number",
        )
    results = tuple(result for result in kind.results if result.cpus == int(size))
    return CpuKind(kind.name, kind.generation, results, int(size))


def identify_kind(cpu: CpuIdentity) -> CpuKind | None:
    """Return the kind of a CPU by its name. None if a guest hides the name, or no result is published."""
    name = (cpu.name or "")[:_LONGEST]
    kind = _kinds().get(_model_number(name))
    if kind is None or not _brand_fits(name, kind.generation) or kind.doubts_on(cpu):
        return None
    return kind


def _words(text: str) -> list[str]:
    return _NOISE.sub(" ", text).upper().split()


def _model_number(text: str) -> str:
    """Return a CPU's name without its brand: `E5-2699V4`, `7763`."""
    brands = {word for words in _BRANDS.values() for word in words}
    # Intel wrote a 0 after the number where later CPUs have a v2, and a class before it (Core Ultra 7 255H).
    words = [word for word in _words(text) if word not in brands and not re.fullmatch(r"[0-9]", word)]
    return "".join(words)


def _brand_fits(text: str, generation: str) -> bool:
    """Return whether the brand words of a name, if any, belong to the maker of that generation."""
    brands = _BRANDS[generation.split(maxsplit=1)[0]]
    others = {word for words in _BRANDS.values() for word in words} - set(brands)
    return not others & set(_words(text))


def _full_name(name: str, generation: str) -> str:
    if generation.startswith("Intel"):
        return f"{'Core' if re.match(r'i[0-9]|[0-9]{3}H', name) else 'Xeon'} {name}"
    return f"{'EPYC' if generation.startswith('AMD') else 'Altra'} {name}"


def _suggest_kinds(text: str) -> str:
    """Return a remedy that names CPUs with a similar number, or of the named generation."""
    kinds = _kinds()
    similar = difflib.get_close_matches(_model_number(text), list(kinds), _SHOWN, 0.5)
    words = set(_words(text))
    matches: Sequence[CpuKind] = [kinds[name] for name in similar if _brand_fits(text, kinds[name].generation)]
    if not matches:
        matches = [kind for kind in kinds.values() if words & set(kind.generation.upper().split()[1:])]
        matches = sorted(matches, key=lambda kind: -len(kind.results))[:_SHOWN]
    if not matches:
        return 'write the CPU\'s number as its maker does: --meter "model:EPYC 7763", or leave the CPU out'
    names = join_words([_full_name(kind.name, kind.generation) for kind in matches])
    return f"near are {names}; a CPU without results is estimated by its generation: leave the CPU out"
