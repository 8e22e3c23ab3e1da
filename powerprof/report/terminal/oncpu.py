# SPDX-License-Identifier: Apache-2.0
"""`powerprof profile`: where the running time, or the page faults, of a target went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from powerprof import text
from powerprof.attribution.oncpu import OnCpuProfile, OnCpuStack
from powerprof.report.tables.table import Cell, Places, Table, TableRow, Words, figures, words

if TYPE_CHECKING:
    from powerprof.report.forms.csvfile import Line

_SHOWN = 20
BY = ("function", "stack", "thread")


def headline(profile: OnCpuProfile) -> str:
    """How much of what ran was the target's."""
    who = profile.label or "the target"
    if profile.percent_of == "page_faults":
        return (
            f"{who} took {profile.target_count:,} page faults in {text.number(profile.window_s, 1)} s "
            f"({text.number(profile.target_hz, 1)}/s)."
        )
    share = f"{text.number(profile.target_percent, 1)} % of the C0 time" if profile.target_percent is not None else "?"
    return (
        f"{who} ran for {text.number(profile.target_c0_ms, 0)} ms of {text.number(profile.window_s, 1)} s: {share}; "
        f"the CPUs ran {text.number(profile.c0_percent, 1)} % of the time."
    )


def functions_table(profile: OnCpuProfile, places: Places, limit: int) -> Table:
    """A row a function, most time of its own first."""
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
    caption = "Self is where it ran itself, total where it was anywhere on the stack."
    return Table(columns, rows, "functions", caption, max(0, len(profile.functions) - limit))


def csv_lines(profile: OnCpuProfile) -> Iterator[Line]:
    """A line a function."""
    yield [
        *("function", "module", "kernel", "self_count", "self_percent", "low_percent", "high_percent"),
        *("self_ms", "total_count", "total_percent"),
    ]
    for function in profile.functions:
        yield [
            *(
                function.function,
                function.module,
                str(function.kernel),
                function.self_count,
                function.self_percent,
                function.low_percent,
            ),
            *(function.high_percent, function.self_ms, function.total_count, function.total_percent),
        ]


def _functions(profile: OnCpuProfile, width: int, limit: int) -> list[str]:
    unit = "faults" if profile.percent_of == "page_faults" else "ms"
    lines = [f"{'self %':>7}  {'95 %':>13}  {unit:>9}  {'total %':>8}  function"]
    for row in profile.functions[:limit]:
        span = ""
        if row.low_percent is not None and row.high_percent is not None:
            span = f"{text.number(row.low_percent, 1)} – {text.number(row.high_percent, 1)}"
        amount = text.number(row.self_ms, 0) if row.self_ms is not None else f"{row.self_count:,}"
        where = "kernel" if row.kernel else row.module
        head = (
            f"{text.number(row.self_percent, 1):>7}  {span:>13}  {amount:>9}  {text.number(row.total_percent, 1):>8}  "
        )
        lines.append(text.cut(f"{head}{row.function}  ({where})", width))
    left = len(profile.functions) - limit
    return [*lines, *([f"{left} more functions (--top N, or --json)"] if left > 0 else [])]


def _stack(row: OnCpuStack, width: int, unit: str) -> list[str]:
    who = (row.server_name or row.comm).removeprefix("thread/")
    amount = f"{row.count:,} {unit}" if row.c0_ms is None else f"{text.number(row.c0_ms, 0)} ms"
    path = " ← ".join(frame.label for frame in row.stack) or "(no stack)"
    head = f"{text.number(row.percent, 1):>7} %  {amount:>10}  {who}"
    return [text.cut(head, width), *text.wrap(path, width, " " * 12)[:6]]


def _stacks(profile: OnCpuProfile, width: int, limit: int) -> list[str]:
    unit = "faults" if profile.percent_of == "page_faults" else "samples"
    lines = [f"{'share':>9}  {unit if profile.percent_of == 'page_faults' else 'time':>10}  thread and stack"]
    for row in profile.stacks[:limit]:
        lines += _stack(row, width, unit)
    left = len(profile.stacks) - limit
    return [*lines, *([f"{left} more stacks (--top N, or --json)"] if left > 0 else [])]


def _threads(profile: OnCpuProfile, width: int, limit: int) -> list[str]:
    shares: dict[str, tuple[float, int]] = {}
    for row in profile.stacks:
        name = (row.server_name or row.comm).removeprefix("thread/")
        percent, count = shares.get(name, (0.0, 0))
        shares[name] = (percent + row.percent, count + row.count)
    ordered = sorted(shares.items(), key=lambda item: (-item[1][1], item[0]))
    lines = [f"{'share':>9}  {'count':>10}  thread"]
    for name, (percent, count) in ordered[:limit]:
        lines.append(text.cut(f"{text.number(percent, 1):>7} %  {count:>10,}  {name}", width))
    return lines


def lines(
    profile: OnCpuProfile, width: int = text.DEFAULT_WIDTH, *, by: str = "function", top: int = _SHOWN
) -> list[str]:
    """The whole report."""
    table = {"stack": _stacks, "thread": _threads}.get(by, _functions)
    printed = [*text.wrap(headline(profile), width), "", *table(profile, width, top), ""]
    printed += text.wrap(
        f"{profile.target_count:,} counted: stacks complete {profile.complete_count:,}, cut "
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
    for note in profile.notes:
        printed += text.wrap(f"Note: {note}.", width)
    if profile.interrupted:
        printed.append("Interrupted: this is what was sampled until then.")
    return printed
