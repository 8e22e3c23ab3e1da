# SPDX-License-Identifier: Apache-2.0
"""Time in which all CPUs idled together, on made-up periods: against a count by microseconds, and by arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.attribution.bursts import BURST
from powerprof.attribution.capture import Capture, IdleCpu, encode, load
from powerprof.attribution.deep_idle import build_deep_idle, count_misses
from powerprof.attribution.deep_what_if import DeepRequest, move_bursts
from powerprof.measure.cpuidle_dumps import read_state_table
from powerprof.measure.idle_counters import StateInfo
from powerprof.model.deep_idle import DeepIdle, DeepScope
from powerprof.report.deep_idle import answer_of, list_parts
from powerprof.report.document import Sentence
from powerprof.statistics.distributions import student_quantile
from powerprof.statistics.intervals import LEVEL
from powerprof.statistics.scatter import effective_freedom, serial_factor
from powerprof.system.errors import DataError, UsageError
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.idle_data import IDLE_EXIT
from tests.unit.attribution.idle_periods import FAST, MS, SLOW, START, STATES, US, WINDOW, S, capture, records


def sentences_of(deep: DeepIdle) -> list[str]:
    """Return the sentences of the report."""
    return [answer_of(deep)] + [part.text for part in list_parts(deep, 20) if isinstance(part, Sentence)]


def check_sums(scope: DeepScope) -> None:
    """Assert that the parts of the window sum to the window, and the breakers to the ended stretches."""
    assert scope.ended_s + scope.open_s + scope.running_s + scope.unknown_s == pytest.approx(scope.window_s, abs=1e-9)
    assert sum(row.stretch_s for row in scope.breakers) == pytest.approx(scope.ended_s, abs=1e-9)
    assert sum(row.count for row in scope.breakers) == scope.count - (scope.open_s > 0)
    assert sum(part.time_s for part in scope.lengths) == pytest.approx(scope.ended_s + scope.open_s, abs=1e-9)
    assert sum(part.count for part in scope.lengths) == scope.count
    assert 0 <= scope.polling_s <= scope.ended_s + scope.open_s + 1e-9


def analyse(made: Capture, **request: Any) -> DeepIdle:
    deep = build_deep_idle(made, DeepRequest(**request))
    for scope in deep.scopes:
        check_sums(scope)
    return deep


def by_thread(scope: DeepScope) -> dict[str | None, tuple[int, float]]:
    return {row.thread: (row.count, row.stretch_s) for row in scope.breakers}


def test_stretches_and_breakers_are_the_arithmetic() -> None:
    scope = analyse(capture([records(0, FAST, WINDOW), records(1, SLOW, WINDOW)], WINDOW)).scopes[0]
    # 99 runs of 1 ms and 40 of 2 ms; half of the latter begin together with one of the former.
    together = sum(start % (10 * MS) == 0 for start, _, _ in SLOW)
    assert scope.running_s == pytest.approx(0.099 + 0.080 - 0.001 * together, abs=1e-9)
    assert together == 20
    assert scope.count == 99 + 40 - together + 1
    fast, slow = by_thread(scope)["t1"], by_thread(scope)["t2"]
    assert (fast[0], slow[0]) in [(99, 40 - together), (99 - together, 40)]
    assert scope.open_s == pytest.approx(0.009)
    assert scope.longest_us == 9000
    states = {share.name: share for share in scope.states}
    assert states["C6"].percent == 100.0
    assert "POLL" not in states


def test_states_of_another_cpu_have_other_shares() -> None:
    bursts = [(at, at + 100 * US, 1) for at in range(0, WINDOW, 700 * US)]  # stretches of 600 µs
    made = capture([records(0, bursts, WINDOW), records(1, [(WINDOW - US, WINDOW, 2)], WINDOW)], WINDOW)
    table = read_state_table("sapphire-rapids")
    shares = {share.name: share for share in analyse(made, table="x", states=table).scopes[0].states}
    assert shares["C1"].percent == 100.0
    assert shares["C6"].count == 0
    own = {share.name: share.percent for share in analyse(made).scopes[0].states}
    assert own["C6"] is not None
    assert own["C6"] > 99.0


def test_packages_idle_apart() -> None:
    made = capture([records(0, [(0, WINDOW, 1)], WINDOW), records(1, SLOW, WINDOW)], WINDOW, packages=(0, 1))
    host, first, second = analyse(made).scopes
    assert [host.name, first.name, second.name] == ["host", "package 0", "package 1"]
    assert host.ended_s + host.open_s == first.ended_s + first.open_s == 0
    assert second.running_s == pytest.approx(0.080)


def test_time_from_lost_periods_on_is_unknown() -> None:
    fast = records(0, FAST, WINDOW)
    made = capture([fast[:50], records(1, SLOW, WINDOW)], WINDOW)
    edge = msgspec.structs.replace(made.edges[0], traced_count=len(fast))
    made = msgspec.structs.replace(made, edges=[edge, made.edges[1]])
    deep = analyse(made)
    assert deep.lost_count == len(fast) - 50
    # The CPU was idle from 501 ms on; the next run is not known.
    runs = sum(min(end, WINDOW) - start for start, end, _ in SLOW if start >= 501 * MS)
    assert deep.scopes[0].unknown_s == pytest.approx((499 * MS - runs) / S)
    assert {row.mechanism for row in deep.scopes[0].breakers} == {"timer"}
    assert "unknown" in " ".join(sentences_of(deep))


def test_a_sample_of_one_in_four_has_no_answer() -> None:
    fast = records(0, FAST, WINDOW)
    made = capture([fast[::4], fast[:0]], WINDOW, sample_1_in=4)
    made = msgspec.structs.replace(made, edges=[msgspec.structs.replace(edge, traced_count=99) for edge in made.edges])
    deep = analyse(made)
    assert deep.scopes[0].count == 0
    assert sentences_of(deep)[0].startswith("Whether all CPUs idled together is unknown")


def test_a_cpu_without_periods_ran_all_along_only_if_it_ran_at_the_edges() -> None:
    made = capture([records(0, FAST, WINDOW), records(1, [], WINDOW)], WINDOW)
    assert analyse(made).scopes[0].running_s == pytest.approx(1.0)
    unresolved = [msgspec.structs.replace(cpu, resolved=cpu.cpu == 0) for cpu in made.idle_cpus]
    scope = analyse(msgspec.structs.replace(made, idle_cpus=unresolved)).scopes[0]
    assert scope.running_s == pytest.approx(0.099)
    assert scope.unknown_s == pytest.approx(0.901)


def test_a_poll_that_reaches_its_limit_ends_no_stretch() -> None:
    rows = records(0, [(100 * MS, 100 * MS + US, 0), (200 * MS, 201 * MS, 1), (999 * MS, WINDOW, 2)], WINDOW)
    rows[0]["state"], rows[0]["evidence"], rows[0]["flags"] = 0, WakeEvidence.NONE, Flag.NO_TASK | Flag.POLLED
    scope = analyse(capture([rows], WINDOW, packages=(0,))).scopes[0]
    assert by_thread(scope)["t1"] == (1, pytest.approx(0.2))
    assert scope.polling_s == pytest.approx(0.1)


def test_without_a_thread_its_periods_merge() -> None:
    made = capture([records(0, FAST, WINDOW), records(1, SLOW, WINDOW)], WINDOW)
    for word in ("t1", "1"):
        what_if = analyse(made, without=(word,)).what_if
        assert what_if.removed_count == 99
        assert what_if.scopes[0].running_s == pytest.approx(0.080)
        assert what_if.scopes[0].half_us == 23_000
        assert not what_if.unmatched
    what_if = analyse(made, without=("server",)).what_if
    assert what_if.scopes[0].open_s == pytest.approx(1.0)
    what_if = analyse(made, without=("absent",)).what_if
    assert what_if.unmatched == ["absent"]
    assert what_if.scopes[0].running_s == analyse(made).scopes[0].running_s


def test_ticks_can_end_fewer_idle_periods_without_a_thread() -> None:
    ticks = [(at + 5 * MS, at + 5 * MS + US, 0) for at, _, _ in FAST]
    rows = records(0, sorted([*FAST, *ticks]), WINDOW)
    is_tick = rows["next_tid"] == 0
    rows["flags"][is_tick] = Flag.TICK | Flag.NO_TASK
    what_if = analyse(capture([rows], WINDOW, packages=(0,)), without=("t1",)).what_if
    assert what_if.scopes[0].count == 1
    low, high = what_if.expected[0].count
    assert low <= 1
    assert high >= len(ticks)
    assert what_if.expected[0].half_us == pytest.approx((10_000, 1_000_000), rel=0.01)


def test_without_a_thread_the_threads_that_it_woke_sleep_too() -> None:
    rows = records(1, SLOW, WINDOW, waker_context=WakerContext.TASK, waker_tid=1, evidence=WakeEvidence.RESCHEDULE)
    what_if = analyse(capture([records(0, FAST, WINDOW), rows], WINDOW), without=("t1",)).what_if
    assert what_if.scopes[0].open_s == pytest.approx(1.0)


def test_slack_alone_lengthens_the_sleeps() -> None:
    made = capture([records(0, FAST, WINDOW), records(1, [(WINDOW - US, WINDOW, 2)], WINDOW)], WINDOW)
    what_if = analyse(made, slack_ns={"t1": 40 * MS}).what_if
    # The sleep of 9 ms and the run of 1 ms take 50 ms with the slack: 20 runs.
    assert what_if.scopes[0].count == pytest.approx(20, abs=1)
    assert what_if.scopes[0].half_us == 49_000
    assert what_if.moved_count == 99


def test_slack_joins_the_next_run_of_the_cpu() -> None:
    bursts = sorted([*FAST, *((at + 3 * MS, at + 4 * MS, 2) for at, _, _ in FAST)])
    made = capture([records(0, bursts, WINDOW)], WINDOW, packages=(0,))
    what_if = analyse(made, slack_ns={"t2": 50 * MS}).what_if
    # Each run of the second thread follows one of the first, or lasts 60 ms: one breaker every 10 ms, or also these.
    low, high = what_if.expected[0].count
    assert low <= 101
    assert high >= what_if.scopes[0].count == pytest.approx(100 + 1000 / 60, abs=2)
    assert analyse(made).scopes[0].count == pytest.approx(199, abs=2)


def test_slack_does_not_move_wakings_by_others() -> None:
    made = capture(
        [records(0, FAST, WINDOW, evidence=WakeEvidence.RESCHEDULE, waker_context=WakerContext.TASK)], WINDOW
    )
    what_if = analyse(made, slack_ns={"page_cleaner_thread": 50 * MS, "t1": 50 * MS}).what_if
    assert what_if.moved_count == 0
    assert what_if.unmatched == ["page_cleaner_thread", "t1"]


@pytest.mark.parametrize("shared_ns", [WINDOW // 2, 0])
def test_a_cpu_that_came_later_limits_the_window(shared_ns: int) -> None:
    made = capture([records(0, FAST, WINDOW), records(1, SLOW, WINDOW)], WINDOW)
    late_ns = START + WINDOW - shared_ns
    count = int((made.exit_records()[len(FAST) + 1 :]["exit_ns"] >= late_ns).sum())
    edges = [made.edges[0], msgspec.structs.replace(made.edges[1], start_ns=late_ns, traced_count=count)]
    deep = analyse(msgspec.structs.replace(made, edges=edges), slack_ns={"t1": 50 * MS})
    assert deep.scopes[0].window_s == shared_ns / S
    if not shared_ns:
        assert deep.what_if.expected == []
        assert sentences_of(deep)[0].startswith("Whether all CPUs idled together is unknown")
        return
    assert deep.what_if.moved_count == 50
    low, high = deep.what_if.expected[0].half_us
    assert 9_000 < low <= high <= 23_000


def test_the_interval_holds_later_windows_of_the_same_load() -> None:
    """Runs at random: the prediction of a window without a thread that never ran holds the next window."""
    random, held = np.random.default_rng(11), 0
    windows = []
    for _ in range(61):
        starts = np.cumsum(random.exponential(5 * MS, 400)).astype(int)
        runs = random.exponential(MS, 400).astype(int) + 1
        bursts = [
            (int(start), int(min(start + run, after)), 1)
            for start, run, after in zip(starts[:-1], runs, starts[1:], strict=False)
            if start < WINDOW
        ]
        bursts = [(start, min(end, WINDOW), tid) for start, end, tid in bursts]
        windows.append(capture([records(0, bursts, WINDOW)], WINDOW, packages=(0,)))
    deeps = [analyse(made, without=("nobody",)) for made in windows]
    for before, after in pairwise(deeps):
        expected, scope = before.what_if.expected[0], after.scopes[0]
        ends = [expected.together_s, expected.count, expected.half_us, expected.states_s["C6"]]
        values = [scope.ended_s + scope.open_s, scope.count, scope.half_us, scope.states[-1].time_s]
        held += sum(low <= (value or 0.0) <= high for (low, high), value in zip(ends, values, strict=True))
    assert 0.9 <= held / (4 * 60) < 1.0


def test_governor_misses_follow_the_kernel() -> None:
    # Idle of 1 µs, 50 µs and 900 µs in C1, and of 100 µs in C6: too deep, right, too shallow, too deep.
    bursts, at = [], 0
    for idle_ns in (US, 50 * US, 900 * US, 100 * US):
        bursts.append((at + idle_ns, at + idle_ns + 10 * US, 1))
        at += idle_ns + 10 * US
    rows = records(0, [*bursts, (WINDOW - US, WINDOW, 2)], WINDOW)
    rows["enter_ns"][0], rows["state"][3], rows["state"][4] = START, 2, 2
    made = capture([rows], WINDOW, packages=(0,))
    check = analyse(made).governor
    assert (check.above_count, check.below_count) == (2, 1)
    assert (check.kernel_above_count, check.kernel_below_count, check.is_complete) == (1 + 2 + 3, 11 + 12 + 13, True)
    hidden = [msgspec.structs.replace(cpu, below=[11, None, 13]) for cpu in made.idle_cpus]
    check = analyse(msgspec.structs.replace(made, idle_cpus=hidden)).governor
    assert check is not None and (check.kernel_above_count, check.kernel_below_count) == (6, None)
    causes = analyse(made).scopes[0].breakers
    assert {row.thread: (row.above_count, row.below_count) for row in causes} == {"t1": (2, 1), "t2": (0, 0)}
    # If C6 is disabled, a period in C1 cannot be too shallow; if C1 and POLL are, C6 has no alternative.
    for disabled, misses in (({2}, (2, 0)), ({0, 1}, (0, 1))):
        states = [msgspec_state(state, number in disabled) for number, state in enumerate(STATES)]
        check = analyse(capture([rows], WINDOW, packages=(0,), states=states)).governor
        assert (check.above_count, check.below_count) == misses
    unknown = [StateInfo("C1", False), StateInfo("C2", False), StateInfo("C3", False)]
    deep = analyse(capture([rows], WINDOW, packages=(0,), states=unknown))
    assert deep.governor is None
    assert deep.scopes[0].states[0].percent is None


@pytest.mark.parametrize(
    ("state", "length_us", "above", "below"),
    [
        (0, 1, False, False),
        (0, 1.9, False, False),
        (0, 2, False, True),  # polled although C1 would have paid
        (1, 1.9, True, False),
        (1, 2, False, False),
        (1, 601.9, False, False),  # 2 µs of it were the latency of C1
        (1, 602, False, True),
        (2, 599.9, True, False),
        (2, 600, False, False),
    ],
)
def test_misses_are_judged_without_the_latency(state: int, length_us: float, above: bool, below: bool) -> None:
    cpu = IdleCpu(0, 0, True, STATES, [0, 0, 0], [0, 0, 0])
    found = count_misses(cpu, np.array([state]), np.array([round(length_us * US)]))
    assert tuple(part.tolist() for part in found) == ([above], [below])


def test_shares_of_states_are_of_the_time() -> None:
    """Nine stretches of 100 µs and one of 900 µs: one in ten of them holds half of the time."""
    bursts, at = [], 0
    for length_us in (*[100] * 5, 900, *[100] * 4):
        bursts.append((at + length_us * US, at + length_us * US + US, 1))
        at = bursts[-1][1]
    (scope,) = analyse(capture([records(0, [*bursts, (at, WINDOW, 2)], WINDOW)], WINDOW, packages=(0,))).scopes
    assert (scope.count, scope.open_s, scope.ended_s) == (10, 0.0, pytest.approx(1.8e-3))
    assert scope.running_s == pytest.approx(1 - 1.8e-3)
    assert (scope.half_us, scope.longest_us) == (900, 900)
    shallow, deep = scope.states
    assert (shallow.name, shallow.count, shallow.time_s, shallow.percent) == ("C1", 10, pytest.approx(1.8e-3), 100.0)
    assert (deep.name, deep.count, deep.time_s, deep.percent) == ("C6", 1, pytest.approx(0.9e-3), pytest.approx(50.0))
    assert (deep.latency_us, deep.target_us, deep.disabled) == (100, 600, False)
    assert [(row.from_us, row.below_us, row.count, row.time_s) for row in scope.lengths if row.count] == [
        (100, 1000, 10, pytest.approx(1.8e-3))
    ]


def test_a_cpu_that_left_limits_the_window() -> None:
    made = capture([records(0, FAST, WINDOW), records(1, SLOW, WINDOW)], WINDOW)
    gone_ns = 700 * MS
    count = int((made.exit_records()[len(FAST) + 1 :]["exit_ns"] <= START + gone_ns).sum())
    edges = [made.edges[0], msgspec.structs.replace(made.edges[1], end_ns=START + gone_ns, traced_count=count)]
    (scope,) = analyse(msgspec.structs.replace(made, edges=edges)).scopes
    assert scope.window_s == pytest.approx(0.7)
    together = sum(start % (10 * MS) == 0 for start, _, _ in SLOW if start < gone_ns)
    assert scope.running_s == pytest.approx(0.069 + 0.002 * 28 - 0.001 * together, abs=1e-6)


def test_sleep_that_ends_while_its_cpu_runs_ends_at_once() -> None:
    """The first sleep of thread 2 takes all of its slack, so the second one is due in the run of another thread."""
    bursts = np.array([(0, 100, 110, 0), (0, 200, 210, 1), (0, 240, 260, 2), (0, 900, 910, 3)], dtype=BURST)
    tids, slack = np.array([2, 2, 1, 1]), np.array([50, 50, 0, 0])
    joined = move_bursts(bursts, tids, slack, np.ones(4, dtype=bool))
    assert joined[["start", "end"]].tolist() == [(150, 160), (250, 260), (240, 260), (900, 910)]
    # Without the timer interrupts of others each sleep takes its slack, and sleeps are relative.
    alone = move_bursts(bursts, tids, slack, np.zeros(4, dtype=bool))
    assert alone[["start", "end"]].tolist() == [(150, 160), (300, 310), (240, 260), (900, 910)]
    # The next interrupt is nearer than the slack: the thread runs after the run that follows it.
    near = move_bursts(bursts, tids, np.array([0, 45, 0, 0]), np.ones(4, dtype=bool))
    assert near[["start", "end"]].tolist()[1] == (260, 270)


def test_interval_of_the_time_is_that_of_the_blocks() -> None:
    """The time of 20 blocks of 50 ms scatters, and the difference of two windows scatters twice as much."""
    random, bursts, at = np.random.default_rng(3), [], 0
    while at < WINDOW - 20 * MS:
        start = at + int(random.integers(MS, 9 * MS))
        bursts.append((start, start + int(random.integers(MS, 6 * MS)), 1))
        at = bursts[-1][1]
    busy = np.zeros(WINDOW // US, dtype=bool)
    for start, end, _ in bursts:
        busy[start // US : end // US] = True
    made = capture([records(0, [(start - start % US, end - end % US, 1) for start, end, _ in bursts], WINDOW)], WINDOW)
    made = msgspec.structs.replace(made, edges=made.edges[:1], idle_cpus=made.idle_cpus[:1])
    what_if = analyse(made, without=("nobody",)).what_if
    blocks = (~busy).reshape(20, -1).sum(axis=1) / 1e6
    factor = serial_factor(blocks.tolist()) * student_quantile(LEVEL, effective_freedom(blocks.tolist()))
    reach = float(np.std(blocks, ddof=1)) * math.sqrt(40) * factor
    low, high = what_if.expected[0].together_s
    assert (low, high) == (pytest.approx(blocks.sum() - reach), pytest.approx(min(1.0, blocks.sum() + reach)))


def msgspec_state(state: StateInfo, disabled: bool) -> StateInfo:
    return StateInfo(state.name, state.polling, disabled, state.latency_us, state.target_us)


def test_the_answer_survives_the_file(tmp_path: Path) -> None:
    made = capture([records(0, FAST, WINDOW), records(1, SLOW, WINDOW)], WINDOW)
    path = tmp_path / "capture.bin"
    path.write_bytes(encode(made))
    assert analyse(load(path)) == analyse(made)


def test_tables_of_other_cpus(tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    lines = {"name": "C2", "time": 1, "usage": 1, "latency": 400, "residency": 800}
    dump.write_text("".join(f"cpu0/cpuidle/state0/{leaf}:{value}\n" for leaf, value in lines.items()))
    assert [(state.name, state.target_us) for state in read_state_table(str(dump))] == [("C2", 800)]
    dump.write_text("cpu0/cpuidle/state0/name:C2\ncpu0/cpuidle/state0/time:1\ncpu0/cpuidle/state0/usage:1\n")
    with pytest.raises(DataError, match="no target residency"):
        read_state_table(str(dump))
    with pytest.raises(UsageError, match="no such CPU"):
        read_state_table("pentium")


def test_the_sums_hold_for_damaged_periods() -> None:
    random = np.random.default_rng(5)
    whole = [records(0, FAST, WINDOW), records(1, SLOW, WINDOW)]
    for _ in range(40):
        periods = []
        for rows in whole:
            data = np.frombuffer(rows.tobytes(), dtype=np.uint8).copy()
            places = random.integers(0, len(data), random.integers(0, 200))
            data[places] = random.integers(0, 256, len(places))
            periods.append(np.frombuffer(data.tobytes(), dtype=IDLE_EXIT))
        made = capture(periods, WINDOW)
        counts = random.choice([0, 3, len(FAST), 1000], 2).tolist()
        edges = [
            msgspec.structs.replace(edge, traced_count=count) for edge, count in zip(made.edges, counts, strict=True)
        ]
        deep = analyse(msgspec.structs.replace(made, edges=edges), without=("t1",), slack_ns={"t2": 50 * MS})
        assert sentences_of(deep)


# Drawn periods: (idle, run) in µs for each CPU, and which records are lost.
GAPS = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 200)), max_size=12)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(GAPS, st.sets(st.integers(0, 11), max_size=3)), min_size=1, max_size=3), st.data())
def test_the_sums_are_those_of_a_count_by_microseconds(
    drawn: list[tuple[list[tuple[int, int]], set[int]]], data: st.DataObject
) -> None:
    window_us = 1500
    periods, traced, busy, lost = [], [], np.zeros(window_us, dtype=bool), np.zeros(window_us, dtype=bool)
    for cpu, (gaps, missing) in enumerate(drawn):
        bursts, at = [], 0
        for idle_us, run_us in gaps:
            if at + idle_us >= window_us:
                break
            end = min(at + idle_us + run_us, window_us)
            bursts.append(((at + idle_us) * US, end * US, 1 + cpu))
            at = end
        if bursts and bursts[-1][1] < window_us * US:
            bursts.append((window_us * US, window_us * US, 9))
        kept = [number for number in range(len(bursts)) if number not in missing]
        periods.append(records(cpu, bursts, window_us * US)[kept])
        traced.append(len(bursts))
        if not bursts:
            busy[:] = True
            continue
        state = np.ones(window_us, dtype=bool)  # whether the CPU is known
        for number, (start, end, _) in enumerate(bursts):
            if number in kept:
                busy[start // US : end // US] = True
            else:
                state[bursts[number - 1][1] // US if number else 0 : end // US] = False
                following = bursts[number + 1] if number + 1 < len(bursts) else None
                if following is not None and number + 1 not in kept:
                    state[end // US : following[0] // US] = False
        if kept and kept[0] > 0:
            # Nothing before the first known idle entry is known.
            state[: bursts[kept[0] - 1][1] // US] = False
        if not kept:
            state[:] = False
        lost |= ~state
    made = capture(periods, window_us * US, packages=(0,) * len(periods))
    edges = [msgspec.structs.replace(edge, traced_count=count) for edge, count in zip(made.edges, traced, strict=True)]
    words = tuple(data.draw(st.sets(st.sampled_from(["t1", "t2", "server"]), max_size=2)))
    deep = analyse(msgspec.structs.replace(made, edges=edges), without=words)
    scope = deep.scopes[0]
    assert scope.running_s * 1e6 == pytest.approx(busy.sum(), abs=1e-3)
    assert scope.unknown_s * 1e6 == pytest.approx((lost & ~busy).sum(), abs=1e-3)
    assert (scope.ended_s + scope.open_s) * 1e6 == pytest.approx((~busy & ~lost).sum(), abs=1e-3)
    if deep.what_if is not None:
        after = deep.what_if.scopes[0]
        assert after.ended_s + after.open_s >= scope.ended_s + scope.open_s - 1e-9
