# SPDX-License-Identifier: Apache-2.0
"""Watch a server or this host live: idle states, power, and the functions that wake the CPUs.

The only database server of this host is watched; without one, or with --system, all processes. Processes other than
the target have one line; the key a gives them rows. The statements of a server are measured with the probes of queries
(samples if probes are expensive).

On a terminal it redraws a screen each interval until q or Ctrl-C. In a pipe, or with --plain, it prints one line per
interval. Keys: ? explains keys and columns, s sorts, / filters, the arrows select a row, Enter shows its stack, space
pauses, w saves the interval as a run, q quits. The screen also shows findings of `diagnose` for the database servers of
this host. If the CPUs are more than half busy, one line lists the processes that use them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions, cost_bound, max_cost
from powerprof.cli.parameters import flag, group, program_value, whole_number
from powerprof.cli.targets import MonitorOptions
from powerprof.cli.terminal import print_progress

if TYPE_CHECKING:
    from powerprof.live.monitor import HostMonitor


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `watch`."""

    watched: MonitorOptions = group(MonitorOptions)
    system: bool = flag("--system", "All processes of this host.")
    max_cost: float | None = max_cost("the target")
    energy: EnergyOptions = group(EnergyOptions)
    plain: bool = flag("--plain", "Print one line per interval.")
    json_lines: bool = flag("--json-lines", "Print one JSON document per interval.", excludes=("--plain",))
    count: int | None = whole_number("--count", "N", "End after N intervals.", low=1, high=1_000_000)
    runs_dir: Path | None = program_value("runs_dir")


def command(options: Options) -> None:
    """Measure interval by interval, on a screen or as lines."""
    watched, plain, json_lines, runs_dir = options.watched, options.plain, options.json_lines, options.runs_dir
    if runs_dir is not None and not (plain or json_lines):
        from powerprof.model.runs import RunStore

        RunStore(runs_dir).check()
    import json
    from itertools import islice

    from powerprof.cli.live import LiveView, has_screen, line_width, print_lines
    from powerprof.live.intervals import RowHistory
    from powerprof.live.monitor import HostMonitor, MonitorPlan
    from powerprof.report.watch import PLAIN_HEAD, SORTS, draw_screen, interval_document, plain_line
    from powerprof.system.targets import TargetWords, resolve_target

    words = TargetWords(watched.pid, watched.only, system=options.system)
    target = resolve_target(words, print_progress, default_system=True, may_be_stopped=True)
    plan = MonitorPlan(
        target=target,
        interval_s=watched.interval,
        energy=options.energy.request,
        ask_servers=not watched.no_ask,
        ask_every_s=watched.ask_every,
        accounts=tuple(watched.defaults_file or ()),
        keep_newest=True,
        max_cost=cost_bound(options.max_cost),
        target_statements=True,
    )
    with HostMonitor(plan, print_progress) as monitor:
        intervals = islice(monitor.intervals(), options.count)
        if json_lines:
            print_lines(intervals, None, lambda interval: json.dumps(interval_document(interval), ensure_ascii=True))
            return
        if not has_screen(plain, json_lines):
            print_lines(intervals, PLAIN_HEAD, lambda interval: plain_line(interval, line_width()))
            return
        pid = "" if target.system or str(target.first) in target.label else f" {target.first}"
        title = f"powerprof · watch · {target.label}" if target.system else f"{target.label}{pid}"
        LiveView(
            RowHistory(),
            lambda history, view, wide, high: draw_screen(history, view, title, wide, high),
            SORTS,
            lambda: _saved(monitor, runs_dir),
        ).run(intervals)


def _saved(monitor: HostMonitor, runs_dir: Path | None) -> str:
    """Save the newest interval as a run of `attribute` and return the message for the screen."""
    from powerprof.attribution import capture
    from powerprof.cli.live import save_run

    newest = monitor.newest()
    if newest is None:
        return "nothing to save yet"
    taken, record = newest
    return save_run(runs_dir, "attribute", record, {capture.FILE: capture.encode(taken)})
