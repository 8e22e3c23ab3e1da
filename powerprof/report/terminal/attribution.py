# SPDX-License-Identifier: Apache-2.0
"""`powerprof attribute` for a terminal: how much of the waking is the target's, then who, from where, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powerprof import text
from powerprof.attribution.records import Attribution, StackFrame, Wakeup
from powerprof.records import Cause
from powerprof.report.tables import notes, sums
from powerprof.report.tables.blamed import blamed, function_of, headline, ran_anyway, thread_name
from powerprof.report.wording.helps import helps

BY = ("stack", "function", "thread", "device", "unit")
_SHOWN = 20
# Of a process that had ended, in a control group that is gone too; and of runs that were saved before units were read.
UNKNOWN_UNIT = "unit unknown"
# Interpreters have stacks of a hundred frames: the innermost say where it waits, the page has all.
_STACK_LINES, _WAKER_LINES = 8, 3


@dataclass(frozen=True)
class _LabelGroup:
    """Rows that share a label, summed."""

    label: str
    count: int
    rate_hz: float
    each_ms: float
    period_ms: float | None


def _each_ms(rows: Sequence[Wakeup]) -> float:
    """What a wake-up cost: of all, where those that found a CPU running were counted, too."""
    times = sum(row.count if row.wakings_count is None else max(row.count, row.wakings_count) for row in rows)
    return sum(row.c0_ms for row in rows) / times


def _stack(frames: Sequence[StackFrame], width: int, indent: str, sources: bool, most: int = _STACK_LINES) -> list[str]:
    """Frames innermost first, in at most so many lines; the last one counts those that are left out."""
    lines: list[str] = []
    line = ""
    for number, frame in enumerate(frames):
        name = text.without_parameters(frame.label)
        word = name if number == 0 else f"← {name}"
        # The place is of more use than the end of a long name.
        place = frame.placed[len(frame.label) :] if sources else ""
        room = max(20, width - len(indent))
        word = text.cut(word, max(20, room - len(place))) + place
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
            if len(lines) == most - 1 and len(frames) - number > 2:
                more = f" ← {len(frames) - number - 1} more"
                return [*lines, indent + text.cut(word, max(20, room - len(more))) + more]
        else:
            line = f"{line} {word}" if line else word
    return [*lines, *([indent + line] if line else [])]


def _rows(record: Attribution, width: int, limit: int, sources: bool) -> list[str]:
    lines = [f"{'/s':>8}  {'every':>8}  {'C0':>9}  thread and stack (innermost first)"]
    indent = " " * 31
    causes = blamed(record.wakeups)
    for cause in causes[:limit]:
        row, every = cause.first, text.period(cause.period_ms).removeprefix("every ")
        head = f"{text.number(cause.rate_hz, 1):>8}  {every:>8}  {text.number(_each_ms(cause.rows), 2, ' ms'):>9}  "
        lines.append(text.cut(f"{head}{thread_name(row.thread)} · {cause.why}", width))
        lines += _stack(row.stack, width, indent, sources)
        if not row.stack_complete and row.stack:
            lines.append(f"{indent}(the rest of this stack was not captured)")
        if row.waker is not None and row.waker.stack:
            lines += _stack(row.waker.stack, width, indent + "   ", sources, _WAKER_LINES)
    return lines + _rest([cause.rate_hz for cause in causes[limit:]])


def _rest(rates_hz: Sequence[float], indent: int = 29) -> list[str]:
    """The rows that are not shown, as one."""
    if not rates_hz:
        return []
    return [f"{text.number(sum(rates_hz), 1):>8}{'':>{indent - 8}}  {len(rates_hz)} more (--top N, or --json)"]


def _ran_anyway(record: Attribution, width: int, limit: int, sources: bool) -> list[str]:
    """Where the target ended nothing: what woke it, which is what it would end on a quieter host."""
    rows, span_s = record.wakings_without_exit, record.wakings_window_s
    if not rows or not span_s:
        return []
    lines = [
        "",
        *text.wrap("On a quieter host these wakings would end idle periods:", width),
        f"{'/s':>8}  {'C0':>9}  thread and stack (innermost first)",
    ]
    causes = ran_anyway(rows)
    for cause in causes[:limit]:
        each = "" if cause.own_ms is None else text.number(cause.own_ms / cause.count, 2, " ms")
        head = f"{text.number(cause.rate_hz, 1):>8}  {each:>9}  "
        lines.append(text.cut(f"{head}{thread_name(cause.first.thread)} · {cause.why}", width))
        lines += _stack(cause.first.stack, width, " " * 21, sources)
    return lines + _rest([cause.rate_hz for cause in causes[limit:]], 19)


def _function(row: Wakeup) -> str:
    return function_of(row.stack) or (row.stack[0].label if row.stack else "[no user stack]")


_LABELS: dict[str, Callable[[Wakeup], str]] = {
    "function": _function,
    "thread": lambda row: thread_name(row.thread),
    "device": lambda row: f"{row.mechanism}  {row.detail or ''}".rstrip(),
    "unit": lambda row: row.thread.unit or UNKNOWN_UNIT,
}


def _not_units(record: Attribution) -> list[_LabelGroup]:
    """What no unit of a whole system caused: the kernel itself, and powerprof. With the units it is the host's sum."""
    groups: dict[str, list[Cause]] = {}
    for cause in record.other_causes if record.target.system else []:
        label = "the kernel itself" if cause.process == "kernel" else f"{cause.process or 'unknown'} itself"
        groups.setdefault(label, []).append(cause)
    return [
        _LabelGroup(
            label,
            sum(cause.count for cause in causes),
            sum(cause.wakeups_hz for cause in causes),
            sum(cause.c0_ms or 0.0 for cause in causes) / sum(cause.count for cause in causes),
            None,
        )
        for label, causes in groups.items()
    ]


def _grouped(record: Attribution, by: str) -> list[_LabelGroup]:
    groups: dict[str, list[Wakeup]] = {}
    for row in record.wakeups:
        groups.setdefault(_LABELS[by](row), []).append(row)
    grouped = [
        _LabelGroup(
            label,
            sum(row.count for row in rows),
            sum(row.rate_hz for row in rows),
            _each_ms(rows),
            rows[0].period_ms if len(rows) == 1 else None,
        )
        for label, rows in groups.items()
    ]
    if by == "unit":
        grouped += _not_units(record)
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def _group_lines(record: Attribution, by: str, width: int, limit: int) -> list[str]:
    lines = [f"{'/s':>8}  {'count':>8}  {'every':>8}  {'C0':>9}  {by}"]
    groups = _grouped(record, by)
    for group in groups[:limit]:
        every = text.period(group.period_ms).removeprefix("every ")
        c0 = text.number(group.each_ms, 2, " ms")
        head = f"{text.number(group.rate_hz, 1):>8}  {group.count:>8,}  {every:>8}  {c0:>9}  "
        lines.append(text.cut(head + group.label, width))
    if left := groups[limit:]:
        rate, count = text.number(sum(group.rate_hz for group in left), 1), sum(group.count for group in left)
        lines.append(f"{rate:>8}  {count:>8,}  {'':>8}  {'':>9}  {len(left)} more (--top N)")
    return lines


def _ran(record: Attribution) -> list[str]:
    """Whose the CPUs' running time was; what rounds to nothing is not listed."""
    ran = record.running
    if ran is None or ran.c0_ms is None:
        return []
    parts = [
        *((record.target.label, ran.target_ms), ("powerprof", ran.tool_ms), ("other threads", ran.others_ms)),
        *(("the kernel alone", ran.kernel_ms), ("unknown", ran.rest_ms or 0.0)),
    ]
    shares = text.listed([f"{name} {text.number(ms, 0)}" for name, ms in parts if ms >= 0.5])
    return [f"The CPUs ran for {text.number(ran.c0_ms, 0)} ms{f': {shares}' if shares else ''}."]


def _foot(record: Attribution) -> list[str]:
    """What the answer rests on, in three lines: the balance, the stacks, and what measuring cost."""
    s, tool, lines = record.stacks, record.tool, [sums.balance(record.conservation)]
    if s.exits_complete_percent is not None:
        share, unnamed = text.number(s.exits_complete_percent, 1), s.unnamed_frames_percent
        nameless = f"; {text.number(unnamed, 0)} % of frames have no name" if unnamed and unnamed >= 1.0 else ""
        lines.append(f"Complete stacks: {share} % of its idle exits{nameless}.")
    bpf_ms = 0.0 if tool.bpf_s is None else 1e3 * tool.bpf_s / record.window_s
    lines.append(
        f"powerprof itself: {text.number((tool.cpu_percent or 0.0) + bpf_ms / 10 / max(1, record.cpus), 2)} % CPU, "
        f"{text.number(tool.wakeups_hz, 1)} wake-ups/s, {tool.lost_count or 0} events lost, "
        f"{text.number((tool.memory_bytes or 0) / 1e6, 0)} MB."
    )
    return lines


def _elsewhere(record: Attribution) -> list[str]:
    count = sum(waking.count for waking in record.woken_elsewhere)
    if not count:
        return []
    rates: Counter[str] = Counter()
    for waking in record.woken_elsewhere:
        rates[f"{waking.thread.label} woke {waking.process}"] += waking.count
    return [f"It also ended {text.some(count, 'idle period')} by waking other processes: {_most(rates, record, 3)}."]


def _others(record: Attribution) -> list[str]:
    if not record.other_causes:
        return []
    rates: Counter[str] = Counter()
    for cause in record.other_causes:
        rates[_who(cause)] += cause.count
    # Of a whole system what is left is the kernel's own: its threads, by the work that they did, and its ticks.
    what = "Other causes" if record.target.system else "Other processes"
    return [f"{what}: {_most(rates, record, 4)}."]


def _who(cause: Cause) -> str:
    """The process; of the kernel the thread, or what it did."""
    if cause.process == "kernel":
        thread = cause.thread if cause.thread not in (None, "kernel") else None
        return f"kernel {thread or cause.name or cause.mechanism.replace('_', '-')}"
    return cause.process or "unknown"


def _most(counts: Counter[str], record: Attribution, most: int) -> str:
    return ", ".join(f"{who} {text.number(count / record.window_s, 1)}/s" for who, count in counts.most_common(most))


def lines(
    record: Attribution, width: int = text.DEFAULT_WIDTH, *, by: str = "stack", top: int = _SHOWN, sources: bool = False
) -> list[str]:
    """The whole report; `sources`: frames with file and line."""
    printed = [*text.wrap(headline(record), width), ""]
    if record.wakeups:
        printed += _rows(record, width, top, sources) if by == "stack" else _group_lines(record, by, width, top)
    else:
        printed = printed[:-1] + _ran_anyway(record, width, top, sources)
    printed.append("")
    split = record.energy_split
    for number, line in enumerate(helps(record)):
        printed += [] if number else ["What would help most"]
        printed += text.wrap(line, width, "  ")
    if printed[-1]:
        printed.append("")
    for line in (
        sums.joules(split) if split else "Energy: no meter and no model for this CPU (powerprof doctor).",
        *_elsewhere(record),
        *_others(record),
        *_ran(record),
        *_foot(record),
    ):
        printed += text.wrap(line, width)
    printed += notes.lines(record, width)
    if record.interrupted:
        printed.append("Interrupted: this is what was traced until then.")
    return printed
