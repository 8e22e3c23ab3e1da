# SPDX-License-Identifier: Apache-2.0
"""The tables of an attribution: idle exits by thread and stack, and those that it caused in other processes."""

from __future__ import annotations

from powerprof import text
from powerprof.attribution.records import Attribution, Wakeup
from powerprof.report.table import Column, Path, Places, Row, Table, Words, figures, words

_ELSEWHERE = 100
_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "another thread",
    "other_process": "another process",
    "device": "a device",
    "kernel": "the kernel",
}
_NAME_LIMIT = 60


def wakeups_table(record: Attribution, places: Places, limit: int) -> Table:
    """A row a thread, stack, origin and mechanism, the first `limit` of them."""
    rows = []
    for index, wakeup in enumerate(record.wakeups[:limit]):
        at = f"/wakeups/{index}"
        row = {
            "rate": places.figure(f"{at}/rate_hz", 1),
            "count": places.figure(f"{at}/count"),
            "c0": places.figure(f"{at}/c0_ms", 2),
        }
        if wakeup.period_ms is not None:
            row["every"] = places.figure(f"{at}/period_ms", said=text.period(wakeup.period_ms))
        why = f"{wakeup.mechanism.replace('_', '-')} · {_why(wakeup)}"
        path = Path([frame.label for frame in wakeup.stack], wakeup.stack_complete)
        rows.append(Row({**row, "thread": Words(wakeup.thread.label, why), "path": path}))
    columns = [
        *figures(rate="/s", count="exits", every="every", c0="C0 ms"),
        *words("thread"),
        Column("path", "stack, innermost first", left=True, beside="thread"),
    ]
    caption = "Idle exits blamed on a thread and the place where it waited; frames innermost first."
    left = max(0, len(record.wakeups) - limit)
    return Table(columns, rows, "wake-ups by thread and stack", caption, left)


def _why(wakeup: Wakeup) -> str:
    """Origin in words, with who woke it or which device or timer it was."""
    origin = _ORIGINS.get(wakeup.origin, wakeup.origin)
    if wakeup.waker is not None and wakeup.origin in ("other_thread", "other_process"):
        name = (wakeup.waker.server_name or wakeup.waker.comm).removeprefix("thread/")
        return f"{origin}, {text.cut(name, _NAME_LIMIT)} ({wakeup.waker.pid})"
    return f"{origin}, {text.cut(wakeup.detail, _NAME_LIMIT)}" if wakeup.detail else origin


def elsewhere_table(record: Attribution, places: Places) -> Table:
    """Idle periods that the target ended by waking other processes."""
    rows = []
    for index, woken in enumerate(record.woken_elsewhere[:_ELSEWHERE]):
        at = f"/woken_elsewhere/{index}"
        counted = {"rate": places.figure(f"{at}/rate_hz", 1), "count": places.figure(f"{at}/count")}
        rows.append(Row({**counted, "thread": Words(woken.thread.label), "woke": Words(woken.process)}))
    return Table([*figures(rate="/s", count="exits"), *words("thread", "woke")], rows, "other processes")
