# SPDX-License-Identifier: Apache-2.0
"""The models that come with powerprof, from published results of whole servers: one a generation of CPUs,
and one a kind of CPU for hosts that say which they have."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

from powerprof.energy.joint import ends
from powerprof.energy.models_file import CpuMatch, PowerModel, span_of
from powerprof.energy.results import (
    Deviations,
    PowerResult,
    Spread,
    deviations,
    of_known_kind,
    of_new_kind,
    parse_results,
)

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


def generations() -> list[tuple[str, list[CpuMatch]]]:
    """The names of the generations, and the CPUs that are of them."""
    return [(family.name, family.cpus) for family in _families().family]


def _text(name: str) -> str:
    return files("powerprof.energy").joinpath("models", name).read_text(encoding="utf-8")


@cache
def known_deviations() -> Deviations:
    """What all published results show of one kind of CPU and of one generation."""
    return deviations(published_results().values())


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


def model_from(
    name: str, results: Sequence[PowerResult], cpus: list[CpuMatch], threads_per_core: int, known: Deviations
) -> PowerModel:
    """The model of a generation with these results, for CPUs of whatever kind.

    A server as delivered may idle at `delivered_ratio` times the typical figure, but at no more than others draw
    under full load.
    """
    idle = of_new_kind(results, "idle", known)
    full, slope, odds = (of_new_kind(results, what, known) for what in ("full", "slope", "odds"))
    high = max(idle.high, min(delivered_ratio() * idle.typical, full.high))
    return _model(name, results, Spread(idle.typical, idle.low, high), slope, odds, threads_per_core, cpus)


def kind_model(name: str, results: Sequence[PowerResult], known: Deviations | None = None) -> PowerModel:
    """The model of one kind of CPU with these results; as delivered it may idle at `delivered_excess` times as much."""
    among = known or known_deviations()
    idle, slope, odds = (of_known_kind(results, what, among) for what in ("idle", "slope", "odds"))
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
    return msgspec.structs.replace(model, full_range_watts=ends(span_of(model), lambda idle, slope: idle + slope))


@cache
def shipped_models() -> tuple[PowerModel, ...]:
    """One model a generation; the last is for every other CPU, with the widest interval."""
    results = published_results()
    models = [
        model_from(family.name, results[family.name], family.cpus, family.threads_per_core, known_deviations())
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
