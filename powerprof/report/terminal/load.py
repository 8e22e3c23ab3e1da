# SPDX-License-Identifier: Apache-2.0
"""`powerprof run` for a terminal: each metric with its interval, beside the idle server."""

from __future__ import annotations

from powerprof import text
from powerprof.experiment.records import LoadRun
from powerprof.report.tables import columns as terminal
from powerprof.report.tables import notes
from powerprof.report.tables.labels import significant
from powerprof.report.tables.metrics import load_system_table, load_table
from powerprof.report.tables.table import Places
from powerprof.report.terminal import servers
from powerprof.report.terminal.compare import executions_of
from powerprof.report.wording.answers import words


def lines(run: LoadRun, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    is_command = run.condition.load.get("kind") == "command" and run.condition.workload == "command"
    name = run.condition.name if is_command else f"{run.condition.workload}:{run.condition.name}"
    printed = [f"No window of {name} was measured."]
    if run.metrics:
        first = run.metrics[0]
        interval = ""
        if first.estimate.low is not None and first.estimate.high is not None:
            interval = f" ({significant(first.estimate.low)} – {significant(first.estimate.high)}, 95 %)"
        estimated = " (estimated)" if first.kind == "estimated" else ""
        what = words(first.name)
        # The name of a rate or a number says its unit already.
        unit = "" if first.unit.startswith("1") else f" {first.unit}"
        verb = "are" if what.startswith("the wake-ups") else "is"
        mean = significant(first.estimate.mean)
        printed = text.wrap(f"{name}: {what}{estimated} {verb} {mean}{unit}{interval}.", width)
    options = run.options
    least = "at least " if is_command else ""
    parts = [f"{text.count(options.windows_count)} windows of {least}{options.window_s} s"]
    if executions := executions_of(run.blocks):
        parts.append(executions)
    if options.offered_hz:
        parts.append(f"{options.offered_hz:,.0f} queries/s offered")
    if options.queries_per_block:
        parts.append(f"{options.queries_per_block:,} queries each")
    if run.server is not None:
        parts.append(run.server.version + (", private" if run.server.private else ""))
    printed += text.wrap(" · ".join(parts), width)
    if run.interrupted:
        printed += text.wrap("Ended early: this is what was measured until then.", width)
    printed += ["", *terminal.metrics(load_table(run, Places(run)), width)]
    if run.system:
        printed += ["", "The system:", *terminal.metrics(load_system_table(run, Places(run)), width)]
    printed += servers.of_blocks(run.condition.name, run.blocks, width)
    if run.traced is not None:
        printed += servers.traced(run.traced, run.condition.name, width)
    idle = next((phase for phase in run.phases if phase.name in ("server", "baseline")), None)
    if idle is not None:
        what = "Idle server" if idle.name == "server" else "Idle host"
        printed += ["", f"{what}: {text.number(idle.c0_percent)} % C0, {text.number(idle.wakeups_hz, 1)} wake-ups/s."]
    printed += notes.lines(run, width)
    if run.tool.cpu_percent is not None:
        printed.append(f"powerprof itself: {run.tool.cpu_percent:.2f} % of one CPU.")
    return printed
