# SPDX-License-Identifier: Apache-2.0
"""Compute the values of each metric from the blocks of an experiment.

Per query, gross: the use of the whole host in the window divided by the finished queries. Per query, net: the same
minus the use of the idle baseline over an equal time. EDP: joules per query × mean latency, the energy and the waiting
time of a user (lower is better).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from powerprof.energy.split import Consumer, split_host_energy
from powerprof.energy.total import HostMeters, Total, host_energy, host_meters
from powerprof.experiment.records import Block, BlockPair, MemberShare, Slices
from powerprof.measure.means import interval
from powerprof.model.metrics import find_metric, unit_of
from powerprof.model.records import Figures, Kind, Note, RunMetric, Window, metric_name

Of = Callable[[Slices], list[int]]


def written_per_slice(slices: Slices) -> list[int]:
    """Return the bytes that the server wrote, per slice."""
    return slices.write_bytes


def woken_per_slice(slices: Slices) -> list[int]:
    """Return the idle exits of all CPUs, per slice."""
    return slices.wakeups_count


def mean_hz(slices: Slices | None, of: Of) -> float | None:
    """Return the rate over all slices; None if it was not read."""
    return None if slices is None or not of(slices) else sum(of(slices)) / sum(slices.lengths_s)


def peak_hz(slices: Slices | None, of: Of) -> float | None:
    """Return the highest rate of a slice. The last slice is cut and ignored if it is short."""
    if slices is None or not of(slices):
        return None
    least_s = median(slices.lengths_s) / 2
    pairs = zip(of(slices), slices.lengths_s, strict=True)
    return max(count / length_s for count, length_s in pairs if length_s >= least_s)


# The reading itself is one connection per window.
_NOUGHT_HZ = 0.5
_RATES_OF_MEMBERS = ("connections_hz:", "commits_hz:", "relay_log_bytes_hz:")
# Prepared statements of a control connection, or of clients that prepare once, are fewer.
_PREPARES_OF_OTHERS = 100


class Baseline(msgspec.Struct, frozen=True):
    """The idle host: mean C0, wake-ups and watts of the idle windows; None if unknown.

    `meters` represent the host in every window of the run.
    """

    c0_percent: float | None
    wakeups_hz: float | None
    watts: float | None
    meters: HostMeters | None = None


class Compared(NamedTuple):
    """One metric in two conditions, pair by pair if they were measured in pairs.

    `step` is the resolution of a count: 1 in the shortest window. None for other metrics.
    """

    a: Figures
    b: Figures
    step: float | None = None


class _MeteredBlock(NamedTuple):
    """A block and its joules by the run's meters."""

    block: Block
    host: Total
    solution_joules: float | None


class _Values(NamedTuple):
    """One metric: name, a function that reads it from a block, kind and source."""

    name: str
    of: Callable[[_MeteredBlock], float | None]
    kind: Kind = "measured"
    source: str | None = None


def mean_baseline(windows: Sequence[Window], blocks: Sequence[Block] = ()) -> Baseline:
    """Return the mean of the idle windows, by the meters that represent the host in these windows and the blocks."""

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
    if window.c0_percent is None or window.window_s is None or less_percent is None or window.unknown_cpus_count:
        return None  # a sum without some CPUs would be too small
    return (window.c0_percent - less_percent) / 100 * window.cpus * window.window_s * 1e3


def cpu_ms(block: Block, group: str) -> float | None:
    """Return the CPU time in ms of a group of processes (server, client, powerprof) in the window; None if unknown."""
    for process in block.window.processes:
        if process.name == group:
            return process.cpu_s * 1e3
    return None


def format_cost_so_far(blocks: Sequence[Block]) -> str:
    """Return the CPU time per query of a server, or per execution of a command; empty if unknown."""
    measured = [block for block in blocks if not block.dropped]
    count, what = sum(block.executions_count or 0 for block in measured), "execution"
    spent_ms = [None if block.client_cpu_s is None else 1e3 * block.client_cpu_s for block in measured]
    if not count:
        count, what = sum(block.queries or 0 for block in measured), "query"
        spent_ms = [cpu_ms(block, "server") for block in measured]
    known_ms = [each_ms for each_ms in spent_ms if each_ms is not None]
    if not count or len(known_ms) < len(spent_ms):
        return ""
    return f"{sum(known_ms) / count:.3g} ms CPU/{what} so far"


def rest_percent(window: Window) -> float | None:
    """Return the C0 of neither server, client nor powerprof, in percent of all CPUs' wall time.

    It includes interrupts and idle entry, which belong to no process.
    """
    if window.c0_percent is None:
        return None
    return max(0.0, window.c0_percent - sum(process.percent or 0.0 for process in window.processes))


def _joules_net(metered: _MeteredBlock, baseline: Baseline) -> float | None:
    joules, window_s = metered.host.joules, metered.block.window.window_s
    return None if joules is None or window_s is None or baseline.watts is None else joules - baseline.watts * window_s


def read_figures(blocks: Sequence[Block], baseline: Baseline) -> list[Figures]:
    """Return every metric of these blocks with one value per block, without those that have no value."""
    meters = baseline.meters or host_meters([block.window.energy for block in blocks])
    metered = [_meter_block(block, meters) for block in blocks]
    executions = any(block.executions_count is not None for block in blocks)
    wanted = (_per_execution_metrics if executions else _per_query_metrics)(blocks, baseline, meters)
    every = [
        Figures(name=name, unit=unit_of(name), kind=kind, values=[of(each) for each in metered], source=source)
        for name, of, kind, source in (*wanted, *_list_residencies(blocks))
    ]
    return [figures for figures in every if figures.known and not _is_zero_rate(figures)]


def pair_figures(pairs: Sequence[BlockPair], baseline: Baseline) -> list[Compared]:
    """Return every metric of these pairs, in A and in B."""
    blocks = [block for pair in pairs for block in pair]
    return [
        Compared(
            msgspec.structs.replace(figures, values=figures.values[0::2]),
            msgspec.structs.replace(figures, values=figures.values[1::2]),
            _step(figures.name, blocks),
        )
        for figures in read_figures(blocks, baseline)
    ]


def _step(name: str, blocks: Sequence[Block]) -> float | None:
    metric = find_metric(name)
    if metric is None or not metric.is_count:
        return None
    sizes = [block.queries if metric.per == "query" else block.window.window_s for block in blocks]
    known = [size for size in sizes if size]
    return 1 / min(known) if known else None


def _is_zero_rate(figures: Figures) -> bool:
    """Return whether a rate of a topology member is about 0 in all blocks."""
    return figures.name.startswith(_RATES_OF_MEMBERS) and max(figures.known) < _NOUGHT_HZ


def _meter_block(block: Block, meters: HostMeters | None) -> _MeteredBlock:
    solution = host_energy(block.solution_energy, meters).joules
    return _MeteredBlock(block, host_energy(block.window.energy, meters), solution)


def _per_query_metrics(blocks: Sequence[Block], baseline: Baseline, meters: HostMeters | None) -> list[_Values]:
    kind: Kind = meters.kind if meters else "measured"
    source = meters.source if meters else None

    def each(of: Callable[[Block], float | None]) -> Callable[[_MeteredBlock], float | None]:
        return lambda m: _per_query(of(m.block), m.block)

    return [
        _Values("c0_ms_per_query_server", each(lambda b: cpu_ms(b, "server"))),
        _Values("c0_ms_per_query", each(lambda b: _c0_ms(b.window))),
        _Values("c0_ms_per_query_net", each(lambda b: _c0_ms(b.window, baseline.c0_percent))),
        _Values("c0_ms_per_query_client", each(lambda b: cpu_ms(b, "client"))),
        _Values("joules_per_query", lambda m: _per_query(m.host.joules, m.block), kind, source),
        _Values("joules_per_query_net", lambda m: _per_query(_joules_net(m, baseline), m.block), kind, source),
        _Values("energy_to_solution_joules", lambda m: m.solution_joules, kind, source),
        _Values("time_to_solution_s", lambda m: m.block.solution_s),
        _Values("wakeups_per_query", each(_wakeups_count)),
        _Values("latency_p50_ms", lambda m: m.block.p50_ms),
        _Values("latency_p95_ms", lambda m: m.block.p95_ms),
        _Values("latency_p99_ms", lambda m: m.block.p99_ms),
        _Values("edp_joule_seconds", _compute_edp, kind, source),
        _Values("rows_examined_per_query", each(lambda b: b.rows_examined)),
        _Values("minor_faults_per_query", each(lambda b: b.minor_faults_count)),
        *([_Values("round_trips_per_query", _count_round_trips)] if _are_prepared(blocks) else []),
        _Values("queries_hz", _compute_rate),
        *_host_metrics(kind, source),
        _Values("storm_raged_percent", lambda m: m.block.storm.raged_percent if m.block.storm else None),
        _Values("storm_counter_hz", lambda m: m.block.storm.counter_hz if m.block.storm else None),
        _Values("write_bytes_hz", lambda m: mean_hz(m.block.slices, written_per_slice)),
        _Values("write_bytes_peak_hz", lambda m: peak_hz(m.block.slices, written_per_slice)),
        _Values("wakeups_peak_hz", lambda m: peak_hz(m.block.slices, woken_per_slice)),
        *_member_metrics(blocks, baseline, kind, source),
    ]


def _per_execution_metrics(blocks: Sequence[Block], baseline: Baseline, meters: HostMeters | None) -> list[_Values]:
    """Return the metrics of one execution of a command."""
    kind: Kind = meters.kind if meters else "measured"
    source = meters.source if meters else None

    def each(of: Callable[[_MeteredBlock], float | None]) -> Callable[[_MeteredBlock], float | None]:
        def per_execution(m: _MeteredBlock) -> float | None:
            value, count = of(m), m.block.executions_count
            return None if value is None or not count else value / count

        return per_execution

    def host_s(m: _MeteredBlock) -> float | None:
        used = _c0_ms(m.block.window)
        return None if used is None else used / 1e3

    return [
        _Values("joules_per_execution", each(lambda m: m.host.joules), kind, source),
        _Values("joules_per_execution_net", each(lambda m: _joules_net(m, baseline)), kind, source),
        _Values("cpu_s_per_execution", each(lambda m: m.block.client_cpu_s)),
        _Values("c0_s_per_execution", each(host_s)),
        _Values("time_s_per_execution", each(lambda m: m.block.window.window_s)),
        _Values("wakeups_per_execution", each(lambda m: _wakeups_count(m.block))),
        *_host_metrics(kind, source),
    ]


def _host_metrics(kind: Kind, source: str | None) -> list[_Values]:
    return [
        _Values("c0_percent", lambda m: m.block.window.c0_percent),
        _Values("wakeups_hz", lambda m: m.block.window.wakeups_hz),
        _Values("watts", lambda m: m.host.watts, kind, source),
    ]


def list_measured(every: Sequence[Figures]) -> set[str]:
    """Return the names of the metrics that are not estimated."""
    return {figures.name for figures in every if figures.kind == "measured"}


def add_mean(figures: Figures) -> RunMetric:
    """Add the mean and an interval within the limits of the metric."""
    return RunMetric(
        name=figures.name,
        unit=figures.unit,
        kind=figures.kind,
        source=figures.source,
        values=figures.values,
        estimate=interval(figures.known, *figures.limits),
    )


def _wakeups_count(block: Block) -> float | None:
    window = block.window
    return None if window.wakeups_hz is None or window.window_s is None else window.wakeups_hz * window.window_s


def _are_prepared(blocks: Sequence[Block]) -> bool:
    return any((block.status.get("Com_stmt_prepare") or 0) > _PREPARES_OF_OTHERS for block in blocks)


def _count_round_trips(metered: _MeteredBlock) -> float | None:
    """Return the commands per query that the server answered.

    Those are the query or its execution, and its preparation if there was one. Closing a statement has no answer
    (client/server protocol, COM_STMT_CLOSE).
    """
    block = metered.block
    prepares = block.status.get("Com_stmt_prepare")
    return None if prepares is None or not block.queries else 1 + prepares / block.queries


def _compute_rate(metered: _MeteredBlock) -> float | None:
    block = metered.block
    seconds = block.solution_s or block.window.window_s
    return None if block.queries is None or not seconds else block.queries / seconds


def _compute_edp(metered: _MeteredBlock) -> float | None:
    joules, mean_ms = _per_query(metered.host.joules, metered.block), metered.block.mean_ms
    return None if joules is None or mean_ms is None else joules * mean_ms / 1e3


def _list_residencies(blocks: Sequence[Block]) -> list[_Values]:
    names = dict.fromkeys(state.name for block in blocks for state in block.window.states if not state.polling)

    def percent(name: str) -> Callable[[_MeteredBlock], float | None]:
        return lambda m: next((state.residency_percent for state in m.block.window.states if state.name == name), None)

    return [_Values(metric_name("residency_percent", name), percent(name)) for name in names]


def _member_metrics(blocks: Sequence[Block], baseline: Baseline, kind: Kind, source: str | None) -> list[_Values]:
    """Return the metrics of each server of a topology, as METRIC:SERVER.

    They are C0, watts above the idle host, connections, commits and relay logs. A rate of 0 in all blocks is left out.
    """
    names = list(dict.fromkeys(share.name for block in blocks for share in block.members))
    values = []
    for name in names:
        values.append(_Values(f"c0_percent:{name}", _share(name, lambda share: share.c0_percent)))
        values.append(_Values(f"watts:{name}", _member_watts(name, baseline), kind, source))
    rates: tuple[Callable[[MemberShare], float | None], ...] = (
        lambda share: share.connections_hz,
        lambda share: share.commits_hz,
        lambda share: share.relay_log_bytes_hz,
    )
    for metric, pick in zip(_RATES_OF_MEMBERS, rates, strict=True):
        values += [_Values(f"{metric}{name}", _share(name, pick)) for name in names]
    return values


def _share(name: str, pick: Callable[[MemberShare], float | None]) -> Callable[[_MeteredBlock], float | None]:
    return lambda m: next((pick(share) for share in m.block.members if share.name == name), None)


def _member_watts(name: str, baseline: Baseline) -> Callable[[_MeteredBlock], float | None]:
    """Return the member's part of the power above the idle host, by its share of C0."""

    def of(metered: _MeteredBlock) -> float | None:
        window = metered.block.window
        cpu_s = next((share.cpu_s for share in metered.block.members if share.name == name), None)
        if cpu_s is None or not window.window_s:
            return None
        split = split_host_energy(
            metered.host,
            window.window_s,
            window.c0_percent,
            window.cpus,
            [Consumer(name=name, c0_s=cpu_s)],
            idle_watts=baseline.watts,
            steal_percent=window.steal_percent,
        )
        return split.parts[0].joules / window.window_s if split and split.parts else None

    return of


def note_below_idle(ends: Iterable[tuple[str, float | None]]) -> list[Note]:
    """Return a note if an interval of a metric net of idle begins below 0; `ends` are names and lower ends."""
    return (
        [Note("below_idle")] if any(name.endswith("_net") and low is not None and low < 0 for name, low in ends) else []
    )
