# SPDX-License-Identifier: Apache-2.0
"""Sentences of cures: each states what the interval of its row permits."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.experiment.claims import claim_of
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Difference, Metric, Side
from powerprof.experiment.verdict import judge_metrics
from powerprof.model.records import Figures
from powerprof.report.cure import answer_of, word_latency
from tests.unit.report.live_pages import LIVE_PAGES
from tests.unit.report.test_words import draw_values

_NAMES = ("latency_p95_ms", "commit_p95_ms", "replica_delay_ms")
_WHAT = {
    "latency_p95_ms": r"the p95 of statements(?! that)",
    "commit_p95_ms": r"the p95 of statements that commit",
    "replica_delay_ms": r"the replica's delay",
}


def _cure(seed: int) -> Any:
    """Return a cure with drawn figures, of a thread or of the host."""
    chance = random.Random(seed)
    record: Any = LIVE_PAGES["cure"]()
    is_host, pairs = chance.random() < 0.4, chance.choice((3, 4, 5, 12))
    primary = chance.choice(("watts", "c0_percent")) if is_host else "thread_wakings_hz"
    units = {"watts": "W", "c0_percent": "%", "thread_wakings_hz": "1/s"}
    names = [primary, *(name for name in _NAMES if chance.random() < 0.8)]
    compared = []
    for name in names:
        sides = draw_values(chance, pairs)
        kind: Any = "estimated" if name == "watts" and chance.random() < 0.5 else "measured"
        both = [Figures(name=name, unit=units.get(name, "ms"), kind=kind, values=side) for side in sides]
        compared.append(Compared(*both))
    metrics = judge_metrics(compared, primary, seed)
    changes: dict[str, Any] = {"kind": "host", "name": "latency limit", "to_value": "50 µs"} if is_host else {}
    return replace(
        record,
        metrics=metrics,
        remedy=replace(record.remedy, **changes),
        verdict=replace(record.verdict, metric=primary, text=""),
    )


def test_no_answer_contradicts_the_intervals_of_its_rows() -> None:
    classes: set[tuple[str, bool]] = set()
    for seed in range(400):
        record = _cure(seed)
        metric = next((each for each in record.metrics if each.name == record.verdict.metric), None)
        said = answer_of(record)
        if metric is None or metric.a.mean is None or metric.b.mean is None:
            assert said.startswith("No result"), said
            continue
        claim = claim_of(metric)
        kind = (
            "decided"
            if claim.verdict != "inconclusive"
            else "chance"
            if claim.hint
            else "bounded"
            if claim.bound is not None
            else "open"
        )
        classes.add((kind, record.remedy.kind == "host"))
        first = said.partition(": ")[0] if kind != "decided" else said
        assert first.startswith("No measurable change of") == (kind == "bounded"), (seed, said)
        assert said.startswith("Inconclusive") == (kind in ("chance", "open")), (seed, said)
        assert ("may be chance" in said) == (kind == "chance"), (seed, said)
        if kind == "bounded" and claim.bound:
            assert re.search(r"less than [\d.,e−]+", said), (seed, said)
        for name in _NAMES if kind == "decided" and record.remedy.kind != "host" else ():
            row = next((each for each in record.metrics if each.name == name), None)
            assert (row is not None) == bool(re.search(_WHAT[name], said, re.IGNORECASE)), (seed, said)
    assert classes == {(kind, host) for kind in ("decided", "chance", "bounded", "open") for host in (False, True)}


def _latency(mean: float | None, ends: tuple[float, float] | None, verdict: str) -> Metric:
    return Metric(
        name="latency_p95_ms",
        unit="ms",
        kind="measured",
        a=Side(mean=mean, ci95=None),
        b=Side(mean=mean, ci95=None),
        difference=Difference(b_minus_a=None if ends is None else sum(ends) / 2, ci95=ends, percent=None),
        verdict=verdict,  # type: ignore[arg-type]
        minimum_detectable_percent=None,
    )


def test_latency_has_its_direction_and_its_largest_rise() -> None:
    chance = random.Random(3)
    for _ in range(1000):
        mean = 10 ** chance.uniform(-1, 2)
        low, high = sorted(mean * chance.choice((0.01, 0.1, 1.0, 5.0)) * chance.uniform(-1, 1) for _ in "ab")
        direction = "b_higher" if low > 0 else "b_lower" if high < 0 else "inconclusive"
        verdict = chance.choice((direction, "inconclusive"))
        said = word_latency(_latency(mean, (low, high), verdict), "the p95")
        assert ("It raises" in said) == (verdict == "b_higher"), said
        assert ("does not rise" in said) == (high <= 0), said
        assert ("undecided" in said) == (high > mean and verdict != "b_higher"), said
        most = re.search(r"at most ([\d.,e−]+) ms", said)
        assert (most is not None) == (0 < high <= mean), said
        if most is not None:
            assert float(most[1].replace(",", "").replace("−", "-")) == pytest.approx(high, rel=0.01, abs=6e-5)


@pytest.mark.parametrize(
    "metric", [None, _latency(None, (0.0, 1.0), "inconclusive"), _latency(1.0, None, "inconclusive")]
)
def test_a_latency_without_an_interval_is_unknown(metric: Metric | None) -> None:
    assert word_latency(metric, "the p95") == "The effect on the p95 is unknown."
