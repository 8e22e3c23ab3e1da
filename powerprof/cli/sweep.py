# SPDX-License-Identifier: Apache-2.0
"""How does a condition change with clients, or another parameter?

At each point the condition runs as fast as it goes, or at --rate, and the system's own figures are taken beside it.
All points are measured once a round, in another order each time, so that what changes on the host is no
point's own. Every round is saved when it is done: after an interruption, --resume RUN continues. --set server=NAME,NAME
sweeps over servers of other releases (powerprof servers), and --attribute S reports after each window how often each of
its threads wakes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.bench import BenchChoice
from powerprof.cli.options import (
    Attribute,
    BlockDuration,
    MeterOptions,
    Rate,
    Saving,
    Seed,
    Tables,
    files_of,
    refuse_too_few,
    refuse_without_effect,
)
from powerprof.cli.output import check, deliver, say_to
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.workloads.definition import Value

Name = Annotated[
    str | None, typer.Argument(metavar="[CONDITION]", help="Its name, or workload:condition.", show_default=False)
]
Resume = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Continue a sweep that was interrupted.")]


# What a sweep keeps from its beginning.
_BEGUN_WITH = (
    "clients",
    "setting",
    "duration",
    "repeat",
    "rate",
    "seed",
    "attribute",
    "on_cpu",
    "energy_source",
    "cpu_model",
    "vcpu",
    "residency_source",
)


@dataclass(frozen=True, kw_only=True)
class Varied:
    """What is varied."""

    clients: Annotated[
        str | None, typer.Option("--clients", metavar="LIST", help="Numbers of clients, such as 1,2,4.")
    ] = None
    setting: Annotated[
        str | None,
        typer.Option("--set", metavar="NAME=LIST", help="Another parameter and its values, or server=NAMES."),
    ] = None

    @property
    def parameter(self) -> tuple[str, list[Value]]:
        """Its name, and its values (none: those that the workload declares). Raises UsageError."""
        if self.clients is not None and self.setting is not None:
            raise UsageError("--clients and --set are two parameters", "sweep one at a time")
        if self.setting is None:
            return "clients", _values(self.clients, "--clients ") if self.clients is not None else []
        name, separator, rest = self.setting.partition("=")
        if not name.strip():
            raise UsageError(f"--set {self.setting} has no name before =", "such as --set rate=100,200,400")
        return name, _values(rest, f"--set {name}=") if separator else []


@dataclass(frozen=True, kw_only=True)
class SweepWindows:
    """How long and how often at each point."""

    duration: BlockDuration = 5.0
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Rounds, a window at each point.")
    ] = 5


def _values(text: str, option: str) -> list[Value]:
    """The values of a list; `option` is what stands before it on the command line. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option}{text} has an empty value", "such as 1,2,4")
    values = [_number(word) for word in words]
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{option}{text} names {twice} twice", "each value is one point of the sweep")
    return values


def _number(text: str) -> Value:
    """A word of a list as a number where it is one."""
    for kind in (int, float) if text.isascii() and "_" not in text else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def command(
    name: Name = None,
    *,
    context: typer.Context,
    varied: Varied,
    windows: SweepWindows,
    rate: Rate = None,
    seed: Seed = 1,
    attribute: Attribute = None,
    on_cpu: Annotated[
        bool, typer.Option("--on-cpu", help="Also sample which functions the server runs at each point (as root).")
    ] = False,
    resume: Resume = None,
    bench: BenchChoice,
    meters: MeterOptions,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure round by round, save, print."""
    files = files_of(tables)
    saving = check(saving, files, reads_runs=resume is not None)
    if name is None and resume is None:
        raise UsageError("sweep needs a condition, or --resume RUN", "powerprof sweep --help")
    if name is not None and resume is not None:
        raise UsageError(f"--resume {resume} keeps its own condition, and {name} was given", f"leave {name} out")
    if resume is not None:
        refuse_without_effect(context, "with --resume, which keeps the original values", _BEGUN_WITH)
    if varied.parameter[0] == "rate" and rate is not None:
        raise UsageError("--rate and --set rate=… are one parameter", "leave one of the two out")
    if attribute is not None and varied.parameter[0] != "server":
        raise UsageError(
            "--attribute traces servers of a sweep over servers", "--set server=mariadb-10.11,mariadb-11.8"
        )
    from powerprof.experiment import sweep
    from powerprof.experiment.options import MINIMUM_PAIRS, ExperimentOptions

    refuse_too_few("--repeat", windows.repeat, MINIMUM_PAIRS)
    options = ExperimentOptions(
        pairs=windows.repeat,
        window_s=windows.duration,
        seed=seed,
        rate_hz=rate,
        attribute_s=attribute,
        on_cpu=on_cpu,
        warm_up_pairs=0,
        energy=meters.energy.request,
        residency_source=meters.residency_source,
    )
    store = sweep.SweepStore(saving.runs_dir, keep=not saving.no_save)
    asked = resume or sweep.SweepRequest(str(name), *varied.parameter)
    record = sweep.sweep(asked, bench.open, options, store, extra=bench.folders, say=say_to(saving))
    # It is in the store since its first point.
    if record.id is not None:
        from powerprof.model.runs import RunStore
        from powerprof.report.history import about

        RunStore(saving.runs_dir).describe(record.id, about(record, saving.label or ()))
    resumed_by = f"powerprof sweep --resume {record.id}" if record.id else None
    deliver(record, "sweep", replace(saving, no_save=True, label=None), files, resumed_by=resumed_by)
