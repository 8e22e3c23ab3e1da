# SPDX-License-Identifier: Apache-2.0
"""Latency in both arms: statements that commit, and the limit that ends a cure."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from powerprof.cure.judge import LatencyWatch, WindowLatencies, count_latencies, judge_blocks
from powerprof.cure.records import Cure, CurePrediction, CureVerdict, Remedy
from powerprof.cure.remedies import CureRequest
from powerprof.experiment.claims import metric_named
from powerprof.model.attribution import TargetInfo
from powerprof.queries.records import Latency
from powerprof.report.cure import announce_lines, render_terminal, word_cure
from powerprof.report.exports import render_html
from powerprof.tracing.captures import RecordedText, StatementTrace, TraceCost, find_latency_class
from tests.unit.cure.test_judging import blocks


def classes(median_ms: float, count: int, seed: int) -> Counter[int]:
    generator = random.Random(seed)
    return Counter(find_latency_class(round(median_ms * 1e6 * generator.lognormvariate(0, 0.5))) for _ in range(count))


def window(median_ms: float, count: int = 1000, seed: int = 1, commits_ms: float | None = None) -> WindowLatencies:
    commits = classes(commits_ms, count, seed + 1) if commits_ms is not None else Counter[int]()
    return WindowLatencies(4.0, classes(median_ms, count, seed) + commits, commits)


def test_count_commits_separately() -> None:
    trace = StatementTrace(
        pid=1,
        window_s=4.0,
        symbol="dispatch_command",
        ends_by="socket",
        process_cpu_ns=1,
        uses=[],
        texts=[
            RecordedText(1, 3, 8, b"SELECT 1"),
            RecordedText(2, 3, 6, b"  commit"),
            RecordedText(3, 3, 6, b"INSERT INTO t"),
        ],
        threads=[],
        latencies={1: {100: 5}, 2: {120: 2}, 3: {120: 1, 130: 4}, 9: {90: 1}},
        dispatches_count=12,
        lost_count=0,
        unreadable_count=0,
        cut_count=0,
        cost=TraceCost(0.0, 0.0),
    )
    counted = count_latencies(trace)
    assert counted.statements == {100: 5, 120: 3, 130: 4, 90: 1}
    assert counted.commits == {120: 3, 130: 4}
    assert counted.commits_ms is not None


def test_find_a_rise_after_the_first_cured_window() -> None:
    watch = LatencyWatch(10.0)
    assert watch.add("before", window(2.0)) is None
    rise = watch.add("cured", window(4.0, seed=7))
    assert rise is not None
    assert rise.what == "statements"
    assert rise.percent == pytest.approx(100, abs=25)


def test_find_a_rise_if_the_cured_window_came_first() -> None:
    watch = LatencyWatch(10.0)
    assert watch.add("cured", window(4.0)) is None
    assert watch.add("before", window(2.0)) is not None


def test_judge_commits_separately() -> None:
    watch = LatencyWatch(10.0)
    assert watch.add("before", window(2.0, 3000, commits_ms=1.0)) is None
    rise = watch.add("cured", WindowLatencies(4.0, classes(2.0, 5000, 3), classes(3.0, 400, 4)))
    assert rise is not None
    assert rise.what == "commits"


def test_accept_equal_latency_in_both_arms() -> None:
    for seed in range(200):
        watch = LatencyWatch(10.0)
        for number in range(8):
            arm = "before" if number % 4 in (0, 3) else "cured"
            assert watch.add(arm, window(2.0, 300, seed * 100 + number)) is None


def test_accept_allowed_rises_and_windows_with_few_statements() -> None:
    watch = LatencyWatch(150.0)
    assert watch.add("before", window(2.0)) is None
    assert watch.add("cured", window(4.0, seed=7)) is None
    few = LatencyWatch(10.0)
    assert few.add("before", window(2.0, 40)) is None
    assert few.add("cured", window(9.0, 40)) is None
    assert few.add("cured", None) is None


def cure(latency_ms: float = 0.0, **more: object) -> Cure:
    made = []
    for number, block in enumerate(blocks(random.Random(1), 98.0, 18.0)):
        p95 = 4.6 + 0.01 * number + (latency_ms if block.arm == "cured" else 0.0)
        took_ms = Latency(p50=1.9, p95=p95, p99=9.0)
        counted = {"statements_count": 250, "statements_s": 5.0, "latency_ms": took_ms}
        made.append(msgspec.structs.replace(block, **counted, commits_count=250, commit_latency_ms=took_ms))
    record = Cure(
        id=None,
        started_at="2026-01-01T00:00:00.000Z",
        target=TargetInfo(pid=1, executable="mysqld", build_id=None, label="mysqld"),
        remedy=Remedy(kind="timer_slack", name="timer slack of t", from_value="50000", to_value="50000000"),
        window_s=5.0,
        blocks_count=len(made),
        order=[block.arm for block in made],
        metrics=judge_blocks(made, "thread_wakings_hz", 1),
        verdict=CureVerdict(metric="thread_wakings_hz", max_p95_percent=10.0),
        reverted=True,
        read_back="50000",
        blocks=made,
    )
    return word_cure(msgspec.structs.replace(record, **more))


def test_report_the_highest_possible_cost() -> None:
    record = cure()
    p95 = metric_named(record.metrics, "commit_p95_ms")
    assert p95 is not None
    assert p95.difference.ci95 is not None
    assert record.verdict.text.startswith("mysqld wakes up ")
    assert f"it costs at most {max(0.0, p95.difference.ci95[1]):.2f} ms of p95 of statements" in record.verdict.text
    assert metric_named(record.metrics, "statements_hz") is not None


def test_report_prediction_and_measurement() -> None:
    record = cure(predicted=CurePrediction(now_hz=98.0, then_hz=18.9, is_bound=False))
    assert any(line.startswith("Predicted 18.9/s, measured ") for line in render_terminal(record))
    request = CureRequest(pid="1", choice=None, pairs=4, window_s=5.0, seed=1)
    lines = announce_lines(record.remedy, "mysqld", 1, request, 44.0, record.predicted)
    assert "Predicted: 98.0 → 18.9 wake-ups/s of the thread." in lines


def test_report_the_reason_of_an_early_end() -> None:
    verdict = CureVerdict(
        metric="thread_wakings_hz", max_p95_percent=10.0, hurts="commits", hurts_from_ms=4.6, hurts_to_ms=6.9
    )
    text = cure(verdict=verdict).verdict.text
    assert text == (
        "Stopped early: p95 latency of statements that commit rose by 50 % (4.60 → 6.90 ms), above the limit of 10 %."
    )


def test_page_contains_arms_windows_and_advice() -> None:
    record = cure(predicted=CurePrediction(now_hz=98.0, then_hz=18.9, is_bound=False))
    page = render_html(record)
    assert "Before and with the change" in page
    assert "Window by window" in page
    assert page.count("before</") >= 4
    assert "Predicted 18.9/s, measured" in page
    assert "To keep it" in page
    assert "p95 of commits" in page
    hurt = CureVerdict(
        metric="thread_wakings_hz", max_p95_percent=10.0, hurts="commits", hurts_from_ms=1, hurts_to_ms=9
    )
    assert "To keep it" not in render_html(cure(verdict=hurt, reverted=False))
    assert "Not restored" in render_html(cure(verdict=hurt, reverted=False))
    assert "To keep it" not in "\n".join(render_terminal(cure(verdict=hurt)))
