# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof attribute`: the target's share of the wake-ups, then threads, call stacks and rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.attribution.units import split_units
from powerprof.model import text
from powerprof.model.attribution import Attribution, StackFrame, Wakeup, Waking
from powerprof.model.records import Cause
from powerprof.report import balance, deep_idle, labels
from powerprof.report.causes import causes_table
from powerprof.report.document import (
    NOT_HTML,
    NOT_TERMINAL,
    TERMINAL,
    Document,
    Drawing,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    Tile,
    View,
)
from powerprof.report.flame import build_flame
from powerprof.report.html.flames import draw_flame, draw_flames
from powerprof.report.html.text import clean_name, figure_html
from powerprof.report.html.timeline import draw_timeline
from powerprof.report.layouts import named_rows
from powerprof.report.notes import word_notes
from powerprof.report.phases import split_table
from powerprof.report.stacks import attribution_stacks
from powerprof.report.suggestions import suggest_remedies
from powerprof.report.table import ALL, HTML, Line, Places, Table
from powerprof.report.wakeup_groups import group_by, group_wakings_by, groups_table, units_table
from powerprof.report.wakeups import (
    StackCause,
    answer_of,
    busy_wakings_table,
    count_leading,
    elsewhere_table,
    group_exits,
    group_wakings,
    hidden_rows_text,
    main_place,
    wakeup_lines,
    wakeups_table,
)
from powerprof.system.next_steps import command_line

# Rows of a page, which must stay below 6 MiB for any length of names, and those that it shows at once.
_MAX_ROWS, _OPEN_ROWS, _MAX_CAUSES = 100, 20, 50
_FRAMES = 2000
_WAKEUP_COLUMNS = ("thread", "path", "every", "rate", "count", "c0")
_SLICED_COLUMNS = ("thread", "path", "every", "rate", "range", "count", "c0")
_WAKING_COLUMNS = ("thread", "path", "rate", "count")


def document(record: Attribution, view: View) -> Document:
    """Return the report of the wake-ups of a target: its threads and stacks, what would help, and the rest of the host.

    It has the first `view.top` rows. Without this number `count_leading` decides.
    """
    wakeups = answer_of(record)
    return Document(
        views=("by", "top"),
        record=record,
        answer=wakeups if record.deep is None else deep_idle.answer_of(record.deep),
        context="" if record.deep is None else wakeups,
        parts=partial(_list_parts, record, view),
        rows=partial(_list_rows, record),
        tiles=partial(_make_tiles, record),
        setup=(*(("Target", "/target"), ("Stacks", "/stacks"), ("Cost of powerprof", "/tool")), ("Host", "/host")),
        derived=view.extras.derived,
    )


def _list_parts(record: Attribution, view: View) -> Iterator[Part]:
    places, timeline = Places(record), view.extras.timeline
    if record.deep is not None:
        deep = list(deep_idle.list_parts(record.deep, view.top or _OPEN_ROWS))
        yield Section("Deep idle", deep, "deep", NOT_TERMINAL)
    is_grouped = view.by not in (None, "stack")
    rows = _list_groups(record, view) if is_grouped else _list_causes(record, view, places)
    yield Section("By thread and stack", rows, name="wakeups")
    suggestions = [Item(suggestion) for suggestion in suggest_remedies(record)]
    yield Section("Most helpful changes", [Items(suggestions)], "helps", ALL)
    if record.wakeups or record.wakings_without_exit:
        yield Section("Flame graph", [Drawing(partial(_draw_flames, record), look="")], name="flames", forms=HTML)
    if timeline:
        drawn = Drawing(partial(draw_timeline, timeline), look="")
        yield Section("CPU by CPU", [drawn], name="timeline", forms=HTML)
    yield Section("Energy", list(_list_energy(record, places)), name="energy")
    woken = Shown(elsewhere_table(record, places), what="rows", names=False, forms=HTML)
    yield Section("Other processes woken by it", [_sum_woken(record), woken], name="elsewhere", apart=False)
    causes = causes_table(record.other_causes, places, "/other_causes", _MAX_CAUSES, "other causes")
    others = Shown(causes, look="plain causes", open_rows=_OPEN_ROWS, what="causes", names=False, forms=HTML)
    yield Section("Rest of the host", [_sum_others(record), others], name="others", apart=False)
    yield Section("Completeness", list(_list_checks(record)), name="checks", apart=False)


_STACK_LINES, _WAKER_LINES = 8, 3
_QUIETER = "On a quieter host, these wakings would end idle periods:"


def _list_causes(record: Attribution, view: View, places: Places) -> list[Part]:
    """Return the idle exits by thread and stack; without any, the wakings that a quieter host would have as exits."""
    exits, wakings = group_exits(record.wakeups), group_wakings(record.wakings_without_exit)
    causes: Sequence[StackCause[Wakeup] | StackCause[Waking]] = exits or wakings
    counts = [cause.count for cause in causes]
    leading = count_leading(counts, view.top)
    limit = _MAX_ROWS if view.everything else leading
    columns = _WAKEUP_COLUMNS if record.slicing is None else _SLICED_COLUMNS
    table = wakeups_table(record, places, limit) if exits else busy_wakings_table(record, places, limit)
    hidden = hidden_rows_text(counts, limit, "idle exit" if exits else "waking")
    return [
        *([] if exits or not wakings else [Sentence(_QUIETER, forms=TERMINAL)]),
        Shown(
            table,
            partial(cause_lines, causes, view.sources),
            "wakeups",
            columns if exits else _WAKING_COLUMNS,
            open_rows=leading,
            names=False,
        ),
        Sentence(f"The JSON has {hidden}." if hidden else "", look="muted", forms=NOT_TERMINAL),
    ]


def cause_lines(
    causes: Sequence[StackCause[Wakeup] | StackCause[Waking]], sources: bool, table: Table, width: int
) -> list[str]:
    """Return causes for a terminal: figures, thread and origin, then its stack and that of its waker.

    The last line sums the causes that are not in the table.
    """
    rows = [[column.heading for column in table.columns]]
    rows += [[row.words(column.key).text.removeprefix("every ") for column in table.columns] for row in table.rows]
    hidden = [cause.rate_hz for cause in causes[len(table.rows) :]]
    if hidden:
        blanks = [""] * (len(table.columns) - 2)
        rows.append([text.number(sum(hidden), 1), *blanks, f"{len(hidden)} more (--all)"])
    entries, below = text.name_rows(rows, width, whole=True)
    lines, indent = list(entries[0]), " " * below
    for cause, entry in zip(causes[: len(table.rows)], entries[1:], strict=False):
        row = cause.first
        lines += [*entry, *_wrap_stack(row.stack, width, indent, sources)]
        if not row.stack_complete and row.stack:
            lines.append(f"{indent}(the rest of this stack was not captured)")
        if row.waker is not None and row.waker.stack:
            lines += _wrap_stack(row.waker.stack, width, indent + "   ", sources, _WAKER_LINES)
    return [*lines, *(line for entry in entries[len(table.rows) + 1 :] for line in entry)]


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


def _list_groups(record: Attribution, view: View) -> list[Part]:
    """Return the idle exits, or else the wakings, by `view.by`."""
    by = view.by or ""
    groups = group_by(record, by) if record.wakeups else group_wakings_by(record, by)
    quieter = "" if record.wakeups or not groups else _QUIETER
    shown = Shown(groups_table(groups, by, view.top), named_rows, names=False)
    units = split_units(record) if by == "unit" else None
    costs = [] if units is None else [Shown(units_table(units, record.window_s, view.top), named_rows, names=False)]
    return [Sentence(quieter, forms=TERMINAL), shown, *costs]


def _list_energy(record: Attribution, places: Places) -> Iterator[Part]:
    split = record.energy_split
    if split is None:
        yield Sentence(f"Energy: no meter and no model for this CPU ({command_line('doctor')}).")
        return
    yield Sentence(balance.describe_energy(split))
    yield Shown(split_table(split, places, "/energy_split"), look="plain split", forms=HTML)
    yield Items([Item(note) for note in word_notes(split.notes)], forms=NOT_TERMINAL)


def _draw_flames(record: Attribution) -> Markup:
    """Return flame graphs of idle exits, on a busy host of wakings, and of C0 time."""
    stack_set, root = attribution_stacks(record), clean_name(record.target.label, 80)
    graphs = [(stack_set.stacks, stack_set.unit, stack_set.unit.capitalize())]
    graphs += [(stack_set.c0_ms, "ms of C0", "C0 time that followed")] if stack_set.c0_ms else []
    views = [
        draw_flame(build_flame(stacks, unit=unit, root=root, limit=_FRAMES), title, stack_set.modules)
        for stacks, unit, title in graphs
    ]
    return draw_flames([view for view in views if view], "weight")


def _running_time(record: Attribution) -> str:
    """Return a sentence that divides the CPUs' running time by consumer. Shares below 0.5 ms are omitted."""
    ran = record.running
    if ran is None or ran.c0_ms is None:
        return ""
    parts = [
        *((record.target.label, ran.target_ms), ("powerprof", ran.tool_ms), ("other threads", ran.others_ms)),
        *(("the kernel alone", ran.kernel_ms), ("unknown", ran.rest_ms or 0.0)),
    ]
    shares = text.join_words([f"{name} {text.number(ms, 0)}" for name, ms in parts if ms >= 0.5])
    return f"The CPUs ran for {text.number(ran.c0_ms, 0)} ms{f': {shares}' if shares else ''}."


def _list_checks(record: Attribution) -> Iterator[Sentence]:
    """Yield the division of running time, the balance of idle exits, completeness of stacks, and the own cost."""
    stacks, tool = record.stacks, record.tool
    yield Sentence(_running_time(record))
    if (sliced := record.slicing) is not None:
        yield Sentence(
            f"Traced {text.number(sliced.traced_s, 2)} s of {text.number(record.window_s, 1)} s. The kernel counted "
            f"{text.count(sliced.exits_count)} idle exits in the window. "
            f"{labels.bound_unseen('A cause', 'occurs', sliced.unseen_below_hz)} In the slices:"
        )
    yield Sentence(balance.describe_balance(record.conservation), look="balance")
    if stacks.exits_complete_percent is not None:
        share, unnamed = text.number(stacks.exits_complete_percent, 1), stacks.unnamed_frames_percent
        nameless = f"; {text.number(unnamed, 0)} % of frames have no name" if unnamed and unnamed >= 1.0 else ""
        yield Sentence(f"Complete stacks: {share} % of its idle exits{nameless}.")
    memory_mb = None if tool.memory_bytes is None else tool.memory_bytes / 1e6
    yield Sentence(
        f"powerprof itself: {_own_cost(record)}, {text.number(tool.wakeups_hz, 1)} wake-ups/s, "
        f"{text.count(tool.lost_count)} events lost, {text.number(memory_mb, 0)} MB."
    )


def _own_cost(record: Attribution) -> str:
    """Return the CPU time of powerprof: of its processes, of its programs with their entries, and the bound."""
    of = "the CPU time in use" if record.target.system else f"the CPU time of {record.target.label}"
    return labels.format_own_cost(record.tool, record.window_s * max(1, record.cpus), of)


def _sum_woken(record: Attribution) -> Sentence:
    """Return the most frequent idle exits that the target caused by waking other processes."""
    count = sum(waking.count for waking in record.woken_elsewhere)
    if not count:
        return Sentence("")
    rates: Counter[str] = Counter()
    for waking in record.woken_elsewhere:
        rates[f"{waking.thread.label} woke {waking.process}"] += waking.count
    most = _most_frequent(rates, record, 3)
    ended = f"It also ended {text.plural(count, 'idle period')} by waking other processes: {most}."
    return Sentence(ended, forms=NOT_HTML)


def _sum_others(record: Attribution) -> Sentence:
    """Return the most frequent causes of idle exits in other processes."""
    if not record.other_causes:
        return Sentence("")
    rates: Counter[str] = Counter()
    for cause in record.other_causes:
        rates[_cause_name(cause)] += cause.count
    # For a whole system only the kernel's own causes remain: its threads, by their work, and its ticks.
    what = "Other causes" if record.target.system else "Other processes"
    return Sentence(f"{what}: {_most_frequent(rates, record, 4)}.", forms=NOT_HTML)


def _cause_name(cause: Cause) -> str:
    """Return the process of a cause; for the kernel, the thread or its work."""
    if cause.process == "kernel":
        thread = cause.thread if cause.thread not in (None, "kernel") else None
        return f"kernel {thread or cause.name or cause.mechanism.replace('_', '-')}"
    return cause.process or "unknown"


def _most_frequent(counts: Counter[str], record: Attribution, most: int) -> str:
    return ", ".join(f"{who} {text.number(count / record.window_s, 1)}/s" for who, count in counts.most_common(most))


def _make_tiles(record: Attribution) -> list[Tile]:
    """Return the wake-up rate, its largest source, the energy, and the share of exits with a cause."""
    if not record.wakeups or not record.window_s:
        return []
    places = Places(record)
    mine, counts = sum(row.count for row in record.wakeups), record.conservation
    share = 100.0 * mine / record.exits_count if record.exits_count else None
    name, function, most_hz = main_place(record)
    place = name if function is None else f"{name} in {text.without_parameters(function)}"
    tiles = [
        Tile(
            "wake-ups from idle, its own",
            Markup("{}/s").format(text.number(mine / record.window_s, 1)),
            f"{text.number(share, 1)} % of all idle exits",
        ),
        Tile("Most of them", Markup("{}/s").format(text.number(most_hz, 1)), clean_name(place, 80)),
    ]
    for number, part in enumerate(record.energy_split.parts if record.energy_split else []):
        if part.name == record.target.label and record.energy_split is not None:
            value = figure_html(places.figure(f"/energy_split/parts/{number}/joules", 3, "J"))
            kind = record.energy_split.kind
            tiles.append(Tile(f"energy above the idle floor, {kind}", value, f"in {record.window_s:.0f} s"))
    named = figure_html(places.figure("/conservation/coverage_percent", 1, "%"))
    left = f"{text.count(counts.unknown_count)} unknown, {text.count(counts.lost_count)} lost"
    return [*tiles, Tile("Idle exits with a cause", named, left)]


def _list_rows(record: Attribution) -> Iterator[Line]:
    """Yield the lines of the wake-ups, then those of deep idle."""
    yield from wakeup_lines(record)
    if record.deep is not None:
        yield []
        yield from deep_idle.csv_lines(record.deep)
