# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof attribute`: the target's share of the wake-ups, then threads, call stacks and rates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec
from markupsafe import Markup

from powerprof.diagnosis.evidence import Evidence, compute_timers_hz, list_thread_wakeups
from powerprof.diagnosis.thread_pace import format_prediction, rank_by_saving
from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame, Wakeup, Waking
from powerprof.model.records import Cause
from powerprof.model.text import number
from powerprof.report import deep_idle, labels, metrics
from powerprof.report.document import Extras
from powerprof.report.html.charts import draw_flame
from powerprof.report.html.page import clean_name, embed_json, render_page, table_html
from powerprof.report.html.svg import Scale, round_step
from powerprof.report.phases import split_table
from powerprof.report.stacks import TimelineExit, build_flame, frames_of, modules_of, stacks_of
from powerprof.report.table import Line, Places, Table, align_rows, draw_table, note_lines, split_rows
from powerprof.report.wakeups import (
    RAN_ANYWAY,
    answer_of,
    busy_wakings_table,
    causes_table,
    count_leading,
    elsewhere_table,
    function_of,
    group_exits,
    group_wakings,
    hidden_rows_text,
    list_row_counts,
    period_of,
    thread_name,
    threads_of,
    wakeups_table,
)
from powerprof.system.next_steps import command_line

# Suggestions: the most effective remedies against the wake-ups of a traced process, predicted from its window.

_MAX_SUGGESTIONS = 3
_MIN_SAVED_HZ = 2.0
# These runtimes put all timers on a few threads; `cure` rejects them.
_RUNTIMES = ("libjvm.so", "libcoreclr.so", "beam.smp", "node", "nodejs")
_GO_PREFIX = "runtime."


def suggest_remedies(record: Attribution) -> list[str]:
    """Return suggestions against the target's wake-ups, one sentence per thread, the largest saving first.

    Timer slack has a predicted effect. The absence of a thread has only an upper bound: another thread may end those
    idle periods instead. Return an empty list if no large saving is predicted or none can be tried.
    """
    if record.target.system or record.interrupted or _uses_managed_runtime(record):
        return []
    rows = [row for row in list_thread_wakeups(record) if row.tid and "one_connection" not in (row.name or "")]
    evidence = Evidence(
        version="",
        family=record.target.label,
        window_s=record.window_s,
        wakeups=rows,
        timers_hz=compute_timers_hz(record),
        cpus=record.cpus,
    )
    pids = {row.thread.tid: row.thread.pid for row in record.wakings_without_exit}
    pids |= {row.thread.tid: row.thread.pid for row in record.wakeups}
    suggestions: list[str] = []
    for row, prediction in rank_by_saving(evidence):
        pid = pids.get(row.tid) or record.target.pid
        if prediction.saved_hz < _MIN_SAVED_HZ or pid is None or len(suggestions) == _MAX_SUGGESTIONS:
            continue
        exits_hz = sum(each.rate_hz for each in rows if each.tid == row.tid)
        label = (row.name or row.comm).removeprefix("thread/")
        # If other programs kept the CPUs busy, the thread's idle exits are no bound.
        absent = f"; without the thread at most {number(exits_hz, 1)} idle exits/s less" if exits_hz >= 1 else ""
        then = format_prediction(prediction.then_hz, prediction.most_hz, prediction.is_bound)
        suggestions.append(
            f"{label}: with 50 ms of timer slack {number(prediction.now_hz, 1)} → {then} wake-ups/s (predicted)"
            f"{absent}. To try it: {command_line('cure --pid {} --thread {} --slack 50ms', pid, row.tid)}"
        )
    return suggestions


def _uses_managed_runtime(record: Attribution) -> bool:
    stacks = [row.stack for row in record.wakeups] + [row.stack for row in record.wakings_without_exit]
    frames = [frame for stack in stacks for frame in stack]
    return any(
        frame.module.rpartition("/")[2] in _RUNTIMES or (frame.function or "").startswith(_GO_PREFIX)
        for frame in frames
    )


BY = ("stack", "function", "thread", "device", "unit")
# The breakers of deep idle.
_DEFAULT_TOP = 20
# For processes that ended before their unit was read, and for runs saved by versions without units.
UNKNOWN_UNIT = "unit unknown"
# Interpreters have stacks of a hundred frames. The innermost frames show the waiting place; the page has all frames.
_STACK_LINES, _WAKER_LINES = 8, 3


class _LabelGroup(msgspec.Struct, frozen=True):
    """The sums of all rows with the same label."""

    label: str
    count: int
    rate_hz: float
    each_ms: float | None
    period_ms: float | None


def _each_ms(rows: Sequence[Wakeup]) -> float:
    """Return the C0 milliseconds per wake-up, including wakings that found a CPU running if they were counted."""
    times = sum(row.count if row.wakings_count is None else max(row.count, row.wakings_count) for row in rows)
    return sum(row.c0_ms for row in rows) / times


def _wrap_stack(
    frames: Sequence[StackFrame], width: int, indent: str, sources: bool, most: int = _STACK_LINES
) -> list[str]:
    """Return at most `most` lines of frames, innermost first. The last line counts the omitted frames."""
    lines: list[str] = []
    line = ""
    for position, frame in enumerate(frames):
        name = text.without_parameters(frame.label)
        word = name if position == 0 else f"← {name}"
        # Source file and line are more useful than the end of a long name.
        place = frame.placed[len(frame.label) :] if sources else ""
        room = max(20, width - len(indent))
        word = text.shorten(word, max(8, room - len(place))) + place
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
            if len(lines) == most - 1 and len(frames) - position > 2:
                more = f" ← {len(frames) - position - 1} more"
                return [*lines, indent + text.shorten(word, max(8, room - len(more))) + more]
        else:
            line = f"{line} {word}" if line else word
    return [*lines, *([indent + line] if line else [])]


def _cause_lines(record: Attribution, width: int, top: int | None, sources: bool) -> list[str]:
    causes = group_exits(record.wakeups)
    limit = count_leading([cause.count for cause in causes], top)
    rows = [["/s", "every", "C0", "thread and stack (innermost first)"]]
    for cause in causes[:limit]:
        every, c0 = text.period(period_of(cause)).removeprefix("every "), text.number(_each_ms(cause.rows), 2, " ms")
        rows.append([text.number(cause.rate_hz, 1), every, c0, f"{threads_of(cause)} · {cause.why}"])
    hidden = [cause.rate_hz for cause in causes[limit:]]
    entries, below = text.name_rows([*rows, *_hidden_row(hidden, len(rows[0]))], width, whole=True)
    lines, indent = list(entries[0]), " " * below
    for cause, entry in zip(causes[:limit], entries[1:], strict=False):
        row = cause.first
        lines += [*entry, *_wrap_stack(row.stack, width, indent, sources)]
        if not row.stack_complete and row.stack:
            lines.append(f"{indent}(the rest of this stack was not captured)")
        if row.waker is not None and row.waker.stack:
            lines += _wrap_stack(row.waker.stack, width, indent + "   ", sources, _WAKER_LINES)
    return [*lines, *(line for entry in entries[len(rows) :] for line in entry)]


def _hidden_row(rates_hz: Sequence[float], cells: int) -> list[list[str]]:
    """Return one row of `cells` cells that sums the rows beyond the limit; empty without such rows."""
    if not rates_hz:
        return []
    return [[text.number(sum(rates_hz), 1), *[""] * (cells - 2), f"{len(rates_hz)} more (--all)"]]


def _waking_lines(record: Attribution, by: str, width: int, top: int | None, sources: bool) -> list[str]:
    """Return the wakings of a target that ended no idle period. On a quieter host they would end some."""
    rows, span_s = record.wakings_without_exit, record.wakings_window_s
    if not rows or not span_s:
        return []
    lines = ["", *text.wrap("On a quieter host, these wakings would end idle periods:", width)]
    if by != "stack":
        return lines + _group_lines(_group_wakings_by(record, by), by, width, top)
    causes = group_wakings(rows)
    limit = count_leading([cause.count for cause in causes], top)
    cells = [["/s", "C0", "thread and stack (innermost first)"]]
    for cause in causes[:limit]:
        each = "" if (c0_ms := _each_own_ms(cause.rows)) is None else text.number(c0_ms, 2, " ms")
        cells.append([text.number(cause.rate_hz, 1), each, f"{threads_of(cause)} · {cause.why}"])
    hidden = [cause.rate_hz for cause in causes[limit:]]
    entries, below = text.name_rows([*cells, *_hidden_row(hidden, len(cells[0]))], width, whole=True)
    lines += entries[0]
    for cause, entry in zip(causes[:limit], entries[1:], strict=False):
        lines += [*entry, *_wrap_stack(cause.first.stack, width, " " * below, sources)]
    return [*lines, *(line for entry in entries[len(cells) :] for line in entry)]


def _each_own_ms(rows: Sequence[Waking]) -> float | None:
    """Return the C0 milliseconds per waking; None if one is unknown."""
    own_ms = [row.own_ms for row in rows if row.own_ms is not None]
    return None if len(own_ms) < len(rows) else sum(own_ms) / sum(row.wakings_count for row in rows)


def _label_function(row: Wakeup | Waking) -> str:
    return function_of(row.stack) or (row.stack[0].label if row.stack else "[no user stack]")


_LABEL_OF: dict[str, Callable[[Wakeup | Waking], str]] = {
    "function": _label_function,
    "thread": lambda row: thread_name(row.thread),
    "device": lambda row: f"{row.mechanism if isinstance(row, Wakeup) else row.origin}  {row.detail or ''}".rstrip(),
    "unit": lambda row: row.thread.unit or UNKNOWN_UNIT,
}


def _group_non_units(record: Attribution) -> list[_LabelGroup]:
    """Return the groups of a whole system outside all units: the kernel and powerprof.

    Together with the units they sum to the host.
    """
    groups: dict[str, list[Cause]] = {}
    for cause in record.other_causes if record.target.system else []:
        label = "the kernel itself" if cause.process == "kernel" else f"{cause.process or 'unknown'} itself"
        groups.setdefault(label, []).append(cause)
    counts = {label: sum(cause.count for cause in causes) for label, causes in groups.items()}
    return [
        _LabelGroup(
            label,
            counts[label],
            sum(cause.wakeups_hz for cause in causes),
            sum(cause.c0_ms or 0.0 for cause in causes) / counts[label],
            None,
        )
        for label, causes in groups.items()
    ]


def _group_by(record: Attribution, by: str) -> list[_LabelGroup]:
    groups: dict[str, list[Wakeup]] = {}
    for row in record.wakeups:
        groups.setdefault(_LABEL_OF[by](row), []).append(row)
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
        grouped += _group_non_units(record)
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def _group_wakings_by(record: Attribution, by: str) -> list[_LabelGroup]:
    """Return the groups of the wakings that ended no idle period."""
    groups: dict[str, list[Waking]] = {}
    for row in record.wakings_without_exit:
        groups.setdefault(_LABEL_OF[by](row), []).append(row)
    grouped = [
        _LabelGroup(
            label, sum(row.wakings_count for row in rows), sum(row.wakings_hz for row in rows), _each_own_ms(rows), None
        )
        for label, rows in groups.items()
    ]
    return sorted(grouped, key=lambda group: (-group.count, group.label))


def _group_lines(groups: Sequence[_LabelGroup], by: str, width: int, top: int | None) -> list[str]:
    limit = count_leading([group.count for group in groups], top)
    rows = [["/s", "count", "every", "C0", by]]
    for group in groups[:limit]:
        every = text.period(group.period_ms).removeprefix("every ")
        c0 = "" if group.each_ms is None else text.number(group.each_ms, 2, " ms")
        rows.append([text.number(group.rate_hz, 1), f"{group.count:,}", every, c0, group.label])
    if hidden := groups[limit:]:
        rate, count = text.number(sum(group.rate_hz for group in hidden), 1), sum(group.count for group in hidden)
        rows.append([rate, f"{count:,}", "", "", f"{len(hidden)} more (--all)"])
    return align_rows(rows, width)


def _running_time(record: Attribution) -> list[str]:
    """Return one line that divides the CPUs' running time by consumer. Shares below 0.5 ms are omitted."""
    ran = record.running
    if ran is None or ran.c0_ms is None:
        return []
    parts = [
        *((record.target.label, ran.target_ms), ("powerprof", ran.tool_ms), ("other threads", ran.others_ms)),
        *(("the kernel alone", ran.kernel_ms), ("unknown", ran.rest_ms or 0.0)),
    ]
    shares = text.join_words([f"{name} {text.number(ms, 0)}" for name, ms in parts if ms >= 0.5])
    return [f"The CPUs ran for {text.number(ran.c0_ms, 0)} ms{f': {shares}' if shares else ''}."]


def _footer(record: Attribution) -> list[str]:
    """Return three lines: the balance of idle exits, the completeness of stacks, and the cost of measuring."""
    stacks, tool, lines = record.stacks, record.tool, [metrics.describe_balance(record.conservation)]
    if stacks.exits_complete_percent is not None:
        share, unnamed = text.number(stacks.exits_complete_percent, 1), stacks.unnamed_frames_percent
        nameless = f"; {text.number(unnamed, 0)} % of frames have no name" if unnamed and unnamed >= 1.0 else ""
        lines.append(f"Complete stacks: {share} % of its idle exits{nameless}.")
    bpf_ms = 0.0 if tool.bpf_s is None else 1e3 * tool.bpf_s / record.window_s
    cpu_percent = None if tool.cpu_percent is None else tool.cpu_percent + bpf_ms / 10 / max(1, record.cpus)
    memory_mb = None if tool.memory_bytes is None else tool.memory_bytes / 1e6
    lines.append(
        f"powerprof itself: {text.number(cpu_percent, 2)} % CPU, {text.number(tool.wakeups_hz, 1)} wake-ups/s, "
        f"{text.count(tool.lost_count)} events lost, {text.number(memory_mb, 0)} MB."
    )
    return lines


def _woken_elsewhere(record: Attribution) -> list[str]:
    count = sum(waking.count for waking in record.woken_elsewhere)
    if not count:
        return []
    rates: Counter[str] = Counter()
    for waking in record.woken_elsewhere:
        rates[f"{waking.thread.label} woke {waking.process}"] += waking.count
    most = _most_frequent(rates, record, 3)
    return [f"It also ended {text.plural(count, 'idle period')} by waking other processes: {most}."]


def _other_causes(record: Attribution) -> list[str]:
    if not record.other_causes:
        return []
    rates: Counter[str] = Counter()
    for cause in record.other_causes:
        rates[_cause_name(cause)] += cause.count
    # For a whole system only the kernel's own causes remain: its threads, by their work, and its ticks.
    what = "Other causes" if record.target.system else "Other processes"
    return [f"{what}: {_most_frequent(rates, record, 4)}."]


def _cause_name(cause: Cause) -> str:
    """Return the process of a cause; for the kernel, the thread or its work."""
    if cause.process == "kernel":
        thread = cause.thread if cause.thread not in (None, "kernel") else None
        return f"kernel {thread or cause.name or cause.mechanism.replace('_', '-')}"
    return cause.process or "unknown"


def _most_frequent(counts: Counter[str], record: Attribution, most: int) -> str:
    return ", ".join(f"{who} {text.number(count / record.window_s, 1)}/s" for who, count in counts.most_common(most))


def render_terminal(
    record: Attribution,
    width: int = text.DEFAULT_WIDTH,
    *,
    by: str = "stack",
    top: int | None = None,
    sources: bool = False,
) -> list[str]:
    """Return the report, one line per entry. `by` is an entry of `BY`; `sources` adds file and line to frames.

    It has the first `top` rows. Without this number `count_leading` decides.
    """
    printed = [*text.wrap(answer_of(record), width), ""]
    if record.deep is not None:
        printed += [*deep_idle.render_lines(record.deep, width, top or _DEFAULT_TOP), ""]
    if record.wakeups:
        is_by_stack = by == "stack"
        printed += (
            _cause_lines(record, width, top, sources)
            if is_by_stack
            else _group_lines(_group_by(record, by), by, width, top)
        )
    else:
        printed = printed[:-1] + _waking_lines(record, by, width, top, sources)
    printed.append("")
    split = record.energy_split
    if suggestions := suggest_remedies(record):
        printed += ["Most helpful changes", *(line for each in suggestions for line in text.wrap(each, width, "  "))]
    if printed[-1]:
        printed.append("")
    for line in (
        metrics.describe_energy(split)
        if split
        else f"Energy: no meter and no model for this CPU ({command_line('doctor')}).",
        *_woken_elsewhere(record),
        *_other_causes(record),
        *_running_time(record),
        *_footer(record),
    ):
        printed += text.wrap(line, width)
    printed += labels.wrap_notes(record, width)
    if record.interrupted:
        printed.append("Interrupted: partial results.")
    return printed


# The timeline per CPU as inline SVG: idle periods, their causes, and the threads that ran between them.
# The overview shows the whole window. The page draws the first part; its script draws other parts from the embedded
# data.

MAX_EXITS = 1500
# More exits on one lane cannot be distinguished.
EXITS_PER_CPU = 120
# The script can draw this many exits; each takes about 45 bytes of the page.
MAX_KEPT = 15_000
_LANE = 34
_ROW = 22
_BINS = 200
_LEFT, _RIGHT = 9.0, 99.5
_IDLE = Markup(
    '<rect class="idle" x="{:.3f}%" y="{}" width="{:.3f}%" height="20"><title>CPU {} in {} for {:.3f} ms, '
    "ended by {}</title></rect>"
)
_RAN = Markup(
    '<rect class="ran m-{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="28"><title>{:.3f} ms: {}, {}{}</title></rect>'
)
_SVG = Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>')


class Lanes(msgspec.Struct, frozen=True):
    """The drawing of the timeline and the part of the capture that it shows."""

    svg: Markup
    overview: Markup
    data: Markup
    kept_count: int
    total_count: int
    whole_s: float


def lanes(exits: Sequence[TimelineExit]) -> Lanes | None:
    """Draw one lane per CPU with the first exits, as many as a page can hold. Return None without exits."""
    if not exits:
        return None
    most = min(MAX_EXITS, EXITS_PER_CPU * len({period.cpu for period in exits}))
    whole = sorted(exits, key=lambda period: (period.exit_ns, period.cpu))[:MAX_KEPT]
    ordered = whole[:most]
    origin = min(period.enter_ns for period in ordered)
    end = max(period.next_ns or period.exit_ns for period in ordered)
    across = Scale(0, (end - origin) / 1e6, _LEFT, _RIGHT)
    cpus = {cpu: row for row, cpu in enumerate(sorted({period.cpu for period in ordered}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _LANE + 20, cpu) for cpu, row in cpus.items()]
    for period in ordered:
        enter, leave = (across((time - origin) / 1e6) for time in (period.enter_ns, period.exit_ns))
        top = cpus[period.cpu] * _LANE
        blame = f"{period.mechanism.replace('_', '-')}: {clean_name(period.cause, 80)}"
        idle_ms, state = (period.exit_ns - period.enter_ns) / 1e6, clean_name(period.state, 40)
        parts.append(_IDLE.format(enter, top + 5, max(0.02, leave - enter), period.cpu, state, idle_ms, blame))
        ran = "" if period.next_ns is None else f", ran {(period.next_ns - period.exit_ns) / 1e6:.3f} ms"
        width = 0.0 if period.next_ns is None else across((period.next_ns - origin) / 1e6) - leave
        place, exit_ms = (_mechanism_of(period), leave, top + 1, max(0.12, width)), (period.exit_ns - origin) / 1e6
        parts.append(_RAN.format(*place, exit_ms, blame, clean_name(period.thread or "no task ran", 80), ran))
    height = len(cpus) * _LANE
    span_ms = (end - origin) / 1e6
    distance = round_step(span_ms, 5)
    for index in range(int(span_ms / distance) + 1):
        at = across(index * distance)
        parts.append(
            Markup('<text x="{:.2f}%" y="{}" text-anchor="{}">{:g} ms</text>').format(
                at, height + 14, "end" if at > 94 else "middle", round(index * distance, 6)
            )
        )
    label = f"idle periods and wake-ups of {len(cpus)} CPUs over {span_ms:.0f} ms"
    svg = _SVG.format(label, height + 20, Markup().join(parts))
    whole_ms = (max(period.next_ns or period.exit_ns for period in whole) - origin) / 1e6
    return Lanes(
        svg,
        _draw_overview(whole, origin, whole_ms),
        embed_json(_timeline_data(whole, origin, whole_ms)),
        len(whole),
        len(exits),
        whole_ms / 1e3,
    )


def _draw_overview(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> Markup:
    """Draw one row per CPU: idle exits per part of the window, coloured by the most frequent mechanism."""
    cpus = {cpu: row for row, cpu in enumerate(sorted({period.cpu for period in exits}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _ROW + 16, cpu) for cpu, row in cpus.items()]
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for period in exits:
        at = min(_BINS - 1, int((period.exit_ns - origin) / 1e6 / whole_ms * _BINS)) if whole_ms > 0 else 0
        counts[period.cpu, at][_mechanism_of(period)] += 1
    most = max(sum(count.values()) for count in counts.values())
    width = (_RIGHT - _LEFT) / _BINS
    for (cpu, at), count in sorted(counts.items()):
        total = sum(count.values())
        height = max(1.0, (_ROW - 4) * total / most)
        parts.append(
            Markup('<rect class="m-{}" x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}"/>').format(
                count.most_common(1)[0][0], _LEFT + at * width, (cpus[cpu] + 1) * _ROW - 2 - height, width, height
            )
        )
    parts.append(Markup('<rect class="window" x="0" y="0" width="0" height="{}"/>').format(len(cpus) * _ROW))
    label = f"idle exits of {len(cpus)} CPUs over all of {whole_ms / 1e3:.1f} s"
    return _SVG.format(label, len(cpus) * _ROW, Markup().join(parts))


def _timeline_data(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> dict[str, object]:
    """Return all exits in short form.

    A row is CPU, begin, end and next idle period (µs), the index of the mechanism, and the index of the cause in
    `words`.
    """
    words: dict[str, int] = {}
    rows = []
    for period in exits:
        who = f"{clean_name(period.cause, 80)}, {clean_name(period.thread or 'no task ran', 80)}"
        times = [
            None if at is None else (at - origin) // 1000 for at in (period.enter_ns, period.exit_ns, period.next_ns)
        ]
        rows.append([period.cpu, *times, MECHANISMS.index(_mechanism_of(period)), words.setdefault(who, len(words))])
    return {"whole_ms": whole_ms, "mechanisms": MECHANISMS, "words": list(words), "rows": rows}


def _mechanism_of(period: TimelineExit) -> str:
    return period.mechanism if period.mechanism in MECHANISMS else "unknown"


MECHANISMS = ("timer", "device", "ipi", "no_ipi", "tick", "unknown")


# The HTML page.

# The page must stay below 6 MiB for any length of names.
MAX_ROWS = 100
_FRAMES = 2000
_OPEN_ROWS = 20
_CAUSES = 50


def render_html(record: Attribution, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    modules = modules_of(record.wakeups)
    exits, c0 = (stacks_of(record.wakeups, by) for by in ("count", "c0_ms"))
    root = clean_name(record.target.label, 80)
    views = [
        draw_flame(build_flame(stacks, unit=unit, root=root, limit=_FRAMES), title, modules)
        for stacks, unit, title in ((exits, "idle exits", "Idle exits"), (c0, "ms of C0", "C0 time that followed"))
    ]
    shown = busy_wakings_table(record, places, MAX_ROWS) or wakeups_table(record, places, MAX_ROWS)
    counts, counted = list_row_counts(record)
    first, more = split_rows(shown, count_leading(counts))
    split = record.energy_split
    return render_page(
        "attribution.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean_name(answer_of(record)),
        answer=answer_of(record),
        rows=first,
        more=more,
        beyond=hidden_rows_text(counts, MAX_ROWS, counted),
        elsewhere=elsewhere_table(record, places),
        others=split_rows(
            causes_table(record.other_causes, places, "/other_causes", _CAUSES, "other causes"), _OPEN_ROWS
        ),
        energy=split_table(split, places, "/energy_split") if split else None,
        deep=_deep_blocks(record),
        flames=[view for view in views if view],
        helps=suggest_remedies(record),
        lanes=lanes(extras.timeline or ()),
        mechanisms=MECHANISMS,
        notes=labels.notes_with_source(record),
    )


def _deep_blocks(record: Attribution) -> list[Markup]:
    """Return the blocks of deep idle: a bar per scope, then its sentences and tables."""
    if record.deep is None:
        return []
    bars = [deep_idle.draw_shares(scope) for scope in record.deep.scopes]
    parts = [
        table_html(part, names=False)
        if isinstance(part, Table)
        else Markup("<p{}>{}</p>").format(
            Markup(' class="muted"') if part.is_detail else "", clean_name(part.text, 2000)
        )
        for part in deep_idle.list_parts(record.deep, _OPEN_ROWS)
    ]
    return [*(Markup('<figure class="chart">{}</figure>').format(bar) for bar in bars), *parts]


# Markdown and CSV.

_WAKEUP_COLUMNS = ("thread", "path", "every", "rate", "count", "c0")
_WAKING_COLUMNS = ("thread", "path", "rate", "count")
_CSV_HEAD = "mechanism origin count rate_hz wakings_count period_ms c0_ms pid tid thread detail waker_pid waker stack"


def render_markdown(record: Attribution, context: str) -> list[str]:
    """Return the rows with most idle exits, and the balance."""
    places = Places(record)
    counts, counted = list_row_counts(record)
    limit = count_leading(counts)
    anyway = busy_wakings_table(record, places, limit)
    if anyway:
        written = ["", RAN_ANYWAY, *draw_table(anyway, _WAKING_COLUMNS)]
    else:
        written = draw_table(wakeups_table(record, places, limit), _WAKEUP_COLUMNS)
    if left := hidden_rows_text(counts, limit, counted):
        written += ["", f"{left}."]
    if record.deep is not None:
        written += deep_idle.render_markdown(record.deep, limit)
    return written + metrics.balance_lines(record.conservation) + note_lines(labels.notes_with_source(record))


def render_csv(record: Attribution) -> Iterator[Line]:
    """Yield one line per thread, stack, origin and mechanism, then those of deep idle."""
    yield _CSV_HEAD.split()
    for row in record.wakeups:
        who = (row.thread.pid, row.thread.tid, row.thread.label, row.detail)
        waker = (row.waker.pid, row.waker.comm) if row.waker else (None, None)
        figures = (row.count, row.rate_hz, row.wakings_count, row.period_ms, row.c0_ms)
        yield [row.mechanism, row.origin, *figures, *who, *waker, " < ".join(reversed(frames_of(row)[1:]))]
    if record.deep is not None:
        yield []
        yield from deep_idle.csv_lines(record.deep)
