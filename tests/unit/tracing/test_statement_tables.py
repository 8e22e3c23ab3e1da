# SPDX-License-Identifier: Apache-2.0
"""Statements in the kernel's tables."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.tracing.bpf.shared_numbers import (
    BEGAN_BEFORE,
    COM_PART,
    COM_QUERY,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    PREPARING,
    SQUARED_NS_LOG,
    OpenStatement,
    StatementWait,
)
from powerprof.tracing.captures import RecordedText, StatementUse, ThreadUse, find_latency_class, latency_class_range_ns
from powerprof.tracing.statement_tables import (
    TEXT_BYTES,
    ThreadCounters,
    add_open_statement,
    compute_thread_use,
    correct_begin,
    read_ended_threads,
    read_sums,
    read_texts,
    read_threads,
)

_ID, _TID = 0x1F00, 42
_ENDED = 10_000_000
_TEXT = b"SELECT 1"
_ENDED_USE, _OPEN_USE = (_ID, _TID, False, False), (_ID, _TID, False, True)


def _key(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _thread(**fields: Any) -> ThreadCounters:
    plain = dict.fromkeys(ThreadCounters._fields, 0) | {
        "first_ns": 1_000,
        "id": _ID,
        "command": COM_QUERY,
        "length": len(_TEXT),
        "waits": bytes(72),
    }
    return ThreadCounters(**{**plain, **fields})


def _entry(thread: ThreadCounters, text: bytes = _TEXT) -> tuple[bytes, bytes]:
    return struct.pack("<I", _TID), struct.pack("<12Q72s5QI4x64xQ96x5I8xI4B2x3B", *thread) + text.ljust(
        TEXT_BYTES, b"\0"
    )


@pytest.mark.parametrize("duration_ns", [8, 9, 15, 16, 1_000, 123_456_789, 2**40 - 1, 2**40])
def test_a_time_lies_in_its_class(duration_ns: int) -> None:
    low, high = latency_class_range_ns(find_latency_class(duration_ns))
    assert low <= duration_ns < high <= low * 9 / 8


def test_threads_that_were_let_go_are_three_sums() -> None:
    """Those that executed no statement, those that did, and helpers; a sum of none is no thread."""
    none, some = struct.pack("<5Q", 0, 0, 0, 0, 0), struct.pack("<5Q", 300, 9_000, 40, 900, 2_000)
    helpers = struct.pack("<5Q", 110, 8_000, 40, 110, 0)
    assert list(read_ended_threads(none + some + helpers)) == [
        ThreadUse(0, "ended threads", 9_000, 40, 900, 2_000, 300),
        ThreadUse(0, "ended threads", 8_000, 40, 110, 0, 110, is_helper=True),
    ]


def test_what_has_ended_is_read_as_it_was_counted() -> None:
    total = struct.pack("<4Qq9QQ", 3, 2, 1, 900, -5, *range(9), 77)
    text = struct.pack("<4I2Q", COM_QUERY, *[len(_TEXT)] * 3, 0, 0) + _TEXT.ljust(TEXT_BYTES, b"\0")
    sums = read_sums([(_key(_ID, _TID), total)], [(_key(_ID), text)], [(_key(_ID, 30), _key(3))])
    assert sums.uses == {_ENDED_USE: StatementUse(_ID, _TID, 3, -5, 900, 2, 1, 0, tuple(range(9)), 77)}
    assert sums.texts == {_ID: RecordedText(_ID, COM_QUERY, len(_TEXT), _TEXT, hashed=len(_TEXT))}
    assert sums.latencies == {_ID: {30: 3}}


def test_a_text_is_as_long_as_it_says_and_none_where_the_server_has_it_by_a_number() -> None:
    rest = b"x" * TEXT_BYTES
    kept = struct.pack("<4I2Q", COM_QUERY, 9_000, 1_023, 1_023, 0, 0)
    numbered = struct.pack("<4I2Q", COM_STMT_EXECUTE, 0, 0, 0, 7, _TID)
    long, known = read_texts([(_key(_ID), kept + rest), (_key(_ID + 1), numbered + rest)], [])
    assert (len(long.text), long.may_be_several, long.is_cut) == (TEXT_BYTES - 1, True, False)
    assert (known.text, known.prepared_number, known.tid, known.may_be_several) == (b"", 7, _TID, False)


def test_a_long_text_is_put_together_of_its_pieces_and_cut_where_one_is_missing() -> None:
    whole = bytes(number % 251 for number in range(2_500))
    entry = struct.pack("<4I2Q", COM_QUERY, *[len(whole)] * 3, 0, 0) + whole[:TEXT_BYTES]
    pieces = [(_key(_ID, at), whole[at * 1024 : at * 1024 + 1024].ljust(1024, b"x")) for at in range(3)]
    (text,) = read_texts([(_key(_ID), entry)], pieces)
    assert (text.text, text.is_cut, text.may_be_several) == (whole, False, False)
    (text,) = read_texts([(_key(_ID), entry)], pieces[:2])
    assert (text.text, text.is_cut, text.may_be_several) == (whole[:1023], True, False)
    # Preparing it is another identity, and its text the same.
    prepares = (_ID ^ PREPARING) | 256
    entry = struct.pack("<I", COM_STMT_PREPARE) + entry[4:]
    (text,) = read_texts([(_key(prepares), entry)], pieces)
    assert text.text == whole


def test_a_thread_used_what_it_ran_since_the_window_began() -> None:
    ((tid, thread, text),) = read_threads([_entry(_thread(last_ns=6_000, wakeups=4))])
    assert (tid, text) == (_TID, _TEXT)
    assert compute_thread_use(tid, "one", thread, 200, _ENDED).cpu_ns == 5_000  # first seen as it was switched in
    running = thread._replace(first_seen_running=1)
    assert compute_thread_use(tid, "one", running, 200, _ENDED).cpu_ns == 5_800  # it ran before it was first seen
    assert compute_thread_use(tid, "one", running, None, _ENDED).cpu_ns == 5_000  # it was not there as the window began
    inside = thread._replace(in_at=_ENDED - 300, past_ns=70)
    assert compute_thread_use(tid, "one", inside, None, _ENDED).cpu_ns == 5_370  # it runs on, and had a namesake


def test_only_what_ran_before_a_first_statement_is_before_it() -> None:
    thread = _thread(last_ns=6_000, before_ns=1_400)
    assert compute_thread_use(_TID, "one", thread, None, _ENDED).before_ns == 0
    assert compute_thread_use(_TID, "one", thread._replace(statements=1), None, _ENDED).before_ns == 400


def test_a_last_statement_that_has_ended_counts_as_all_others_do() -> None:
    sums = read_sums([], [], [])
    thread = _thread(
        began_at=1_000_000, began_ns=2_000, ended_at=3_100_000, sent_at=3_000_000, ended_ns=7_000, last_ns=9_000
    )._replace(began_wakeups=1, ended_wakeups=3, wakeups=8)
    add_open_statement(sums, _TID, thread, _TEXT, _ENDED)
    assert sums.uses == {_ENDED_USE: StatementUse(_ID, _TID, 1, 5_000, 2_000_000, 2, 0, squares=(5_000 >> 8) ** 2)}
    assert sums.latencies == {_ID: {find_latency_class(2_000_000): 1}}
    assert sums.texts[_ID].text == _TEXT


def test_one_that_goes_on_is_counted_as_open_until_the_windows_end() -> None:
    sums = read_sums([(_key(_ID, _TID), struct.pack("<4Qq80x", 3, 2, 1, 900, 500))], [], [])
    thread = _thread(began_at=1_000_000, began_ns=2_000, last_ns=9_000, in_at=_ENDED - 100, wakeups=8, began_wakeups=1)
    add_open_statement(sums, _TID, thread, _TEXT, _ENDED)
    waits = (9_000_000 - 7_100, *[0] * 8)
    assert sums.uses[_ENDED_USE] == StatementUse(_ID, _TID, 3, 500, 900, 2, 1)
    assert sums.uses[_OPEN_USE] == StatementUse(_ID, _TID, 1, 7_100, 9_000_000, 7, 0, open_count=1, waits_ns=waits)
    assert sums.latencies == {}


@pytest.mark.parametrize("sent_at", [0, 6_000_000])
@pytest.mark.parametrize(("in_at", "wait_began_at"), [(0, 0), (_ENDED - 100, 0), (0, 9_000_000)])
def test_cpu_and_waits_of_one_that_goes_on_are_its_time(sent_at: int, in_at: int, wait_began_at: int) -> None:
    """It waits for a CPU at the window's end, which nothing has counted, runs, or sleeps; its answer may be sent."""
    sums = read_sums([], [], [])
    thread = _thread(began_at=1_000_000, began_ns=2_000, last_ns=9_000, in_at=in_at, sent_at=sent_at)._replace(
        wait_began_at=wait_began_at,
        wait_kind=StatementWait.DISK,
        began_delay=500,
        wait_delay=400_500,
        ended_delay=300_500,
    )
    add_open_statement(sums, _TID, thread, _TEXT, _ENDED)
    use = sums.uses[_OPEN_USE]
    assert use.cpu_ns + sum(use.waits_ns) == use.wall_ns == _ENDED - 1_000_000
    assert use.waits_ns[StatementWait.DISK] == (_ENDED - wait_began_at if wait_began_at else 0)


def test_parts_are_no_calls_and_commands_have_no_text() -> None:
    sums = read_sums([], [], [])
    add_open_statement(sums, _TID, _thread(command=COM_PART, ended_at=5, ended_ns=9), _TEXT, _ENDED)
    assert (sums.uses[_ENDED_USE].calls, sums.uses[_ENDED_USE].cpu_ns, sums.latencies) == (0, 9, {})
    add_open_statement(sums, _TID, _thread(id=14, command=14), _TEXT, _ENDED)
    add_open_statement(sums, _TID, _thread(id=_ID + 1, command=COM_STMT_EXECUTE), _TEXT, _ENDED)
    add_open_statement(sums, _TID, _thread(id=0), _TEXT, _ENDED)
    assert set(sums.texts) == {_ID}
    assert set(sums.uses) == {_ENDED_USE, (14, _TID, False, True), (_ID + 1, _TID, False, True)}


def test_waits_of_an_ended_statement_are_those_until_its_end() -> None:
    """The scheduler's wait for a CPU is a growing sum of the thread, and a later sleep belongs to no statement."""
    thread = _thread(ended_at=9, wait_kind=StatementWait.DISK)._replace(
        waits=struct.pack("<9Q", *range(100, 109)), began_delay=500, ended_delay=300_500, wait_ns=70, wait_began_at=3
    )
    assert thread.waited_until(_ENDED) == [300_000, *range(101, 109)]
    assert thread._replace(ended_delay=400).waited_until(_ENDED)[0] == 0


def test_waits_of_an_open_statement_include_the_present_one() -> None:
    thread = _thread(began_at=1_000, began_ns=40, last_ns=240, wait_kind=StatementWait.DISK)._replace(
        waits=struct.pack("<9Q", *range(9)), wait_ns=70, wait_began_at=5_000
    )
    waits = thread.waited_until(9_000)
    assert waits[1:] == [1, 2, 3, 4 + 70 + 4_000, 5, 6, 7, 8]
    assert sum(waits) + 200 == 9_000 - 1_000


@settings(max_examples=80, deadline=None)
@given(
    ended=st.booleans(),
    part=st.booleans(),
    began_ns=st.integers(0, 10**9),
    ran_ns=st.integers(0, 10**9),
    took_ns=st.integers(0, 10**10),
    wakeups=st.integers(0, 9),
    before=st.booleans(),
    old=st.tuples(st.integers(0, 9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 9)),
)
def test_law_of_a_last_statement(
    ended: bool,
    part: bool,
    began_ns: int,
    ran_ns: int,
    took_ns: int,
    wakeups: int,
    before: bool,
    old: tuple[int, int, int, int],
) -> None:
    """A statement adds its own growth to the sums of its identity: calls, CPU time, wall time and wake-ups.

    The ends of the window are in separate sums, and only a whole call has a latency and a square.
    """
    calls, cpu_ns, wall_ns, woken = old
    sums = read_sums([(_key(_ID, _TID), struct.pack("<4Qq80x", calls, woken, 5, wall_ns, cpu_ns))], [], [])
    until = 77_000 + took_ns
    thread = _thread(began_at=77_000, began_ns=began_ns, command=COM_PART if part else COM_QUERY)._replace(
        ended_at=until if ended else 0,
        ended_ns=began_ns + ran_ns,
        last_ns=began_ns + ran_ns,
        began_wakeups=3,
        ended_wakeups=3 + wakeups,
        wakeups=3 + wakeups,
        began_before=int(before),
    )
    add_open_statement(sums, _TID, thread, _TEXT, until)
    uses = list(sums.uses.values())
    own = sums.uses[_ID, _TID, before, not ended]
    whole = ended and not part and not before
    assert (sum(use.calls for use in uses), own.open_count) == (calls + (not part), int(not ended and not part))
    assert (sum(use.cpu_ns for use in uses), sum(use.wall_ns for use in uses)) == (cpu_ns + ran_ns, wall_ns + took_ns)
    assert (sum(use.wakeups for use in uses), sum(use.faults for use in uses)) == (woken + wakeups, 5)
    assert (own.began_before, len(uses)) == (before, 1 if ended and not before else 2)
    assert own.squares == ((ran_ns >> SQUARED_NS_LOG) ** 2 if whole else 0)
    assert sum(sums.latencies.get(_ID, {}).values()) == int(whole)


def test_a_statement_of_before_the_window_begins_with_its_thread() -> None:
    """The kernel assumes that a running thread had its CPU since the start: 700 ns of it were stolen."""
    for began_before in (False, True):
        total = struct.pack("<4Qq80x", 1, 2, 1, 900, 5_000)
        sums = read_sums([] if began_before else [(_key(_ID, BEGAN_BEFORE | _TID), total)], [], [])
        thread = _thread(first_ns=1_000, began_ns=1_000, last_ns=6_000, first_seen_running=1)._replace(
            began_before=began_before, before_id=0 if began_before else _ID, open=OpenStatement.FOUND
        )
        if began_before:
            add_open_statement(sums, _TID, thread, _TEXT, _ENDED)
        correct_begin(sums, _TID, thread, 1_700, _ENDED)
        (use,) = sums.uses.values()
        assert (use.cpu_ns, use.began_before) == (4_300, True)
        assert compute_thread_use(_TID, "one", thread, 1_700, _ENDED).cpu_ns == 4_300
