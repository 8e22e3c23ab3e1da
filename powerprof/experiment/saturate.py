# SPDX-License-Identifier: Apache-2.0
"""The highest rate at which one condition, or two in turn, hold a limit: `powerprof saturate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from powerprof.errors import Interrupted, PowerprofError, Retryable, UsageError
from powerprof.experiment.bench.options import BenchOptions
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.condition import condition_record
from powerprof.experiment.measure.apparatus import Apparatus, Slot
from powerprof.experiment.measure.asked import check_asked, check_comparable
from powerprof.experiment.measure.block import measure_block
from powerprof.experiment.measure.calibration import Offer, capacity
from powerprof.experiment.options import AROUND_S, ExperimentOptions
from powerprof.experiment.saturation_record import (
    Limit,
    Saturated,
    Saturation,
    Trial,
    compared,
    saturated,
    search,
    trial_of,
)
from powerprof.text import Say, about, counting_down
from powerprof.windows.sampling import now_text
from powerprof.workloads.reading import Case

# Loads that can be asked at a rate.
_AT_A_RATE = ("statements", "pgbench", "connector-j")


@dataclass
class _SaturatedSide:
    """One condition: what it can do, and the trials of each round."""

    case: Case
    capacity_hz: float = 0.0
    rounds: list[list[Trial]] = field(default_factory=list)

    def record(self, rounds: int) -> Saturated:
        """What the first `rounds` rounds found."""
        return saturated(self.case.name, condition_record(self.case), self.capacity_hz, self.rounds[:rounds])


def saturate(
    cases: Sequence[Case], limit: Limit, steps: int, bench_options: BenchOptions, options: ExperimentOptions, say: Say
) -> Saturation:
    """Search in rounds, the conditions in turn. Interrupted, it keeps the rounds that are whole.

    Raises UsageError for a load that cannot be asked at a rate, PowerprofError where not one round is whole.
    """
    check_asked(cases, options)
    for case in cases:
        if case.load.kind not in _AT_A_RATE:
            raise UsageError(
                f"{case.qualified} cannot be asked at a rate (load {case.load.kind})",
                f"saturate takes conditions whose load is one of {', '.join(_AT_A_RATE)}",
            )
    check_comparable(cases)
    sides, started_at, interrupted = [_SaturatedSide(case) for case in cases], now_text(), False
    notes: list[str] = []
    server: dict[str, object] = {}
    seconds = options.pairs * len(cases) * steps * (options.window_s + AROUND_S)
    say(f"{options.pairs} rounds of {steps} windows of {options.window_s:g} s a condition: {about(seconds)}")
    say = counting_down(say, seconds)
    try:
        with Bench(list(cases), bench_options, notes.append) as bench:
            one = bench.server(cases[0])
            server = {"version": one.version, "private": one.private}
            for side in sides:
                say(f"{side.case.name}: as fast as it goes")
                side.capacity_hz = capacity(bench, side.case, options.calibrate_s)
            for number in range(options.pairs):
                # Which comes first alternates, so that a drift is no condition's own.
                for side in sides if number % 2 == 0 else sides[::-1]:
                    say(f"{side.case.name}: round {number + 1} of {options.pairs}")
                    side.rounds.append(_round(bench, side, limit, steps, options, number, say))
    except Interrupted:
        interrupted = True
        if not _whole(sides):
            raise
    except PowerprofError as error:
        if not _whole(sides):
            raise
        interrupted = True
        notes.append(f"ended early: {error.message}")
    return _record(sides, limit, started_at, server, notes, options, steps, interrupted=interrupted)


def _whole(sides: Sequence[_SaturatedSide]) -> int:
    return min(len(side.rounds) for side in sides)


def _round(
    bench: Bench, side: _SaturatedSide, limit: Limit, steps: int, options: ExperimentOptions, number: int, say: Say
) -> list[Trial]:
    def trial(rate_hz: float) -> Trial:
        own = replace(options, rate_hz=rate_hz)
        apparatus = Apparatus(bench, own, Offer("rate", rate_hz, None, (), ()), None, lambda window: window, say)
        slot = Slot(number, "a", False, 1 + 1000 * options.seed + number)
        try:
            return trial_of(limit, measure_block(apparatus, side.case, slot, 1), number, rate_hz)
        except Retryable as error:
            # A client whose queue is full gives up: that rate does not hold.
            bench.revive(side.case)
            return Trial(round=number, rate_hz=rate_hz, finished_hz=None, value=None, held=False, failure=error.message)

    return search(trial, side.capacity_hz, steps)


def _record(
    sides: Sequence[_SaturatedSide],
    limit: Limit,
    started_at: str,
    server: dict[str, object],
    notes: list[str],
    options: ExperimentOptions,
    steps: int,
    *,
    interrupted: bool,
) -> Saturation:
    from powerprof.host.describe import host_record

    rounds = _whole(sides)
    found = [side.record(rounds) for side in sides]
    ratio, verdict = compared(found[0], found[1], options.seed) if len(found) == 2 else (None, None)
    return Saturation(
        id=None,
        command="saturate",
        started_at=started_at,
        limit=limit,
        a=found[0],
        b=found[1] if len(found) == 2 else None,
        ratio=ratio,
        verdict=verdict,
        rounds_count=rounds,
        host=host_record(),
        server=dict(server),
        options={"window_s": options.window_s, "steps_count": steps, "seed": options.seed},
        notes=notes,
        interrupted=interrupted,
    )
