# SPDX-License-Identifier: Apache-2.0
"""Threads that have ended, told by name: no count is lost, and what still lives is told as before."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.system.tasks import ENDED, ENDED_IN_TARGET
from powerprof.tracing import idle_data
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence, WakerContext
from powerprof.tracing.idle_data import CAUSE, WOKEN, EndedThreads, sum_causes, sum_wakings

SERVER, CLIENT = 100, 5000


def causes(*rows: dict[str, Any]) -> np.ndarray:
    found = np.zeros(len(rows), dtype=CAUSE)
    for one, row in zip(found, rows, strict=True):
        one["count"], one["evidence"] = 1, WakeEvidence.CALL_FUNCTION
        for name, value in row.items():
            one[name] = value
    return found


def wakings(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """(tid, pid, waker's tid, waker's pid, count)"""
    found = np.zeros(len(rows), dtype=WOKEN)
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
    threads = EndedThreads(living.__contains__)
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
    found, _ = EndedThreads(lambda tid: tid == SERVER).fold(causes(*rows), wakings())
    assert len(found) == 1
    assert (int(found[0]["next_tid"]), int(found[0]["next_tgid"]), int(found[0]["site_ip"])) == (ENDED, SERVER, 0x1000)
    assert int(found[0]["waker_tid"]) == SERVER


def test_the_process_that_was_asked_for_stays_though_it_ended() -> None:
    found, _ = EndedThreads(lambda tid: False).fold(causes(by_client(0)), wakings(), (SERVER,))
    assert (int(found[0]["next_tgid"]), int(found[0]["site_ip"])) == (SERVER, 0x1000)
    assert int(found[0]["waker_tgid"]) >= ENDED


def test_processes_of_the_target_that_ended_are_the_target_s() -> None:
    backends = [by_client(0, next_tid=pid, next_tgid=pid, next_comm=b"postgres") for pid in (300, 301, 302, 900)]
    found, _ = EndedThreads(lambda tid: False).fold(causes(*backends), wakings(), (), {300, 301, 302})
    counts = {int(row["next_tgid"]) >= ENDED_IN_TARGET: int(row["count"]) for row in found}
    assert counts == {True: 3, False: 1}
    assert found["site_ip"].tolist() == [0, 0]


def test_a_name_has_its_number_in_later_windows_too() -> None:
    threads = EndedThreads(lambda tid: False)
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
    threads = EndedThreads(lambda tid: False)
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
    found, _ = EndedThreads(living.__contains__).fold(made, wakings())
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
    found = {int(row["next_tid"]): row for row in sum_causes(parts)}
    assert set(found) == {5, 6}
    assert (int(found[5]["count"]), int(found[5]["period_ns"]), int(found[5]["gaps"])) == (7, 10, 8)
    assert found[5]["states"].tolist() == [4, 3] + [0] * 8
    assert len(sum_causes(parts[:0])) == len(sum_wakings(wakings())) == 0


def test_of_threads_that_ended_it_is_forgotten_when_they_began() -> None:
    """Each is another life of a number: as many causes as threads would stay."""
    lives = [{"next_tid": 500, "next_tgid": 500, "next_comm": b"short", "flags": life << 20} for life in range(1, 50)]
    other = {"next_tid": 500, "next_tgid": 500, "next_comm": b"other", "flags": 77 << 20}
    found, _ = EndedThreads(lambda tid: False).fold(causes(*lives, other), wakings())
    assert sorted((row["next_comm"], int(row["count"])) for row in found) == [(b"other", 1), (b"short", 49)]
    assert not np.any(found["flags"])
