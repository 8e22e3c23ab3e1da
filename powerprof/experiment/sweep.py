# SPDX-License-Identifier: Apache-2.0
"""Measure one condition at several values of a parameter, in rounds saved one by one: `powerprof sweep`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.database import catalogue, connections, products
from powerprof.database.connections import check_connections
from powerprof.database.sandbox import find_server_account
from powerprof.energy.request import Vcpu
from powerprof.experiment.apparatus import Apparatus
from powerprof.experiment.bench import Bench
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.ending import Ending
from powerprof.experiment.function_samples import SAMPLED_S
from powerprof.experiment.options import AROUND_S, START_AGAIN_S, ExperimentOptions, condition_record
from powerprof.experiment.plan import Offer, check_options, measure_capacity, offer_share
from powerprof.experiment.sweep_record import SERVER, Sweep
from powerprof.experiment.sweep_rounds import START_S, Progress, measure_rounds
from powerprof.measure.clock import format_now
from powerprof.model.records import ended_by_signal
from powerprof.model.runs import RunStore, decode_record, encode_record, read_schema
from powerprof.model.text import Say, approximate_time
from powerprof.system.errors import (
    CapabilityError,
    DataError,
    Interrupted,
    PowerprofError,
    UnknownNameError,
    UsageError,
)
from powerprof.system.next_steps import command_line
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.definition import Load, Value
from powerprof.workloads.reading import Case, LoadedWorkload, resolve

CONDITION = "condition"


def resolve_point(workload: LoadedWorkload, condition: str, key: str, value: Value, options: ExperimentOptions) -> Case:
    """Return the condition of one point. Raise UsageError, DataError for a value that the key cannot take."""
    if key != CONDITION:
        case = resolve(workload, condition, {key: value})
    elif value in workload.definition.conditions:
        case = resolve(workload, str(value))
    else:
        message = f"{workload.definition.name} has no condition {value}"
        raise UnknownNameError(message, str(value), workload.definition.conditions)
    return replace(case, load=Load(kind="idle", clients=case.load.clients)) if options.load_percent == 0 else case


def find_key(workload: LoadedWorkload, parameter: str) -> tuple[str, list[Value]]:
    """Return the key of a parameter and its default values.

    Every workload has `clients`, `condition`, `rate` and `server`. Raises UsageError for another parameter that is not
    declared.
    """
    declared = workload.definition.parameters
    if parameter in declared:
        return declared[parameter].key, list(declared[parameter].values)
    known = {"clients": "load.clients", "rate": "load.rate_hz", SERVER: "server.build", CONDITION: CONDITION}
    if parameter in known:
        return known[parameter], list(workload.definition.conditions) if parameter == CONDITION else []
    message = f"--set {parameter}: {workload.definition.name} has no such parameter"
    raise UnknownNameError(message, parameter, sorted({*declared, *known}))


def start_sweep(
    workload: LoadedWorkload, condition: str, parameter: str, values: Sequence[Value], options: ExperimentOptions
) -> Sweep:
    """Return an empty sweep. Raise UsageError without values, DataError for a value that the key cannot take."""
    from powerprof.host.describe import host_record

    key, default = find_key(workload, parameter)
    chosen = list(values) or default
    if not chosen:
        option, values_like = _option(parameter), _LIKE.get(parameter, "1,2,4")
        raise UsageError(f"{option.rstrip(' =')} needs values", f"such as {option}{values_like}")
    for value in chosen:
        try:
            case = resolve_point(workload, condition, key, value, options)
        except DataError as error:
            if not values:
                raise
            raise _no_value(parameter, value, key, error) from None
        check_options([case], options)
    return Sweep(
        command="sweep",
        started_at=format_now(),
        workload=workload.definition.name,
        condition=condition_record(resolve(workload, condition)),
        parameter=parameter,
        key=key,
        values=chosen,
        points=[],
        host=host_record(),
        ended=ended_by_signal(True),
        options={
            "window_s": options.window_s,
            "windows_count": options.pairs,
            "rate_hz": options.rate_hz,
            "load_percent": options.load_percent,
            "attribute_s": options.attribute_s,
            "on_cpu": options.on_cpu,
            "energy_source": options.energy.source,
            "meter_log": None if options.energy.meter_log is None else str(options.energy.meter_log),
            "cpu_model": options.energy.cpu_model,
            "vcpu": options.energy.vcpu,
            "residency_source": options.residency_source,
            "seed": options.seed,
        },
    )


# The words of msgspec for the type of a field, and ours.
_EXPECTED = re.compile(r"expected `?(?P<kind>\w+)(?: (?P<sign>[<>]=?) (?P<bound>[\d.]+))?", re.IGNORECASE)
_KINDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
_BOUNDS = {">=": "{} or more", "<=": "at most {}", ">": "above {}", "<": "below {}"}


_LIKE = {SERVER: "mariadb-10.11,mariadb-11.8", "rate": "100,200,400"}


def _option(parameter: str) -> str:
    """Return the words before the values on the command line."""
    return "--clients " if parameter == "clients" else f"--set {parameter}="


def _no_value(parameter: str, value: Value, key: str, error: DataError) -> UsageError:
    """Return the error for a value of the command line that the key cannot take."""
    typed = f"{_option(parameter)}{value}"
    like = "1,2,4" if parameter == "clients" else _LIKE.get(parameter)
    remedy = (
        f"such as {_option(parameter)}{like}" if like else f"for a workload's keys: {command_line('workloads NAME')}"
    )
    reason = error.reason.rpartition(": ")[2].partition(" - at ")[0]
    needs = _EXPECTED.match(reason)
    if needs is None or needs["kind"] not in _KINDS:
        return UsageError(f"{typed} is not a value of {key} ({reason[:1].lower()}{reason[1:]})", remedy)
    bound = f", {_BOUNDS[needs['sign']].format(needs['bound'])}" if needs["sign"] else ""
    return UsageError(f"{typed}: must be {_KINDS[needs['kind']]}{bound}", remedy)


def check_room(sweep: Sweep, workload: LoadedWorkload, bench_options: BenchOptions, options: ExperimentOptions) -> None:
    """Check before the first point that the server exists and has room for the largest point's connections.

    Failures of single points are noted later, but a wrong server would fail in all of them. Raises PowerprofError.
    """
    if sweep.parameter == SERVER:
        if bench_options.server_build or bench_options.server_binary:
            raise UsageError("--set server=… and --server-build are two servers", "leave --server-build out")
        for value in sweep.values:
            catalogue.load_build(str(value))
    cases = [resolve_point(workload, sweep.condition.name, sweep.key, value, options) for value in sweep.values]
    most = max(case.load.clients for case in cases)
    if bench_options.server_binary:
        products.find_program(cases[0].server.kind, bench_options.server_binary)
    if bench_options.given is not None:
        check_connections(bench_options.given, most)
    else:
        account = find_server_account()
        connections.check_threads(most, server_uid=account[0] if account else os.geteuid())


def continue_sweep(
    sweep: Sweep,
    workload: LoadedWorkload,
    bench_options: BenchOptions,
    options: ExperimentOptions,
    *,
    save: Callable[[Sweep], Sweep],
    say: Say,
) -> Sweep:
    """Measure the missing rounds, and save after each. A signal or an error returns the sweep so far, marked.

    Raises UsageError if the workload has changed since the start of the sweep.
    """
    from powerprof.energy.windows import WindowEnergy

    name = sweep.condition.name
    if condition_record(resolve(workload, name)).work != sweep.condition.work:
        raise UsageError(f"{sweep.workload}:{name} has changed since the sweep was started", "start a new one")
    progress = Progress(sweep)
    cases = {
        value: resolve_point(workload, name, sweep.key, value, options)
        for value in sweep.values
        if len(progress.gathered[value].blocks) < options.pairs and value not in progress.kept
    }
    if not cases:
        return save(progress.record(Ending()))
    servers = Bench(list(cases.values()), bench_options, progress.note, apart=True)
    again = servers.restartable(list(cases.values()))
    say(_plan(sweep.parameter, len(cases), options, baseline=sweep.parameter == SERVER, starts_again=again))
    ending = Ending()
    # If a sweep is resumed, an error of the command line or of the host is no result of its old points.
    keeping = ending.keeping(progress.has_result, always_raised=(UsageError, CapabilityError))
    with keeping, WindowEnergy(options.energy) as energy:
        say("starting the server" if sweep.parameter != SERVER else f"starting {len(cases)} servers")
        with servers as bench:
            starts = progress.began(bench, cases, say)
            up = {value: case for value, case in cases.items() if bench.failure(case) is None}
            apparatus = {
                value: Apparatus(bench, options, offer, energy.meters, energy.complete, say, progress.notes)
                for value, offer in _offers(sweep, up, options, bench, say).items()
            }
            baseline = progress.baseline if sweep.parameter == SERVER else None
            measure_rounds(apparatus, up, progress.gathered, starts, baseline, lambda: save(progress.record()))
    if ending.ended is not None and ending.ended.how == "failed":
        progress.failed(cases, ending.ended.why)
    return save(progress.record(ending))


def estimate_seconds(points: int, options: ExperimentOptions, *, baseline: bool, starts_again: bool = False) -> float:
    """Return the approximate duration of a sweep in s.

    `baseline` adds windows without a server, `starts_again` new starts in each round.
    """
    windows = options.pairs * (points + baseline)
    traced_s = options.pairs * points * ((options.attribute_s or 0.0) + (SAMPLED_S if options.on_cpu else 0.0))
    started_s = options.pairs * points * START_AGAIN_S * starts_again
    return windows * (options.window_s + AROUND_S) + traced_s + started_s + START_S


def _plan(parameter: str, points: int, options: ExperimentOptions, *, baseline: bool, starts_again: bool) -> str:
    rounds = f"{options.pairs} rounds of windows of {options.window_s:g} s"
    seconds = estimate_seconds(points, options, baseline=baseline, starts_again=starts_again)
    return f"{points} values of {parameter} in {rounds}: {approximate_time(seconds)}"


def _offers(
    sweep: Sweep, cases: Mapping[Value, Case], options: ExperimentOptions, bench: Bench, say: Say
) -> dict[Value, Offer]:
    """Return the load of each point: full speed, or a rate; that of the command line has precedence.

    All servers of a sweep over servers get the same rate. At full speed a faster server would also be busier. A share
    of the capacity is that of the first point.
    """
    if options.load_percent:
        first = next(iter(cases.values()))
        say(f"calibrating {first.name}")
        offer = offer_share(measure_capacity(bench, first, options.calibrate_s), options.load_percent)
        return dict.fromkeys(cases, offer)
    rates = [options.rate_hz or case.load.rate_hz for case in cases.values()]
    if sweep.parameter == SERVER:
        rates = rates[:1] * len(rates)
    return {value: Offer("rate", rate, None, (), ()) for value, rate in zip(cases, rates, strict=True)}


def _vcpu(saved: object) -> Vcpu | None:
    if saved not in (None, "thread", "core"):
        raise ValueError("vcpu")
    return saved


def restore_options(sweep: Sweep, options: ExperimentOptions) -> ExperimentOptions:
    """Return the options that a sweep was started with, to continue it. Raise DataError for a damaged record."""
    saved = sweep.options
    try:
        return replace(
            options,
            window_s=float(saved["window_s"]),
            pairs=int(saved["windows_count"]),
            seed=int(saved["seed"]),
            rate_hz=None if saved.get("rate_hz") is None else float(saved["rate_hz"]),
            load_percent=None if saved.get("load_percent") is None else float(saved["load_percent"]),
            attribute_s=None if saved.get("attribute_s") is None else float(saved["attribute_s"]),
            on_cpu=bool(saved.get("on_cpu")),
            energy=replace(
                options.energy,
                source=str(saved["energy_source"]),
                meter_log=None if saved.get("meter_log") is None else Path(str(saved["meter_log"])),
                cpu_model=None if saved.get("cpu_model") is None else str(saved["cpu_model"]),
                vcpu=_vcpu(saved.get("vcpu")),
            ),
            residency_source=str(saved["residency_source"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(sweep.id or "the sweep", f"options: {error} is missing or wrong") from None


class SweepRequest(msgspec.Struct, frozen=True):
    """A condition, the varied parameter, and its values (empty: those of the workload)."""

    condition: str
    parameter: str
    values: Sequence[Value]


class SweepStore:
    """The place of a running sweep in the run store; `keep=False` saves nothing."""

    def __init__(self, directory: Path | None, *, keep: bool = True) -> None:
        self._store = RunStore(directory)
        self._folder: Path | None = None
        self._keep = keep
        self._new: str | None = None

    def load(self, name: str) -> Sweep:
        """Read a sweep by ID, folder or file. Raise UsageError, DataError."""
        path = self._store.find(name)
        if read_schema(path) != "powerprof.sweep/1":
            raise DataError(path, "not a sweep", hint=self._store.listing)
        self._folder = path.parent
        return decode_record(path, Sweep)

    def save(self, sweep: Sweep) -> Sweep:
        """Replace the saved sweep as a whole; return it with its ID. Raise PowerprofError."""
        if not self._keep:
            return sweep
        if self._folder is None:
            name, self._folder = self._store.create("sweep")
            self._new = name
            sweep = msgspec.structs.replace(sweep, id=name)
        self._store.write(self._folder, "run.json", encode_record(sweep))
        if sweep.points:
            self._new = None
        return sweep

    def drop_if_empty(self) -> None:
        """Remove a sweep that failed before its first point."""
        if self._new is not None:
            with suppress(PowerprofError):
                self._store.remove(self._new)


def measure_sweep(
    asked: SweepRequest | str,
    bench: Callable[[], AbstractContextManager[BenchOptions]],
    options: ExperimentOptions,
    store: SweepStore,
    *,
    extra: Sequence[Path],
    say: Say,
) -> Sweep:
    """Measure a new sweep, or continue a saved one with its original options.

    A signal or an error after the first window returns the sweep so far, marked. Raises UsageError, DataError,
    PowerprofError.
    """
    if isinstance(asked, str):
        record = store.load(asked)
        options = restore_options(record, options)
        workload, _ = find_one(f"{record.workload}:{record.condition.name}", extra)
    else:
        workload, condition = find_one(asked.condition, extra)
        record = start_sweep(workload, condition, asked.parameter, asked.values, options)
    with bench() as where:
        check_room(record, workload, where, options)
        record = store.save(record)
        try:
            return continue_sweep(record, workload, where, options, save=store.save, say=say)
        except (PowerprofError, Interrupted):
            store.drop_if_empty()
            raise
