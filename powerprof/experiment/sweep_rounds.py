# SPDX-License-Identifier: Apache-2.0
"""Measure the points of a sweep in rounds, each point once per round in a new order.

Disturbances of the host (a neighbour, the CPU frequency, a backup) then affect all points alike. Idle servers are
stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from powerprof.experiment.apparatus import Apparatus, Slot
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_data import schema_name
from powerprof.experiment.block import measure_block
from powerprof.experiment.ending import Ending
from powerprof.experiment.function_samples import sample_window
from powerprof.experiment.metrics import Baseline, add_mean, cpu_ms, format_cost_so_far, read_figures
from powerprof.experiment.options import AROUND_S
from powerprof.experiment.paces import PaceWindow, build_pace_window, pace_metrics, read_pace_settings, summarise_paces
from powerprof.experiment.plan import round_order
from powerprof.experiment.records import Block
from powerprof.experiment.starts import Starts
from powerprof.experiment.sweep_functions import FunctionWindow, build_function_window
from powerprof.experiment.sweep_record import SERVER, Point, Sweep, compare_sweep_points
from powerprof.experiment.system_metrics import split_cpu_time
from powerprof.experiment.traced import trace_condition
from powerprof.measure.progress import Countdown, announce, join_parts
from powerprof.measure.target_life import raise_ended
from powerprof.model.metrics import unit_of
from powerprof.model.records import Figures, Note, ServerInfo, Window, ended_by_signal
from powerprof.model.system_activity import OsRates
from powerprof.model.text import Say
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case

# Statistics are recomputed ten seconds after tables were filled. A stopped server would do that in its own window.
START_S = 12.0
# PostgreSQL's background writer wakes five times a second until it has scanned all buffers, for up to two minutes
# (scan_whole_pool_milliseconds, bufmgr.c). Then it sleeps for ten seconds at a time.
POSTGRESQL_START_S = 130.0
# Timers that expired while the server was stopped fire at once.
_WOKEN_S = 1.5
_READY_S = 0.5


class PointMeasurements(msgspec.Struct):
    """The measurements of one point so far.

    `first_round` is the number of its first round. A failed point that is tried again later shares no round with the
    points that were measured before.
    """

    blocks: list[Block] = msgspec.field(default_factory=list)
    rates: list[OsRates] = msgspec.field(default_factory=list)
    traced: list[PaceWindow] = msgspec.field(default_factory=list)
    sampled: list[FunctionWindow] = msgspec.field(default_factory=list)
    version: str | None = None
    error: str | None = None
    first_round: int = 0

    def cut(self, rounds: int) -> None:
        """Keep the first rounds."""
        for kept in (self.blocks, self.rates, self.traced, self.sampled):
            del kept[rounds:]


def drop_incomplete_round(gathered: Mapping[Value, PointMeasurements]) -> None:
    """Remove the measurements of an incomplete round: its other points would be of another time.

    Points that failed and are rounds behind continue in separate rounds.
    """
    most = max((len(measured.blocks) for measured in gathered.values()), default=0)
    abreast = [
        measured for measured in gathered.values() if len(measured.blocks) >= most - 1 and measured.error is None
    ]
    rounds = min((len(measured.blocks) for measured in abreast), default=0)
    last = max((block.pair for measured in gathered.values() for block in measured.blocks), default=-1)
    for measured in gathered.values():
        if any(measured is one for one in abreast):
            measured.cut(rounds)
        else:
            measured.first_round = last + 1
        measured.error = None


def measure_rounds(
    apparatus: Mapping[Value, Apparatus],
    cases: Mapping[Value, Case],
    gathered: Mapping[Value, PointMeasurements],
    starts: Starts,
    baseline: list[Window] | None,
    save: Callable[[], object],
) -> None:
    """Measure the missing rounds, and save after each. A failed point is noted and the others continue.

    Points with other start-up settings get new starts in each round. With a `baseline` each round starts with a window
    without running servers, which is appended to it. Raises UsageError, CapabilityError, and PowerprofError if the
    shared server of all points is lost.
    """
    one = next(iter(apparatus.values()))
    bench, options, say = one.bench, one.options, one.say
    values, shared = list(cases), baseline is None and bench.shared(list(cases.values()))
    start_s = _READY_S if starts.are_repeated else _settle_s(cases, shared=shared)
    announce(say, f"letting {'the server' if shared else f'{len(cases)} servers'} settle", start_s)
    bench.wait(start_s)
    each_s, done = options.window_s + AROUND_S + starts.seconds, 0
    progress = Countdown(say, each_s * _count_missing(gathered, options.pairs))
    for number, order in enumerate(round_order(len(values), options.pairs, options.seed)):
        missing = [
            value
            for value in (values[place] for place in order)
            if len(gathered[value].blocks) <= number and gathered[value].error is None
        ]
        if not missing:
            continue
        starts.begin_repetition()
        label = f"round {number + 1} of {options.pairs}"
        if baseline is not None:
            progress(f"{label} · no server")
            baseline.append(_measure_without_server(one))
        for value in missing:
            left = _count_missing(gathered, options.pairs)
            so_far = format_cost_so_far(gathered[value].blocks)
            progress.step(join_parts(label, str(value), so_far), done, done + left, each_s)
            done += 1
            try:
                starts.renew(cases[value], apparatus[value].offer.rate_hz)
                _measure_point(apparatus[value], cases[value], gathered[value], number, woken=not shared)
            except (UsageError, CapabilityError):
                raise
            except PowerprofError as error:
                gathered[value].error = error.message
                if shared:
                    bench.revive(cases[value])
        save()


def _count_missing(gathered: Mapping[Value, PointMeasurements], rounds: int) -> int:
    """Return the number of windows that are not measured yet, without failed points."""
    return sum(max(0, rounds - len(had.blocks)) for had in gathered.values() if had.error is None)


def _settle_s(cases: Mapping[Value, Case], *, shared: bool) -> float:
    if all(case.server.kind == "postgresql" and case.load.is_silent for case in cases.values()):
        return POSTGRESQL_START_S
    filled = any(schema_name(case.workload) is not None for case in cases.values())
    return START_S if filled or not shared else _READY_S


def _measure_without_server(apparatus: Apparatus) -> Window:
    """Measure a window with all servers stopped."""
    apparatus.bench.hush()
    time.sleep(_READY_S)
    with apparatus.meter(()) as meter:
        return apparatus.complete(meter.measure(apparatus.options.window_s))


def _measure_point(apparatus: Apparatus, case: Case, gathered: PointMeasurements, number: int, *, woken: bool) -> None:
    bench, options = apparatus.bench, apparatus.options
    server = bench.server(case)
    gathered.version = server.version
    bench.enter(case)
    if woken:
        time.sleep(_WOKEN_S)
    slot = Slot(gathered.first_round + number, "a", False, 1 + 1000 * options.seed + number)
    block = apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot)
    if options.attribute_s is not None:
        in_force = read_pace_settings(server)
        window = trace_condition(bench, case, "a", options.attribute_s, apparatus.say, apparatus.offer.rate_hz)
        if window.attribution.ended is not None:
            # Callers that display one trace keep a truncated one. Here it would be averaged with full-length traces, so
            # drop it.
            raise_ended(window.attribution.ended)
        family = "mariadb" if "mariadb" in server.version.lower() else server.login.family
        gathered.traced.append(build_pace_window(window, family, in_force))
    if options.on_cpu:
        profile = sample_window(bench, case, apparatus.offer.rate_hz, slot.seed, apparatus.say)
        gathered.sampled.append(build_function_window(profile.functions, profile.window_s))
    gathered.blocks.append(block)
    gathered.rates.append(block.window.system or OsRates())


class Progress:
    """A sweep during its measurement. `kept`: points of which only the figures were saved."""

    def __init__(self, sweep: Sweep) -> None:
        saved = {_value_key(point.value): point for point in sweep.points}
        of_value = {value: saved.get(_value_key(value)) for value in sweep.values}
        self.gathered = {value: _gathered(point) for value, point in of_value.items()}
        self.kept = {
            value: point
            for value, point in of_value.items()
            if point is not None and point.error is None and not point.blocks
        }
        drop_incomplete_round(self.gathered)
        for measured in self.gathered.values():
            measured.error = None
        self.baseline = list(sweep.baseline)
        self.starts: Starts | None = None
        self.notes: list[str | Note] = list(sweep.notes)
        self._sweep, self._server = sweep, sweep.server

    def began(self, bench: Bench, cases: Mapping[Value, Case], say: Say) -> Starts:
        """Note the servers that did not start, and the version of the first one. Return the counter of starts."""
        for value, case in cases.items():
            if (error := bench.failure(case)) is not None:
                self.gathered[value].error = error.message
        first = next(case for case in cases.values() if bench.failure(case) is None)
        server = bench.server(first)
        self._server = (
            ServerInfo(private=True)
            if self._sweep.parameter == SERVER
            else ServerInfo(version=server.version, private=server.private, pid=server.pid)
        )
        up = [case for case in cases.values() if bench.failure(case) is None]
        self.starts = Starts(bench, up, say, count=self._sweep.starts_count)
        return self.starts

    def note(self, text: str) -> None:
        """Keep a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def has_result(self) -> bool:
        """Return whether a window of any point was measured."""
        return bool(self.kept) or any(measured.blocks for measured in self.gathered.values())

    def failed(self, cases: Iterable[Value], reason: str) -> None:
        """Set the error of the points without a window; the others keep their complete rounds."""
        for measured in (self.gathered[value] for value in cases):
            if not measured.blocks:
                measured.error = measured.error or reason

    def record(self, ending: Ending | None = None) -> Sweep:
        """Return the record of the sweep so far; without an `ending` it is still running."""
        ending = ending or Ending(ended_by_signal(True))
        points = [
            self.kept.get(value) or _gathered_point(value, measured)
            for value, measured in self.gathered.items()
            if measured.blocks or measured.error or value in self.kept
        ]
        early = [
            f"{value}: ended early: {measured.error}"
            for value, measured in self.gathered.items()
            if measured.error and measured.blocks
        ]
        sweep = msgspec.structs.replace(
            self._sweep,
            points=points,
            server=self._server,
            baseline=self.baseline,
            starts_count=self.starts.count if self.starts else self._sweep.starts_count,
            notes=[*dict.fromkeys([*self.notes, *early])],
            ended=ending.ended,
        )
        return msgspec.structs.replace(sweep, compared=compare_sweep_points(sweep))


def _gathered(point: Point | None) -> PointMeasurements:
    if point is None:
        return PointMeasurements()
    kept = (list(point.blocks), list(point.os), list(point.traced), list(point.on_cpu))
    return PointMeasurements(*kept, point.server, point.error)


def _gathered_point(value: Value, measured: PointMeasurements) -> Point:
    blocks = measured.blocks
    if not blocks:
        return Point(value=value, error=measured.error, server=measured.version)
    every = [*read_figures(blocks, Baseline(None, None, None)), *split_cpu_time(blocks)]
    if all(block.queries is None for block in blocks):
        used = [_server_cpu(block) for block in blocks]
        name = "server_cpu_ms_per_s"
        every.append(Figures(name=name, unit=unit_of(name), kind="measured", values=used))
    return Point(
        value=value,
        metrics=[*map(add_mean, every), *pace_metrics(measured.traced)],
        os=measured.rates,
        blocks=blocks,
        server=measured.version,
        paces=summarise_paces(measured.traced),
        traced=measured.traced,
        on_cpu=measured.sampled,
    )


def _server_cpu(block: Block) -> float | None:
    used = cpu_ms(block, "server")
    return None if used is None or not block.window.window_s else used / block.window.window_s


def _value_key(value: Value) -> str:
    return repr(value)
