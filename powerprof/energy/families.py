# SPDX-License-Identifier: Apache-2.0
"""The models that come with powerprof: one a generation of CPUs, from published results of whole servers."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

from powerprof.energy.models_file import CpuMatch, PowerModel
from powerprof.energy.results import PowerResult, Spread, parse_results, spread_of

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


def _text(name: str) -> str:
    return files("powerprof.energy").joinpath("models", name).read_text(encoding="utf-8")


@cache
def delivered_ratio() -> float:
    """How many times as much as the typical published server of its generation a server drew idle as delivered.

    The largest of those that were metered: benchmarks are run on servers that are tuned to idle well.
    """
    results = published_results()
    return max(
        server.idle_watts / server.cpus / spread_of(results[server.family], "idle").typical
        for server in _families().delivered
    )


def model_from(name: str, results: Sequence[PowerResult], cpus: list[CpuMatch], threads_per_core: int) -> PowerModel:
    """The model of a generation with these results.

    A server as delivered may idle at `delivered_ratio` times the typical figure, but at no more than others draw
    under full load; what it draws more when idle it may draw more under load.
    """
    idle, full, slope = (spread_of(results, what) for what in ("idle", "full", "slope"))
    idle_high = max(idle.high, min(delivered_ratio() * idle.typical, full.high))
    kinds = len({result.cpu for result in results})
    return PowerModel(
        name=name,
        idle_watts=idle.typical,
        full_watts=idle.typical + slope.typical,
        slope_range_watts=(slope.low, slope.high),
        idle_range_watts=(idle.low, idle_high),
        full_range_watts=_at_least(full, idle, idle_high, idle.typical + slope.typical),
        range_from="results",
        results_count=len(results),
        threads_per_core=threads_per_core,
        cpus=cpus,
        source=_SOURCE.format(count=len(results), kinds=kinds),
    )


def _at_least(full: Spread, idle: Spread, idle_high: float, full_typical: float) -> tuple[float, float]:
    """Bounds under full load: around the figure itself, and no narrower than at idle."""
    low = min(full.low, full_typical)
    high = max(full.high + idle_high - idle.high, low + idle_high - idle.low, full_typical)
    return low, high


@cache
def shipped_models() -> tuple[PowerModel, ...]:
    """One model a generation; the last is for every other CPU, with the widest interval."""
    results = published_results()
    models = [
        model_from(family.name, results[family.name], family.cpus, family.threads_per_core)
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
        range_from="results",
        source="the median of all generations, and the widest of their intervals",
    )
