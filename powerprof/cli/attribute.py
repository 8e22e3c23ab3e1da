# SPDX-License-Identifier: Apache-2.0
"""Find the function and thread that wake the CPUs. Every idle exit of a process has a stack.

--pid takes process ids and names (mysqld also finds mariadbd). --from needs no root. Related commands: profile (CPU
time by function), functions (calls and self time), offcpu (sleeps, and the wakers that end them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.options import (
    ALL_ROWS,
    ENERGY,
    CommandOptions,
    EnergyOptions,
    Saving,
    check_by,
    duration,
    source_lines,
    top,
)
from powerprof.cli.output import check_saving, deliver, progress_printer
from powerprof.cli.outputs import STACKS, TABLES, Outputs, output_files
from powerprof.cli.parameters import flag, group, option, whole_number
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.attribution.deep_idle import DeepRequest
    from powerprof.report.document import Extras

_MOST_NAME = 128
_MEASURING = (*("duration", "stack_buffer", *ENERGY), *("server", "socket", "defaults_file", "no_save"))


class ViewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the report, and its capture."""

    HEADING: ClassVar[str] = "Report"

    by: str | None = option(
        "--by", "WHAT", "Group rows by stack, function, thread, device or unit (service, container, pod)."
    )
    top: int | None = top("Rows to print (default: those with at least 1 % of the wake-ups).", default=None)
    everything: bool = flag("--all", "Print all rows.")
    lines: bool = source_lines()
    from_run: str | None = option("--from", "RUN", "Analyse a saved capture again.")


class DeepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which all CPUs idled together, and its causes."""

    HEADING: ClassVar[str] = "Deep idle"

    deep: bool = flag("--deep", "Show the time in which all CPUs idled together, and its end by thread.")
    as_cpu: str | None = option("--as", "CPU|FILE", "With --deep: idle states of another CPU, or of a cpuidle dump.")
    without: list[str] | None = option(
        "--without", "THREAD", "With --deep: predict without this thread (name, process or id).", is_repeatable=True
    )
    slack: list[str] | None = option(
        "--slack", "THREAD=TIME", "With --deep: predict with more timer slack (=50ms).", is_repeatable=True
    )

    @property
    def request(self) -> DeepRequest | None:
        """The question; None without --deep. Raises UsageError, DataError."""
        if not self.deep:
            return None
        from powerprof.attribution.deep_idle import DeepRequest
        from powerprof.cure.remedies import parse_slack
        from powerprof.measure.cpuidle import read_state_table

        slack_ns = {}
        for text in self.slack or []:
            thread, equals, time = text.rpartition("=")
            if not equals or not thread.strip() or not time.strip():
                raise UsageError(f"--slack {text[:60]} is not THREAD=TIME", "such as --slack page_cleaner=50ms")
            if thread.strip() in slack_ns:
                raise UsageError(f"--slack names {thread.strip()[:60]} twice", "leave one of them out")
            slack_ns[thread.strip()] = parse_slack(time)
        without = tuple(dict.fromkeys(text.strip() for text in self.without or []))
        if any(not word or len(word) > _MOST_NAME or not word.isprintable() for word in (*without, *slack_ns)):
            raise UsageError(
                "--without and --slack need the name or id of a thread", "the report with --deep lists them"
            )
        if both := set(without) & slack_ns.keys():
            raise UsageError(f"--without and --slack exclude each other for {min(both)}", "leave one of them out")
        states = () if self.as_cpu is None else read_state_table(self.as_cpu)
        return DeepRequest(table=self.as_cpu, states=states, without=without, slack_ns=slack_ns)


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `attribute`."""

    target: TargetOptions = group(TargetOptions)
    duration: float = duration(10.0)
    view: ViewOptions = group(ViewOptions)
    deep: DeepOptions = group(DeepOptions)
    server: ServerOptions = group(ServerOptions)
    energy: EnergyOptions = group(EnergyOptions)
    stack_buffer: int = whole_number(
        "--stack-buffer", "KIB", "Ring buffer for stacks in KiB, a power of two.", default=4096, low=4, high=1 << 20
    )
    outputs: Outputs = output_files(*TABLES, *STACKS, "perfetto")
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Trace the wake-ups, or read a saved capture; then save and print them."""
    target, view, saving = options.target, options.view, options.saving
    if view.from_run is not None:
        options.refuse_without_effect("with --from", _MEASURING)
        saving = replace(saving, no_save=True)
    if view.everything:
        options.refuse_without_effect("with --all", ("top",))
    rows = ALL_ROWS if view.everything else view.top
    if not options.deep.deep:
        options.refuse_without_effect("without --deep", ("as_cpu", "without", "slack"))
    saving = check_saving(saving, options.outputs)
    deep = options.deep.request
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    if view.by is not None or view.lines:
        from powerprof.report.attribution import BY

        check_by(view.by, BY, lines=view.lines)
    if view.from_run is None:
        request = AttributeRequest(
            duration_s=options.duration,
            stack_buffer_kib=options.stack_buffer,
            energy=options.energy.request,
            settle=True,
            every_period=deep is not None,
        )
        result = attribute.attribute(target, options.server, request, progress_printer(saving), deep=deep)
    elif target.pid or target.cgroup or target.system:
        raise UsageError("--pid, --cgroup and --system have no effect with --from", "leave them out")
    else:
        result = attribute.replay(view.from_run, saving.runs_dir, deep)
    # This import comes after the window, which it would delay.
    from powerprof.report.document import View

    def extras_of_result() -> Extras:
        from powerprof.report.exports import extras_of_capture

        return extras_of_capture(result.capture)

    deliver(
        result.record,
        "attribute",
        saving,
        view=View(by=view.by, top=rows, sources=view.lines),
        raw=None if saving.no_save else result.files(),
        extras=extras_of_result,
    )
