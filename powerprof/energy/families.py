# SPDX-License-Identifier: Apache-2.0
"""Models from the published results: one per generation of CPUs, one per kind."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import msgspec

from powerprof.energy.models_file import CpuMatch, PowerModel, estimate_range_of
from powerprof.energy.results import (
    Deviations,
    PowerResult,
    Spread,
    compute_deviations,
    parse_results,
    predict_known_kind,
    predict_new_kind,
)
from powerprof.energy.uncertainty import bound_over_range

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
    return parse_results(_read_text("results.txt"), "results.txt")


@cache
def _load_families() -> _Families:
    return msgspec.convert(tomllib.loads(_read_text("families.toml")), _Families)


def list_generations() -> list[tuple[str, list[CpuMatch]]]:
    """Return the name and the CPUs of every generation."""
    return [(family.name, family.cpus) for family in _load_families().family]


def _read_text(name: str) -> str:
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
    typical = {name: _find_typical([result.per_cpu("idle") for result in family]) for name, family in results.items()}
    return max(server.idle_watts / server.cpus / typical[server.family] for server in _load_families().delivered)


@cache
def delivered_excess() -> float:
    """Return the largest ratio of a delivered server's idle watts to a published server with the same CPUs.

    It applies to hosts with a known kind of CPU: the number of cores is then certain.
    """
    published = [result for results in published_results().values() for result in results]
    ratios = []
    for server in _load_families().delivered:
        same = [result.idle_watts for result in published if (result.cpu, result.cpus) == server.beside]
        ratios.append(server.idle_watts / _find_typical(same))
    return max(ratios)


def _find_typical(values: Sequence[float]) -> float:
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
    return _build_model(name, results, Spread(idle.typical, idle.low, high), slope, odds, threads_per_core, cpus)


def model_kind(name: str, results: Sequence[PowerResult]) -> PowerModel:
    """Return the model of one kind of CPU. Delivered servers may idle at `delivered_excess` times the typical watts."""
    deviations = published_deviations()
    idle, slope, odds = (predict_known_kind(results, what, deviations) for what in ("idle", "slope", "odds"))
    return _build_model(
        name, results, _widen_as_delivered(idle), slope, odds, max(result.threads for result in results), []
    )


def _widen_as_delivered(idle: Spread) -> Spread:
    """Return a spread with the doubt about tuning.

    It is independent of the doubt about the server: logarithms add as squares.
    """
    doubt = math.hypot(math.log(idle.high / idle.typical), math.log(delivered_excess()))
    return Spread(idle.typical, idle.low, idle.typical * math.exp(doubt))


def _build_model(
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
        for family in _load_families().family
    ]
    return (*models, _model_unknown_cpu(models))


def _model_unknown_cpu(models: Sequence[PowerModel]) -> PowerModel:
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
