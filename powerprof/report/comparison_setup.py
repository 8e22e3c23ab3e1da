# SPDX-License-Identifier: Apache-2.0
"""The setup of a comparison: its design and windows, the energy source, CPU time by process, and query plans."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from powerprof.experiment.bench_data import plan_text
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import Block, Comparison
from powerprof.model import text
from powerprof.report.comparison_words import describe_starts
from powerprof.report.document import Drawing, Part, Section, Shown
from powerprof.report.html.text import clean_name
from powerprof.report.run import executions_of
from powerprof.report.table import Column, Table, TableRow, Words


def list_design(record: Comparison) -> list[tuple[str, str]]:
    """Return the design, the source of the joules, the control, and C0 by process, each with its label."""
    control = record.control.text if record.control is not None else ""
    if record.control is not None and record.control.half_width_percent is not None:
        control += f" ({text.plural(record.control.pairs_count, 'pair')})"
    design = ["equal rate" if record.design == "rate" else "equal work"]
    design += [text.plural(record.blocks_count, "block"), f"seed {record.seed}"]
    design.append(text.shorten("".join(record.order).upper(), _ORDER))
    return [
        ("Design", " · ".join(filter(None, design)) if record.blocks_count else ""),
        ("Energy", _energy_text(record)),
        ("Control", control),
        ("C0, % of all CPUs", " · ".join(_c0_by_process(record))),
    ]


_ORDER = 60


def _counted_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks that the figures include."""
    return [block for block in comparison.blocks if block.is_counted]


def turns_of(comparison: Comparison) -> str:
    """Return ` alternating every 0.05 s` for windows that alternate in slices; empty otherwise."""
    turn_s = comparison.options.get("turn_s")
    return f" alternating every {turn_s:.2g} s" if isinstance(turn_s, int | float) else ""


def _energy_text(comparison: Comparison) -> str:
    """Return the kind and the source of the joules; empty without any."""
    energy = next((metric for metric in comparison.metrics if metric.name.startswith("joules_per_")), None)
    if energy is None:
        return ""
    doubt = "intervals with the model's uncertainty" if energy.difference.sampling_ci95 else ""
    known = ", ".join(filter(None, (energy.source, doubt)))
    return f"{energy.kind} joules{f' ({known})' if known else ''}"


def describe_windows(comparison: Comparison) -> str:
    """Return the number, order, load and length of the windows, and the server."""
    windows = [block.window.window_s for block in _counted_blocks(comparison) if block.window.window_s]
    pairs = comparison.blocks_count // 2
    parts = [f"{pairs} pairs, {''.join(comparison.order[:4]).upper()}…"] if pairs else []
    executions = executions_of(_counted_blocks(comparison))
    if executions:
        parts.append(executions)
    elif comparison.design == "work" and comparison.queries_per_block:
        parts.append(f"{comparison.queries_per_block:,} queries in both")
    elif comparison.offered_hz:
        parts.append(f"{comparison.offered_hz:,.0f} queries/s in both")
    if windows:
        parts.append(f"{sum(windows) / len(windows):.1f} s each{turns_of(comparison)}")
    parts += describe_starts(comparison.options.get("starts_count"), pairs)
    server = comparison.server
    if server is not None and server.version:
        parts.append(f"{server.version}{', private' if server.private else ''}")
    return " · ".join(parts)


def _c0_by_process(comparison: Comparison) -> list[str]:
    """Return the C0 of each condition by process, in percent of all CPUs.

    The client's cost is separate from the server's.
    """
    printed = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        windows = [block.window for block in _counted_blocks(comparison) if block.arm == arm]
        if not windows:
            continue
        groups = {process.name for window in windows for process in window.processes}
        parts = []
        for group in ("server", "client", "command", "powerprof"):
            if group in groups:
                percents = [p.percent or 0.0 for window in windows for p in window.processes if p.name == group]
                parts.append(f"{group} {sum(percents) / len(windows):.2f}")
        other_percents = [value for window in windows if (value := rest_percent(window)) is not None]
        if other_percents:
            parts.append(f"rest {sum(other_percents) / len(other_percents):.2f}")
        if parts:
            printed.append(f"{name}: {', '.join(parts)}")
    return printed


def list_plan_texts(comparison: Comparison) -> list[str]:
    """Return the plans of each condition in one line, the first of each condition."""
    names_of_plan: dict[str, list[str]] = {}
    for plan in comparison.plans:
        name = comparison.a.name if plan.arm == "a" else comparison.b.name
        if name not in names_of_plan:
            names_of_plan[name] = [plan_text(row) for row in plan.rows]
    return [f"{name}: {', then '.join(steps)}" for name, steps in names_of_plan.items()]


def list_plans(record: Comparison) -> list[Part]:
    """Return the statement of each plan and its steps, for a page."""
    parts: list[Part] = []
    for plan in record.plans:
        name = record.a.name if plan.arm == "a" else record.b.name
        asserted = " · as required by the workload" if plan.asserted else ""
        statement = Markup('<pre class="sql" tabindex="0">{}</pre>').format(clean_name(plan.statement, 4000))
        names = list(dict.fromkeys(name for row in plan.rows for name in row))
        columns = [Column(str(number), name=name, left=True) for number, name in enumerate(names)]
        rows = [
            TableRow({str(n): Words("–" if row.get(name) is None else str(row[name])) for n, name in enumerate(names)})
            for row in plan.rows
        ]
        shown = Shown(Table(columns, rows, f"plan of {plan.arm.upper()}"), names=False)
        parts.append(
            Section(f"{plan.arm.upper()} {name}{asserted}", [Drawing(partial(Markup, statement), look=""), shown])
        )
    return parts
