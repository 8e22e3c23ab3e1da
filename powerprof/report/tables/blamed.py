# SPDX-License-Identifier: Apache-2.0
"""Who is to blame, as a person counts it: one thread at one place is one cause, whatever interrupt or waker ended the
idle periods; and the answer of an attribution in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from powerprof import text
from powerprof.attribution.places import is_own, only_waits
from powerprof.attribution.records import Attribution, StackFrame, Thread, Wakeup, Waking
from powerprof.report.tables import sums

_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "woken by another thread",
    "other_process": "woken by another process",
    "device": "a device",
    "kernel": "the kernel",
    "runnable": "runnable",
}
# Rows that have at least this share of a cause are named; the first sentence has two causes at most.
_NAMED_SHARE = 0.1
_MOST_CAUSES = 2


@dataclass(frozen=True)
class Blamed:
    """Rows of one thread (its name) and one stack. `first` is the most frequent of them."""

    rows: Sequence[Wakeup]

    @property
    def first(self) -> Wakeup:
        return max(self.rows, key=lambda row: row.count)

    @property
    def count(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def rate_hz(self) -> float:
        return sum(row.rate_hz for row in self.rows)

    @property
    def c0_ms(self) -> float:
        return sum(row.c0_ms for row in self.rows)

    @property
    def period_ms(self) -> float | None:
        """Of the one row that stands for nearly all of them."""
        return self.first.period_ms if self.first.count >= 0.9 * self.count else None

    @property
    def why(self) -> str:
        """`its own timer`; of several origins each with its share: `its own timer 80 %, a device 20 %`."""
        return _shares((origin(row), row.count) for row in self.rows)


@dataclass(frozen=True)
class RanAnyway:
    """Wakings of one thread (its name) at one stack, which ended no idle period. `first` is the most frequent row."""

    rows: Sequence[Waking]

    @property
    def first(self) -> Waking:
        return max(self.rows, key=lambda row: row.wakings_count)

    @property
    def count(self) -> int:
        return sum(row.wakings_count for row in self.rows)

    @property
    def rate_hz(self) -> float:
        return sum(row.wakings_hz for row in self.rows)

    @property
    def own_ms(self) -> float | None:
        """What they ran, over all of them; None where that was not counted."""
        counted = [row.own_ms for row in self.rows if row.own_ms is not None]
        return sum(counted) if len(counted) == len(self.rows) else None

    @property
    def why(self) -> str:
        """As `Blamed.why`."""
        return _shares((origin(row), row.wakings_count) for row in self.rows)


def blamed(rows: Iterable[Wakeup]) -> list[Blamed]:
    """The causes, those of most idle exits first."""
    return sorted((Blamed(group) for group in _by_stack(rows)), key=lambda cause: -cause.count)


def ran_anyway(rows: Iterable[Waking]) -> list[RanAnyway]:
    """The causes of wakings that ended no idle period, the most frequent first."""
    return sorted((RanAnyway(group) for group in _by_stack(rows)), key=lambda cause: -cause.count)


_Row = TypeVar("_Row", Wakeup, Waking)


def _by_stack(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Rows of one thread (its name) and one stack together."""
    groups: dict[tuple[str, tuple[str, ...]], list[_Row]] = {}
    for row in rows:
        groups.setdefault((thread_name(row.thread), tuple(map(_same, row.stack))), []).append(row)
    return list(groups.values())


def _shares(counted: Iterable[tuple[str, int]]) -> str:
    """`its own timer`; of several origins each with its share: `its own timer 80 %, a device 20 %`."""
    counts: dict[str, int] = {}
    for reason, count in counted:
        counts[reason] = counts.get(reason, 0) + count
    ranked, whole = sorted(counts.items(), key=lambda item: -item[1]), sum(counts.values())
    if len(ranked) == 1:
        return ranked[0][0]
    named = [(reason, count) for reason, count in ranked if count >= _NAMED_SHARE * whole][:3] or ranked[:1]
    shares = [f"{reason} {100 * count / whole:.0f} %" for reason, count in named]
    left = len(ranked) - len(named)
    return ", ".join([*shares, *([f"{left} more"] if left else [])])


def _same(frame: StackFrame) -> str:
    """The frame without an address that differs from process to process."""
    return frame.function or f"{frame.module}+{frame.function_start or ''}"


def thread_name(thread: Thread) -> str:
    """The thread as the server calls it; of another process than a single target also which."""
    if thread.process is None or thread.process == thread.label:
        return thread.label
    return f"{thread.process}: {thread.label}"


def origin(row: Wakeup | Waking) -> str:
    """What made the thread run: a timer, a thread, a device."""
    reason = _ORIGINS[row.origin]
    if row.origin in ("other_thread", "other_process") and row.waker is not None:
        who = row.waker.server_name.removeprefix("thread/") if row.waker.server_name else row.waker.comm
        return f"woken by {who}" if row.origin == "other_thread" else f"woken by {who} ({row.waker.pid})"
    if row.origin in ("device", "kernel", "runnable") and row.detail:
        return f"{reason}: {row.detail}"
    return reason


def function_of(stack: Sequence[StackFrame]) -> str | None:
    """The function to name: the innermost of the program's own that does not only wait for its caller; None where
    none has a name."""
    own = [frame for frame in stack if frame.function and is_own(frame)]
    working = [frame for frame in own if not only_waits(frame)]
    chosen = next(iter(working or own), None)
    return None if chosen is None else chosen.function


def headline(record: Attribution) -> str:
    """How often the target ended idle periods, and which function on which thread did most of it."""
    total = record.conservation.idle_exits_count
    mine = sum(row.count for row in record.wakeups)
    name = record.target.label + (f" ({record.target.pid})" if record.target.pid else "")
    name = name[:1].upper() + name[1:] if record.target.system else name
    checked = sums.verdict(record.conservation)
    if sums.is_blind(record.conservation):
        return f"What {name} caused is unknown. {checked}"
    rest = "" if checked == sums.ALL_ACCOUNTED else f" {checked}"
    window = f"in {text.number(record.window_s, 1)} s"
    if not mine or not record.window_s:
        woken = _ran_anyway_sentence(name, record)
        return f"{woken}{rest}" if woken else f"{name} woke no idle CPU {window}.{rest}"
    share = f" ({text.number(100.0 * mine / total, 1)} % of all idle exits)" if total != mine else ""
    rate = text.number(mine / record.window_s, 1)
    return f"{name} wakes the CPUs {rate} times a second{share}: {_who(record, mine)}.{rest}"


def most(record: Attribution) -> tuple[str, str | None, float]:
    """The thread, the function and the rate of the place with most idle exits; of a record with any."""
    (name, function), rows = _by_place(record)[0]
    return name, function, sum(row.rate_hz for row in rows)


def _ran_anyway_sentence(label: str, record: Attribution) -> str:
    """How often a target that ended no idle period was woken, and which function on which thread it was mostly;
    empty where that was not counted."""
    rows, window_s = record.wakings_without_exit, record.wakings_window_s
    if not rows or not window_s:
        return ""
    count = sum(row.wakings_count for row in rows)
    (name, function), most_of = min(_placed(rows), key=lambda item: -sum(row.wakings_count for row in item[1]))
    times = sum(row.wakings_count for row in most_of)
    who = ""
    if times >= _NAMED_SHARE * count:
        who = f": {text.number(times / window_s, 1)} by {_at(name, function)}"
    return f"{label} was woken {text.number(count / window_s, 1)} times a second, while CPUs ran anyway{who}."


def _by_place(record: Attribution) -> list[tuple[tuple[str, str | None], list[Wakeup]]]:
    """Rows by thread and function, those of most idle exits first."""
    return sorted(_placed(record.wakeups), key=lambda item: -sum(row.count for row in item[1]))


def _placed(rows: Iterable[_Row]) -> list[tuple[tuple[str, str | None], list[_Row]]]:
    """Rows by thread and function: stacks that differ within them are one."""
    places: dict[tuple[str, str | None], list[_Row]] = {}
    for row in rows:
        places.setdefault((thread_name(row.thread), function_of(row.stack)), []).append(row)
    return list(places.items())


def _at(name: str, function: str | None) -> str:
    """Thread and function, as a sentence names them."""
    return text.cut(name if function is None else f"{name} in {text.without_parameters(function)}", 70)


def _who(record: Attribution, mine: int) -> str:
    """The functions and threads that did most of it."""
    ranked = _by_place(record)[:_MOST_CAUSES]
    clauses: list[str] = []
    for (name, function), rows in ranked:
        cause = Blamed(rows)
        if clauses and cause.count < _NAMED_SHARE * mine:
            break
        clauses.append(f"{text.number(cause.rate_hz, 1)} by {_at(name, function)}{_every(cause)}")
    return ("; " if "," in "".join(clauses) else " and ").join(clauses)


def _every(cause: Blamed) -> str:
    return f", {text.period(cause.period_ms)}" if cause.period_ms is not None else ""
