# SPDX-License-Identifier: Apache-2.0
"""Pure: percentages, joules and rows put to the parts, so that they sum to what the server used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import msgspec

from powerprof.database.clients.performance import COUNTED
from powerprof.database.clients.statstatements import Statistics
from powerprof.energy.domains import Total
from powerprof.energy.split import Consumer
from powerprof.queries.records import Share, Statement
from powerprof.records import EnergyPart, EnergyReading, EnergySplit
from powerprof.statements.normal import key

S = TypeVar("S", bound=Share)
Digests = Mapping[tuple[str | None, str], tuple[int, ...]]


_MEANS = {
    "examined": "rows_examined_per_call",
    "sent": "rows_sent_per_call",
    "affected": "rows_affected_per_call",
    "tmp": "tmp_tables_per_call",
    "tmp_disk": "tmp_disk_tables_per_call",
    "scans": "full_scans_per_call",
}


def consumer(label: str, parts: Sequence[Share], residual_c0_s: float) -> Consumer:
    """The server as one that used energy, its parts below it in their order, what no part explains last."""
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


@dataclass(frozen=True)
class Pricing:
    """The server's part of the host's energy; `low` and `high` are factors, None where no interval is known."""

    part: EnergyPart
    split: EnergySplit
    low: float | None
    high: float | None


def pricing(split: EnergySplit | None, label: str, whole: Total, readings: Sequence[EnergyReading]) -> Pricing | None:
    """What the parts are priced by; None where nothing can be: no figure, or no idle floor."""
    part = next((part for part in split.parts if part.name == label), None) if split is not None else None
    if split is None or part is None:
        return None
    low, high = _factors(split, whole, readings)
    return Pricing(part, split, low, high)


def _factors(split: EnergySplit, whole: Total, readings: Sequence[EnergyReading]) -> tuple[float | None, float | None]:
    """Within which factors joules above the idle floor are known: an estimate's by its slope, a meter's by its own."""
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


def priced(part: S, number: int, server_c0_s: float, pricing: Pricing | None, window_s: float) -> S:
    """A part with its joules and its percentage of the server's CPU time: its own where it was counted, not timed."""
    percent = part.c0_percent
    if percent is None and server_c0_s > 0:
        percent = 100 * (part.c0_s / server_c0_s)  # this way all of it is 100, not the float after it
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
    if isinstance(share, Statement) and share.calls_count:
        return msgspec.structs.replace(share, joules_per_call=joules / share.calls_count)
    return share


def without_children(split: EnergySplit) -> EnergySplit:
    """The host's split by itself: the server's parts are rows of the record, each with its joules."""
    parts = [msgspec.structs.replace(part, children=[], residual_joules=None) for part in split.parts]
    return msgspec.structs.replace(split, parts=parts)


def with_rows(statements: Sequence[Statement], digests: Digests) -> list[Statement]:
    """The statements with the rows that the server counted for them, by schema and text, in its own number of calls."""
    counted: dict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0] * len(COUNTED))
    for (schema, text), counts in digests.items():
        for where in {(schema, key(text)), (None, key(text))}:
            counted[where] = [was + now for was, now in zip_longest(counted[where], counts, fillvalue=0)]
    if not counted:
        return list(statements)
    with_counts = []
    for statement in statements:
        sums = counted.get((statement.schema_name, key(statement.text)))
        named = dict(zip(COUNTED, sums or (), strict=False))
        if named.get("calls") and not statement.began_before:
            means = {field: named[name] / named["calls"] for name, field in _MEANS.items()}
            with_counts.append(msgspec.structs.replace(statement, errors_count=named["errors"], **means))
        else:
            with_counts.append(statement)
    return with_counts


def with_statistics(statements: Sequence[Statement], statistics: Statistics) -> list[Statement]:
    """The statements with what pg_stat_statements counted for them: rows in its own number of calls, and its number."""
    by_key = {(schema, key(text, "postgresql")): counts for (schema, text), counts in statistics.items()}
    with_counts = []
    for statement in statements:
        counts = by_key.get((statement.schema_name, key(statement.text, "postgresql")))
        if counts is None or statement.began_before:
            with_counts.append(statement)
            continue
        number = None if counts.query_id is None else str(counts.query_id)
        with_counts.append(
            msgspec.structs.replace(statement, rows_sent_per_call=counts.rows / counts.calls, query_id=number)
        )
    return with_counts
