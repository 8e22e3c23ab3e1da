# SPDX-License-Identifier: Apache-2.0
"""Draw sweep comparisons, trends, studies and comparisons of statements: each form has the words of its intervals."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.experiment.records import ConditionRecord
from powerprof.experiment.study import build_rows
from powerprof.experiment.sweep_comparison import Trend, TrendPoint, _points, _steps
from powerprof.measure.sampling import interval
from powerprof.model.records import Figures, RunMetric
from powerprof.queries.comparison import compare_queries
from powerprof.report.exports import export, render_markdown
from powerprof.report.kinds import lines_of, word_record
from tests.programs.golden_files import text_of
from tests.unit.experiment.test_studies import STUDY, finding, study_run
from tests.unit.queries.test_comparison import of, window
from tests.unit.report.sample_records import sweep_comparison
from tests.unit.report.test_words_of_comparisons import draw

DRAWS = {"sweep": 120, "trend": 200, "study": 25, "statements": 100}
Interval = tuple[float, float] | None
_SWEEPS, _STUDY_RUN = sweep_comparison(), study_run()


def _metric(chance: random.Random, name: str, level: float) -> RunMetric:
    noise, effect = chance.choice((0.002, 0.02, 0.1)), chance.choice((1.0, 1.0, 1.02, 1.1, 1.2))
    count = chance.choice((2, 3, 5, 8))
    values: list[float | None] = [abs(level * effect * (1 + chance.gauss(0, noise))) for _ in range(count)]
    return RunMetric(name=name, unit="1/s", kind="measured", estimate=interval(values), values=values)


def _sweep(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    """Return two compared sweeps, with the interval and the claim at each value."""
    chance = random.Random(seed)
    both = []
    for value in range(1, chance.choice((2, 3, 6))):
        sides = [[_metric(chance, name, 900.0 * value) for name in ("queries_hz", "wakeups_hz")] for _ in "ab"]
        both.append(tuple(_point(value, metrics) for metrics in sides))
    points = _points(both, [({}, {})] * len(both), "queries_hz", seed)  # type: ignore[arg-type]
    record = word_record(replace(_SWEEPS, points=points, parted_with=[], functions=[], text=""))
    judged = [next(m for m in point.metrics if m.name == "queries_hz") for point in points]
    return record, [(m.difference.ci95, point.parted) for m, point in zip(judged, points, strict=True)]


def _point(value: int, metrics: list[RunMetric]) -> Any:
    from powerprof.experiment.sweep_rounds import Point

    return Point(value=value, metrics=metrics)


def _trend(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    chance = random.Random(seed)
    metrics = [_metric(chance, "queries_hz", 900.0) for _ in range(chance.choice((2, 3, 6)))]

    class Side:
        def __init__(self, metric: RunMetric) -> None:
            self.metrics: Sequence[Figures] = [metric]

    steps = _steps([Side(metric) for metric in metrics], "queries_hz")  # type: ignore[misc]
    points = [
        TrendPoint(run=f"run-{number:04}", started_at="2026-11-20T10:00:00Z", metrics=[metric], step=step)
        for number, (metric, step) in enumerate(zip(metrics, steps, strict=True), 1)
    ]
    condition = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="city/point")
    record = Trend(id=None, command="trend", started_at="", condition=condition, metric="queries_hz", points=points)
    known = [step for step in steps if step is not None]
    return word_record(record), [(step.difference.ci95, step.verdict != "inconclusive") for step in known]


def _study(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    record = draw(seed)
    metrics = [metric for metric in record.metrics if metric.difference.b_minus_a is not None]
    wanted = [finding(m.name, "index:a", "index:b", expected="higher") for m in metrics]
    rows = build_rows(replace(STUDY, findings=wanted), {"index": record}, 1)
    claims = [(m.difference.ci95, m.verdict != "inconclusive") for m in metrics]
    return replace(_STUDY_RUN, rows=rows), claims


def _statements(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    chance = random.Random(seed)
    names = [f"s{number:05}" for number in range(chance.choice((1, 4, 12)))]
    sides = [
        window(
            *(of(name, chance.choice((1.0, 1.0, 1.02, 1.05, 1.5)), chance.choice((3, 60, 400)), 0.3) for name in names)
        )
        for _ in "ab"
    ]
    record = compare_queries(*sides, "2026-01-01T00:00:00.000Z")  # type: ignore[misc]
    claims: list[tuple[Interval, bool]] = []
    for one in record.statements:
        ends = None if one.low is None or one.high is None else (one.low - 1, one.high - 1)
        claims.append((ends, one.became in ("more expensive", "cheaper")))
    return record, claims


def contradictions(record: Any, claims: list[tuple[Interval, bool]]) -> Iterator[str]:
    """Yield each statement that the intervals do not permit; `claims` are intervals and whether each has a verdict."""
    excludes = [ends is not None and not ends[0] <= 0 <= ends[1] for ends, _ in claims]
    hints = sum(out and not claimed for out, (_, claimed) in zip(excludes, claims, strict=True))
    forms = {
        "80": " ".join(" ".join(lines_of(record, 80)).split()),
        "200": " ".join(" ".join(lines_of(record, 200)).split()),
        "page": text_of(export(record, "html").decode()).replace("\n", " "),
    }
    if record.command != "trend":
        forms["markdown"] = render_markdown(record).replace("\\", "").replace("\n", " ")
    for name, text in forms.items():
        if re.search(r"[Nn]o measurable", text) and any(excludes):
            yield f"{name}: no measurable difference in {claims}: {text[:200]}"
        if re.search(r"\d, 95 %", text):
            yield f"{name}: 95 % looks like the unit: {text[:200]}"
        words = len(re.findall(r"may be chance", text))
        explained = len(re.findall(r"May be chance[^:]*: the 95 % interval excludes", text))
        if bool(hints) != bool(words) or explained != bool(hints) or words < hints:
            yield f"{name}: {hints} hints, {words} words, {explained} explanations: {text[:300]}"


_KINDS: dict[str, Callable[[int], tuple[Any, list[tuple[Interval, bool]]]]] = {
    "sweep": _sweep,
    "trend": _trend,
    "study": _study,
    "statements": _statements,
}


@pytest.mark.parametrize("kind", _KINDS)
def test_no_form_contradicts_its_intervals(kind: str) -> None:
    found, with_hint = [], 0
    for seed in range(DRAWS[kind]):
        record, claims = _KINDS[kind](seed)
        found += [f"{seed}: {text}" for text in contradictions(record, claims)]
        with_hint += any(ends and not ends[0] <= 0 <= ends[1] and not claimed for ends, claimed in claims)
    assert not found, (len(found), found[:3])
    assert with_hint > 3
