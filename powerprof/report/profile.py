# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof profile` and `powerprof functions`: running time, page faults, and probed functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from powerprof.attribution.profile import FunctionProfile, FunctionRow, OnCpuProfile, OnCpuStack
from powerprof.model import text
from powerprof.report.document import Extras
from powerprof.report.html.charts import draw_flame
from powerprof.report.html.page import clean_name, render_page
from powerprof.report.labels import word_notes, wrap_note
from powerprof.report.stacks import build_flame, profile_stacks
from powerprof.report.table import (
    Cell,
    Line,
    Places,
    Table,
    TableRow,
    Words,
    align_rows,
    field_lines,
    figures,
    hidden_line,
    words,
)

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
    interval = ""
    if profile.clock_c0_ms is None and profile.low_c0_ms is not None:
        interval = f" ({text.number(profile.low_c0_ms, 0)} – {text.number(profile.high_c0_ms, 0)}, 95 %)"
    ran = f"{who} ran for {text.number(profile.target_c0_ms, 0)} ms{interval} of {window} s, {one_cpu} % of one CPU"
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


def functions_table(profile: OnCpuProfile, places: Places, limit: int) -> Table:
    """Return one row per function, the most time in the function itself first."""
    faults = profile.percent_of == "page_faults"
    rows = []
    for index, function in enumerate(profile.functions[:limit]):
        at = f"/functions/{index}"
        cells: dict[str, Cell] = {
            "function": Words(function.function, "kernel" if function.kernel else function.module),
            "self": places.figure(f"{at}/self_percent", 1),
            "low": places.figure(f"{at}/low_percent", 1),
            "high": places.figure(f"{at}/high_percent", 1),
            "amount": places.figure(f"{at}/self_count" if faults else f"{at}/self_ms", 0),
            "total": places.figure(f"{at}/total_percent", 1),
        }
        rows.append(TableRow({key: cell for key, cell in cells.items() if not faults or key not in ("low", "high")}))
    ends = {} if faults else {"low": "from", "high": "to (95 %)"}
    amount = "faults" if faults else "ms"
    columns = [*words("function"), *figures(self="self %", **ends, amount=amount, total="total %")]
    percent = "" if faults else ", in percent of the target's CPU time"
    caption = f"Self: time in the function itself. Total: time with the function on the stack{percent}."
    return Table(columns, rows, "functions", caption, max(0, len(profile.functions) - limit))


def render_csv(profile: OnCpuProfile) -> Iterator[Line]:
    """Yield one line per function."""
    names = ("function", "module", "kernel", "self_count", "self_percent", "low_percent", "high_percent")
    return field_lines(profile.functions, (*names, "self_ms", "total_count", "total_percent"))


def _function_lines(profile: OnCpuProfile, width: int, limit: int) -> list[str]:
    unit = "faults" if profile.percent_of == "page_faults" else "ms"
    cells = [["self %", "95 %", unit, "total %", "function"]]
    rows = [row for row in profile.functions if row.self_count]
    for row in rows[:limit]:
        span = ""
        if row.low_percent is not None and row.high_percent is not None:
            span = f"{text.number(row.low_percent, 1)} – {text.number(row.high_percent, 1)}"
        amount = text.number(row.self_ms, 0) if row.self_ms is not None else f"{row.self_count:,}"
        where = "kernel" if row.kernel else row.module
        figures = (text.number(row.self_percent, 1), span, amount, text.number(row.total_percent, 1))
        cells.append([*figures, f"{text.without_parameters(row.function)}  ({where})"])
    left = len(profile.functions) - min(limit, len(rows))
    return [*align_rows(cells, width), *hidden_line(left, "functions: callers only, or below")]


def _stack_entry(row: OnCpuStack, unit: str, sources: bool) -> tuple[list[str], str]:
    """Return the cells of a stack and its frames."""
    who = (row.server_name or row.comm).removeprefix("thread/")
    amount = f"{row.count:,} {unit}" if row.c0_ms is None else f"{text.number(row.c0_ms, 0)} ms"
    path = " ← ".join(frame.placed if sources else frame.label for frame in row.stack) or "(no stack)"
    return [text.number(row.percent, 1, " %"), amount, who], path


def _stack_lines(profile: OnCpuProfile, width: int, limit: int, sources: bool = False) -> list[str]:
    unit = "faults" if profile.percent_of == "page_faults" else "samples"
    entries = [_stack_entry(row, unit, sources) for row in profile.stacks[:limit]]
    heading = ["share", unit if profile.percent_of == "page_faults" else "time", "thread and stack"]
    drawn, indent = text.name_rows([heading, *(cells for cells, _ in entries)], width)
    lines = list(drawn[0])
    for row_lines, (_, path) in zip(drawn[1:], entries, strict=True):
        lines += [*row_lines, *text.wrap(path, width, " " * min(12, indent + 2))[:6]]
    return [*lines, *hidden_line(len(profile.stacks) - limit, "stacks")]


def _thread_lines(profile: OnCpuProfile, width: int, limit: int) -> list[str]:
    shares: dict[str, tuple[float, int]] = {}
    for row in profile.stacks:
        name = (row.server_name or row.comm).removeprefix("thread/")
        percent, count = shares.get(name, (0.0, 0))
        shares[name] = (percent + row.percent, count + row.count)
    ordered = sorted(shares.items(), key=lambda item: (-item[1][1], item[0]))
    rows = [["share", "count", "thread"]]
    rows += [[text.number(percent, 1, " %"), f"{count:,}", name] for name, (percent, count) in ordered[:limit]]
    return align_rows(rows, width)


def render_terminal(
    profile: OnCpuProfile,
    width: int = text.DEFAULT_WIDTH,
    *,
    by: str = "function",
    top: int = _DEFAULT_TOP,
    sources: bool = False,
) -> list[str]:
    """Return the report of a profile; `sources` adds file and line to frames."""
    tables: dict[str, Callable[[OnCpuProfile, int, int], list[str]]] = {
        "stack": partial(_stack_lines, sources=sources),
        "thread": _thread_lines,
    }
    printed = [*text.wrap(answer_of(profile), width), ""]
    if profile.target_count:
        printed += [*tables.get(by, _function_lines)(profile, width, top), ""]
    if profile.percent_of != "page_faults":
        printed += text.wrap(_host_share(profile), width)
    if profile.sampled_c0_ms is not None and profile.clock_c0_ms is not None:
        printed += text.wrap(
            f"The time comes from the CPU clock of the process. By the samples: "
            f"{text.number(profile.sampled_c0_ms, 0)} ms "
            f"({text.number(profile.low_c0_ms, 0)} – {text.number(profile.high_c0_ms, 0)}, 95 %).",
            width,
        )
    printed += text.wrap(
        f"{profile.target_count:,} samples: stacks complete {profile.complete_count:,}, cut "
        f"{profile.truncated_count:,}, failed {profile.failed_count:,}, lost {profile.lost_count:,}; "
        f"{profile.missed_count:,} events missed.",
        width,
    )
    bpf = "" if profile.bpf_s is None else f", {text.number(1e3 * profile.bpf_s / profile.window_s, 2)} ms/s in BPF"
    printed += text.wrap(
        f"powerprof itself: {text.number(100 * profile.tool_cpu_s / profile.window_s, 2)} % of one CPU{bpf}. Sampling "
        f"wakes the CPUs: no energy figure comes from this window.",
        width,
    )
    for note in word_notes(profile.notes):
        printed += wrap_note(note, width)
    if profile.interrupted:
        printed.append("Interrupted: partial results.")
    return printed


# The HTML page: the functions, and the flame graph of their stacks.

_MAX_PAGE_ROWS = 60


def render_html(record: OnCpuProfile, extras: Extras) -> str:
    """Return the HTML page."""
    stack_set = profile_stacks(record)
    places = Places(record)
    sentence = answer_of(record)
    return render_page(
        "oncpu.html.j2",
        record,
        places,
        title=clean_name(sentence),
        answer=sentence,
        functions=functions_table(record, places, _MAX_PAGE_ROWS),
        view=draw_flame(
            build_flame(stack_set.stacks, unit=stack_set.unit, root=stack_set.root), stack_set.title, stack_set.modules
        ),
    )


# `powerprof functions`: calls and self time of the probed functions.


def functions_answer(profile: FunctionProfile) -> str:
    """Return how many functions were called how often."""
    calls = sum(row.calls_count for row in profile.functions)
    who = profile.label or "the target"
    if not calls:
        return f"{who} called no function of {profile.pattern} in {text.number(profile.window_s, 1)} s."
    several = len(profile.functions) != 1
    what = f"{len(profile.functions)} functions of {profile.pattern}" if several else profile.functions[0].function
    return f"{who} called {what} {text.plural(calls, 'time')} in {text.number(profile.window_s, 1)} s."


def _probed_lines(profile: FunctionProfile, width: int, limit: int) -> list[str]:
    rows = [["calls", "calls/s", "self CPU", "self wall", "% CPU", "function"]]
    for row in profile.functions[:limit]:
        share = "" if row.self_cpu_percent is None else text.number(row.self_cpu_percent, 1)
        times = text.number(row.self_cpu_ms, 2, " ms"), text.number(row.self_wall_ms, 1, " ms")
        rows.append([f"{row.calls_count:,}", text.number(row.calls_hz, 1), *times, share, row.function])
    return [*align_rows(rows, width), *hidden_line(len(profile.functions) - limit, "functions")]


def _probe_cost(profile: FunctionProfile) -> str:
    if profile.probe_cost_ms is None or profile.probe_cost_percent is None:
        return f"{profile.hits_count:,} probe hits ({profile.method}) of unknown cost."
    each = "" if profile.probe_call_us is None else f", {text.number(profile.probe_call_us, 1)} µs per call"
    return (
        f"{profile.hits_count:,} probe hits ({profile.method}) cost about {text.number(profile.probe_cost_ms, 1)} ms, "
        f"{text.number(profile.probe_cost_percent, 1)} % of one CPU{each}: no energy figure comes from this window."
    )


def render_functions_terminal(profile: FunctionProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """Return the report of probed functions."""
    printed = [*text.wrap(functions_answer(profile), width), ""]
    printed += [*_probed_lines(profile, width, top), ""] if profile.functions else []
    sentences = [_probe_cost(profile)]
    if profile.never_called_count:
        were = "was" if profile.never_called_count == 1 else "were"
        sentences.append(f"{text.plural(profile.never_called_count, 'probed function')} {were} never called.")
    sentences.append(
        f"Returns without entry {profile.unmatched_returns_count:,}, calls too deep {profile.too_deep_count:,}, "
        f"lost {profile.lost_count:,}."
    )
    sentences += [f"{name} was not probed ({why})." for name, why in profile.refused[:5]]
    sentences += [f"Limitations: {'; '.join(profile.limits)}."] if profile.limits else []
    sentences += [f"Note: {note}." for note in word_notes(profile.notes)]
    for line in sentences:
        printed += text.wrap(line, width)
    if profile.interrupted:
        printed.append("Interrupted: partial results.")
    return printed


def render_functions_csv(record: FunctionProfile) -> Iterator[Line]:
    """Yield one line per probed function."""
    return field_lines(record.functions, FunctionRow.__struct_fields__)
