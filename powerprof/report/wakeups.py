# SPDX-License-Identifier: Apache-2.0
"""Tables and sentences of wake-up causes: idle exits by thread and stack, and exits caused in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from powerprof.attribution.symbols import is_own, only_waits
from powerprof.model import text
from powerprof.model.attribution import Attribution, Slicing, StackFrame, TargetInfo, Thread, Wakeup, Waking
from powerprof.report import balance
from powerprof.report.document import NOT_TERMINAL, TERMINAL
from powerprof.report.notes import describe_blindness
from powerprof.report.stacks import frames_of
from powerprof.report.table import (
    Cell,
    Column,
    Line,
    Path,
    Places,
    Table,
    TableRow,
    Words,
    figure_columns,
    word_columns,
)

_BLAMED_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "woken by another thread",
    "other_process": "woken by another process",
    "device": "a device",
    "kernel": "the kernel",
    "runnable": "runnable",
}
# Rows with at least this share of a cause are named; the answer names at most two causes.
_NAMED_SHARE = 0.1
_MAX_NAMED = 2
# Intervals of larger rates have no decimals.
_WHOLE_HZ = 100
# Rows with a smaller share of the wake-ups are summed in one line.
_LEAST_SHARE, _FEWEST_ROWS, _MOST_ROWS = 0.01, 5, 20


_Row = TypeVar("_Row", Wakeup, Waking)


class StackCause(Generic[_Row], msgspec.Struct, frozen=True):
    """The idle exits, or the wakings, of one thread name at one place.

    `first` is the most frequent row. `why` is the origin, such as `its own timer`, or several with their shares.
    """

    rows: Sequence[_Row]
    first: _Row
    count: int
    rate_hz: float
    why: str

    @property
    def range_hz(self) -> tuple[float, float] | None:
        """The 95 % interval of the rate; None if every idle exit was counted."""
        return sum_ranges(self.rows)


def sum_ranges(rows: Iterable[Wakeup | Waking]) -> tuple[float, float] | None:
    """Return the sums of the ends of the rows' intervals; None without intervals."""
    ends = [(row.rate_low_hz, row.rate_high_hz) for row in rows if isinstance(row, Wakeup)]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    return (sum(low for low, _ in known), sum(high for _, high in known)) if known and len(known) == len(ends) else None


def range_text(ends: tuple[float, float] | None) -> str:
    """Return the interval of a rate: `[700, 930]`; empty without one."""
    if ends is None:
        return ""
    digits = 1 if ends[1] < _WHOLE_HZ else 0
    return f"[{text.number(ends[0], digits)}, {text.number(ends[1], digits)}]"


def rate_text(rate_hz: float, ends: tuple[float, float] | None) -> str:
    """Return a rate with its interval, if it has one."""
    if ends is None:
        return text.number(rate_hz, 1)
    return f"{text.number(rate_hz, 1 if ends[1] < _WHOLE_HZ else 0)} {range_text(ends)}"


def count_leading(counts: Sequence[float], top: int | None = None) -> int:
    """Return the number of rows that a report begins with; the others are summed in one line.

    `counts` are the wake-ups of the rows in descending order. The first 5 rows are shown, and then those with at least
    1 % of the wake-ups, at most 20 in all. `top` is the number that the user wants instead.
    """
    if top is not None:
        return min(top, len(counts))
    least = _LEAST_SHARE * sum(counts)
    significant = sum(count >= least for count in counts[:_MOST_ROWS])
    return max(significant, min(_FEWEST_ROWS, len(counts)))


def group_exits(rows: Iterable[Wakeup]) -> list[StackCause[Wakeup]]:
    """Return the idle exits by thread name and stack, the most frequent first."""
    return _group(rows, _stack_key, lambda row: row.count, lambda row: row.rate_hz)


def group_wakings(rows: Iterable[Waking]) -> list[StackCause[Waking]]:
    """Return the wakings that ended no idle period by thread name and stack, the most frequent first."""
    return _group(rows, _stack_key, lambda row: row.wakings_count, lambda row: row.wakings_hz)


def _group(
    rows: Iterable[_Row],
    key_of: Callable[[_Row], object],
    count_of: Callable[[_Row], int],
    rate_of: Callable[[_Row], float],
) -> list[StackCause[_Row]]:
    groups: dict[object, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    causes = [
        StackCause(
            group,
            max(group, key=count_of),
            sum(map(count_of, group)),
            sum(map(rate_of, group)),
            _shares((explain_origin(row), count_of(row)) for row in group),
        )
        for group in groups.values()
    ]
    return sorted(causes, key=lambda cause: -cause.count)


def _stack_key(row: Wakeup | Waking) -> object:
    # Addresses differ between processes, so they are not part of the key.
    frames = [frame.function or f"{frame.module}+{frame.function_start or ''}" for frame in row.stack]
    return thread_name(row.thread), tuple(frames)


def _place_of(row: Wakeup | Waking) -> tuple[str, str | None]:
    """Return the thread name and the function of a row."""
    return thread_name(row.thread), function_of(row.stack)


def period_of(cause: StackCause[Wakeup]) -> float | None:
    """Return the period of the first row in milliseconds if it has at least 90 % of the exits."""
    return cause.first.period_ms if cause.first.count >= 0.9 * cause.count else None


def _shares(counted: Iterable[tuple[str, int]]) -> str:
    """Return `its own timer`, or several origins with their shares: `its own timer 80 %, a device 20 %`."""
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


def thread_name(thread: Thread) -> str:
    """Return the thread's name in the server; if it is not in the single target process, with its process.

    A thread without a name in the server has its id, because others of its process may have the same name.
    """
    is_first = thread.server_name is not None or thread.tid in (0, thread.pid)
    name = thread.label if is_first else f"{thread.label} ({thread.tid})"
    if thread.process is None or thread.process == thread.label:
        return name
    return f"{thread.process}: {name}"


def threads_of(cause: StackCause[Wakeup] | StackCause[Waking]) -> str:
    """Return the thread of a cause, with the number of equal threads: `10 × sql/one_connection`."""
    count = len({(row.thread.pid, row.thread.tid) for row in cause.rows})
    return thread_name(cause.first.thread) if count == 1 else f"{count} × {thread_name(cause.first.thread)}"


def explain_origin(row: Wakeup | Waking) -> str:
    """Return the reason for a thread to run: a timer, a thread or a device."""
    reason = _BLAMED_ORIGINS[row.origin]
    if row.origin in ("other_thread", "other_process") and row.waker is not None:
        who = row.waker.server_name.removeprefix("thread/") if row.waker.server_name else row.waker.comm
        has_id = row.origin == "other_process" and row.waker.pid
        return f"woken by {who} ({row.waker.pid})" if has_id else f"woken by {who}"
    if row.origin in ("device", "kernel", "runnable") and row.detail:
        return f"{reason}: {row.detail}"
    return reason


def function_of(stack: Sequence[StackFrame]) -> str | None:
    """Return the innermost function of the program itself, preferably one that does not only wait for its caller.

    Return None if no frame of the program has a name.
    """
    own = [frame for frame in stack if frame.function and is_own(frame)]
    working = [frame for frame in own if not only_waits(frame)]
    chosen = next(iter(working or own), None)
    return None if chosen is None else chosen.function


def name_target(target: TargetInfo) -> str:
    """Return the label of a target with its process id, or with that of its first process and their number."""
    if target.pid is not None:
        return f"{target.label} ({target.pid})"
    if len(target.roots) == 1:
        return f"{target.label} ({target.roots[0]}, {len(target.pids)} processes)"
    return target.label


def answer_of(record: Attribution) -> str:
    """Return the answer: how often the target ended idle periods, and the functions and threads with most of them."""
    total, sliced = record.exits_count, record.slicing
    mine = sum(row.count for row in record.wakeups)
    name = name_target(record.target)
    name = name[:1].upper() + name[1:] if record.target.system else name
    if describe_blindness(record.conservation):
        return f"The wake-ups caused by {name} are unknown."
    checked = balance.describe_accounting(record.conservation)
    rest = "" if checked == balance.ALL_ACCOUNTED else f" {checked}"
    window = f"in {text.number(record.window_s, 1)} s"
    if sliced is not None:
        rest = f" {describe_slices(sliced, has_ranges=mine > 0)}{rest}"
        window = f"in the traced {text.number(sliced.traced_percent, 0)} % of {text.number(record.window_s, 1)} s"
    if not mine or not record.window_s:
        woken = _busy_wakings_text(name, record)
        return f"{woken}{rest}" if woken else f"{name} woke no idle CPU {window}.{rest}"
    share = f" ({text.number(100.0 * mine / total, 1)} % of all idle exits)" if total != mine else ""
    ends = None if sliced is None else (sliced.target_low_hz, sliced.target_high_hz)
    rate = rate_text(mine / record.window_s, ends)
    return f"{name} wakes the CPUs {rate} times a second{share}: {_main_causes(record, mine)}.{rest}"


def describe_slices(sliced: Slicing, *, has_ranges: bool) -> str:
    """Return the sentence on the traced part of the window. Rates of wakings on running CPUs have no intervals."""
    part = f"{text.number(sliced.traced_percent, 0)} % of the window in {text.plural(sliced.slices_count, 'slice')}"
    return f"Traced {part}: rates are estimates{' with 95 % intervals' if has_ranges else ''}."


def main_place(record: Attribution) -> tuple[str, str | None, float]:
    """Return thread, function and rate (1/s) of the place with most idle exits. The record must have idle exits."""
    cause = _exits_by_place(record)[0]
    return *_place_of(cause.first), cause.rate_hz


def _exits_by_place(record: Attribution) -> list[StackCause[Wakeup]]:
    return _group(record.wakeups, _place_of, lambda row: row.count, lambda row: row.rate_hz)


def _busy_wakings_text(label: str, record: Attribution) -> str:
    """Return the waking rate and main place of a target that ended no idle period.

    Return an empty string if wakings were not counted.
    """
    rows, window_s = record.wakings_without_exit, record.wakings_window_s
    if not rows or not window_s:
        return ""
    count = sum(row.wakings_count for row in rows)
    cause = _group(rows, _place_of, lambda row: row.wakings_count, lambda row: row.wakings_hz)[0]
    place = ""
    if cause.count >= _NAMED_SHARE * count:
        place = f": {text.number(cause.count / window_s, 1)} by {_place_text(cause.first)}"
    verb = "were" if ", " in label.partition("(")[0] else "was"
    rate = text.number(count / window_s, 1)
    return f"{label} {verb} woken {rate} times a second, while the CPUs were running{place}."


def _place_text(row: Wakeup | Waking) -> str:
    name, function = _place_of(row)
    return text.shorten(name if function is None else f"{name} in {text.without_parameters(function)}", 70)


def _main_causes(record: Attribution, count: int) -> str:
    """Return the rates of the functions and threads that caused most of `count` exits."""
    clauses: list[str] = []
    for cause in _exits_by_place(record)[:_MAX_NAMED]:
        if clauses and cause.count < _NAMED_SHARE * count:
            break
        period_ms = period_of(cause)
        period = "" if period_ms is None else f", {text.period(period_ms)}"
        clauses.append(f"{rate_text(cause.rate_hz, cause.range_hz)} by {_place_text(cause.first)}{period}")
    return ("; " if "," in "".join(clauses) else " and ").join(clauses)


_MAX_ELSEWHERE = 100
_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "another thread",
    "other_process": "another process",
    "device": "a device",
    "kernel": "the kernel",
    "runnable": "no waker: it was runnable",
}
_NAME_LIMIT = 60
_RAN_ANYWAY = (
    "It woke no idle CPU: the CPUs were running when it was woken. On a quieter host, this would end idle periods."
)

_PLACE_COLUMNS = [
    Column("each", "C0", forms=TERMINAL),
    Column("thread", "thread", left=True, forms=NOT_TERMINAL),
    Column("path", "stack, innermost first", left=True, beside="thread", forms=NOT_TERMINAL),
    Column("who", "thread and stack (innermost first)", left=True, forms=TERMINAL),
]


def mean_c0_ms(rows: Sequence[Wakeup]) -> float:
    """Return the C0 milliseconds per wake-up, including wakings that found a CPU running if they were counted."""
    times = sum(row.count if row.wakings_count is None else max(row.count, row.wakings_count) for row in rows)
    return sum(row.c0_ms for row in rows) / times


def mean_own_ms(rows: Sequence[Waking]) -> float | None:
    """Return the C0 milliseconds per waking; None if one is unknown."""
    own_ms = [row.own_ms for row in rows if row.own_ms is not None]
    return None if len(own_ms) < len(rows) else sum(own_ms) / sum(row.wakings_count for row in rows)


def _cause_cells(
    cause: StackCause[Wakeup] | StackCause[Waking], why: str, at: str, fields: tuple[str, str], places: Places
) -> dict[str, Cell]:
    """Return rate, count and place of a cause. A single row has figures of the record, at these `fields` below `at`."""
    is_single = len(cause.rows) == 1
    rate, count = fields
    return {
        "range": Words(range_text(cause.range_hz), ours=True),
        "rate": places.figure(f"{at}/{rate}", 1) if is_single else Words(text.number(cause.rate_hz, 1)),
        "count": places.figure(f"{at}/{count}") if is_single else Words(text.count(cause.count)),
        "thread": Words(cause.first.thread.label, why if is_single else cause.why),
        "path": Path([frame.placed for frame in cause.first.stack], cause.first.stack_complete),
        "who": Words(f"{threads_of(cause)} · {cause.why}"),
    }


def wakeups_table(record: Attribution, places: Places, limit: int) -> Table:
    """Return one row per thread and stack, at most `limit`. Wakers and mechanisms are merged into shares."""
    number_of = {id(wakeup): number for number, wakeup in enumerate(record.wakeups)}
    rows = []
    for cause in group_exits(record.wakeups)[:limit]:
        at = f"/wakeups/{number_of[id(cause.first)]}"
        why = f"{cause.first.mechanism.replace('_', '-')} · {_origin_text(cause.first)}"
        c0_ms = sum(row.c0_ms for row in cause.rows)
        cells = _cause_cells(cause, why, at, ("rate_hz", "count"), places)
        cells["each"] = Words(text.number(mean_c0_ms(cause.rows), 2, " ms"), ours=True)
        cells["c0"] = places.figure(f"{at}/c0_ms", 2) if len(cause.rows) == 1 else Words(text.number(c0_ms, 2))
        if (period_ms := period_of(cause)) is not None:
            cells["every"] = places.figure(f"{at}/period_ms", wording=text.period(period_ms))
        rows.append(TableRow(cells))
    columns = [
        *figure_columns(rate="/s"),
        *([Column("range", "95 %")] if record.slicing is not None else []),
        Column("count", "exits", forms=NOT_TERMINAL),
        *figure_columns(every="every"),
        Column("c0", "C0 ms", forms=NOT_TERMINAL),
        *_PLACE_COLUMNS,
    ]
    caption = "Idle exits by thread and waiting stack, innermost frame first."
    return Table(columns, rows, "wake-ups by thread and stack", caption)


def _origin_text(wakeup: Wakeup | Waking) -> str:
    """Return the origin with its waker, device or timer."""
    cause = _ORIGINS.get(wakeup.origin, wakeup.origin)
    if wakeup.waker is not None and wakeup.origin in ("other_thread", "other_process"):
        name = (wakeup.waker.server_name or wakeup.waker.comm).removeprefix("thread/")
        return f"{cause}, {text.shorten(name, _NAME_LIMIT)} ({wakeup.waker.pid})"
    return f"{cause}, {text.shorten(wakeup.detail, _NAME_LIMIT)}" if wakeup.detail else cause


def hidden_rows_text(counts: Sequence[int], limit: int, what: str) -> str:
    """Return the number and the sum of the rows after `limit`, which count `what`; an empty string without any."""
    hidden = counts[limit:]
    return f"{text.plural(len(hidden), 'more row')} with {text.plural(sum(hidden), what)}" if hidden else ""


def elsewhere_table(record: Attribution, places: Places) -> Table:
    """Return the idle periods that the target ended by waking other processes."""
    rows = []
    for index, woken in enumerate(record.woken_elsewhere[:_MAX_ELSEWHERE]):
        at = f"/woken_elsewhere/{index}"
        counted = {"rate": places.figure(f"{at}/rate_hz", 1), "count": places.figure(f"{at}/count")}
        rows.append(TableRow({**counted, "thread": Words(woken.thread.label), "woke": Words(woken.process)}))
    columns = [*figure_columns(rate="/s", count="exits"), *word_columns("thread", "woke")]
    return Table(columns, rows, "other processes", left_count=len(record.woken_elsewhere) - len(rows))


def busy_wakings_table(record: Attribution, places: Places, limit: int) -> Table:
    """Return the wakings of a target that ended no idle period, at most `limit` rows."""
    number_of = {id(waking): number for number, waking in enumerate(record.wakings_without_exit)}
    rows = []
    for cause in group_wakings(record.wakings_without_exit)[:limit]:
        at = f"/wakings_without_exit/{number_of[id(cause.first)]}"
        fields = ("wakings_hz", "wakings_count")
        cells = _cause_cells(cause, _origin_text(cause.first), at, fields, places)
        each_ms = mean_own_ms(cause.rows)
        cells["each"] = Words("" if each_ms is None else text.number(each_ms, 2, " ms"), ours=True)
        rows.append(TableRow(cells))
    columns = [*figure_columns(rate="/s"), Column("count", "wakings", forms=NOT_TERMINAL), *_PLACE_COLUMNS]
    return Table(columns, rows, "wakings of a running CPU", _RAN_ANYWAY)


_LINE_HEAD = (
    *("mechanism", "origin", "count", "rate_hz", "wakings_count", "wakings_hz", "period_ms", "c0_ms"),
    *("pid", "tid", "thread", "detail", "waker_pid", "waker", "stack"),
)


def wakeup_lines(record: Attribution) -> Iterator[Line]:
    """Yield the head of CSV, then one line per thread, stack, origin and mechanism.

    Lines without idle exits follow: on a busy host there are no others.
    """
    # A window that was traced completely has no intervals.
    is_sliced = record.slicing is not None
    yield (*_LINE_HEAD, *(("rate_low_hz", "rate_high_hz") if is_sliced else ()))
    for row in record.wakeups:
        counts = (row.count, row.rate_hz, row.wakings_count, None, row.period_ms, row.c0_ms)
        ends = (row.rate_low_hz, row.rate_high_hz) if is_sliced else ()
        yield [row.mechanism, row.origin, *counts, *_identify(row), *ends]
    for waking in record.wakings_without_exit:
        of_wakings = (waking.wakings_count, waking.wakings_hz, None, waking.own_ms)
        yield [None, waking.origin, None, None, *of_wakings, *_identify(waking), *((None, None) if is_sliced else ())]


def _identify(row: Wakeup | Waking) -> Line:
    """Return the thread, its detail, its waker and its stack."""
    waker = (row.waker.pid, row.waker.comm) if row.waker else (None, None)
    stack = " < ".join(reversed(frames_of(row)[1:]))
    return [row.thread.pid, row.thread.tid, row.thread.label, row.detail, *waker, stack]
