# SPDX-License-Identifier: Apache-2.0
"""Find out why this host does not sleep deeply: the time in which all CPUs idle together, and what ends it.

Packages reach their deep states only while all their CPUs idle. It lists these stretches by length and idle state, and
the threads and interrupts that end them. --without and --slack predict the time without a thread, or with more timer
slack (powerprof cure measures that). --as uses the idle states of another CPU. The run is saved as one of `attribute`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from powerprof.cli.meter_options import EnergyOptions
from powerprof.cli.options import CommandOptions
from powerprof.cli.output import check_saving, deliver
from powerprof.cli.outputs import STACKS, TABLES, Outputs, Saving, output_files
from powerprof.cli.parameters import Mode, group, option
from powerprof.cli.targets import ServerOptions, TargetOptions
from powerprof.cli.terminal import progress_printer
from powerprof.cli.window_options import duration
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.attribution.deep_what_if import DeepRequest

_MOST_NAME = 128
# Stacks below the answer.
_ROWS = 5


class PredictionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The idle states, and changes to predict."""

    HEADING: ClassVar[str] = "Predictions"

    as_cpu: str | None = option("--as", "CPU|FILE", "Idle states of another CPU, or of a cpuidle dump.")
    without: list[str] | None = option(
        "--without", "THREAD", "Predict without this thread (name, process or id).", is_repeatable=True
    )
    slack: list[str] | None = option(
        "--slack", "THREAD=TIME", "Predict with more timer slack (=50ms).", is_repeatable=True
    )

    @property
    def request(self) -> DeepRequest:
        """The question. Raises UsageError, DataError."""
        from powerprof.attribution.deep_what_if import DeepRequest
        from powerprof.cure.remedies import parse_slack
        from powerprof.measure.cpuidle_dumps import read_state_table

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
            raise UsageError("--without and --slack need the name or id of a thread", "the report lists them")
        if both := set(without) & slack_ns.keys():
            raise UsageError(f"--without and --slack exclude each other for {min(both)}", "leave one of them out")
        states = () if self.as_cpu is None else read_state_table(self.as_cpu)
        return DeepRequest(table=self.as_cpu, states=states, without=without, slack_ns=slack_ns)


class Options(CommandOptions, frozen=True, kw_only=True):
    """The options of `deep-idle`."""

    MODES: ClassVar[tuple[Mode, ...]] = (
        Mode(words=("--from",), refuses=("--pid", "--cgroup", "--duration", "--no-save")),
    )

    pid: list[str] | None = option(
        "--pid", "ID|NAME", "Also list the wake-ups of these processes by stack; also -p.", is_repeatable=True
    )
    cgroup: str | None = option("--cgroup", "PATH|UNIT", "Also list those of a cgroup or systemd unit.")
    duration: float = duration(10.0)
    from_run: str | None = option("--from", "RUN", "Analyse a saved capture with all idle periods again.")
    predictions: PredictionOptions = group(PredictionOptions)
    outputs: Outputs = output_files(*TABLES, *STACKS, "perfetto")
    saving: Saving = group(Saving)


def command(options: Options) -> None:
    """Trace every idle period, or read a saved capture; then save and print them."""
    saving, deep = options.saving, options.predictions.request
    if options.from_run is not None:
        saving = replace(saving, no_save=True)
    saving = check_saving(saving, options.outputs)
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    if options.from_run is not None:
        result = attribute.replay(options.from_run, saving.runs_dir, deep)
    else:
        is_system = not (options.pid or options.cgroup)
        target = TargetOptions(pid=options.pid, cgroup=options.cgroup, system=is_system)
        request = AttributeRequest(
            duration_s=options.duration, energy=EnergyOptions().request, settle=True, every_period=True
        )
        result = attribute.attribute(target, ServerOptions(), request, progress_printer(saving), deep=deep)
    from powerprof.report.document import View
    from powerprof.report.exports import extras_of_capture

    deliver(
        result.record,
        "attribute",
        saving,
        view=View(top=_ROWS),
        raw=None if saving.no_save else result.files(),
        extras=lambda: extras_of_capture(result.capture),
    )
