# SPDX-License-Identifier: Apache-2.0
"""Read the kernel's tables of statements: sums of ended ones, threads with their last statement, and texts."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from powerprof.system.server_roles import ENDED_THREADS
from powerprof.tracing.bpf.shared_numbers import (
    BEGAN_BEFORE,
    COM_PART,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    MAX_HASH_CALLS,
    PIECES_PER_CALL,
    PREPARING,
    SQUARED_NS_LOG,
    OpenStatement,
    StatementWait,
)
from powerprof.tracing.captures import RecordedText, StatementUse, ThreadUse, find_latency_class

Entries = Iterable[tuple[bytes, bytes]]

TEXT_BYTES = 1024
MOST_TEXT_BYTES = MAX_HASH_CALLS * PIECES_PER_CALL * (TEXT_BYTES - 1)  # long_texts.bpf.h hashes and keeps so many
_THREAD = struct.Struct("<12Q72s5QI4x64xQ96x5I8xI4B2x3B")  # without `own` and its count, and what it prepares
_PAST = struct.Struct("<5Q")
_HELPERS = 2  # of `exited_totals`
_TEXT = struct.Struct("<4I2Q")
_TOTAL = struct.Struct("<4Qq72sQ")
_WAITS_FORMAT = "<9Q"  # by enum wait
_PAIR = struct.Struct("<2Q")  # struct total_key, struct latency_key
_TEXT_BIT = 256  # of identities: those below are commands, which have no text


class ThreadCounters(NamedTuple):
    """The fields of `struct thread` of queries.bpf.c, in that order. CPU times are the scheduler's counts."""

    first_ns: int
    last_ns: int
    in_at: int
    past_ns: int
    id: int
    began_at: int
    began_ns: int
    ended_at: int
    ended_ns: int
    sent_at: int
    began_faults: int
    before_ns: int
    waits: bytes
    wait_began_at: int
    wait_delay: int
    began_delay: int
    ended_delay: int
    wait_ns: int
    wait_kind: int
    before_id: int
    wakeups: int
    began_wakeups: int
    ended_wakeups: int
    command: int
    length: int
    statements: int
    first_seen_running: int
    dead: int
    is_known: int
    is_done: int
    is_helper: int
    open: int
    began_before: int

    def ran_until(self, at_ns: int) -> int:
        """Return the CPU time at a moment: until the last switch, plus the time since the thread was switched in."""
        return self.last_ns + (max(at_ns - self.in_at, 0) if self.in_at else 0)

    def waited_until(self, at_ns: int) -> list[int]:
        """Return the waits of the open statement by `StatementWait` in ns, including the present wait."""
        waits = list(struct.unpack(_WAITS_FORMAT, self.waits))
        if self.ended_at:
            waits[StatementWait.RUN_QUEUE] = max(self.ended_delay - self.began_delay, 0)
            return waits
        if self.wait_kind < len(waits):
            waits[self.wait_kind] += self.wait_ns + (max(at_ns - self.wait_began_at, 0) if self.wait_began_at else 0)
        # The remaining time: the scheduler counts a wait for a CPU when it is over, and this one may not be.
        ran = self.ran_until(at_ns) - self.began_ns
        waits[StatementWait.RUN_QUEUE] = max(at_ns - self.began_at - ran - sum(waits), 0)
        return waits


class StatementSums(msgspec.Struct, frozen=True):
    """The sums of statements, their texts, and identity → class of time → calls.

    The sums are by identity, thread, whether the calls began before the window, and whether they were open at its end.
    """

    uses: dict[tuple[int, int, bool, bool], StatementUse]
    texts: dict[int, RecordedText]
    latencies: dict[int, dict[int, int]]


def read_sums(totals: Entries, texts: Entries, latencies: Entries, pieces: Entries = ()) -> StatementSums:
    """Return the sums of ended statements. `add_open_statement` adds the threads' last statements."""
    uses = {}
    for key, value in totals:
        calls, wakeups, faults, wall, cpu, waits, squares = _TOTAL.unpack(value)
        id, tid = _PAIR.unpack(key)
        began_before, tid = bool(tid & BEGAN_BEFORE), tid % BEGAN_BEFORE
        waits_ns = struct.unpack(_WAITS_FORMAT, waits)
        uses[id, tid, began_before, False] = StatementUse(
            id, tid, calls, cpu, wall, wakeups, faults, 0, waits_ns, squares, began_before
        )
    classes: dict[int, dict[int, int]] = {}
    for key, value in latencies:
        id, bucket = _PAIR.unpack(key)
        classes.setdefault(id, {})[bucket] = int.from_bytes(value, "little")
    return StatementSums(uses, {text.id: text for text in read_texts(texts, pieces)}, classes)


def read_texts(texts: Entries, pieces: Entries) -> Iterator[RecordedText]:
    """Yield the texts (texts.bpf.h), with the pieces of long ones (long_texts.bpf.h)."""
    parts = {_PAIR.unpack(key): value for key, value in pieces}
    for key, data in texts:
        id = int.from_bytes(key, "little")
        command, length, hashed, kept, number, tid = _TEXT.unpack_from(data)
        text = b"" if number else _cut(data[_TEXT.size :], kept)
        if kept >= TEXT_BYTES:
            whole = id ^ PREPARING if command == COM_STMT_PREPARE else id
            found = [parts.get((whole, piece), b"") for piece in range(-(-kept // TEXT_BYTES))]
            if all(found):
                text = b"".join(found)[:kept]
        yield RecordedText(id, command, length, text, number, tid, hashed)


def _cut(text: bytes, length: int) -> bytes:
    return text[: min(length, TEXT_BYTES - 1)]


def read_threads(entries: Entries) -> Iterator[tuple[int, ThreadCounters, bytes]]:
    """Yield each thread's number, its counters, and the text of its last statement."""
    for key, value in entries:
        thread = ThreadCounters(*_THREAD.unpack_from(value))
        yield int.from_bytes(key, "little"), thread, _cut(value[_THREAD.size :], thread.length)


def compute_thread_use(tid: int, comm: str, thread: ThreadCounters, base_ns: int | None, ended_at: int) -> ThreadUse:
    """Return the resources that a thread used in a window.

    `base_ns`: its CPU time at the beginning, if it was there.
    """
    begin = _find_begin(thread, base_ns, ended_at)
    used = thread.past_ns + max(thread.ran_until(ended_at) - begin, 0)
    before = max(thread.before_ns - begin, 0) if thread.statements else 0
    return ThreadUse(
        tid,
        comm,
        used,
        thread.wakeups,
        thread.statements,
        before,
        is_helper=bool(thread.is_helper),
        open=OpenStatement(thread.open),
    )


def _find_begin(thread: ThreadCounters, base_ns: int | None, ended_at: int) -> int:
    """Return a thread's CPU time at the beginning of the window.

    The kernel's figure assumes that the thread had its CPU since the beginning, or is of a later moment.
    """
    if thread.first_seen_running and base_ns is not None and base_ns <= thread.ran_until(ended_at):
        return base_ns
    return thread.first_ns


def correct_begin(sums: StatementSums, tid: int, thread: ThreadCounters, base_ns: int | None, ended_at: int) -> None:
    """Let the statement that a living thread executed at the beginning of the window begin with its thread."""
    id = thread.id if thread.began_before else thread.before_id
    too_much = _find_begin(thread, base_ns, ended_at) - thread.first_ns
    for is_open in (False, True):
        if (use := sums.uses.get((id, tid, True, is_open))) is not None:
            sums.uses[id, tid, True, is_open] = replace(use, cpu_ns=use.cpu_ns - too_much)


def read_ended_threads(values: bytes) -> Iterator[ThreadUse]:
    """Yield the sums of exited threads (exited_threads.bpf.h): with no statement, with statements, and of helpers."""
    for kind, (threads, cpu, wakeups, statements, before) in enumerate(_PAST.iter_unpack(values)):
        if threads:
            yield ThreadUse(0, ENDED_THREADS, cpu, wakeups, statements, before, threads, kind == _HELPERS)


def add_open_statement(sums: StatementSums, tid: int, thread: ThreadCounters, text: bytes, ended_at: int) -> None:
    """Add the last statement of a thread: it has ended, or continues beyond the window."""
    id, counts = thread.id, thread.command != COM_PART
    if not id:
        return
    if thread.ended_at:
        cpu, wakeups, until = thread.ended_ns, thread.ended_wakeups, thread.sent_at or thread.ended_at
    else:
        cpu, wakeups, until = thread.ran_until(ended_at), thread.wakeups, ended_at
    before = bool(thread.began_before)
    if thread.ended_at and counts and not before:
        classes = sums.latencies.setdefault(id, {})
        bucket = find_latency_class(until - thread.began_at)
        classes[bucket] = classes.get(bucket, 0) + 1
    squared = (max(cpu - thread.began_ns, 0) >> SQUARED_NS_LOG) ** 2 if counts and thread.ended_at and not before else 0
    key = id, tid, before, not thread.ended_at
    old = sums.uses.get(key, StatementUse(id, tid, 0, 0, 0, 0, 0))
    sums.uses[key] = StatementUse(
        id,
        tid,
        old.calls + counts,
        old.cpu_ns + cpu - thread.began_ns,
        old.wall_ns + max(until - thread.began_at, 0),
        old.wakeups + wakeups - thread.began_wakeups,
        old.faults,
        old.open_count + (counts and not thread.ended_at),
        tuple(was + now for was, now in zip(old.waits_ns, thread.waited_until(ended_at), strict=True)),
        old.squares + squared,
        before,
    )
    if id >= _TEXT_BIT and id not in sums.texts and thread.command != COM_STMT_EXECUTE:
        sums.texts[id] = RecordedText(id, thread.command, thread.length, text)
