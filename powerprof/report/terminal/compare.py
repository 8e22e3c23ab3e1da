# SPDX-License-Identifier: Apache-2.0
"""`powerprof compare` for a terminal: the answer, the metrics side by side, plans, threats, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.experiment.bench.plans import plan_text
from powerprof.experiment.judge.metrics import rest_percent
from powerprof.experiment.records import Block, Comparison, Metric
from powerprof.report.tables import columns as terminal
from powerprof.report.tables import notes
from powerprof.report.tables.metrics import comparison_table, functions_table, system_table
from powerprof.report.tables.table import Figure, Places
from powerprof.report.terminal import servers

_FUNCTIONS = 20


def _counted(comparison: Comparison) -> list[Block]:
    """The blocks that are in the figures."""
    return [block for block in comparison.blocks if not block.dropped and not block.disturbed]


def _functions(comparison: Comparison, width: int) -> list[str]:
    """What the servers ran more or less of, largest change first."""
    sampled = comparison.on_cpu
    if sampled is None:
        return []
    each = f"{sampled.windows_count} windows of {sampled.window_s or 0:.1f} s each, {sampled.samples_count:,} samples"
    shown = functions_table(comparison, Places(comparison), _FUNCTIONS)
    if not shown.rows:
        return ["", *text.wrap(f"No function of the server changed significantly ({each}).", width)]
    rows = [["A self", "B self", "B − A, 95 %", "A all", "B all", "function"]]
    for row in shown.rows:
        cells = [row.cells[key] for key in ("a", "b", "difference", "a_total", "b_total")]
        figures = [
            f"{cell.text} [{cell.ends[0].text}, {cell.ends[1].text}]" if cell.ends else cell.text
            for cell in cells
            if isinstance(cell, Figure)
        ]
        name = row.words("name")
        rows.append([*figures, f"{name.text} ({name.more})"])
    printed = ["", *text.wrap(f"Functions of the server that changed significantly, % of one CPU: {each}", width)]
    heads = text.columns([row[:-1] for row in rows], left=0)
    printed += [text.cut(f"{head}  {row[-1]}", width) for head, row in zip(heads, rows, strict=True)]
    return [*printed, *([f"{shown.left_count} more: --json"] if shown.left_count > 0 else []), ""]


def turns_of(comparison: Comparison) -> str:
    """` in turns of 0.05 s`; empty where whole windows followed one another."""
    turn_s = comparison.options.get("turn_s")
    return f" in turns of {turn_s:.2g} s" if isinstance(turn_s, int | float) else ""


def executions_of(blocks: Sequence[Block]) -> str:
    """`84 executions, exit code 0`; empty where no command was run."""
    known = [block.executions_count for block in blocks if block.executions_count is not None]
    codes = sorted({code for block in blocks for code in block.exit_codes})
    exit_codes = (
        f", exit code{'s' if len(codes) > 1 else ''} {text.listed([str(code) for code in codes])}" if codes else ""
    )
    return f"{sum(known):,} executions{exit_codes}" if known else ""


def speed_and_power(comparison: Comparison) -> str:
    """The verdicts on speed and on power as one sentence; empty where there is none."""
    sentence = "; ".join(filter(None, (comparison.verdict.speed, comparison.verdict.power)))
    # A condition's name stays as it is.
    return f"{sentence[:1].upper() if sentence.startswith('no ') else sentence[:1]}{sentence[1:]}." if sentence else ""


def _is_a_hint(metric: Metric) -> bool:
    ends = metric.difference.ci95
    return ends is not None and not ends[0] <= 0 <= ends[1] and metric.verdict == "inconclusive"


def lines(comparison: Comparison, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    printed = text.wrap(comparison.verdict.text, width)
    printed += text.wrap(_context(comparison), width)
    if comparison.verdict.doubts:
        printed += text.wrap(f"Caution: {'; '.join(comparison.verdict.doubts)}.", width)
    if comparison.interrupted:
        printed += text.wrap("Ended early: this is what was measured until then.", width)
    if comparison.differences:
        printed += ["", "What differs besides the condition"]
        for difference in comparison.differences:
            printed += text.wrap(difference, width, "  ")
    printed.append("")
    table = terminal.metrics(comparison_table(comparison, Places(comparison)), width)
    printed += [*table, ""]
    if any("[" in line for line in table) and any(map(_is_a_hint, comparison.metrics)):
        printed += text.wrap(
            "The rows after the first are judged together: an interval clear of 0 may be chance.", width
        )
    beneath = system_table(comparison, Places(comparison))
    if beneath.of("terminal").rows:
        printed.append("The system: what changed significantly, and the disk of the server's files")
        printed += [*terminal.metrics(beneath, width), ""]
    if comparison.verdict.ground:
        printed += text.wrap(comparison.verdict.ground, width)
    apart = speed_and_power(comparison)
    if apart:
        printed += text.wrap(apart, width)
    shares = _shares(comparison)
    if shares:
        printed += text.wrap("C0, % of all CPUs: " + " · ".join(shares), width)
    plans = _plans(comparison)
    if plans:
        printed += text.wrap("Plans: " + " · ".join(plans), width)
    printed += _functions(comparison, width)
    printed += servers.lines(comparison, width)
    threats = [threat.text for threat in comparison.threats]
    if threats:
        printed += text.wrap("Threats: " + "; ".join(threats) + ".", width)
    printed += notes.lines(comparison, width)
    cost = comparison.tool.get("cpu_percent")
    if isinstance(cost, float):
        printed.append(f"powerprof itself: {cost:.2f} % of one CPU.")
    return printed


def _context(comparison: Comparison) -> str:
    windows = [block.window.window_s for block in _counted(comparison) if block.window.window_s]
    pairs = comparison.blocks_count // 2
    parts = []
    if pairs:
        order = "".join(comparison.order[:4]).upper()
        parts.append(f"{pairs} pairs, {order}…")
    executions = executions_of(_counted(comparison))
    if executions:
        parts.append(executions)
    elif comparison.design == "work" and comparison.queries_per_block:
        parts.append(f"{comparison.queries_per_block:,} queries in both")
    elif comparison.offered_hz:
        parts.append(f"{comparison.offered_hz:,.0f} queries/s in both")
    if windows:
        parts.append(f"{sum(windows) / len(windows):.1f} s each{turns_of(comparison)}")
    energy = next((metric for metric in comparison.metrics if metric.name.startswith("joules_per_")), None)
    if energy is not None:
        doubt = ", intervals with the model's doubt" if energy.difference.sampling_ci95 else ""
        parts.append(f"{energy.kind} joules ({energy.source}{doubt})")
    if comparison.control is not None:
        parts.append(comparison.control.text)
    version = comparison.server.get("version")
    if version:
        parts.append(f"{version}{', private' if comparison.server.get('private') else ''}")
    return " · ".join(parts)


def _shares(comparison: Comparison) -> list[str]:
    """Whose C0 it was, in percent of all CPUs: what the client costs does not hide the server."""
    printed = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        windows = [block.window for block in _counted(comparison) if block.arm == arm]
        if not windows:
            continue
        groups = {process.name for window in windows for process in window.processes}
        parts = []
        for group in ("server", "client", "command", "powerprof"):
            if group in groups:
                each = [p.percent or 0.0 for window in windows for p in window.processes if p.name == group]
                parts.append(f"{group} {sum(each) / len(windows):.2f}")
        rest = [value for window in windows if (value := rest_percent(window)) is not None]
        if rest:
            parts.append(f"rest {sum(rest) / len(rest):.2f}")
        if parts:
            printed.append(f"{name}: {', '.join(parts)}")
    return printed


def _plans(comparison: Comparison) -> list[str]:
    names_of_plan: dict[str, list[str]] = {}
    for plan in comparison.plans:
        name = comparison.a.name if plan.arm == "a" else comparison.b.name
        if name not in names_of_plan:
            names_of_plan[name] = [plan_text(row) for row in plan.rows]
    return [f"{name}: {', then '.join(steps)}" for name, steps in names_of_plan.items()]
