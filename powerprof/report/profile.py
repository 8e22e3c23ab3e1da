# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof profile`: running time or page faults by function, stack and thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from powerprof.attribution.profile import FunctionShare, OnCpuProfile, OnCpuStack
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.document import Document, Drawing, Part, Section, Sentence, Shown, View
from powerprof.report.flame import build_flame
from powerprof.report.html.flames import draw_flame, draw_flames
from powerprof.report.layouts import named_rows
from powerprof.report.stacks import profile_stacks
from powerprof.report.table import (
    HTML,
    Cell,
    Column,
    Line,
    Path,
    Places,
    Table,
    TableRow,
    Words,
    field_lines,
    figure_columns,
    word_columns,
)

if TYPE_CHECKING:
    from markupsafe import Markup

_MAX_PAGE_ROWS = 60
_DEFAULT_TOP = 20
BY = ("function", "stack", "thread")


def answer_of(profile: OnCpuProfile) -> str:
    """Return how much of the running time or of the page faults belongs to the target."""
    who = profile.label or "the target"
    if profile.percent_of == "page_faults":
        return (
            f"{who} took {profile.target_count:,} page faults in {text.number(profile.window_s, 1)} s "
            f"({text.number(profile.target_hz, 1)}/s)."
        )
    window = text.number(profile.window_s, 1)
    if profile.target_c0_ms is None or not (profile.target_count or profile.target_c0_ms):
        return f"{who} was not running at any sample in {window} s."
    one_cpu = text.number(profile.target_c0_ms / profile.window_s / 10.0, 1)
    time_ms, interval = text.number(profile.target_c0_ms, 0), ""
    if profile.clock_c0_ms is None and profile.low_c0_ms is not None and profile.high_c0_ms is not None:
        time_ms, low, high = labels.format_together((profile.target_c0_ms, profile.low_c0_ms, profile.high_c0_ms))
        interval = f" ({low} – {high}, 95 %)"
    ran = f"{who} ran for {time_ms} ms{interval} of {window} s, {one_cpu} % of one CPU"
    if profile.unseen_c0_ms:
        ran += f", and short processes that it started for {text.number(profile.unseen_c0_ms, 0)} ms"
    if not profile.target_count:
        return f"{ran}. It was not running at any sample, so its functions are unknown. Measure longer."
    return f"{ran}: {_main_function(profile)}."


def _main_function(profile: OnCpuProfile) -> str:
    """Return the function with most time, including the unnamed functions that it calls.

    Return an address if no function has a name.
    """
    own: Counter[str] = Counter()
    nameless: Counter[str] = Counter()
    for row in profile.stacks:
        named = next((frame for frame in row.stack if frame.function), None)
        if named is not None and named.function is not None:
            own[named.function] += row.count
            nameless[named.function] += row.count if named is not row.stack[0] else 0
    if not own:
        first = profile.functions[0]
        return f"{text.number(100.0 * first.self_count / profile.target_count, 0)} % in {first.function}"
    function, count = min(own.items(), key=lambda item: (-item[1], item[0]))
    below = " and unnamed functions that it calls" if nameless[function] else ""
    return f"{text.number(100.0 * count / profile.target_count, 0)} % in {text.without_parameters(function)}{below}"


def _host_share(profile: OnCpuProfile) -> str:
    """Return the target's share of the CPUs' running time."""
    if profile.target_percent is None:
        return ""
    if not profile.target_count:
        return f"The CPUs ran {text.number(profile.c0_percent, 1)} % of the time."
    return (
        f"That is {text.number(profile.target_percent, 1)} % of the CPUs' running time; they ran "
        f"{text.number(profile.c0_percent, 1)} % of the time."
    )


def _place(function: FunctionShare) -> str:
    """Return the file of a function; nothing for generated code, which is its own name."""
    if function.kernel:
        return "kernel"
    return "" if function.module == function.function else function.module


def functions_table(profile: OnCpuProfile, view: View) -> Table:
    """Return one row per function, the most time in the function itself first; pages have callers without own time."""
    places, faults = Places(profile), profile.percent_of == "page_faults"
    numbered = [(index, row) for index, row in enumerate(profile.functions) if view.everything or row.self_count]
    rows = []
    for index, function in numbered[: count_rows(view)]:
        at = f"/functions/{index}"
        ends = (f"{at}/low_percent", f"{at}/high_percent")
        has_time = function.self_ms is not None
        cells: dict[str, Cell] = {
            "function": Words(function.function, _place(function)),
            "self": places.figure(f"{at}/self_percent", 1, ends="" if faults else ends),
            "amount": places.figure(f"{at}/self_ms" if has_time else f"{at}/self_count", 0),
            "total": places.figure(f"{at}/total_percent", 1),
        }
        rows.append(TableRow(cells))
    columns = [
        *word_columns("function"),
        Column("self", "self %", interval="" if faults else "95 %"),
        *figure_columns(amount="faults" if faults else "ms", total="total %"),
    ]
    percent = "" if faults else ", in percent of the target's CPU time"
    caption = f"Self: time in the function itself. Total: time with the function on the stack{percent}."
    return Table(columns, rows, "functions", caption, len(profile.functions) - len(rows))


def stacks_table(profile: OnCpuProfile, view: View) -> Table:
    """Return one row per thread and stack."""
    places, faults, rows = Places(profile), profile.percent_of == "page_faults", []
    for index, row in enumerate(profile.stacks[: count_rows(view)]):
        at = f"/stacks/{index}"
        has_time = row.c0_ms is not None
        cells: dict[str, Cell] = {
            "share": places.figure(f"{at}/percent", 1, "%"),
            "amount": places.figure(f"{at}/c0_ms" if has_time else f"{at}/count", 0, "ms" if has_time else ""),
            "thread": Words(_thread_of(row)),
            "path": Path([frame.placed if view.sources else frame.label for frame in row.stack], complete=True),
        }
        rows.append(TableRow(cells))
    columns = [
        *figure_columns(share="share", amount="faults" if faults else "time"),
        Column("thread", "thread and stack", left=True),
        Column("path", "stack, innermost first", left=True, beside="thread"),
    ]
    return Table(columns, rows, "stacks", left_count=len(profile.stacks) - len(rows))


def threads_table(profile: OnCpuProfile, view: View) -> Table:
    """Return one row per thread name."""
    shares: dict[str, tuple[float, int]] = {}
    for row in profile.stacks:
        percent, count = shares.get(_thread_of(row), (0.0, 0))
        shares[_thread_of(row)] = (percent + row.percent, count + row.count)
    ordered = sorted(shares.items(), key=lambda item: (-item[1][1], item[0]))[: count_rows(view)]
    rows = [
        TableRow({
            "share": Words(text.number(percent, 1, " %"), ours=True),
            "count": Words(f"{count:,}", ours=True),
            "thread": Words(name),
        })
        for name, (percent, count) in ordered
    ]  # fmt: skip
    columns = [*figure_columns(share="share", count="count"), *word_columns("thread")]
    return Table(columns, rows, "threads", left_count=len(shares) - len(rows))


def _thread_of(row: OnCpuStack) -> str:
    return (row.server_name or row.comm).removeprefix("thread/")


def count_rows(view: View) -> int:
    """Return the number of rows that a form shows: a page has more."""
    return view.top or (_MAX_PAGE_ROWS if view.everything else _DEFAULT_TOP)


def _list_function_rows(profile: OnCpuProfile) -> Iterator[Line]:
    """Yield one line per function."""
    names = ("function", "module", "kernel", "self_count", "self_percent", "low_percent", "high_percent")
    return field_lines(profile.functions, (*names, "self_ms", "total_count", "total_percent"))


_TABLES: Mapping[str, tuple[str, Callable[[OnCpuProfile, View], Table]]] = {
    "function": ("By function", functions_table),
    "stack": ("By thread and stack", stacks_table),
    "thread": ("By thread", threads_table),
}


def document(profile: OnCpuProfile, view: View) -> Document:
    """Return the report of a profile: its functions, stacks or threads, and what the samples missed."""
    return Document(
        views=("by", "top"),
        record=profile,
        answer=answer_of(profile),
        context=_host_share(profile),
        parts=partial(_list_parts, profile, view),
        rows=partial(_list_function_rows, profile),
        setup=(("Host", "/host"),),
        derived=view.extras.derived,
    )


def _list_parts(profile: OnCpuProfile, view: View) -> Iterator[Part]:
    if profile.stacks:
        yield Section("Flame graph", [Drawing(partial(_draw_flame, profile), look="")], name="flames", forms=HTML)
    by = view.by or "function"
    if profile.target_count:
        heading, build = _TABLES[by]
        table = build(profile, view)
        yield Section(heading, [Shown(table, named_rows, what=table.label, names=by == "function")], name="functions")
    yield Section("Samples", [Sentence(line) for line in _list_checks(profile)], name="samples")


def _draw_flame(profile: OnCpuProfile) -> Markup:
    stacks = profile_stacks(profile)
    graph = build_flame(stacks.stacks, unit=stacks.unit, root=stacks.root)
    view = draw_flame(graph, stacks.title, stacks.modules)
    return draw_flames([view] if view else [], "weight")


def _list_checks(profile: OnCpuProfile) -> Iterator[str]:
    """Yield the interval of the time, the completeness of stacks, and the cost."""
    if profile.sampled_c0_ms is not None and profile.clock_c0_ms is not None:
        sampled = text.number(profile.sampled_c0_ms, 0) + " ms"
        if profile.low_c0_ms is not None and profile.high_c0_ms is not None:
            mean, low, high = labels.format_together((profile.sampled_c0_ms, profile.low_c0_ms, profile.high_c0_ms))
            sampled = f"{mean} ms ({low} – {high}, 95 %)"
        yield f"The time comes from the CPU clock of the process. By the samples: {sampled}."
    yield (
        f"{profile.target_count:,} samples: stacks complete {profile.complete_count:,}, cut "
        f"{profile.truncated_count:,}, failed {profile.failed_count:,}, lost {profile.lost_count:,}; "
        f"{profile.missed_count:,} events missed."
    )
    cost = labels.describe_cost(profile.bound, profile.tool_cpu_s, profile.window_s, profile.label)
    yield f"{cost} Sampling wakes the CPUs: no energy figure comes from this window."
