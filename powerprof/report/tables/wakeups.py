# SPDX-License-Identifier: Apache-2.0
"""The tables of an attribution: idle exits by thread and stack, and those that it caused in other processes."""

from __future__ import annotations

from powerprof import text
from powerprof.attribution.records import Attribution, Wakeup, Waking
from powerprof.report.tables.blamed import blamed, ran_anyway
from powerprof.report.tables.table import Cell, Column, Path, Places, Table, TableRow, Words, figures, words

_ELSEWHERE = 100
_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "another thread",
    "other_process": "another process",
    "device": "a device",
    "kernel": "the kernel",
    "runnable": "none: it was runnable",
}
_NAME_LIMIT = 60
RAN_ANYWAY = "It woke no idle CPU: it was woken while CPUs ran anyway. On a quieter host that ends idle periods."

_PLACE = [*words("thread"), Column("path", "stack, innermost first", left=True, beside="thread")]


def _place(first: Wakeup | Waking, why: str) -> dict[str, Cell]:
    """The cells of `_PLACE`."""
    path = Path([frame.placed for frame in first.stack], first.stack_complete)
    return {"thread": Words(first.thread.label, why), "path": path}


def wakeups_table(record: Attribution, places: Places, limit: int) -> Table:
    """A row a thread and stack, the first `limit` of them; wakers and mechanisms are a count or shares in it."""
    number_of = {id(wakeup): number for number, wakeup in enumerate(record.wakeups)}
    rows = []
    for cause in blamed(record.wakeups)[:limit]:
        first = cause.first
        row: dict[str, Cell] = {
            "rate": Words(text.number(cause.rate_hz, 1)),
            "count": Words(text.count(cause.count)),
            "c0": Words(text.number(cause.c0_ms, 2)),
        }
        at = f"/wakeups/{number_of[id(first)]}"
        if len(cause.rows) == 1:
            row = {
                "rate": places.figure(f"{at}/rate_hz", 1),
                "count": places.figure(f"{at}/count"),
                "c0": places.figure(f"{at}/c0_ms", 2),
            }
        if cause.period_ms is not None:
            row["every"] = places.figure(f"{at}/period_ms", words=text.period(cause.period_ms))
        why = f"{first.mechanism.replace('_', '-')} · {_why(first)}" if len(cause.rows) == 1 else cause.why
        rows.append(TableRow({**row, **_place(first, why)}))
    columns = [*figures(rate="/s", count="exits", every="every", c0="C0 ms"), *_PLACE]
    caption = "Idle exits blamed on a thread and the place where it waited; frames innermost first."
    return Table(columns, rows, "wake-ups by thread and stack", caption)


def _why(wakeup: Wakeup | Waking) -> str:
    """Origin in words, with who woke it or which device or timer it was."""
    origin = _ORIGINS.get(wakeup.origin, wakeup.origin)
    if wakeup.waker is not None and wakeup.origin in ("other_thread", "other_process"):
        name = (wakeup.waker.server_name or wakeup.waker.comm).removeprefix("thread/")
        return f"{origin}, {text.cut(name, _NAME_LIMIT)} ({wakeup.waker.pid})"
    return f"{origin}, {text.cut(wakeup.detail, _NAME_LIMIT)}" if wakeup.detail else origin


def beyond(record: Attribution, limit: int) -> str:
    """How many rows `wakeups_table`, or `ran_anyway_table`, leaves out at this limit, and what they come to."""
    if record.wakeups:
        counts, what = [cause.count for cause in blamed(record.wakeups)[limit:]], "idle exit"
    else:
        counts, what = [cause.count for cause in ran_anyway(record.wakings_without_exit)[limit:]], "waking"
    return f"{text.some(len(counts), 'more row')} with {text.some(sum(counts), what)}" if counts else ""


def elsewhere_table(record: Attribution, places: Places) -> Table:
    """Idle periods that the target ended by waking other processes."""
    rows = []
    for index, woken in enumerate(record.woken_elsewhere[:_ELSEWHERE]):
        at = f"/woken_elsewhere/{index}"
        counted = {"rate": places.figure(f"{at}/rate_hz", 1), "count": places.figure(f"{at}/count")}
        rows.append(TableRow({**counted, "thread": Words(woken.thread.label), "woke": Words(woken.process)}))
    columns = [*figures(rate="/s", count="exits"), *words("thread", "woke")]
    return Table(columns, rows, "other processes", left_count=len(record.woken_elsewhere) - len(rows))


def ran_anyway_table(record: Attribution, places: Places, limit: int) -> Table | None:
    """What woke a target that ended no idle period, the first `limit` rows: on a quieter host, that is what would."""
    if record.wakeups or not record.wakings_without_exit:
        return None
    number_of = {id(waking): number for number, waking in enumerate(record.wakings_without_exit)}
    rows = []
    for cause in ran_anyway(record.wakings_without_exit)[:limit]:
        first = cause.first
        at = f"/wakings_without_exit/{number_of[id(first)]}"
        counted: dict[str, Cell] = {
            "rate": Words(text.number(cause.rate_hz, 1)),
            "count": Words(text.count(cause.count)),
        }
        if len(cause.rows) == 1:
            counted = {"rate": places.figure(f"{at}/wakings_hz", 1), "count": places.figure(f"{at}/wakings_count")}
        rows.append(TableRow({**counted, **_place(first, _why(first) if len(cause.rows) == 1 else cause.why)}))
    columns = [*figures(rate="/s", count="wakings"), *_PLACE]
    return Table(columns, rows, "wakings that found a CPU running", RAN_ANYWAY)
