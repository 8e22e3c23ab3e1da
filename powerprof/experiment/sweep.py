# SPDX-License-Identifier: Apache-2.0
"""One condition at several values of a parameter, saved after every point: `powerprof sweep`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from powerprof.database.clients.connections import check_connections
from powerprof.database.fetched import historical
from powerprof.database.isolation import limits
from powerprof.database.isolation.accounts import server_account
from powerprof.database.products import products
from powerprof.errors import CapabilityError, DataError, Interrupted, PowerprofError, UsageError
from powerprof.experiment.bench.options import BenchOptions
from powerprof.experiment.bench.servers import Bench
from powerprof.experiment.condition import condition_record
from powerprof.experiment.judge.metrics import Baseline, Values, cpu_ms, metrics_for, run_metrics
from powerprof.experiment.measure import oslayer
from powerprof.experiment.measure.apparatus import Apparatus
from powerprof.experiment.measure.asked import check_asked
from powerprof.experiment.measure.block import measure_block
from powerprof.experiment.measure.calibration import Offer
from powerprof.experiment.measure.oslayer import OsRates
from powerprof.experiment.measure.paces import Pace, PaceWindow, pace_metrics, paces
from powerprof.experiment.measure.rounds import Gathered, measure_rounds
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Block, ConditionRecord
from powerprof.records import RunMetric, Window
from powerprof.text import Say
from powerprof.windows.sampling import now_text
from powerprof.workloads.definition import Value
from powerprof.workloads.reading import Case, LoadedWorkload, resolve

SERVER = "server"
"""The parameter whose values are servers, which are measured in rounds."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the parameter: metrics over its windows, and what the system beneath did. `error`: it failed.

    Where the parameter is the server: which one it was, and how often its threads woke in the `traced` windows.
    """

    value: Value
    metrics: list[RunMetric] = []
    os: list[OsRates] = []
    blocks: list[Block] = []
    error: str | None = None
    server: str | None = None
    paces: list[Pace] = []
    traced: list[PaceWindow] = []


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep, finished or not: `powerprof.sweep/1`. `baseline`: windows in which no server ran."""

    id: str | None
    command: str
    started_at: str
    workload: str
    condition: ConditionRecord
    parameter: str
    key: str
    values: list[Value]
    points: list[Point]
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    options: dict[str, Any] = {}
    baseline: list[Window] = []
    notes: list[str] = []
    interrupted: bool = False
    schema: Literal["powerprof.sweep/1"] = "powerprof.sweep/1"


def find_key(workload: LoadedWorkload, parameter: str) -> tuple[str, list[Value]]:
    """The key that a parameter sets and the values to try by default.

    `clients`, `rate` and `server` are there in every workload. Raises UsageError for another one that is not declared.
    """
    declared = workload.definition.parameters
    if parameter in declared:
        return declared[parameter].key, list(declared[parameter].values)
    known = {"clients": "load.clients", "rate": "load.rate_hz", SERVER: "server.build"}
    if parameter in known:
        return known[parameter], []
    choices = ", ".join(sorted({*declared, *known}))
    raise UsageError(f"{workload.definition.name} has no parameter {parameter}", f"it has: {choices}")


def start(
    workload: LoadedWorkload, condition: str, parameter: str, values: Sequence[Value], options: ExperimentOptions
) -> Sweep:
    """An empty sweep. Raises UsageError without values, DataError for one that the key cannot take."""
    from powerprof.host.describe import host_record

    key, default = find_key(workload, parameter)
    chosen = list(values) or default
    if not chosen:
        raise UsageError(f"--{parameter} needs values", f"such as --{parameter} 1,2,4")
    for value in chosen:
        try:
            case = resolve(workload, condition, {key: value})
        except DataError as error:
            if not values:
                raise
            raise _no_value(parameter, value, key, error) from None
        check_asked([case], options)
    return Sweep(
        id=None,
        command="sweep",
        started_at=now_text(),
        workload=workload.definition.name,
        condition=condition_record(resolve(workload, condition)),
        parameter=parameter,
        key=key,
        values=chosen,
        points=[],
        host=host_record(),
        interrupted=True,
        options={
            "window_s": options.window_s,
            "windows_count": options.pairs,
            "rate_hz": options.rate_hz,
            "attribute_s": options.attribute_s,
            "energy_source": options.energy_source,
            "residency_source": options.residency_source,
            "seed": options.seed,
        },
    )


def _no_value(parameter: str, value: Value, key: str, error: DataError) -> UsageError:
    """A value of the command line that the key cannot take: the workload's file is not at fault."""
    typed = f"--clients {value}" if parameter == "clients" else f"--set {parameter}={value}"
    reason = error.reason.rpartition(": ")[2].partition(" - at ")[0]
    return UsageError(f"{typed} is not a value of {key} ({reason[:1].lower()}{reason[1:]})", "powerprof workloads NAME")


def check_room(sweep: Sweep, workload: LoadedWorkload, bench_options: BenchOptions) -> None:
    """See before the first point that the server is one, and has room for the connections of the largest point.

    Each point has a server of its own, and one that fails is noted: a wrong server would fail in all of them. Raises
    PowerprofError.
    """
    if sweep.parameter == SERVER:
        if bench_options.server_build or bench_options.server_binary or bench_options.server_basedir:
            raise UsageError("--set server=… and --server-build are two servers", "leave --server-build out")
        for value in sweep.values:
            historical.build(str(value))
    cases = [resolve(workload, sweep.condition.name, {sweep.key: value}) for value in sweep.values]
    most = max(case.load.clients for case in cases)
    if bench_options.server_binary or bench_options.server_basedir:
        products.find(cases[0].server.kind, bench_options.server_binary, bench_options.server_basedir)
    if bench_options.given is not None:
        check_connections(bench_options.given, most)
    else:
        account = server_account()
        limits.check_threads(most, server_uid=account[0] if account else os.geteuid())


def go_on(
    sweep: Sweep,
    workload: LoadedWorkload,
    bench_options: BenchOptions,
    options: ExperimentOptions,
    *,
    save: Callable[[Sweep], Sweep],
    say: Say,
) -> Sweep:
    """Measure the points that are missing, saving after each. Interrupted, it returns what there is, so marked.

    Raises UsageError where the workload is not the one that the sweep was begun with.
    """
    if sweep.parameter == SERVER:
        return _rounds(sweep, workload, bench_options, options, save, say)
    name = sweep.condition.name
    if condition_record(resolve(workload, name)).work != sweep.condition.work:
        raise UsageError(f"{sweep.workload}:{name} has changed since the sweep was begun", "begin a new one")
    done = {_same(point.value) for point in sweep.points if point.error is None}
    notes = list(sweep.notes)
    missing = [value for value in sweep.values if _same(value) not in done]
    started_s = time.monotonic()
    try:
        for value in sweep.values:
            if _same(value) in done:
                say(f"{sweep.parameter} {value}: already measured")
                continue
            say(f"{sweep.parameter} {value}{to_go(missing.index(value), len(missing), time.monotonic() - started_s)}")
            case = resolve(workload, name, {sweep.key: value})
            point, server = _point(case, value, bench_options, options, notes, say)
            kept = [point for point in sweep.points if _same(point.value) != _same(value)]
            order = {_same(place): index for index, place in enumerate(sweep.values)}
            points = sorted([*kept, point], key=lambda point: order[_same(point.value)])
            sweep = msgspec.structs.replace(sweep, points=points, server=server or sweep.server, notes=notes)
            save(sweep)
    except Interrupted:
        return sweep
    sweep = msgspec.structs.replace(sweep, interrupted=False)
    save(sweep)
    return sweep


def to_go(measured: int, of: int, passed_s: float) -> str:
    """How long the rest takes, where its points are as long as those that are measured. Empty before the first."""
    if not measured:
        return ""
    return f" ({measured} of {of} done, about {max(1, round(passed_s / measured * (of - measured) / 60))} min to go)"


def _rounds(
    sweep: Sweep,
    workload: LoadedWorkload,
    bench_options: BenchOptions,
    options: ExperimentOptions,
    save: Callable[[Sweep], Sweep],
    say: Say,
) -> Sweep:
    """As `go_on`, all servers up and each measured once a round."""
    from powerprof.energy.windows import WindowEnergy

    cases = {value: resolve(workload, sweep.condition.name, {sweep.key: value}) for value in sweep.values}
    saved = {_same(point.value): point for point in sweep.points}
    gathered_by_value = {value: _gathered(saved.get(_same(value))) for value in cases}
    baseline, notes = list(sweep.baseline), list(sweep.notes)

    def now(interrupted: bool = True) -> Sweep:
        points = [_gathered_point(value, had) for value, had in gathered_by_value.items() if had.blocks or had.error]
        changes = {"points": points, "baseline": baseline, "notes": notes, "interrupted": interrupted}
        return msgspec.structs.replace(sweep, server={"private": True}, **changes)

    # Everybody is offered the same: as fast as it goes, a server that is faster would also be busier.
    offer = Offer("rate", options.rate_hz or next(iter(cases.values())).load.rate_hz, None, (), ())
    try:
        with WindowEnergy(options.energy_source, options.meter_log) as energy:
            say(f"starting {len(cases)} servers")
            with Bench(list(cases.values()), bench_options) as bench:
                apparatus = Apparatus(bench, options, offer, energy.meters, energy.complete, say, notes)
                measure_rounds(apparatus, cases, gathered_by_value, baseline, lambda: save(now()))
        interrupted = False
    except Interrupted:
        interrupted = True
    record = now(interrupted)
    save(record)
    return record


def _gathered(point: Point | None) -> Gathered:
    if point is None or point.error is not None:
        return Gathered()
    return Gathered(list(point.blocks), list(point.os), list(point.traced), point.server)


def _gathered_point(value: Value, had: Gathered) -> Point:
    blocks = had.blocks
    if not blocks:
        return Point(value=value, error=had.error, server=had.version)
    values = [*metrics_for(blocks, Baseline(None, None, None)), *_split(blocks)]
    if all(block.queries is None for block in blocks):
        values.append(Values("server_cpu_ms_per_s", "ms/s", "measured", _server_cpu))
    return Point(
        value=value,
        metrics=[*run_metrics(values, blocks), *pace_metrics(had.traced)],
        os=had.rates,
        blocks=blocks,
        server=had.version,
        paces=paces(had.traced),
        traced=had.traced,
    )


def _server_cpu(block: Block) -> float | None:
    used = cpu_ms(block, "server")
    return None if used is None or not block.window.window_s else used / block.window.window_s


def options_of(sweep: Sweep, options: ExperimentOptions) -> ExperimentOptions:
    """The options that a sweep was begun with, for going on with it. Raises DataError for a damaged record."""
    saved = sweep.options
    try:
        return replace(
            options,
            window_s=float(saved["window_s"]),
            pairs=int(saved["windows_count"]),
            seed=int(saved["seed"]),
            rate_hz=None if saved.get("rate_hz") is None else float(saved["rate_hz"]),
            attribute_s=None if saved.get("attribute_s") is None else float(saved["attribute_s"]),
            energy_source=str(saved["energy_source"]),
            residency_source=str(saved["residency_source"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(sweep.id or "the sweep", f"options: {error} is missing or wrong") from None


def _same(value: Value) -> str:
    return repr(value)


def _point(
    case: Case, value: Value, bench_options: BenchOptions, options: ExperimentOptions, notes: list[str], say: Say
) -> tuple[Point, dict[str, Any]]:
    """As fast as it goes, or at the rate that is asked for. A point that fails is noted and the sweep goes on."""
    from powerprof.energy.windows import WindowEnergy

    # What is asked for on the command line wins over the workload, as in the other commands.
    rate = options.rate_hz or case.load.rate_hz
    offer = Offer("rate", rate, None, (), ())
    blocks: list[Block] = []
    rates: list[OsRates] = []
    server: dict[str, Any] = {}
    try:
        with WindowEnergy(options.energy_source, options.meter_log) as energy, Bench([case], bench_options) as bench:
            server = {"version": bench.server(case).version, "private": bench.server(case).private}
            apparatus = Apparatus(bench, options, offer, energy.meters, energy.complete, say, notes)
            time.sleep(0.5)
            for slot in apparatus.slots():
                before = oslayer.read()
                block = apparatus.repeated(partial(measure_block, apparatus, case, slot), [case], slot)
                if not slot.dropped:
                    rates.append(oslayer.between(before, oslayer.read()))
                    blocks.append(block)
    except PowerprofError as error:
        if isinstance(error, UsageError | CapabilityError):
            raise
        if not blocks:
            return Point(value=value, error=error.message), server
        notes.append(f"{value}: ended early: {error.message}")
    metrics = run_metrics([*metrics_for(blocks, Baseline(None, None, None)), *_split(blocks)], blocks)
    return Point(value=value, metrics=metrics, os=rates, blocks=blocks), server


def _split(blocks: Sequence[Block]) -> list[Values]:
    """C0 split in user, system and interrupts, and context switches."""
    metric_values = [
        Values("user_percent", "%", "measured", lambda b: b.window.user_percent),
        Values("system_percent", "%", "measured", lambda b: b.window.system_percent),
        Values("irq_percent", "%", "measured", lambda b: b.window.irq_percent),
        Values("context_switches_hz", "1/s", "measured", lambda b: b.window.context_switches_hz),
    ]
    return [values for values in metric_values if any(values.of(block) is not None for block in blocks)]
