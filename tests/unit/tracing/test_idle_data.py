# SPDX-License-Identifier: Apache-2.0
"""Sums of idle exits: references, residency without a driver, running times and ended threads."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.measure.clock import parse_timens_offset
from powerprof.model.records import Window
from powerprof.system.tasks import ENDED, ENDED_IN_TARGET
from powerprof.tracing import idle_data
from powerprof.tracing.bpf.shared_numbers import Flag, RunKind, WakeEvidence, WakerContext
from powerprof.tracing.captures import CpuEdge, count_reference_exits, find_unchecked_cpus

MS = 1_000_000
OWN = 4711


def totals(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """(CPU, state, exits, idle ms, pid of the last thread) as sums of CPUs."""
    found = np.zeros(2, dtype=idle_data.CPU_TOTAL)
    for cpu, state, count, idle_ms, pid in rows:
        found[cpu]["count"][state], found[cpu]["idle_ns"][state] = count, idle_ms * MS
        found[cpu]["last_tgid"] = pid
    return found


def residency(sums: np.ndarray, stat: float | None = 90.0) -> Window:
    return idle_data.compute_traced_residency(
        sums, EDGES, stat_idle_percent=stat, own_pid=OWN, started_at="2026-01-01T00:00:00.000Z"
    )


EDGES = {0: CpuEdge(0, 1000 * MS, 2000 * MS, None), 1: CpuEdge(1, 1100 * MS, 2100 * MS, None)}


def test_idle_time_is_the_sum_over_all_cpus() -> None:
    window = residency(totals((0, 1, 2, 700, 7), (1, 1, 1, 800, 9)))
    assert window.idle_percent == pytest.approx(100 * 1500 / 2000)
    assert window.c0_percent == pytest.approx(25.0)
    assert window.wakeups_hz == pytest.approx(3.0)
    (state,) = window.states
    assert (state.name, state.entries_count) == ("idle", 3)
    assert state.average_residency_ms == pytest.approx(500.0)
    assert any("90.00 % idle, the trace 75.00 %" in note for note in window.notes)


def test_an_idle_loop_that_polls_runs() -> None:
    window = residency(totals((0, 0, 1, 400, 7), (1, 1, 1, 200, 7)))
    assert {state.name: state.polling for state in window.states} == {"poll": True, "idle": False}
    assert window.idle_percent == pytest.approx(10.0)


def test_the_exits_of_the_window_s_own_end_are_in_no_rate() -> None:
    window = residency(totals((0, 1, 2, 800, OWN), (1, 1, 1, 900, OWN)))
    assert window.edge_exits_count == 2
    assert window.wakeups_hz == pytest.approx(1.0)


def test_without_any_exit_the_idle_time_is_proc_stat_s() -> None:
    assert residency(totals(), stat=0.0).c0_percent == 100.0
    assert residency(totals(), stat=97.0).c0_percent == 3.0
    unknown = residency(totals(), stat=None)
    assert (unknown.c0_percent, unknown.idle_percent, unknown.residual_percent) == (None, None, None)


def test_idle_time_beyond_the_window_is_residual() -> None:
    """Clocks of the trace and of the edges differ: 101 % of the time was idle."""
    window = residency(totals((0, 1, 2, 1_010, 7), (1, 1, 1, 1_010, 9)))
    assert (window.idle_percent, window.c0_percent) == (pytest.approx(101.0), 0.0)
    assert window.residual_percent == pytest.approx(1.0)
    assert residency(totals((0, 1, 2, 700, 7))).residual_percent == 0.0
    assert window.window_s == pytest.approx(1.0) and window.edge_exits_count == 0


def slots(*threads: tuple[int, int, int, int]) -> np.ndarray:
    found = np.zeros(len(threads), dtype=idle_data.RUN_SLOT)
    for one, values in zip(found, threads, strict=True):
        tid, pid, one["ns"], one["kind"] = values
        one["who"] = pid << 32 | tid
    return found


def test_what_came_since_the_last_look_is_said_once() -> None:
    """One goes on, one is new, one ran nothing; two ended, and of one of these the slot is another's."""
    last = slots((7, 5, 100, RunKind.TARGET), (0, 0, 0, 0), (9, 9, 30, 0), (8, 5, 40, RunKind.TARGET), (6, 6, 50, 0))
    now = slots((7, 5, 130, RunKind.TARGET), (3, 3, 11, 0), (9, 9, 30, 0), (0, 0, 0, 0), (4, 4, 2, RunKind.KERNEL))
    # The ended ones took 40 and 50 along, and 5 and 6 that they ran since.
    found = idle_data.subtract_run_times(last, now, [56, 45])
    assert [tuple(row) for row in found.threads.tolist()] == [(7, 5, 30, 1), (3, 3, 11, 0), (4, 4, 2, 2)]
    assert (found.others_ns, found.target_ns) == (6, 5)


def period(library: ctypes.CDLL, *events: tuple[str, int, int, int], idle_ns: int = 90_000) -> tuple[int, int]:
    """Own and kernel time because of an idle exit at 5,000 ns, until the CPU idles again."""
    state = ctypes.create_string_buffer(idle_data.CPU_STATE.itemsize)
    out = ctypes.create_string_buffer(library.record_bytes())
    library.enter(state, ctypes.c_uint64(1_000), 0, 1, out)
    library.leave(state, ctypes.c_uint64(5_000))
    for what, tid, ns, preempted in events:
        if what == "to":
            library.switch_to(state, ctypes.c_uint64(ns), tid, ctypes.c_uint64(0), None)
        else:
            library.departs(state, tid, ctypes.c_uint64(ns), preempted)
    total = ctypes.create_string_buffer(idle_data.CAUSE_SUM.itemsize)
    assert library.ran_until(total, state, ctypes.c_uint64(idle_ns)) == 1
    found = np.frombuffer(total.raw, dtype=idle_data.CAUSE_SUM)[0]
    return int(found["own_ns"]), int(found["kernel_ns"])


def test_an_exit_has_what_its_thread_runs_until_it_sleeps_and_the_kernel_before(library: ctypes.CDLL) -> None:
    alone = period(library, ("to", 7, 8_000, 0), ("from", 7, 20_000, 0))
    assert alone == (20_000, 3_000)
    # It is preempted by another, goes on, sleeps, and runs again for another reason.
    shared = period(
        library,
        *(("to", 7, 8_000, 0), ("from", 7, 20_000, 1), ("from", 9, 30_000, 1), ("from", 7, 4_000, 0)),
        *(("from", 9, 10_000, 1), ("from", 7, 5_000, 0)),
    )
    assert shared == (24_000, 3_000)
    assert period(library) == (0, 85_000)
    # A count that holds what the thread ran elsewhere: no more than this CPU ran after the kernel.
    assert period(library, ("to", 7, 8_000, 0), ("from", 7, 20_000, 0), idle_ns=12_000) == (4_000, 3_000)


SERVER, CLIENT = 100, 5000


def causes(*rows: dict[str, Any]) -> np.ndarray:
    found = np.zeros(len(rows), dtype=idle_data.CAUSE)
    for one, row in zip(found, rows, strict=True):
        one["count"], one["evidence"] = 1, WakeEvidence.CALL_FUNCTION
        for name, value in row.items():
            one[name] = value
    return found


def wakings(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """(tid, pid, waker's tid, waker's pid, count)"""
    found = np.zeros(len(rows), dtype=idle_data.WOKEN)
    for one, row in zip(found, rows, strict=True):
        one["tid"], one["pid"], one["waker_tid"], one["waker_pid"], one["count"] = row
    return found


def by_client(number: int, **more: Any) -> dict[str, Any]:
    """A thread of the server is woken by a client with one thread."""
    return {
        "next_tid": SERVER + 1,
        "next_tgid": SERVER,
        "next_comm": b"one_connection",
        "site_ip": 0x1000,
        "site_code": 77,
        "flags": Flag.WAKER | Flag.SITE | Flag.WAKER_SITE,
        "waker_context": WakerContext.TASK,
        "waker_tid": CLIENT + number,
        "waker_tgid": CLIENT + number,
        "waker_comm": b"mariadb",
        "waker_ip": 0x2000,
        **more,
    }


def test_clients_that_come_and_go_are_one_cause() -> None:
    living = {SERVER, SERVER + 1, CLIENT + 3}
    threads = idle_data.EndedThreads(living.__contains__)
    found, woken = threads.fold(
        causes(*(by_client(number) for number in range(5))),
        wakings(*((SERVER + 1, SERVER, CLIENT + number, CLIENT + number, 2) for number in range(5))),
    )
    by_waker = {int(row["waker_tid"]): row for row in found}
    assert {tid: int(row["count"]) for tid, row in by_waker.items()} == {CLIENT + 3: 1, ENDED: 4}
    folded = by_waker[ENDED]
    assert (folded["waker_comm"], int(folded["waker_tgid"]), int(folded["waker_ip"])) == (b"mariadb", ENDED, 0)
    assert (int(folded["next_tid"]), int(folded["site_code"])) == (SERVER + 1, 77)
    assert int(folded["flags"]) == Flag.WAKER | Flag.SITE
    assert {int(row["waker_tid"]): int(row["count"]) for row in woken} == {CLIENT + 3: 2, ENDED: 8}


def test_threads_of_a_server_that_lives_keep_their_process_and_their_place() -> None:
    rows = [by_client(0, next_tid=SERVER + number, waker_tid=SERVER, waker_tgid=SERVER) for number in range(1, 5)]
    found, _ = idle_data.EndedThreads(lambda tid: tid == SERVER).fold(causes(*rows), wakings())
    assert len(found) == 1
    assert (int(found[0]["next_tid"]), int(found[0]["next_tgid"]), int(found[0]["site_ip"])) == (ENDED, SERVER, 0x1000)
    assert int(found[0]["waker_tid"]) == SERVER


def test_the_process_that_was_asked_for_stays_though_it_ended() -> None:
    found, _ = idle_data.EndedThreads(lambda tid: False).fold(causes(by_client(0)), wakings(), (SERVER,))
    assert (int(found[0]["next_tgid"]), int(found[0]["site_ip"])) == (SERVER, 0x1000)
    assert int(found[0]["waker_tgid"]) >= ENDED


def test_processes_of_the_target_that_ended_are_the_target_s() -> None:
    backends = [by_client(0, next_tid=pid, next_tgid=pid, next_comm=b"postgres") for pid in (300, 301, 302, 900)]
    found, _ = idle_data.EndedThreads(lambda tid: False).fold(causes(*backends), wakings(), (), {300, 301, 302})
    counts = {int(row["next_tgid"]) >= ENDED_IN_TARGET: int(row["count"]) for row in found}
    assert counts == {True: 3, False: 1}
    assert found["site_ip"].tolist() == [0, 0]


def test_a_name_has_its_number_in_later_windows_too() -> None:
    threads = idle_data.EndedThreads(lambda tid: False)
    first, _ = threads.fold(causes(by_client(0)), wakings())
    # The waking of a thread that was known the time before, and of one that never was.
    again, woken = threads.fold(
        causes(by_client(9)), wakings((SERVER + 1, SERVER, CLIENT, CLIENT, 1), (SERVER + 1, SERVER, 7, 7, 1))
    )
    assert again[0]["waker_tid"] == first[0]["waker_tid"]
    nameless = set(woken["waker_tid"].tolist()) - {int(first[0]["waker_tid"])}
    assert len(nameless) == 1
    assert min(nameless) > ENDED


def test_names_without_end_are_not_told_apart() -> None:
    threads = idle_data.EndedThreads(lambda tid: False)
    most = idle_data._MOST_NAMES
    rows = [by_client(0, next_tid=0, waker_tid=tid, waker_comm=f"x{tid}".encode()) for tid in range(1, most + 500)]
    found, _ = threads.fold(causes(*rows), wakings())
    assert len(found) <= most + 1
    assert int(found["count"].sum()) == len(rows)


tids = st.integers(1, 30)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(tids, tids, st.integers(1, 9), st.booleans()), max_size=40), st.sets(tids))
def test_no_count_is_lost_and_what_lives_is_told_as_before(
    rows: list[tuple[int, int, int, bool]], living: set[int]
) -> None:
    made = causes(
        *(
            {
                "next_tid": tid,
                "next_tgid": tid,
                "waker_tid": waker,
                "waker_tgid": waker,
                "count": count,
                "states": [count] + [0] * 9,
                "flags": Flag.WAKER | (Flag.SITE if has_site else 0),
                "site_ip": 5 * has_site,
            }
            for tid, waker, count, has_site in rows
        )
    )
    found, _ = idle_data.EndedThreads(living.__contains__).fold(made, wakings())
    assert found["count"].sum() == made["count"].sum()
    assert found["states"].sum() == made["states"].sum()
    for tid in living:
        for who in ("next_tid", "waker_tid"):
            assert found["count"][found[who] == tid].sum() == made["count"][made[who] == tid].sum()
    assert all(tid in living or tid >= ENDED for tid in found["next_tid"].tolist())


def test_entries_of_one_cause_are_added_and_the_rhythm_is_the_longest() -> None:
    parts = causes(
        {"next_tid": 5, "count": 3, "gaps": 2, "period_ns": 9, "last_ns": 50, "states": [3] + [0] * 9},
        {"next_tid": 6, "count": 1},
        {"next_tid": 5, "count": 4, "gaps": 8, "period_ns": 10, "last_ns": 90, "states": [1, 3] + [0] * 8},
    )
    found = {int(row["next_tid"]): row for row in idle_data.sum_causes(parts)}
    assert set(found) == {5, 6}
    assert (int(found[5]["count"]), int(found[5]["period_ns"]), int(found[5]["gaps"])) == (7, 10, 8)
    assert found[5]["states"].tolist() == [4, 3] + [0] * 8
    assert len(idle_data.sum_causes(parts[:0])) == len(idle_data.sum_wakings(wakings())) == 0


def test_of_threads_that_ended_it_is_forgotten_when_they_began() -> None:
    """Each is another life of a number: as many causes as threads would stay."""
    lives = [{"next_tid": 500, "next_tgid": 500, "next_comm": b"short", "flags": life << 20} for life in range(1, 50)]
    other = {"next_tid": 500, "next_tgid": 500, "next_comm": b"other", "flags": 77 << 20}
    found, _ = idle_data.EndedThreads(lambda tid: False).fold(causes(*lives, other), wakings())
    assert sorted((row["next_comm"], int(row["count"])) for row in found) == [(b"other", 1), (b"short", 49)]
    assert not np.any(found["flags"])


def _edges(*counts: tuple[int | None, int | None, int]) -> dict[int, CpuEdge]:
    return {cpu: CpuEdge(cpu, 0, 10, usage, events, traced) for cpu, (usage, events, traced) in enumerate(counts)}


def test_a_cpu_that_went_away_stands_with_what_was_traced_and_the_others_are_checked() -> None:
    edges = _edges((2000, None, 2001), (1500, None, 1500), (None, None, 474))
    assert count_reference_exits(edges) == ("cpuidle", 2000 + 1500 + 474)
    assert find_unchecked_cpus(edges) == [2]


def test_nothing_is_unchecked_where_all_were_counted_or_none() -> None:
    assert find_unchecked_cpus(_edges((20, None, 20), (30, None, 30))) == []
    assert find_unchecked_cpus(_edges((None, 20, 20), (None, 30, 30))) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(None, 20, 21), (None, 30, 30)], ("perf", 50)),
        ([(None, 20, 21), (None, None, 30)], None),  # without cpuidle one CPU unseen leaves nothing to hold on to
        ([(None, 20, 21), (None, 0, 30)], None),  # a counter that stands still while the CPU leaves idle
        ([(None, None, 21)], None),
        ([], None),
    ],
)
def test_without_cpuidle_the_event_has_to_be_counted_on_every_cpu(
    counts: list[tuple[int | None, int | None, int]], expected: tuple[str, int] | None
) -> None:
    assert count_reference_exits(_edges(*counts)) == expected


@pytest.mark.parametrize(
    ("offsets", "ahead"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0),
        ("monotonic      100000         0\nboottime       100000         0\n", 100_000 * 10**9),
        ("monotonic          -5 250000000\nboottime            0         0\n", -5 * 10**9 + 250_000_000),
        ("", 0),
    ],
)
def test_a_time_namespace_is_ahead_by_its_offset(offsets: str, ahead: int) -> None:
    assert parse_timens_offset(offsets) == ahead
