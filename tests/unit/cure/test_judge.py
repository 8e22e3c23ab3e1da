# SPDX-License-Identifier: Apache-2.0
"""Windows of a cure: metrics, verdicts, the limit on latency, replicas and the record."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from powerprof.cure import judge, remedies, replicas, session
from powerprof.cure.judge import (
    LatencyRise,
    LatencyWatch,
    WindowLatencies,
    choose_primary,
    count_latencies,
    explain_no_trial,
    judge_blocks,
    waits_by_wall_clock,
)
from powerprof.cure.records import Arm, CureBlock, CurePrediction, Remedy
from powerprof.cure.remedies import CureRequest, PlannedChange, VariableChoice, parse_slack
from powerprof.cure.replicas import COMMITTED, RECEIVED, ReplicaSampler, summarize_looks
from powerprof.cure.session import SwitchCounter, _format_so_far, _order_windows, _Trial, estimate_seconds
from powerprof.cure.threads import slack_text
from powerprof.database.base import ReplicationStatus
from powerprof.experiment.plan import block_order
from powerprof.model.attribution import Thread
from powerprof.model.records import EnergyReading, StateResidency, Window
from powerprof.queries.records import Latency
from powerprof.reversible.host_settings import FileAway, HostFile
from powerprof.reversible.journal import SavedSetting
from powerprof.system.errors import PowerprofError
from powerprof.system.targets import Target
from powerprof.tracing.captures import RecordedText, StatementTrace, TraceCost, find_latency_class
from powerprof.tracing.idle_data import CAUSE

_NAMES: dict[str, Arm] = {"a": "before", "b": "cured"}
_WINDOW_S = 5.0


def blocks(generator: random.Random, before_hz: float, cured_hz: float, pairs: int = 4) -> list[CureBlock]:
    """Return windows of a thread with a rate that drifts and wanders; the idle exits of the host scatter more."""
    made = []
    level, drift = 1.0, generator.gauss(0, 0.01)
    for pair, arms in enumerate(block_order(pairs, generator.randrange(1 << 30))):
        for arm in arms:
            level += drift + generator.gauss(0, 0.005)
            rate = (before_hz if _NAMES[arm] == "before" else cured_hz) * level
            count = max(0, round(generator.gauss(rate * _WINDOW_S, (rate * _WINDOW_S) ** 0.5 / 3)))
            window = Window(
                started_at="2026-01-01T00:00:00.000Z",
                window_s=_WINDOW_S,
                cpus=2,
                c0_percent=5 + generator.gauss(0, 1),
                idle_percent=95.0,
                wakeups_hz=300 * level + generator.gauss(0, 30),
                states=[],
                energy=[
                    EnergyReading(source="rapl", domain="package-0", kind="measured", joules=50.0, watts=10 + level)
                ],
            )
            made.append(
                CureBlock(
                    pair=pair,
                    arm=_NAMES[arm],
                    window=window,
                    counted_s=_WINDOW_S,
                    thread_wakings_count=count,
                    target_wakings_count=count + 100,
                    traced_wakings_count=count,
                    traced_s=_WINDOW_S,
                )
            )
    return made


@pytest.mark.parametrize("pairs", [3, 4])
def test_claim_no_change_of_an_unchanged_setting(pairs: int) -> None:
    generator = random.Random(pairs)
    tried = [judge_blocks(blocks(generator, 98.0, 98.0, pairs), "thread_wakings_hz", 1) for _ in range(60)]
    claimed = [any(metric.verdict != "inconclusive" for metric in metrics) for metrics in tried]
    assert not any(claimed[:20])
    assert sum(claimed) <= 2  # 1.5 % of 60 is one


def test_widen_intervals_of_constant_counts_by_one_count() -> None:
    generator = random.Random(0)
    still = [
        CureBlock(
            pair=pair,
            arm=arm,
            window=blocks(generator, 1.0, 1.0, 1)[0].window,
            counted_s=_WINDOW_S,
            thread_wakings_count=500 if arm == "before" else cured,
            target_wakings_count=0,
        )
        for cured in (100,)
        for pair in range(3)
        for arm in ("before", "cured")
    ]
    first = judge_blocks(still, "thread_wakings_hz", 1)[0]
    assert first.verdict == "b_lower"
    low, high = first.difference.ci95 or (0.0, 0.0)
    assert 0.2 <= high - low <= 1.5  # The other rows scatter.


def classes(median_ms: float, count: int, seed: int) -> Counter[int]:
    generator = random.Random(seed)
    return Counter(find_latency_class(round(median_ms * 1e6 * generator.lognormvariate(0, 0.5))) for _ in range(count))


def window(median_ms: float, count: int = 1000, seed: int = 1, commits_ms: float | None = None) -> WindowLatencies:
    commits = classes(commits_ms, count, seed + 1) if commits_ms is not None else Counter[int]()
    return WindowLatencies(4.0, classes(median_ms, count, seed) + commits, commits)


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


ARMS: tuple[Arm, Arm] = ("before", "cured")
REQUEST = CureRequest(pid="71", choice=None, pairs=4, window_s=5.0, seed=3, max_p95_percent=12.5, guard_percentile=99)


def odd_block(pair: int, arm: Arm) -> CureBlock:
    """A window in which every figure is known and odd; each was counted over a time of its own."""
    k = 1 + 0.07 * pair + (0.31 if arm == "cured" else 0.0)
    length_s = 4.7 + 0.3 * pair + (0.2 if arm == "cured" else 0.0)

    def state(name: str, polling: float | None = None) -> StateResidency:
        return StateResidency(
            name=name, residency_percent=31.0, average_residency_ms=None, entries_hz=None, polling=polling is not None,
            polling_percent=polling,
        )  # fmt: skip

    latencies_of = Window(
        started_at="",
        window_s=length_s,
        cpus=3,
        c0_percent=13.0 * k,
        idle_percent=100 - 13.0 * k,
        wakeups_hz=311.0 * k,
        states=[state("POLL", 1.1 * k), state("POLL2", 0.7 * k), state("C1")],
        energy=[
            EnergyReading(source="rapl", domain="package-0", kind="measured", joules=17 * k * length_s, watts=17 * k)
        ],
        notes=["odd"] if pair == 1 else [],
    )
    return CureBlock(
        pair=pair,
        arm=arm,
        window=latencies_of,
        counted_s=length_s + 0.11,
        thread_wakings_count=round(97 * k),
        target_wakings_count=round(709 * k),
        traced_wakings_count=round(89 * k),
        traced_s=length_s - 0.13,
        thread_exits_count=round(61 * k),
        target_exits_count=round(503 * k),
        statements_count=round(1201 * k),
        statements_s=length_s - 0.29,
        latency_ms=Latency(p50=1.3 * k, p95=4.1 * k, p99=9.7 * k),
        commits_count=round(211 * k),
        commit_latency_ms=Latency(p50=2.3 * k, p95=6.1 * k, p99=19.7 * k),
        replica_looks_count=20 + pair,
        replica_stopped_count=2,
        replica_lag_s=0.9 * k,
        replica_backlog_bytes=5003.0 * k,
        replica_delay_ms=37.0 * k,
        replica_delay_source=RECEIVED,
    )


def odd_blocks(pairs: int = 3) -> list[CureBlock]:
    return [odd_block(pair, arm) for pair in range(pairs) for arm in (ARMS if pair % 2 else ARMS[::-1])]


def length(block: CureBlock) -> float:
    assert block.window.window_s is not None
    return block.window.window_s


FIGURES: dict[str, Callable[[CureBlock], float]] = {
    "thread_wakings_hz": lambda b: (b.thread_wakings_count or 0) / b.counted_s,
    "thread_wakings_traced_hz": lambda b: (b.traced_wakings_count or 0) / (b.traced_s or 1),
    "thread_idle_exits_hz": lambda b: (b.thread_exits_count or 0) / length(b),
    "target_wakings_hz": lambda b: b.target_wakings_count / b.counted_s,
    "target_idle_exits_hz": lambda b: (b.target_exits_count or 0) / length(b),
    "host_idle_exits_hz": lambda b: b.window.wakeups_hz or 0,
    "c0_percent": lambda b: b.window.c0_percent or 0,
    "polling_percent": lambda b: sum(state.polling_percent or 0 for state in b.window.states),
    "statements_hz": lambda b: (b.statements_count or 0) / (b.statements_s or 1),
    "latency_p50_ms": lambda b: b.latency_ms.p50 if b.latency_ms else 0,
    "latency_p95_ms": lambda b: b.latency_ms.p95 if b.latency_ms else 0,
    "latency_p99_ms": lambda b: (b.latency_ms.p99 or 0) if b.latency_ms else 0,
    "commit_p50_ms": lambda b: b.commit_latency_ms.p50 if b.commit_latency_ms else 0,
    "commit_p95_ms": lambda b: b.commit_latency_ms.p95 if b.commit_latency_ms else 0,
    "replica_lag_s": lambda b: b.replica_lag_s or 0,
    "replica_backlog_bytes": lambda b: b.replica_backlog_bytes or 0,
    "replica_delay_ms": lambda b: b.replica_delay_ms or 0,
    "watts": lambda b: b.window.energy[0].watts or 0,
}


def test_every_metric_is_a_figure_of_its_window_before_and_cured() -> None:
    own = odd_blocks()
    found = {metric.name: metric for metric in judge_blocks([*own, odd_block(7, "before")], "c0_percent", 1)}
    assert found.keys() == FIGURES.keys() and next(iter(found)) == "c0_percent"
    for name, of in FIGURES.items():
        a, b = ([of(block) for block in sorted(own, key=lambda b: b.pair) if block.arm == arm] for arm in ARMS)
        assert found[name].a.values == pytest.approx(a), name
        assert found[name].b.values == pytest.approx(b), name
        assert found[name].difference.b_minus_a == pytest.approx(fmean(b) - fmean(a)), name
    assert (found["watts"].kind, found["watts"].source, found["polling_percent"].unit) == ("measured", "rapl", "%")


@pytest.mark.parametrize(
    ("lose", "lost"),
    [
        ({"thread_wakings_count": None}, {"thread_wakings_hz"}),
        ({"traced_s": None}, {"thread_wakings_traced_hz"}),
        ({"traced_wakings_count": None}, {"thread_wakings_traced_hz"}),
        ({"thread_exits_count": None}, {"thread_idle_exits_hz"}),
        ({"target_exits_count": None}, {"target_idle_exits_hz"}),
        ({"statements_count": None}, {"statements_hz"}),
        ({"statements_count": 0}, {"statements_hz"}),
        ({"latency_ms": None}, {"latency_p50_ms", "latency_p95_ms", "latency_p99_ms"}),
        ({"commit_latency_ms": None}, {"commit_p50_ms", "commit_p95_ms"}),
        ({"replica_lag_s": None}, {"replica_lag_s"}),
        ({"replica_delay_ms": None}, {"replica_delay_ms"}),
    ],
)
def test_an_unknown_figure_is_unknown_in_its_metric_only(lose: dict[str, None], lost: set[str]) -> None:
    found = judge_blocks([replace(block, **lose) for block in odd_blocks()], "c0_percent", 1)  # type: ignore[arg-type]
    assert FIGURES.keys() - {metric.name for metric in found} == lost


def test_polling_is_unknown_if_one_state_is() -> None:
    block = odd_block(0, "before")
    first, second, third = block.window.states
    torn = replace(block.window, states=[replace(first, polling_percent=None), second, third])
    assert judge._sum_polling(torn) is None and judge._sum_polling(replace(torn, states=[third])) is None
    assert judge._sum_polling(block.window) == pytest.approx(1.8)


def test_counts_are_known_to_one_in_their_own_time() -> None:
    a, b = odd_block(0, "before"), odd_block(0, "cured")
    steps = {each.name: each.step_of(a) for each in judge._QUANTITIES if each.step_of is not None}
    assert steps == pytest.approx(
        {
            "thread_wakings_hz": 1 / a.counted_s,
            "thread_wakings_traced_hz": 1 / (a.traced_s or 1),
            "thread_idle_exits_hz": 1 / length(a),
            "target_wakings_hz": 1 / a.counted_s,
            "target_idle_exits_hz": 1 / length(a),
            "statements_hz": 1 / (a.statements_s or 1),
            "replica_lag_s": 1 / 20,
        }
    )
    compared = judge._compare(judge._QUANTITIES[0], [(a, b)])
    assert compared.step == pytest.approx(1 / a.counted_s)


def plan(kind: Any = "variable", thread: Thread | None = None, before: str = "50000", value: str = "50000000") -> Any:
    remedy = Remedy(kind=kind, name="x", from_value=before, to_value=value, thread=thread)
    setting = SimpleNamespace(value=value, read=lambda: before)
    return PlannedChange([SimpleNamespace(setting=setting, before=before)], remedy)  # type: ignore[list-item]


def test_the_answer_is_by_the_thread_the_process_or_measured_power() -> None:
    thread = Thread(tid=7, comm="t", server_name=None, pid=71)
    assert plan("timer_slack", thread).primary_metric == "thread_wakings_hz"
    assert plan().primary_metric == "target_wakings_hz"
    own = odd_blocks()
    assert (choose_primary(plan("host"), own), choose_primary(plan(), own)) == ("watts", "target_wakings_hz")
    model = [
        replace(
            b, window=replace(b.window, energy=[replace(r, kind="estimated", source="model") for r in b.window.energy])
        )
        for b in own
    ]
    assert choose_primary(plan("host"), model) == "c0_percent"
    assert choose_primary(plan("host"), []) == "c0_percent"


@pytest.mark.parametrize(
    ("now", "then", "reason"),
    [
        (98.0, 18.0, None),
        (98.0, 97.1, "no_saving"),
        (98.0, 97.0, None),
        (2.0, 1.96, "no_saving"),
        (2.0, 1.94, None),
        (18.0, 98.0, "no_saving"),
    ],
)
def test_a_trial_needs_a_saving(now: float, then: float, reason: str | None) -> None:
    assert explain_no_trial(plan(), CurePrediction(now_hz=now, then_hz=then, is_bound=False)) == reason
    assert explain_no_trial(plan(), None) is None
    assert explain_no_trial(plan(before="ON", value="1"), None) == "same_value"


# Latency.


def spread(*median_ms: float, count: int = 400) -> dict[int, int]:
    """Return classes with `count` statements around each of these times."""
    classes: dict[int, int] = {}
    for each in median_ms:
        one = find_latency_class(round(each * 1e6))
        classes[one] = classes.get(one, 0) + count
    return classes


def latencies_of(statements: Mapping[int, int], commits: Mapping[int, int] | None = None) -> WindowLatencies:
    return WindowLatencies(4.0, statements, commits or {})


def test_a_rise_is_in_percent_of_the_slowest_window_before() -> None:
    assert LatencyRise("statements", 4.0, 5.0).percent == pytest.approx(25.0)
    watch = LatencyWatch(10.0)
    for before in (latencies_of(spread(2.0)), latencies_of(spread(6.0)), latencies_of(spread(3.0))):
        assert watch.add("before", before) is None
    # Above the quicker windows before, but not above the slowest.
    assert watch.add("cured", latencies_of(spread(5.0))) is None
    rise = watch.add("cured", latencies_of(spread(9.0)))
    assert rise is not None and rise.what == "statements"
    assert (rise.before_ms, rise.cured_ms) == (pytest.approx(6.0, rel=0.1), pytest.approx(9.0, rel=0.1))
    assert rise.percent == pytest.approx(100 * (rise.cured_ms / rise.before_ms - 1))


@pytest.mark.parametrize(("limit", "found"), [(20.0, True), (45.0, False)])
def test_a_rise_must_exceed_the_limit_in_percent(limit: float, found: bool) -> None:
    """The class of 2 ms ends at 2.10 ms and that of 2.8 ms begins at 2.75 ms: a rise of 31 % at least."""
    watch = LatencyWatch(limit)
    watch.add("before", latencies_of(spread(2.0)))
    assert (watch.add("cured", latencies_of(spread(2.8))) is not None) is found


@pytest.mark.parametrize(("percentile", "rises"), [(50, False), (95, True), (99, True)])
def test_the_watched_percentile_is_the_requested_one(percentile: int, rises: bool) -> None:
    """A tenth of the statements takes twenty times as long with the remedy."""
    watch = LatencyWatch(10.0, percentile)
    watch.add("before", latencies_of(spread(1.0, count=2000)))
    rise = watch.add("cured", latencies_of({**spread(1.0, count=1800), **spread(20.0, count=200)}))
    assert (rise is not None) is rises
    slow = LatencyWatch(10.0, percentile)
    slow.add("before", latencies_of(spread(1.0, count=2000)))
    # One in fifty: above p99 only.
    late = slow.add("cured", latencies_of({**spread(1.0, count=1960), **spread(20.0, count=40)}))
    assert (late is not None) is (percentile == 99)


def test_the_rank_of_a_statement_is_counted_over_all_classes() -> None:
    classes = {100: 3, 104: 4, 112: 5}
    for rank, latency_class in ((0.5, 100), (3, 100), (3.5, 104), (7, 104), (7.1, 112), (12, 112)):
        octave, part = latency_class >> 3, latency_class & 7
        width = 2.0 ** (octave - 3)
        assert judge._class_range_ms(classes, rank) == pytest.approx(
            ((8 + part) * width / 1e6, (9 + part) * width / 1e6)
        )


def test_a_percentile_is_known_to_its_standard_errors() -> None:
    """Of 1,000 statements p95 is between the ranks 930.7 and 969.3: 2.8 √(0.95 × 0.05 ÷ 1,000) is 1.93 %."""
    classes = {100: 930, 104: 20, 108: 19, 112: 31}
    found = LatencyWatch(10.0)._range_ms(WindowLatencies(4.0, classes, {}), "statements")
    assert found == (judge._class_range_ms({104: 1}, 1)[0], judge._class_range_ms({112: 1}, 1)[1])
    few = {100: 94, 112: 5}
    assert LatencyWatch(10.0)._range_ms(WindowLatencies(4.0, few, {}), "statements") is None
    assert LatencyWatch(10.0, 50)._range_ms(WindowLatencies(4.0, {100: 5, 112: 5}, {}), "statements") is not None


def test_own_statements_are_in_no_count() -> None:
    trace = StatementTrace(
        pid=1, window_s=4.0, symbol="d", ends_by="socket", process_cpu_ns=1, uses=[], threads=[], dispatches_count=9,
        texts=[
            RecordedText(1, 3, 8, b"SHOW ALL SLAVES STATUS"), RecordedText(2, 3, 6, b"COMMIT"),
            RecordedText(3, 3, 6, b"SELECT 1"), RecordedText(4, 3, 6, b"replace into t"),
        ],
        latencies={1: {100: 50}, 2: {120: 3}, 3: {110: 7}, 4: {130: 2}}, lost_count=0, unreadable_count=0, cut_count=0,
        cost=TraceCost(0.0, 0.0),
    )  # fmt: skip
    found = count_latencies(trace, replicas.OWN_STATEMENTS)
    assert (found.window_s, found.statements, found.commits) == (4.0, {120: 3, 110: 7, 130: 2}, {120: 3, 130: 2})
    assert count_latencies(trace).statements == {100: 50, 120: 3, 110: 7, 130: 2}
    assert count_latencies(trace, re.compile(rb"COMMIT")).commits == {130: 2}


@pytest.mark.parametrize(
    ("text", "by_wall_clock"),
    [("202 0x7f 0x189 0x0", True), ("202 0x7f 0x89 0x0", False), ("7 0x7f 0x189 0x0", None), ("202 0x7f ? 0x0", None)],
)
def test_a_wait_by_the_wall_clock_has_its_flag(
    text: str,
    by_wall_clock: bool | None,
    fake_tree: Callable[[Mapping[str, str]], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_tree({"proc/71/task/72/syscall": f"{text}\n"})
    monkeypatch.setattr(judge.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(judge, "_MAX_READS", 2)
    assert waits_by_wall_clock(71, 72) is by_wall_clock


# Replicas.


def channel(read: int | None, executed: int | None, behind: int | None = 3, **more: Any) -> ReplicationStatus:
    known: dict[str, Any] = dict.fromkeys(ReplicationStatus.__struct_fields__)
    return ReplicationStatus(
        **{
            **known, "channel": "", "ignored_server_ids": (), "seconds_behind": behind, "sql_running": True,
            "read_position_bytes": read, "executed_position_bytes": executed, "source_log_file": "b.7",
            "executed_log_file": "b.7", **more,
        }
    )  # fmt: skip


def test_the_delay_is_the_backlog_by_the_rate_of_applying() -> None:
    looks = [[channel(900, 100, 5)], [channel(1500, 900, 3)], [channel(2000, 1900, 2)]]
    found = summarize_looks(looks, 4.5, None)
    # Backlogs of 800, 600 and 100 bytes; 1,800 bytes applied in 4.5 s.
    assert (found.looks_count, found.stopped_count, found.lag_s) == (3, 0, pytest.approx(10 / 3))
    assert found.backlog_bytes == pytest.approx(500.0)
    assert (found.delay_ms, found.delay_source) == (pytest.approx(1000 * 500 / 400), RECEIVED)
    times = summarize_looks(looks, 4.5, [7.0, 90.0, 11.0])
    assert (times.delay_ms, times.delay_source, times.backlog_bytes) == (11.0, COMMITTED, pytest.approx(500.0))
    assert summarize_looks(looks, 4.5, []).delay_ms is None


@pytest.mark.parametrize(
    ("last", "lag", "backlog", "delay"),
    [
        (channel(2000, 1900, None), False, True, True),
        (channel(None, 1900), True, False, False),
        (channel(2000, None), True, False, False),
        # The replica applies an older file than it receives.
        (channel(2000, 1900, source_log_file="b.8"), True, False, False),
        # The source began another file since the first look.
        (channel(2000, 1900, source_log_file="b.8", executed_log_file="b.8"), True, True, False),
        (channel(900, 100), True, True, False),
    ],
)
def test_an_unknown_position_has_no_backlog_and_no_delay(
    last: ReplicationStatus, lag: bool, backlog: bool, delay: bool
) -> None:
    found = summarize_looks([[channel(900, 100, 5)], [last]], 4.5, None)
    assert (found.lag_s is not None, found.backlog_bytes is not None, found.delay_ms is not None) == (
        lag,
        backlog,
        delay,
    )
    # The end of applying can be read before that of receiving.
    assert summarize_looks([[channel(100, 130)]], 1.0, None).backlog_bytes == 0


def test_several_channels_count_by_the_slowest() -> None:
    looks: Sequence[Sequence[ReplicationStatus]] = [
        [channel(900, 100, 5), channel(700, 650, 9)],
        [channel(1000, 990, 1, sql_running=False), channel(800, 500, 4)],
        [channel(1000, 990, 1, sql_running=None), channel(800, 500, 4)],
    ]
    found = summarize_looks(looks, 4.5, None)
    assert (found.lag_s, found.backlog_bytes, found.delay_ms) == (pytest.approx(17 / 3), pytest.approx(1400 / 3), None)
    assert (found.looks_count, found.stopped_count) == (3, 1)
    unknown = summarize_looks([[channel(900, 100, 5), channel(700, 650, None)]], 4.5, None)
    assert unknown.lag_s is None and summarize_looks([[]], 4.5, None).lag_s is None


def test_a_sampler_collects_the_delays_that_are_new_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("1", "c", "12:00:00.1", "2500"), ("2", "c", "12:00:00.2", "7500"), ("3", "c", "x", None)]
    monkeypatch.setattr(replicas.sql, "fetch_rows", lambda *given, **more: rows)
    assert replicas._read_delays(object()) == {("c", "1", "12:00:00.1"): 2.5, ("c", "2", "12:00:00.2"): 7.5}  # type: ignore[arg-type]
    sampler = ReplicaSampler(71, REQUEST)
    assert sampler.collect() is None
    sampler._looks = [(10.0, [channel(900, 100)]), (14.5, [channel(2000, 1900)])]
    lag = sampler.collect()
    assert lag is not None and lag.delay_ms == pytest.approx(1000 * 450 / (1800 / 4.5))
    sampler._has_times, old = True, {("c", "1", "a"): 3.0}
    sampler._delays_before, sampler._delays = old, {**old, ("c", "1", "b"): 8.0}
    lag = sampler.collect()
    assert lag is not None and (lag.delay_ms, lag.delay_source) == (8.0, COMMITTED)


# Windows, plans and the record.


def test_switches_are_those_of_the_window() -> None:
    counter = SwitchCounter(71)
    counter._before, counter._after = {1: 10, 2: 20, 3: 5}, {1: 17, 2: 20, 4: 6}
    counter._started_s, counter._ended_s = 3.5, 8.25
    assert (counter.counts(), counter.counted_s) == ({1: 7, 2: 0, 4: 6}, 4.75)


def test_a_window_is_without_the_thread_that_answers_powerprof() -> None:
    replica: Any = SimpleNamespace(own_tid=9, collect=lambda: None, parts=())
    windows = session.CureWindows(Target((71,), "x"), 8, None, None, replica)  # type: ignore[arg-type]
    windows._counter._before, windows._counter._after = {}, {7: 3, 8: 5, 9: 100}
    windows._counter._ended_s = 2.5
    latencies = latencies_of(spread(2.0, count=70), spread(3.0, count=20))
    block = windows._make_block(4, "cured", odd_block(0, "cured").window, latencies, {"traced_s": 1.5})
    assert (block.pair, block.arm, block.counted_s, block.traced_s) == (4, "cured", 2.5, 1.5)
    assert (block.thread_wakings_count, block.target_wakings_count) == (5, 8)
    assert (block.statements_count, block.commits_count, block.statements_s) == (70, 20, 4.0)
    assert block.latency_ms == latencies.statements_ms and block.commit_latency_ms == latencies.commits_ms
    replica.collect = lambda: summarize_looks([[channel(900, 100, 5)], [channel(2000, 1900, 1)]], 4.5, None)
    lagging = windows._make_block(4, "cured", block.window, None, {})
    assert (lagging.replica_looks_count, lagging.replica_lag_s, lagging.replica_backlog_bytes) == (2, 3.0, 450.0)
    assert (lagging.replica_delay_ms, lagging.replica_delay_source, lagging.statements_count) == (
        1125.0,
        RECEIVED,
        None,
    )
    whole = session.CureWindows(Target((71,), "x"), None, None)  # type: ignore[arg-type]
    whole._counter._after = {7: 3, 9: 100}
    process = whole._make_block(0, "before", block.window, None, {})
    assert (process.thread_wakings_count, process.target_wakings_count) == (None, 103)


def test_windows_alternate_as_planned_with_their_pairs() -> None:
    names = {"a": "before", "b": "cured"}
    for first in (0, 4):
        planned = [(first + n, names[arm]) for n, pair in enumerate(block_order(6, 3 + first)) for arm in pair]
        assert _order_windows(first, 6, 3) == planned


def test_a_trial_lasts_as_long_as_its_windows_of_both_arms() -> None:
    assert estimate_seconds(REQUEST) == pytest.approx(2 * 4 * 5.5)
    precise = replace(REQUEST, precision_percent=2.0)
    assert (REQUEST.most_pairs, precise.most_pairs) == (4, 16)
    assert estimate_seconds(precise) == pytest.approx(2 * 16 * 5.5)
    assert (REQUEST.names_server, replace(REQUEST, socket=Path("/s")).names_server) == (False, True)


def test_the_rates_so_far_are_before_and_then_cured() -> None:
    own = odd_blocks(2)
    rates = [fmean((b.thread_wakings_count or 0) / b.counted_s for b in own if b.arm == arm) for arm in ARMS]
    assert _format_so_far(own) == f"{rates[0]:.1f} → {rates[1]:.1f} wake-ups/s so far"
    process = [replace(block, thread_wakings_count=None) for block in own]
    rates = [fmean(b.target_wakings_count / b.counted_s for b in own if b.arm == arm) for arm in ARMS]
    assert _format_so_far(process) == f"{rates[0]:.1f} → {rates[1]:.1f} wake-ups/s so far"
    assert _format_so_far(own[:1]) == ""


def test_the_record_of_a_cure_sums_its_windows() -> None:
    own = odd_blocks()
    trial = _Trial(REQUEST, Target((71,), "mysqld"), plan(), SimpleNamespace(), own, 0.37)  # type: ignore[arg-type]
    trial.rise, trial.unprobed = LatencyRise("commits", 4.0, 5.5), None
    found = session._make_record(trial, None, ["50000"], "now", None, {})
    verdict = found.verdict
    assert (verdict.metric, verdict.hurts, verdict.hurts_from_ms, verdict.hurts_to_ms) == (
        "target_wakings_hz",
        "commits",
        4.0,
        5.5,
    )
    assert (verdict.max_p95_percent, verdict.guard_percentile, found.window_s) == (12.5, 99, 5.0)
    assert (found.blocks_count, found.order, found.reverted, found.read_back) == (
        6,
        [block.arm for block in own],
        True,
        "50000",
    )
    wall_s = sum(map(length, own))
    assert found.tool is not None and found.tool.cpu_s == 0.37
    assert found.tool.cpu_percent == pytest.approx(100 * 0.37 / wall_s / 3)
    assert found.latency == f"of {sum(b.statements_count or 0 for b in own)} statements in 6 windows"
    assert "in 126 samples of 6 windows" in found.replication and "in 12 of them" in found.replication
    assert found.notes == ["odd"]
    assert session._make_record(trial, None, ["7"], "now", None, {}).reverted is False
    assert session._make_record(trial, None, [None], "now", None, {}).reverted is None
    for more, words in (({"unprobed": "no right"}, "no right"), ({"blocks": []}, "no window was measured")):
        assert words in session._latency_text(replace(trial, **more))  # type: ignore[arg-type]
    still = replace(trial, blocks=[replace(block, statements_count=0, replica_looks_count=None) for block in own])
    assert "no statement" in session._latency_text(still)
    assert session._replication_text(replace(still, unsampled="not a replica")) == "not measured: not a replica"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(1_500_000_000, "1.5s"), (2_500_000, "2.5ms"), (7_300, "7.3us"), (12, "12ns"), (0, "0ns"), (999_999, "999.999us")],
)
def test_slack_is_printed_in_its_largest_unit(nanoseconds: int, text: str) -> None:
    assert slack_text(nanoseconds) == text
    assert nanoseconds == 0 or parse_slack(text) == nanoseconds


def test_a_planned_variable_keeps_its_old_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value before is read from the server; the remedy goes from it to the chosen one."""
    monkeypatch.setattr(remedies, "_check_server", lambda *given: None)
    monkeypatch.setattr(remedies, "_find_login", lambda *given: SimpleNamespace(to_fields=lambda: {"user": "u"}))
    monkeypatch.setattr(remedies.Variable, "read", lambda self: "1")
    monkeypatch.setattr(remedies.Variable, "check_type", lambda self, before: None)
    monkeypatch.setattr(remedies, "is_read_only", lambda *given: False)
    monkeypatch.setattr(remedies, "has_session_copies", lambda *given: True)
    monkeypatch.setattr(remedies.sql, "connect", lambda *given, **more: nullcontext())
    setting, before, remedy = remedies._plan_variable(1, REQUEST, VariableChoice("sync_binlog", "0"))
    assert (before, remedy.name, remedy.from_value, remedy.to_value) == ("1", "sync_binlog", "1", "0")
    assert (setting.name, setting.value, setting.keeps_copies) == ("sync_binlog", "0", True)
    assert remedy.lasting.endswith("sync_binlog = 0") and "keep 0 until they end" in remedy.delays


def test_idle_exits_are_of_the_process_and_its_threads() -> None:
    """Exits of thread 7 and 8 of process 71, of another process, of a woken thread, and of powerprof's own thread 9."""
    rows = [  # thread that ran, its process, thread that was woken, count
        (7, 71, 0, 30),
        (8, 71, 0, 11),
        (50, 5, 0, 400),
        (0, 0, 8, 6),
        (0, 0, 50, 900),
        (9, 71, 0, 77),
    ]
    causes = np.zeros(len(rows), dtype=CAUSE)
    for name, values in zip(("next_tid", "next_tgid", "woken_tid", "count"), zip(*rows, strict=True), strict=True):
        causes[name] = values
    replica: Any = SimpleNamespace(own_tid=9)
    windows = session.CureWindows(Target((71,), "x"), 8, None, None, replica)  # type: ignore[arg-type]
    windows._counter._after = {7: 1, 8: 1, 9: 1}
    assert windows._count_exits(causes) == {"thread_exits_count": 17, "target_exits_count": 47}
    whole = session.CureWindows(Target((71,), "x"), None, None)  # type: ignore[arg-type]
    whole._counter._after = windows._counter._after
    assert whole._count_exits(causes) == {"thread_exits_count": None, "target_exits_count": 124}


def test_each_cpu_keeps_its_value_in_a_window(tmp_path: Path) -> None:
    places = [tmp_path / f"cpu{cpu}/governor" for cpu in range(4)]
    for place in places:
        place.parent.mkdir()
        place.write_text("teo")
    saved = [SavedSetting(HostFile("the governor", str(place), "teo"), "menu", 71, 1) for place in places]
    planned = PlannedChange(saved, Remedy(kind="host", name="the governor", from_value="menu", to_value="teo"))  # type: ignore[arg-type]
    trial = _Trial(REQUEST, Target((71,), "mysqld"), planned, SimpleNamespace())  # type: ignore[arg-type]
    trial._check_values(["teo"] * 4)
    trial._check_values([None] * 4)
    for cpu in (1, 3):
        places[cpu].write_text("ladder")
    reason = r"set the governor on CPUs 1,3 to ladder during the test; it stays so \(before the test: menu\)"
    with pytest.raises(PowerprofError, match=reason):
        trial._check_values(["teo"] * 4)
    places[0].unlink()
    with pytest.raises(FileAway, match="the governor on CPU 0 is missing"):
        trial._check_values(["teo"] * 4)
    assert [session._read_restored(each) for each in saved[:2]] == ["menu", "ladder"]
