# SPDX-License-Identifier: Apache-2.0
"""How does a condition change with clients, or another parameter?

At each point the condition runs as fast as it goes, or at --rate, and the system's own figures are taken beside it.
Every point is saved when it is done: after an interruption, --resume RUN goes on. --set server=NAME,NAME sweeps over
servers of other releases (powerprof servers): all are up, each is measured once a round while the others are stopped,
and --attribute S tells after each window how often each of its threads wakes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.bench import BenchChoice
from powerprof.cli.options import Attribute, BlockDuration, MeterOptions, Rate, Saving, Seed, Tables, files_of
from powerprof.cli.output import check, deliver, say_to
from powerprof.cli.typed import refuse_without_effect
from powerprof.errors import UsageError

if TYPE_CHECKING:
    from powerprof.workloads.definition import Value

Name = Annotated[
    str | None, typer.Argument(metavar="[CONDITION]", help="Its name, or workload:condition.", show_default=False)
]
Resume = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on with a sweep that was interrupted.")]


# What a sweep keeps from its beginning.
_BEGUN_WITH = ("duration", "repeat", "rate", "seed", "attribute", "energy_source", "residency_source")


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
            return "clients", _values(self.clients) if self.clients is not None else []
        name, separator, rest = self.setting.partition("=")
        return name, _values(rest) if separator else []


@dataclass(frozen=True, kw_only=True)
class SweepWindows:
    """How long and how often at each point."""

    duration: BlockDuration = 5.0
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=1000, help="Windows at each point.")] = 3


def _values(text: str) -> list[Value]:
    values = [_number(word.strip()) for word in text.split(",") if word.strip()]
    if not values:
        raise UsageError(f"{text!r} has no values", "such as 1,2,4")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{text} names {twice} twice", "each value is one point of the sweep")
    return values


def _number(text: str) -> Value:
    """A word of a list as a number where it is one."""
    for kind in (int, float):
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
    resume: Resume = None,
    bench: BenchChoice,
    meters: MeterOptions,
    tables: Tables,
    saving: Saving,
) -> None:
    """Measure point by point, save, print."""
    files = files_of(tables)
    saving = check(saving, files, reads_runs=resume is not None)
    if (name is None) == (resume is None):
        raise UsageError("sweep wants a condition, or --resume RUN", "powerprof sweep --help")
    if resume is not None and varied != Varied():
        raise UsageError("--resume goes on with the values that the sweep was begun with", "leave the others out")
    if resume is not None:
        refuse_without_effect(context, "with --resume, which goes on as the sweep was begun", _BEGUN_WITH)
    if varied.parameter[0] == "rate" and rate is not None:
        raise UsageError("--rate and --set rate=… are one parameter", "leave one of the two out")
    if attribute is not None and varied.parameter[0] != "server":
        raise UsageError(
            "--attribute traces servers of a sweep over servers", "--set server=mariadb-10.11,mariadb-11.8"
        )
    from powerprof.experiment import sweepstore
    from powerprof.experiment.options import ExperimentOptions

    options = ExperimentOptions(
        pairs=windows.repeat,
        window_s=windows.duration,
        seed=seed,
        rate_hz=rate,
        attribute_s=attribute,
        warm_up_pairs=0,
        energy_source=meters.energy.energy_source,
        meter_log=meters.energy.meter_log,
        residency_source=meters.residency_source,
    )
    store = sweepstore.SweepStore(saving.runs_dir, keep=not saving.no_save)
    asked = resume or sweepstore.SweepRequest(str(name), *varied.parameter)
    record = sweepstore.sweep(asked, bench.open, options, store, extra=bench.folders, say=say_to(saving))
    # It is in the store since its first point.
    if record.id is not None:
        from powerprof.report.documents.history import about
        from powerprof.runs import RunStore

        RunStore(saving.runs_dir).describe(record.id, about(record, saving.label or ()))
    resumed_by = f"powerprof sweep --resume {record.id}" if record.id else None
    deliver(record, "sweep", replace(saving, no_save=True, label=None), files, resumed_by=resumed_by)
