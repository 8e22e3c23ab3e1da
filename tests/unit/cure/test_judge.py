# SPDX-License-Identifier: Apache-2.0
"""Windows of a cure: metrics, verdicts, the limit on latency, replicas and the record."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from powerprof.cure import judge, remedies, session
from powerprof.cure.judge import choose_primary, judge_blocks
from powerprof.cure.latencies import LatencyRise
from powerprof.cure.records import Arm, CureBlock, Remedy
from powerprof.cure.remedies import CureRequest, PlannedChange, VariableChoice
from powerprof.cure.replicas import RECEIVED
from powerprof.cure.session import _format_so_far, _order_windows, _Trial, estimate_seconds
from powerprof.experiment.plan import block_order
from powerprof.model.attribution import Thread
from powerprof.model.records import EnergyReading, StateResidency, Window
from powerprof.queries.records import Latency
from powerprof.reversible.host_settings import FileAway, HostFile
from powerprof.reversible.journal import SavedSetting
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.targets import Target

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
                    EnergyReading(
                        source="rapl",
                        domain="package-0",
                        scope="package",
                        kind="measured",
                        joules=50.0,
                        watts=10 + level,
                    )
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
            EnergyReading(
                source="rapl",
                domain="package-0",
                scope="package",
                kind="measured",
                joules=17 * k * length_s,
                watts=17 * k,
            )
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


def test_a_planned_variable_keeps_its_old_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value before is read from the server; the remedy goes from it to the chosen one."""
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


@pytest.mark.parametrize(
    ("kind", "wanted", "taken", "is_refused"),
    [
        ("variable", "900000", "20000", True),
        ("variable", "33.5", "33.500000", False),
        ("variable", "100", "100", False),
        ("variable", "ON", "1", False),
        ("variable", "100", None, False),
        ("timer_slack", "50000000", "50000001", False),
    ],
)
def test_a_value_that_the_server_limits_is_refused(kind: Any, wanted: str, taken: str | None, is_refused: bool) -> None:
    made = plan(kind, before="7", value=wanted)
    if not is_refused:
        session.check_value(made, [taken])
        return
    with pytest.raises(UsageError, match=rf"sets it to {taken} instead; it is 7 again") as caught:
        session.check_value(made, [taken])
    assert caught.value.hint == f"--set x={taken}"
