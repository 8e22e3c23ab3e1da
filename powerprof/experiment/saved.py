# SPDX-License-Identifier: Apache-2.0
"""Read and compare saved runs: condition, host, server and metrics of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from powerprof.experiment.confounders import list_differences
from powerprof.experiment.measurement import Measurement, judge
from powerprof.experiment.records import Comparison, ConditionRecord, LoadRun, Metric, Threat, read_run
from powerprof.model.attribution import Attribution
from powerprof.model.metrics import unit_of
from powerprof.model.records import Estimate, Figures, IdleRun, Phase, Run, ServerExits, ServerInfo, Window, metric_name
from powerprof.model.runs import RunStore, decode_record, read_schema
from powerprof.statistics.validity import DRIFT_FLOOR_POINTS
from powerprof.system.errors import DataError, UsageError

# The form of run identifiers. No condition has such a name.
_RUN_ID = re.compile(r"[a-z]+-[0-9]{4,}", re.ASCII)
_RUN_AND_CONDITION = re.compile(r"([a-z]+-[0-9]{4,}):(.+)", re.ASCII)


def _split(name: str) -> tuple[str, str | None]:
    """Split `RUN:condition`; a path may have a colon only with a condition after it.

    The name of a condition of another workload has a colon itself: `compare-0001:city:index`.
    """
    if named := _RUN_AND_CONDITION.fullmatch(name):
        return named[1], named[2]
    run, separator, condition = name.rpartition(":")
    return (run, condition) if separator and run else (name, None)


def are_runs(a: str, b: str, runs_dir: Path | None) -> bool:
    """Return whether both names are saved runs.

    Raises UsageError if only one is and the other is no condition either.
    """
    store = RunStore(runs_dir)

    def is_run(name: str) -> bool:
        for candidate in (name, _split(name)[0]):
            if (Path(candidate) / "workload.toml").is_file():
                return False
            try:
                path = store.find(candidate)
            except UsageError:
                continue
            return path.suffix == ".json"
        return False

    first, second = is_run(a), is_run(b)
    if first != second:
        run, other = (a, b) if first else (b, a)
        raise UsageError(f"{run} is a saved run and {other} is not", "compare two runs, or two conditions")
    if not first and all(_RUN_ID.fullmatch(_split(name)[0]) or name.endswith(".json") for name in (a, b)):
        store.find(_split(a)[0])  # raises an error that lists the searched places
    return first


def read_measurement(name: str, runs_dir: Path | None) -> Measurement:
    """Read a saved run, or a condition of a saved comparison. Raise UsageError, DataError."""
    store = RunStore(runs_dir)
    wanted: str | None = None
    try:
        path = store.find(name)
    except UsageError:
        run, wanted = _split(name)
        path = store.find(run)
    schema = read_schema(path)
    if schema == "powerprof.comparison/1":
        return _half_of_comparison(path, decode_record(path, Comparison), wanted)
    if schema == "powerprof.run/1":
        half = _half_of_run(path, read_run(path))
        if wanted not in (None, half.condition.name):
            raise UsageError(f"{name}: {half.run} has one condition, {half.condition.name}", f"leave :{wanted} out")
        return half
    if schema == "powerprof.attribution/1":
        return _half_of_attribution(path, decode_record(path, Attribution))
    kind = schema.removeprefix("powerprof.").partition("/")[0]
    raise UsageError(
        f"{name} is of the kind {kind}, which is not compared",
        "compare takes saved runs of compare, run, idle, attribute and sweep",
    )


def _half_of_comparison(path: Path, comparison: Comparison, wanted: str | None) -> Measurement:
    by_name = {comparison.a.name: "a", comparison.b.name: "b"}
    if wanted is None or wanted not in by_name:
        run_name = comparison.id or path.name
        choices = " or ".join(f"{run_name}:{name}" for name in by_name)
        fault = "is a comparison of two conditions" if wanted is None else f"has no condition {wanted}"
        raise UsageError(f"{run_name} {fault}", f"say which: {choices}")
    side = by_name[wanted]
    condition = comparison.a if side == "a" else comparison.b

    def of_side(metric: Metric) -> Figures:
        values = (metric.a if side == "a" else metric.b).values
        return Figures(name=metric.name, unit=metric.unit, kind=metric.kind, values=values, source=metric.source)

    starts = comparison.options.get("starts_count")
    options = {**comparison.options, "offered_hz": comparison.offered_hz, "design": comparison.design}
    return Measurement(
        run=f"{comparison.id or path.name}:{wanted}",
        started_at=comparison.started_at,
        condition=condition,
        metrics=[of_side(metric) for metric in comparison.metrics],
        system=[of_side(metric) for metric in comparison.system],
        primary=comparison.verdict.metric or "c0_ms_per_query_server",
        host=comparison.host,
        server=comparison.server,
        options=options,
        ended=comparison.ended,
        threats=comparison.threats,
        control=comparison.control,
        series=path,
        starts=starts if isinstance(starts, int) else 0,
    )


def _half_of_run(path: Path, run: Run) -> Measurement:
    name = run.id or path.name
    options = {}
    if isinstance(run, LoadRun) and run.metrics:
        condition = run.condition
        metrics: list[Figures] = [*run.metrics]
        primary = run.options.primary_metric or metrics[0].name
        options = msgspec.to_builtins(run.options)
    else:
        if not run.phases:
            raise DataError(path, "a run without phases")
        phase = [phase for phase in run.phases if phase.name != "baseline-after"][-1]
        clients = None
        if isinstance(run, IdleRun):
            options, clients = msgspec.to_builtins(run.options), run.options.clients_count
        condition = _idle_condition(run.command, clients)
        own = [] if phase.server_exits is None else _server_figures(phase.server_exits)
        metrics = [*own, *_phase_figures(phase)]
        primary = metrics[0].name if own else "wakeups_hz"
    return Measurement(
        run=name,
        started_at=run.started_at,
        condition=condition,
        metrics=metrics,
        system=[*run.system] if isinstance(run, LoadRun) else [],
        primary=primary,
        host=run.host,
        server=run.server,
        options=options,
        ended=run.ended,
        threats=_drift_of(run),
    )


def _server_figures(exits: ServerExits) -> list[Figures]:
    """Return the server's own wake-ups per second in each part of the traced window; none without parts."""
    part_s = exits.window_s / len(exits.blocks_count) if exits.blocks_count else 0.0
    values: list[float | None] = [count / part_s for count in exits.blocks_count] if part_s > 0 else []
    name = "server_wakeups_hz"
    return [Figures(name=name, unit=unit_of(name), kind="measured", values=values)] if values else []


def _half_of_attribution(path: Path, record: Attribution) -> Measurement:
    """Return the wake-ups of the target of a traced window."""
    if not record.exits_by_part:
        raise DataError(path, "a traced window without a target, or of another version")
    count = sum(wakeup.count for wakeup in record.wakeups)
    rate = Estimate(mean=count / record.window_s, low=None, high=None)
    exits = ServerExits(count=count, window_s=record.window_s, wakeups_hz=rate, blocks_count=record.exits_by_part)
    program = Path(record.target.executable or record.target.label).name
    version = record.target.label
    return Measurement(
        run=record.id or path.name,
        started_at=record.started_at or "",
        condition=msgspec.structs.replace(_idle_condition("attribute", None), workload=f"attribute of {program}"),
        metrics=_server_figures(exits),
        primary="server_wakeups_hz",
        host=record.host,
        server=ServerInfo(version=version, private=False, pid=record.target.pid),
        ended=record.ended,
    )


def _drift_of(run: Run) -> list[Threat]:
    """Return the drift of an idle run's baseline if it is larger than the usual drift of an idle host."""
    drifts = run.drift if isinstance(run, IdleRun) else []
    drift = next((drift.difference for drift in drifts if drift.metric == "c0_percent"), None)
    if drift is None or drift.low is None or drift.high is None:
        return []
    if drift.low <= 0 <= drift.high or abs(drift.mean) <= DRIFT_FLOOR_POINTS:
        return []
    return [Threat(name="drift", form="drift_failed", serious=True, values={"points": drift.mean})]


def _idle_condition(command: str, clients: int | None) -> ConditionRecord:
    return ConditionRecord(
        name=command, workload=command, title="", load={"clients": clients}, settings={}, work=f"{command} {clients}"
    )


def _phase_figures(phase: Phase) -> list[Figures]:
    def figures(name: str, of: Callable[[Window], float | None]) -> Figures:
        return Figures(name=name, unit=unit_of(name), kind="measured", values=[of(window) for window in phase.windows])

    def residency(state: str) -> Callable[[Window], float | None]:
        return lambda window: next((each.residency_percent for each in window.states if each.name == state), None)

    return [
        figures("c0_percent", lambda window: window.c0_percent),
        figures("wakeups_hz", lambda window: window.wakeups_hz),
        *(
            figures(metric_name("residency_percent", state.name), residency(state.name))
            for state in phase.states
            if not state.polling
        ),
    ]


def compare_saved(a: str, b: str, runs_dir: Path | None, seed: int) -> Comparison:
    """Compare two saved runs. Raise UsageError for different work, DataError for damaged runs."""
    first, second = read_measurement(a, runs_dir), read_measurement(b, runs_dir)
    if (first.run, first.condition.name) == (second.run, second.condition.name):
        raise UsageError(
            f"{a} and {b} are the same measurement", "name another run, or compare a condition with itself"
        )
    _refuse_different_work(first, second)
    judged = judge(first, second, seed)
    if not judged.metrics:
        raise UsageError(f"{a} and {b} have no metric in common", "were they measured by the same kind of meter?")
    names = _side_names(first, second)
    return msgspec.structs.replace(
        judged,
        a=msgspec.structs.replace(first.condition, name=names[0]),
        b=msgspec.structs.replace(second.condition, name=names[1]),
        differences=list_differences(first, second),
        options={"a": first.run, "b": second.run},
    )


def _side_names(first: Measurement, second: Measurement) -> tuple[str, str]:
    if first.run != second.run:
        return first.run, second.run
    return first.condition.name, second.condition.name


def _refuse_different_work(first: Measurement, second: Measurement) -> None:
    if first.condition.workload != second.condition.workload:
        raise UsageError(
            f"{first.run} ran {first.condition.workload} and {second.run} ran {second.condition.workload}: "
            "different work cannot be compared",
            "compare runs of one workload",
        )
    same_condition = first.condition.name == second.condition.name
    if same_condition and first.condition.work != second.condition.work:
        raise UsageError(
            f"{first.run} and {second.run} ran different statements or data under the name {first.condition.name}",
            "different work cannot be compared: run one of them again",
        )
