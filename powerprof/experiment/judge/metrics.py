# SPDX-License-Identifier: Apache-2.0
"""Pure: from the blocks of a comparison to the values of each metric.

per query, gross   what the whole host used in the window / the queries finished in it
per query, net     the same less what the idle baseline uses in as long a time
EDP                joules/query × mean latency: what a user pays in energy and waits in time (lower is better)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from powerprof.energy.domains import HostMeters, Total, host_energy, host_meters
from powerprof.energy.split import Consumer, split_host
from powerprof.experiment.judge import bursts
from powerprof.experiment.records import Block, MemberShare
from powerprof.records import Estimate, Kind, RunMetric, Window, metric_of
from powerprof.windows.summary import interval

# Our own question is one connection in a window.
_NOUGHT_HZ = 0.5
_COUNTED_PER_QUERY = ("wakeups_per_query", "rows_examined_per_query", "minor_faults_per_query", "round_trips_per_query")
_COUNTED_PER_SECOND = ("queries_hz", "wakeups_hz")
# Those of a control connection, or of clients that prepare once.
_PREPARES_OF_OTHERS = 100


@dataclass(frozen=True)
class Baseline:
    """What the host does beside the experiment: mean C0, wake-ups and watts of the idle windows; None if unknown.

    `meters` stand for the host in every window of the run, idle or not.
    """

    c0_percent: float | None
    wakeups_hz: float | None
    watts: float | None
    meters: HostMeters | None = None


@dataclass(frozen=True)
class Values:
    """One metric of one block order: name, unit, kind, where it comes from, and how to get it from a block."""

    name: str
    unit: str
    kind: Kind
    of: Callable[[Block], float | None]
    source: str | None = None

    def step(self, blocks: Sequence[Block]) -> float | None:
        """In which steps a count is read: one of it in the shortest window. None where it is no count."""
        per_query, per_second = self.name in _COUNTED_PER_QUERY, self.name in _COUNTED_PER_SECOND
        sizes = [block.queries if per_query else block.window.window_s for block in blocks]
        known = [size for size in sizes if size]
        return 1 / min(known) if known and (per_query or per_second) else None

    def possible(self, low: float, high: float) -> bool:
        """True where no value between the two is one that cannot be."""
        floor, ceiling = _limits(self.name, self.unit)
        return (floor is None or low >= floor) and (ceiling is None or high <= ceiling)


def baseline_of(windows: Sequence[Window], blocks: Sequence[Block] = ()) -> Baseline:
    """The mean of the idle windows before and after, by the meters that stand for the host in these and the blocks."""

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    meters = host_meters([*(window.energy for window in windows), *(block.window.energy for block in blocks)])
    return Baseline(
        mean([window.c0_percent for window in windows]),
        mean([window.wakeups_hz for window in windows]),
        mean([host_energy(window.energy, meters).watts for window in windows]),
        meters,
    )


def _per_query(value: float | None, block: Block) -> float | None:
    return None if value is None or not block.queries else value / block.queries


def _c0_ms(window: Window, less_percent: float | None = 0.0) -> float | None:
    if window.c0_percent is None or window.window_s is None or less_percent is None:
        return None
    return (window.c0_percent - less_percent) / 100 * window.cpus * window.window_s * 1e3


def cpu_ms(block: Block, group: str) -> float | None:
    """CPU time in ms of a group of processes (server, client, powerprof) in the window; None where unknown."""
    for process in block.window.processes:
        if process.name == group:
            return process.cpu_s * 1e3
    return None


def rest_percent(window: Window) -> float | None:
    """C0 that is neither the server nor the client nor powerprof, in percent of all CPUs' wall time.

    Interrupts and idle entry are in it, as nobody's CPU time.
    """
    if window.c0_percent is None:
        return None
    return max(0.0, window.c0_percent - sum(process.percent or 0.0 for process in window.processes))


def _joules_net(block: Block, total: Total, baseline: Baseline) -> float | None:
    if total.joules is None or block.window.window_s is None or baseline.watts is None:
        return None
    return total.joules - baseline.watts * block.window.window_s


def metrics_for(blocks: Sequence[Block], baseline: Baseline) -> list[Values]:
    """Every metric that these blocks can yield; those without a value in any block are left out."""
    if any(block.executions_count is not None for block in blocks):
        return executions_metrics(blocks, baseline)
    meters = baseline.meters or host_meters([block.window.energy for block in blocks])
    kind: Kind = meters.kind if meters else "measured"
    source = meters.source if meters else None

    def host(block: Block) -> Total:
        return host_energy(block.window.energy, meters)

    def solution_joules(block: Block) -> float | None:
        return host_energy(block.solution_energy, meters).joules if block.solution_energy else block.solution_joules

    metric_values = [
        Values("c0_ms_per_query_server", "ms", "measured", lambda b: _per_query(cpu_ms(b, "server"), b)),
        Values("c0_ms_per_query", "ms", "measured", lambda b: _per_query(_c0_ms(b.window), b)),
        Values("c0_ms_per_query_net", "ms", "measured", lambda b: _per_query(_c0_ms(b.window, baseline.c0_percent), b)),
        Values("c0_ms_per_query_client", "ms", "measured", lambda b: _per_query(cpu_ms(b, "client"), b)),
        Values("joules_per_query", "J", kind, lambda b: _per_query(host(b).joules, b), source),
        Values("joules_per_query_net", "J", kind, lambda b: _per_query(_joules_net(b, host(b), baseline), b), source),
        Values("energy_to_solution_joules", "J", kind, solution_joules, source),
        Values("time_to_solution_s", "s", "measured", lambda b: b.solution_s),
        Values("wakeups_per_query", "1", "measured", _wakeups),
        Values("latency_p50_ms", "ms", "measured", lambda b: b.p50_ms),
        Values("latency_p95_ms", "ms", "measured", lambda b: b.p95_ms),
        Values("latency_p99_ms", "ms", "measured", lambda b: b.p99_ms),
        Values("edp_joule_seconds", "J·s", kind, lambda b: _edp(b, host(b)), source),
        Values("rows_examined_per_query", "rows", "measured", lambda b: _per_query(b.rows_examined, b)),
        Values("minor_faults_per_query", "1", "measured", lambda b: _per_query(b.minor_faults_count, b)),
        Values("round_trips_per_query", "1", "measured", _round_trips if _prepares(blocks) else lambda _: None),
        Values("queries_hz", "1/s", "measured", _rate),
        Values("c0_percent", "%", "measured", lambda b: b.window.c0_percent),
        Values("wakeups_hz", "1/s", "measured", lambda b: b.window.wakeups_hz),
        Values("watts", "W", kind, lambda b: host(b).watts, source),
        Values("storm_raged_percent", "%", "measured", lambda b: None if b.storm is None else b.storm.raged_percent),
        Values("storm_counter_hz", "1/s", "measured", lambda b: None if b.storm is None else b.storm.counter_hz),
        Values("write_bytes_hz", "B/s", "measured", lambda b: bursts.mean_hz(b.slices, bursts.written)),
        Values("write_bytes_peak_hz", "B/s", "measured", lambda b: bursts.peak_hz(b.slices, bursts.written)),
        Values("wakeups_peak_hz", "1/s", "measured", lambda b: bursts.peak_hz(b.slices, bursts.woken)),
        *_of_members(blocks, baseline, meters),
        *_residencies(blocks),
    ]
    return [values for values in metric_values if any(values.of(block) is not None for block in blocks)]


def executions_metrics(blocks: Sequence[Block], baseline: Baseline) -> list[Values]:
    """What one execution of a command cost; those without a value in any block are left out."""
    meters = baseline.meters or host_meters([block.window.energy for block in blocks])
    kind: Kind = meters.kind if meters else "measured"
    source = meters.source if meters else None

    def host(block: Block) -> Total:
        return host_energy(block.window.energy, meters)

    def each(value: float | None, block: Block) -> float | None:
        return None if value is None or not block.executions_count else value / block.executions_count

    def host_s(block: Block) -> float | None:
        used = _c0_ms(block.window)
        return None if used is None else used / 1e3

    metric_values = [
        Values("joules_per_execution", "J", kind, lambda b: each(host(b).joules, b), source),
        Values("joules_per_execution_net", "J", kind, lambda b: each(_joules_net(b, host(b), baseline), b), source),
        Values("cpu_s_per_execution", "s", "measured", lambda b: each(b.client_cpu_s, b)),
        Values("c0_s_per_execution", "s", "measured", lambda b: each(host_s(b), b)),
        Values("time_s_per_execution", "s", "measured", lambda b: each(b.window.window_s, b)),
        Values("wakeups_per_execution", "1", "measured", lambda b: each(_wakeups_count(b), b)),
        Values("c0_percent", "%", "measured", lambda b: b.window.c0_percent),
        Values("wakeups_hz", "1/s", "measured", lambda b: b.window.wakeups_hz),
        Values("watts", "W", kind, lambda b: host(b).watts, source),
        *_residencies(blocks),
    ]
    return [values for values in metric_values if any(values.of(block) is not None for block in blocks)]


def measured_names(blocks: Sequence[Block], baseline: Baseline) -> set[str]:
    """The metrics of these blocks that nothing had to estimate."""
    return {values.name for values in metrics_for(blocks, baseline) if values.kind == "measured"}


def within(name: str, unit: str, values: Sequence[float]) -> Estimate:
    """The mean of at least one value, with an interval within what is possible."""
    return interval(values, *_limits(name, unit))


def _limits(name: str, unit: str) -> tuple[float | None, float | None]:
    """The least and the most that a metric can be."""
    # What is net of idle may be below 0 by chance; nothing else can.
    floor = None if name.endswith("_net") or name.startswith("watts:") else 0.0
    return floor, 100.0 if unit == "%" else None


def run_metrics(wanted: Sequence[Values], blocks: Sequence[Block]) -> list[RunMetric]:
    """The metrics of a condition by itself: a value of each block, and their mean with its interval."""
    metrics = []
    for values in wanted:
        each = [values.of(block) for block in blocks]
        metrics.append(
            RunMetric(
                name=values.name,
                unit=values.unit,
                kind=values.kind,
                source=values.source,
                estimate=within(values.name, values.unit, [value for value in each if value is not None]),
                values=each,
            )
        )
    return metrics


def _wakeups_count(block: Block) -> float | None:
    window = block.window
    return None if window.wakeups_hz is None or window.window_s is None else window.wakeups_hz * window.window_s


def _wakeups(block: Block) -> float | None:
    return _per_query(_wakeups_count(block), block)


def _prepares(blocks: Sequence[Block]) -> bool:
    return any((block.status.get("Com_stmt_prepare") or 0) > _PREPARES_OF_OTHERS for block in blocks)


def _round_trips(block: Block) -> float | None:
    """Commands of a query that the server answered: the query or its execution, and its preparation where that was
    asked. Closing a statement has no answer (client/server protocol, COM_STMT_CLOSE)."""
    prepares = block.status.get("Com_stmt_prepare")
    return None if prepares is None or not block.queries else 1 + prepares / block.queries


def _rate(block: Block) -> float | None:
    seconds = block.solution_s or block.window.window_s
    return None if block.queries is None or not seconds else block.queries / seconds


def _edp(block: Block, total: Total) -> float | None:
    joules = _per_query(total.joules, block)
    return None if joules is None or block.mean_ms is None else joules * block.mean_ms / 1e3


def _residencies(blocks: Sequence[Block]) -> list[Values]:
    names: Mapping[str, None] = dict.fromkeys(
        state.name for block in blocks for state in block.window.states if not state.polling
    )

    def percent(name: str) -> Callable[[Block], float | None]:
        def of(block: Block) -> float | None:
            for state in block.window.states:
                if state.name == name:
                    return state.residency_percent
            return None

        return of

    return [Values(metric_of("residency_percent", name), "%", "measured", percent(name)) for name in names]


def _of_members(blocks: Sequence[Block], baseline: Baseline, meters: HostMeters | None) -> list[Values]:
    """Of each server of a topology, as METRIC:SERVER: C0, watts above the idle host, connections, commits, relay logs.

    A rate that is nought everywhere is left out.
    """
    names = list(dict.fromkeys(share.name for block in blocks for share in block.members))
    kind: Kind = meters.kind if meters else "measured"
    source = meters.source if meters else None
    metric_values = []
    for name in names:
        metric_values.append(
            Values(f"c0_percent:{name}", "%", "measured", _share(name, lambda share: share.c0_percent))
        )
        metric_values.append(Values(f"watts:{name}", "W", kind, _member_watts(name, baseline, meters), source))
    rates: tuple[tuple[str, str, Callable[[MemberShare], float | None]], ...] = (
        ("connections_hz", "1/s", lambda share: share.connections_hz),
        ("commits_hz", "1/s", lambda share: share.commits_hz),
        ("relay_log_bytes_hz", "B/s", lambda share: share.relay_log_bytes_hz),
    )
    for metric, unit, pick in rates:
        for name in names:
            values = Values(f"{metric}:{name}", unit, "measured", _share(name, pick))
            if any((values.of(block) or 0.0) >= _NOUGHT_HZ for block in blocks):
                metric_values.append(values)
    return metric_values


def _share(name: str, pick: Callable[[MemberShare], float | None]) -> Callable[[Block], float | None]:
    def of(block: Block) -> float | None:
        return next((pick(share) for share in block.members if share.name == name), None)

    return of


def _member_watts(name: str, baseline: Baseline, meters: HostMeters | None) -> Callable[[Block], float | None]:
    """Its part of the power above the idle host's, by its share of C0."""

    def of(block: Block) -> float | None:
        window, total = block.window, host_energy(block.window.energy, meters)
        cpu_s = next((share.cpu_s for share in block.members if share.name == name), None)
        if cpu_s is None or not window.window_s:
            return None
        split = split_host(
            total,
            window.window_s,
            window.c0_percent,
            window.cpus,
            [Consumer(name=name, c0_s=cpu_s)],
            idle_watts=baseline.watts,
            steal_percent=window.steal_percent,
        )
        return split.parts[0].joules / window.window_s if split and split.parts else None

    return of
