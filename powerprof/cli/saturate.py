# SPDX-License-Identifier: Apache-2.0
"""How much load does a condition take until a limit is reached?

The highest rate of queries at which latency or the CPUs stay within --until: found by halving, in rounds, so that
it has an interval. With two conditions, before and after a change, both are searched in turn, and the second is
compared with the first: what a freed CPU is good for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from powerprof.cli.bench import BenchChoice
from powerprof.cli.options import BlockDuration, Saving, Seed, refuse_too_few
from powerprof.cli.output import check, deliver, say_to
from powerprof.system.errors import UsageError

if TYPE_CHECKING:
    from powerprof.experiment.sweep_until import Limit

Name = Annotated[str, typer.Argument(metavar="CONDITION", help="Its name, or workload:condition.", show_default=False)]
Other = Annotated[str | None, typer.Argument(metavar="[OTHER]", help="The same after a change.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What must hold, and how it is searched."""

    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="LIMIT", help="p50=TIME, p95=TIME, p99=TIME (such as 5ms), or cpu=PERCENT of all CPUs."
        ),
    ] = "p95=10ms"
    duration: BlockDuration = 2.0
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, max=100, help="Rounds, a search each.")] = 5
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=2, max=12, help="Windows a search: each halves the rates.")
    ] = 6


_LATENCY = re.compile(r"p(50|95|99)=([0-9]+(?:\.[0-9]+)?)(us|ms|s)", re.ASCII)
_CPU = re.compile(r"cpu=([0-9]+(?:\.[0-9]+)?)%?", re.ASCII)
_IN_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def limit_of(text: str) -> Limit:
    """`p95=5ms` or `cpu=80%`. Raises UsageError."""
    from powerprof.experiment.sweep_until import Limit

    if match := _LATENCY.fullmatch(text):
        at_most, name = float(match[2]) * _IN_MS[match[3]], f"latency_p{match[1]}_ms"
        if at_most > 0:
            return Limit(metric=name, at_most=at_most, unit="ms")  # type: ignore[arg-type]
    if match := _CPU.fullmatch(text):
        if 0 < float(match[1]) < 100:
            return Limit(metric="c0_percent", at_most=float(match[1]), unit="%")
        raise UsageError(f"--until {text}: must be between 0 and 100 %", "such as --until cpu=80%")
    raise UsageError(f"--until {text}: not a limit", "such as --until p95=5ms, or --until cpu=80%")


def command(
    name: Name, other: Other = None, *, search: Search, seed: Seed = 1, bench: BenchChoice, saving: Saving
) -> None:
    """Search, save, print."""
    saving = check(saving)
    from powerprof.experiment.options import MINIMUM_PAIRS, MINIMUM_WINDOWS, ExperimentOptions
    from powerprof.experiment.sweep_until import search_highest_rate
    from powerprof.workloads.catalogue import find_one
    from powerprof.workloads.reading import resolve

    limit = limit_of(search.until)
    refuse_too_few("--repeat", search.repeat, MINIMUM_WINDOWS if other is None else MINIMUM_PAIRS)
    cases = [resolve(*find_one(each, bench.folders)) for each in (name, other) if each is not None]
    if len(cases) == 2 and cases[0].qualified == cases[1].qualified:
        raise UsageError(f"{name} and {other} are the same condition", "name another one, or one alone")
    options = ExperimentOptions(pairs=search.repeat, window_s=search.duration, seed=seed, warm_up_pairs=0, turn_s=0.0)
    with bench.open() as where:
        found = search_highest_rate(cases, limit, search.steps, where, options, say_to(saving))
    deliver(found, "saturate", saving)
