# SPDX-License-Identifier: Apache-2.0
"""Percentages, joules and costs of the parts of a measured window, and its record."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec

from powerprof import __version__
from powerprof.database.pg_stat_statements import CountedStatement, Statistics
from powerprof.database.server_report import DIGEST_COUNTERS, ServerReport
from powerprof.energy.split import Consumer
from powerprof.energy.total import Total, host_energy
from powerprof.energy.windows import WindowEnergy
from powerprof.model.records import Ended, EnergyPart, EnergyReading, EnergySplit, Note, Notes, ToolCost, Window
from powerprof.model.statements import make_key
from powerprof.queries.join import Parts
from powerprof.queries.records import Method, Queries, QueryServer, Share, Statement, StatementSlicing, TracingCost
from powerprof.queries.target import TracedServer
from powerprof.system.next_steps import command_line

S = TypeVar("S", bound=Share)
Digests = Mapping[tuple[str | None, str], tuple[int, ...]]


_MEAN_FIELDS = {
    "examined": "rows_examined_per_call",
    "sent": "rows_sent_per_call",
    "affected": "rows_affected_per_call",
    "tmp": "tmp_tables_per_call",
    "tmp_disk": "tmp_disk_tables_per_call",
    "scans": "full_scans_per_call",
}


def build_consumer(label: str, parts: Sequence[Share], residual_c0_s: float) -> Consumer:
    """Return the server as a consumer of energy, with its parts in order and the residual last."""
    children = [
        *(Consumer(name=str(number), c0_s=part.c0_s, wakeups_count=part.wakeups_count or 0)
          for number, part in enumerate(parts)),
        Consumer(name="residual", c0_s=residual_c0_s),
    ]  # fmt: skip
    return Consumer(
        name=label,
        c0_s=sum(child.c0_s for child in children),
        wakeups_count=sum(child.wakeups_count for child in children),
        children=tuple(children),
    )


class Pricing(msgspec.Struct, frozen=True):
    """The server's part of the host's energy; `low` and `high` are factors, None without an interval."""

    part: EnergyPart
    split: EnergySplit
    low: float | None
    high: float | None


def find_price(
    split: EnergySplit | None, label: str, whole: Total, readings: Sequence[EnergyReading]
) -> Pricing | None:
    """Return the price of the parts; None without an energy figure or an idle floor."""
    part = next((part for part in split.parts if part.name == label), None) if split is not None else None
    if split is None or part is None:
        return None
    low, high = _find_interval(split, whole, readings)
    return Pricing(part, split, low, high)


def _find_interval(
    split: EnergySplit, whole: Total, readings: Sequence[EnergyReading]
) -> tuple[float | None, float | None]:
    """Return the factors of the interval of joules above the idle floor.

    They come from the slope of an estimate, or from the error of a meter.
    """
    model = next(
        (reading.range for reading in readings if reading.source == whole.source and reading.range is not None), None
    )
    if model is not None and model.slope_watts > 0:
        return model.slope_low_watts / model.slope_watts, model.slope_high_watts / model.slope_watts
    active, watts = split.active_joules, whole.watts
    if split.active_low_joules is not None and split.active_high_joules is not None and active:
        return split.active_low_joules / active, split.active_high_joules / active
    if None in (whole.low_watts, whole.high_watts) or not active or active <= 0 or not watts or not whole.joules:
        return None, None
    seconds = whole.joules / watts
    assert whole.low_watts is not None and whole.high_watts is not None  # noqa: S101
    low = 1 + (whole.low_watts - watts) * seconds / active
    return max(low, 0.0), 1 + (whole.high_watts - watts) * seconds / active


def price_share(part: S, number: int, server_c0_s: float, pricing: Pricing | None, window_s: float) -> S:
    """Return a part with its joules, and its percentage of the server's CPU time unless samples have counted it."""
    percent = part.c0_percent
    if percent is None and server_c0_s > 0:
        percent = 100 * (part.c0_s / server_c0_s)  # In this order a share of 1 is exactly 100.
    if pricing is None:
        return msgspec.structs.replace(part, c0_percent=percent)
    joules = pricing.part.children[number].joules
    share = msgspec.structs.replace(
        part,
        c0_percent=percent,
        joules=joules,
        low_joules=None if pricing.low is None else joules * pricing.low,
        high_joules=None if pricing.high is None else joules * pricing.high,
        watts=joules / window_s if window_s > 0 else None,
        kind=pricing.split.kind,
    )
    if isinstance(share, Statement) and share.c0_ms_per_call is not None and share.c0_s > 0:
        return msgspec.structs.replace(share, joules_per_call=joules * share.c0_ms_per_call / (1e3 * share.c0_s))
    return share


def drop_children(split: EnergySplit) -> EnergySplit:
    """Return the host's split without the server's parts, which are rows of the record with their joules."""
    parts = [msgspec.structs.replace(part, children=[], residual_joules=None) for part in split.parts]
    return msgspec.structs.replace(split, parts=parts)


def add_row_counts(statements: Sequence[Statement], digests: Digests) -> list[Statement]:
    """Return the statements with the server's row counters by schema and text, per call of its own count.

    The only row of a text has the counts of all schemas if its own is unknown.
    """
    counted: dict[str, dict[str | None, list[int]]] = defaultdict(
        lambda: defaultdict(lambda: [0] * len(DIGEST_COUNTERS))
    )
    for (schema, text), counts in digests.items():
        by_schema = counted[make_key(text)]
        by_schema[schema] = [was + now for was, now in zip_longest(by_schema[schema], counts, fillvalue=0)]
    if not counted:
        return list(statements)
    keys = [make_key(statement.text) for statement in statements]
    rows = Counter(keys)
    with_counts = []
    for statement, key in zip(statements, keys, strict=True):
        by_schema = counted.get(key, {})
        is_whole = statement.schema_name is None and rows[key] == 1
        shares = list(by_schema.values()) if is_whole else [by_schema.get(statement.schema_name, [])]
        named = dict(zip(DIGEST_COUNTERS, map(sum, zip_longest(*shares, fillvalue=0)), strict=False))
        if named.get("calls"):
            means = {field: named[name] / named["calls"] for name, field in _MEAN_FIELDS.items()}
            with_counts.append(msgspec.structs.replace(statement, errors_count=named["errors"], **means))
        else:
            with_counts.append(statement)
    return with_counts


def add_statistics(statements: Sequence[Statement], statistics: Statistics) -> list[Statement]:
    """Return the statements with rows per call and number of pg_stat_statements.

    Query ids of several lengths of a list are one statement here, which then has no number.
    """
    by_key: dict[tuple[str | None, str], list[CountedStatement]] = defaultdict(list)
    for (schema, text), counts in statistics.items():
        by_key[schema, make_key(text, "postgresql")].append(counts)
    with_counts = []
    for statement in statements:
        found = by_key.get((statement.schema_name, make_key(statement.text, "postgresql")), [])
        if not found:
            with_counts.append(statement)
            continue
        numbers = {counts.query_id for counts in found}
        number = numbers.pop() if len(numbers) == 1 else None
        sent = sum(counts.rows for counts in found) / sum(counts.calls for counts in found)
        with_counts.append(
            msgspec.structs.replace(
                statement, rows_sent_per_call=sent, query_id=None if number is None else str(number)
            )
        )
    return with_counts


class MeasuredStatements(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a window of probes or samples.

    Attributes:
        process_cpu_s: The kernel's count for the process; None without one.
        cost_s: CPU time of the measurement, for `seen_count` statements.
        calls_count: All statements of the window; None if unknown.
        version: The server's version from its program, if it is not queried.
        gap_before_s: Time since the previous window.
        bpf_s, entry_s, cost_percent, max_cost_percent: see `ToolCost`.
        slicing: If only slices of the window were traced.
    """

    method: Method
    parts: Parts
    known: ServerReport
    window: Window
    window_s: float
    process_cpu_s: float | None
    cost_s: float | None
    bpf_s: float | None
    seen_count: int
    calls_count: int | None
    notes: Notes
    version: str | None = None
    gap_before_s: float | None = None
    lost_count: int = 0
    unreadable_count: int = 0
    cut_count: int = 0
    ended: Ended | None = None
    entry_s: float | None = None
    cost_percent: float | None = None
    max_cost_percent: float | None = None
    slicing: StatementSlicing | None = None


def build_record(
    server: TracedServer, measured: MeasuredStatements, energy: WindowEnergy, host: dict[str, Any] | None = None
) -> Queries:
    """Return the record of a window. `host`: its description, if it is known; to make it takes some milliseconds."""
    from powerprof.host.describe import host_record

    window, parts = measured.window, measured.parts
    shares: list[Share] = [*parts.statements, *parts.background, parts.connections]
    explained_s = sum(part.c0_s for part in shares)
    server_s = explained_s if measured.process_cpu_s is None else measured.process_cpu_s
    residual_s = server_s - explained_s
    whole, cpus = host_energy(window.energy), window.cpus or os.cpu_count() or 1
    host_s = measured.window_s * cpus
    ran_percent = (window.c0_percent or 0.0) - (window.steal_percent or 0.0)
    others_s = max(ran_percent / 100 * host_s - server_s, 0.0)
    split = energy.split(
        whole,
        measured.window_s,
        cpus,
        window.c0_percent,
        [build_consumer(server.label, shares, residual_s), Consumer(name="all else on this host", c0_s=others_s)],
        wakeups_count=(window.wakeups_hz or 0.0) * measured.window_s,
        steal_percent=window.steal_percent,
    )
    price = find_price(split, server.label, whole, window.energy)
    priced = [price_share(entry, at, server_s, price, measured.window_s) for at, entry in enumerate(shares)]
    count = len(parts.statements)
    statements = add_row_counts(priced[:count], measured.known.digests)  # type: ignore[arg-type]
    if server.family == "postgresql":
        statements = add_statistics(statements, measured.known.statistics)
    cost_s = measured.cost_s
    return Queries(
        started_at=window.started_at,
        window_s=measured.window_s,
        gap_before_s=measured.gap_before_s,
        method=measured.method,
        server=QueryServer(
            pid=server.pid,
            label=server.label,
            version=server.version or measured.version,
            address=server.login.text if server.login is not None else None,
            performance_schema=measured.known.has_digests,
            family=server.family,
        ),
        host=host or host_record(),
        cpus=cpus,
        host_c0_percent=window.c0_percent,
        server_c0_s=server_s,
        statements=statements,
        background=priced[count:-1],  # type: ignore[arg-type]
        connections=priced[-1],
        connections_count=parts.connections_count,
        connections_c0_s=parts.connections.c0_s,
        residual_c0_s=residual_s,
        other_c0_s=parts.connections.c0_s + residual_s,
        explained_percent=100 * (explained_s / server_s)
        if server_s > 0 and measured.process_cpu_s is not None
        else None,
        calls_count=measured.calls_count,
        lost_count=measured.lost_count,
        unreadable_count=measured.unreadable_count,
        cut_count=measured.cut_count,
        joules=price.part.joules if price is not None else None,
        kind=whole.kind,
        energy_source=energy.source,
        energy=window.energy,
        energy_split=None if split is None else drop_children(split),
        tracing=TracingCost(
            probes_ms=None if cost_s is None else 1e3 * cost_s,
            percent=None if cost_s is None else 100 * cost_s / host_s,
            per_call_us=None if cost_s is None or not measured.seen_count else 1e6 * cost_s / measured.seen_count,
        ),
        tool=ToolCost(
            version=__version__,
            cpu_s=window.tool_cpu_s,
            wakeups_hz=None if window.tool_wakeups_count is None else window.tool_wakeups_count / measured.window_s,
            bpf_s=measured.bpf_s,
            cpu_percent=None if window.tool_cpu_s is None else 100 * window.tool_cpu_s / host_s,
            lost_count=measured.lost_count,
            entry_s=measured.entry_s,
            cost_percent=measured.cost_percent,
            max_cost_percent=measured.max_cost_percent,
        ),
        slicing=measured.slicing,
        notes=[*measured.notes, *_note_partial_calls(statements), *window.notes, *_note_energy(price)],
        ended=measured.ended,
    )


def _note_partial_calls(statements: Sequence[Statement]) -> list[Note]:
    """Return a note if statements have calls, and each call began before the window or had not ended."""
    partial = [
        one
        for one in statements
        if one.calls_count and one.began_before_count + one.unfinished_count > 0 and one.c0_ms_per_call is None
    ]
    return [Note("calls_partial", {"count": len(partial)})] if partial else []


def _note_energy(price: Pricing | None) -> Notes:
    if price is not None:
        return price.split.notes
    return [f"no joules by statement: a share of them needs an idle floor ({command_line('energy --calibrate')})"]
