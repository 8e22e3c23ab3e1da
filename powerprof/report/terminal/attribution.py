# SPDX-License-Identifier: Apache-2.0
"""`powerprof attribute` for a terminal: how much of the waking is the target's, then who, from where, how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powerprof import text
from powerprof.attribution.records import Attribution, StackFrame, Wakeup, Waking
from powerprof.report.tables import sums
from powerprof.report.tables.notes import one_doubt

BY = ("stack", "function", "thread", "device")
_SHOWN = 20
_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "woken by another thread",
    "other_process": "woken by another process",
    "device": "a device",
    "kernel": "the kernel",
    "runnable": "runnable",
}


@dataclass(frozen=True)
class _Group:
    """Rows that share a label, summed."""

    label: str
    count: int
    rate_hz: float
    c0_ms: float
    period_ms: float | None


def headline(record: Attribution) -> str:
    """The target's share of all idle exits, and whether all are accounted for."""
    total = record.conservation.idle_exits_count
    mine = sum(row.count for row in record.wakeups)
    name = record.target.label + (f" ({record.target.pid})" if record.target.pid else "")
    share = f" ({text.number(100.0 * mine / total, 1)} %)" if total else ""
    rest = sums.verdict(record.conservation)
    if sums.is_blind(record.conservation):
        return f"What {name} caused is unknown. {rest}"
    name = name[:1].upper() + name[1:] if record.target.system else name
    return f"{name} caused {mine:,} of {total:,} idle exits in {text.number(record.window_s, 1)} s{share}. {rest}"


def _origin(row: Wakeup | Waking) -> str:
    said = _ORIGINS[row.origin]
    if row.origin in ("other_thread", "other_process") and row.waker is not None:
        who = row.waker.server_name.removeprefix("thread/") if row.waker.server_name else row.waker.comm
        return f"woken by {who}" if row.origin == "other_thread" else f"woken by {who} ({row.waker.pid})"
    if row.origin in ("device", "kernel", "runnable") and row.detail:
        return f"{said}: {row.detail}"
    return said


def _stack(frames: Sequence[StackFrame], width: int, indent: str) -> list[str]:
    labels = [frame.label for frame in frames]
    lines: list[str] = []
    line = ""
    for number, label in enumerate(labels):
        word = label if number == 0 else f"← {label}"
        word = text.cut(word, max(20, width - len(indent)))
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, *([indent + line] if line else [])]


def _rows(record: Attribution, width: int, limit: int) -> list[str]:
    lines = [f"{'/s':>8}  {'every':>8}  {'C0':>9}  thread and stack (innermost first)"]
    indent = " " * 31
    for row in record.wakeups[:limit]:
        every = text.period(row.period_ms).removeprefix("every ")
        head = f"{text.number(row.rate_hz, 1):>8}  {every:>8}  {text.number(row.c0_ms / row.count, 2, ' ms'):>9}  "
        how = "" if row.mechanism == "timer" else f", by {row.mechanism.replace('_', '-')}"
        lines.append(text.cut(f"{head}{row.thread.label} · {_origin(row)}{how}", width))
        lines += _stack(row.stack, width, indent)
        if not row.stack_complete and row.stack:
            lines.append(f"{indent}(the rest of this stack was not captured)")
        if row.waker is not None and row.waker.stack:
            lines += _stack(row.waker.stack, width, indent + "   ")[:3]
    return lines + _rest([row.rate_hz for row in record.wakeups[limit:]])


def _rest(rates_hz: Sequence[float]) -> list[str]:
    """The rows that are not shown, as one."""
    if not rates_hz:
        return []
    return [f"{text.number(sum(rates_hz), 1):>8}  {'':>8}  {'':>9}  {len(rates_hz)} more (--top N, or --json)"]


def _ran_anyway(record: Attribution, width: int, limit: int) -> list[str]:
    """Where the target ended nothing: what woke it, which is what it would end on a quieter host."""
    rows, span_s = record.wakings_without_exit, record.wakings_window_s
    if not rows or not span_s:
        return []
    rate = text.number(sum(row.wakings_count for row in rows) / span_s, 1)
    said = f"It was woken {rate} times a second while CPUs ran anyway. On a quieter host that ends idle periods:"
    lines = ["", *text.wrap(said, width), f"{'/s':>8}  {'':>8}  {'':>9}  thread and stack (innermost first)"]
    for row in rows[:limit]:
        head = f"{text.number(row.wakings_hz, 1):>8}  {'':>8}  {'':>9}  "
        lines.append(text.cut(f"{head}{row.thread.label} · {_origin(row)}", width))
        lines += _stack(row.stack, width, " " * 31)
    return lines + _rest([row.wakings_hz for row in rows[limit:]])


def _deepest_own(row: Wakeup) -> str:
    """The function to name: the innermost that is not the C library's or the kernel's door."""
    for frame in row.stack:
        if not frame.module.startswith(("libc.", "libc-", "ld-", "libpthread", "[vdso]")):
            return frame.label
    return row.stack[0].label if row.stack else "[no user stack]"


_LABELS: dict[str, Callable[[Wakeup], str]] = {
    "function": _deepest_own,
    "thread": lambda row: row.thread.label,
    "device": lambda row: f"{row.mechanism}  {row.detail or ''}".rstrip(),
}


def _grouped(record: Attribution, by: str) -> list[_Group]:
    groups: dict[str, list[Wakeup]] = {}
    for row in record.wakeups:
        groups.setdefault(_LABELS[by](row), []).append(row)
    grouped = [
        _Group(
            label,
            sum(row.count for row in rows),
            sum(row.rate_hz for row in rows),
            sum(row.c0_ms for row in rows),
            rows[0].period_ms if len(rows) == 1 else None,
        )
        for label, rows in groups.items()
    ]
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def _group_lines(record: Attribution, by: str, width: int, limit: int) -> list[str]:
    lines = [f"{'/s':>8}  {'count':>8}  {'every':>8}  {'C0':>9}  {by}"]
    groups = _grouped(record, by)
    for group in groups[:limit]:
        every = text.period(group.period_ms).removeprefix("every ")
        c0 = text.number(group.c0_ms / group.count, 2, " ms")
        head = f"{text.number(group.rate_hz, 1):>8}  {group.count:>8,}  {every:>8}  {c0:>9}  "
        lines.append(text.cut(head + group.label, width))
    if left := groups[limit:]:
        rate, count = text.number(sum(group.rate_hz for group in left), 1), sum(group.count for group in left)
        lines.append(f"{rate:>8}  {count:>8,}  {'':>8}  {'':>9}  {len(left)} more (--top N)")
    return lines


def _evidence(record: Attribution) -> list[str]:
    s, lines = record.stacks, [sums.balance(record.conservation)]
    if s.exits_complete_percent is not None:
        lines.append(
            f"Stacks: {s.captured_count} captured, {s.complete_count} complete to the thread's start, "
            f"{s.truncated_count} cut, {s.failed_count} not captured; {text.number(s.exits_complete_percent, 1)} % of "
            f"the target's idle exits have a complete one."
        )
    return lines


def _elsewhere(record: Attribution) -> list[str]:
    count = sum(waking.count for waking in record.woken_elsewhere)
    if not count:
        return []
    top = record.woken_elsewhere[:3]
    named = ", ".join(f"{waking.thread.label} woke {waking.process} {waking.rate_hz:.1f}/s" for waking in top)
    return [f"It also ended {text.some(count, 'idle period')} by waking other processes: {named}."]


def _others(record: Attribution) -> list[str]:
    if record.target.system or not record.other_causes:
        return []
    top = [
        f"{cause.process or 'unknown'}{f' {cause.thread}' if cause.thread and cause.thread != cause.process else ''} "
        f"{text.number(cause.wakeups_hz, 1)}/s"
        for cause in record.other_causes[:4]
    ]
    return [f"Besides it: {', '.join(top)}."]


def _unnamed(record: Attribution) -> list[str]:
    percent = record.stacks.unnamed_frames_percent
    if not percent or percent < 1.0:
        return []
    return [
        f"{text.number(percent, 0)} % of the frames have no name: the binaries are stripped. Install their debug "
        f"symbols (on Debian the -dbgsym packages), or set DEBUGINFOD_URLS, and run again."
    ]


def _cost(record: Attribution) -> str:
    tool = record.tool
    bpf = "" if tool.bpf_s is None else f", {text.number(1e3 * tool.bpf_s / record.window_s, 2)} ms/s in BPF"
    return (
        f"powerprof itself: {text.number(tool.cpu_percent, 3)} % CPU, {text.number(tool.wakeups_hz, 1)} "
        f"wake-ups/s{bpf}, {tool.lost_count or 0} events lost, {text.number((tool.memory_bytes or 0) / 1e6, 0)} MB."
    )


def _told(notes: Sequence[str]) -> list[str]:
    """The notes, but of an estimate one doubt that stands for all."""
    doubts = [note.removeprefix("estimate: ") for note in notes if note.startswith("estimate: ")]
    if not doubts:
        return list(notes)
    return [one_doubt(doubts), *(note for note in notes if not note.startswith(("estimate: ", "energy: ")))]


def lines(record: Attribution, width: int = text.DEFAULT_WIDTH, *, by: str = "stack", top: int = _SHOWN) -> list[str]:
    """The whole report."""
    printed = [*text.wrap(headline(record), width), ""]
    if record.wakeups:
        printed += _rows(record, width, top) if by == "stack" else _group_lines(record, by, width, top)
    else:
        printed.append("It ended no idle period in this window.")
        printed += _ran_anyway(record, width, top)
    printed.append("")
    split = record.energy_split
    for line in (
        sums.joules(split) if split else "Energy: no meter and no model for this CPU (powerprof doctor).",
        *_elsewhere(record),
        *_others(record),
        *_evidence(record),
        *_unnamed(record),
        _cost(record),
    ):
        printed += text.wrap(line, width)
    for note in _told(record.notes):
        printed += text.wrap(f"Note: {note}.", width)
    if record.interrupted:
        printed.append("Interrupted: this is what was traced until then.")
    return printed
