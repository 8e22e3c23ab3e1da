# SPDX-License-Identifier: Apache-2.0
"""The record of a window: percentages, joules and costs, each of its own whole, with steal and an idle floor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.pg_stat_statements import CountedStatement
from powerprof.database.server_report import ServerReport
from powerprof.energy.split import STOLEN
from powerprof.energy.total import Total, host_energy
from powerprof.model.records import EnergySplit, EstimateRange
from powerprof.model.statements import normalise
from powerprof.queries import pricing
from powerprof.queries.join import Parts
from powerprof.queries.pricing import build_record, find_price, price_share
from powerprof.queries.records import Background, Queries, Share, Statement
from powerprof.queries.target import TracedServer
from tests.unit.queries.windows import (
    CPUS,
    IDLE_WATTS,
    JOULES,
    WAKEUP_JOULES,
    WINDOW_S,
    KnownFloor,
    measured,
    reading,
    window,
)

SERVER = TracedServer(10, "mysqld (10)", "MySQL 8.4.3", None)
ENERGY: Any = KnownFloor()


def built(parts: Parts | None = None, energy: Any = ENERGY, server: TracedServer = SERVER, **more: Any) -> Queries:
    return build_record(server, measured(parts, **more), energy)


def test_the_parts_of_the_server_are_its_cpu_time() -> None:
    record = built()
    parts = sum(one.c0_s for one in [*record.statements, *record.background])
    assert record.server_c0_s == 1.1
    assert record.connections_c0_s == pytest.approx(0.09)
    assert record.residual_c0_s == pytest.approx(1.1 - 0.99)
    assert record.other_c0_s == pytest.approx(0.09 + 0.11)
    assert parts + record.other_c0_s == pytest.approx(record.server_c0_s)
    assert record.explained_percent == pytest.approx(90.0)
    percents = [one.c0_percent or 0.0 for one in [*record.statements, *record.background, record.connections]]
    assert sum(percents) == pytest.approx(90.0)
    assert record.statements[0].c0_percent == pytest.approx(100 * 0.405 / 1.1)
    assert (record.host_c0_percent, record.cpus, record.window_s, record.gap_before_s) == (37.5, CPUS, WINDOW_S, 0.25)
    assert (record.calls_count, record.lost_count, record.unreadable_count, record.cut_count) == (417, 3, 5, 7)
    assert record.notes[:2] == ["a note of the trace", "a note of the window"]
    # Without a count of the kernel, the parts are the whole.
    alone = built(process_cpu_s=None)
    assert (alone.server_c0_s, alone.residual_c0_s, alone.explained_percent) == (pytest.approx(0.99), 0.0, None)


def test_stolen_time_has_no_price_and_no_other_program_gets_it() -> None:
    """37.5 % of 10 CPU seconds ran, of which 0.6 s were stolen: 3.15 s of this host, and 1.1 s of the server."""
    record = built()
    split = record.energy_split
    assert split is not None
    active = JOULES - IDLE_WATTS * WINDOW_S
    rate = (active - WAKEUP_JOULES * 120 * WINDOW_S) / 3.15
    assert (split.total_joules, split.active_joules, split.rate_watts) == (30.0, 20.0, pytest.approx(rate))
    server, others, stolen = split.parts
    wakeups = 60 + 0 + 7
    assert (server.c0_s, server.wakeups_count) == (pytest.approx(1.1), wakeups)
    assert server.joules == pytest.approx(rate * 1.1 + WAKEUP_JOULES * wakeups)
    assert record.joules == server.joules
    assert (others.c0_s, stolen.name, stolen.c0_s) == (pytest.approx(2.05), STOLEN, pytest.approx(0.6))
    assert others.joules == pytest.approx(rate * 2.05)
    assert split.residual_joules == pytest.approx(WAKEUP_JOULES * (120 * WINDOW_S - wakeups))
    # A server that ran longer than the host's clock shows leaves no time to others.
    assert built(window=window(c0_percent=10.0)).energy_split.parts[1].c0_s == 0.0  # type: ignore[union-attr]
    unknown = built(window=window(steal_percent=None)).energy_split
    assert unknown is not None and unknown.parts[1].c0_s == pytest.approx(3.75 - 1.1)


def test_each_part_has_the_joules_of_its_time_and_its_wakeups() -> None:
    record = built()
    assert record.energy_split is not None and record.energy_split.rate_watts is not None
    rate = record.energy_split.rate_watts
    for part in [*record.statements, *record.background, record.connections]:
        joules = rate * part.c0_s + WAKEUP_JOULES * (part.wakeups_count or 0)
        assert (part.joules, part.watts) == (pytest.approx(joules), pytest.approx(joules / WINDOW_S))
        assert part.kind == "measured"
        if isinstance(part, Statement) and part.calls_count and not part.unfinished_count:
            assert part.joules_per_call == pytest.approx(joules / part.calls_count)
    burn = record.statements[0]
    # Of one call and a part of another one.
    assert (burn.calls_count, burn.unfinished_count, burn.joules_per_call) == (2, 1, pytest.approx(rate * 0.3))
    every = [*record.statements, *record.background, record.connections]
    assert sum(part.joules or 0.0 for part in every) + rate * record.residual_c0_s == pytest.approx(record.joules)
    assert all(not part.children for part in record.energy_split.parts)


@given(
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=4),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2.0),
    st.floats(0.0, 60.0),
    st.floats(0.1, 9.0),
)
def test_the_parts_of_any_server_are_the_whole_in_seconds_percent_and_joules(
    times: list[float], background_s: float, residual_s: float, steal_percent: float, window_s: float
) -> None:
    parts = Parts(
        statements=[Statement(text=normalise(f"SELECT a{at}"), c0_s=s, calls_count=3) for at, s in enumerate(times)],
        background=[Background(thread="x", threads_count=1, c0_s=background_s, wakeups_count=2)],
        connections=Share(c0_s=0.125),
        connections_count=1,
    )
    whole_s = sum(times) + background_s + 0.125 + residual_s
    record = built(
        parts,
        window_s=window_s,
        process_cpu_s=whole_s,
        window=window(
            c0_percent=99.0, steal_percent=steal_percent, energy=[reading(joules=40.0 * window_s, watts=40.0)]
        ),
    )
    every: list[Share] = [*record.statements, *record.background, record.connections]
    assert sum(part.c0_s for part in every) + record.residual_c0_s == pytest.approx(whole_s)
    assert sum(part.c0_percent or 0.0 for part in every) == pytest.approx(100 * (1 - residual_s / whole_s))
    split = record.energy_split
    assert split is not None
    assert sum(part.joules or 0.0 for part in every) + (split.rate_watts or 0.0) * residual_s == pytest.approx(
        record.joules
    )
    total = (split.idle_joules or 0.0) + sum(part.joules for part in split.parts) + split.residual_joules
    assert total == pytest.approx(split.total_joules)
    # The record has the interval of the meter in all parts, or in none.
    assert {part.low_joules is None for part in every} == {True}


def test_tracing_and_powerprof_cost_their_shares_of_all_cpus() -> None:
    record = built()
    assert record.tracing.probes_ms == pytest.approx(20.0)
    assert record.tracing.percent == pytest.approx(100 * 0.02 / 10)
    assert record.tracing.per_call_us == pytest.approx(40.0)
    assert (record.tool.cpu_s, record.tool.bpf_s, record.tool.lost_count) == (0.05, 0.015, 3)
    assert (record.tool.wakeups_hz, record.tool.cpu_percent) == (pytest.approx(4.0), pytest.approx(0.5))
    unknown = built(cost_s=None, bpf_s=None, seen_count=0, window=window(tool_cpu_s=None, tool_wakeups_count=None))
    assert (unknown.tracing.probes_ms, unknown.tracing.percent, unknown.tracing.per_call_us) == (None, None, None)
    assert (unknown.tool.cpu_s, unknown.tool.wakeups_hz, unknown.tool.cpu_percent) == (None, None, None)
    assert built(seen_count=0).tracing.per_call_us is None


def test_the_server_of_a_record_is_described_by_what_is_known_of_it() -> None:
    record = built(version="MySQL of the program", known=ServerReport(has_digests=True))
    assert (record.server.version, record.server.performance_schema) == ("MySQL 8.4.3", True)
    unnamed = TracedServer(11, "postgres (11)", None, None, "postgresql")
    record = built(server=unnamed, version="PostgreSQL 15.14")
    assert (record.server.version, record.server.pid, record.server.family) == ("PostgreSQL 15.14", 11, "postgresql")
    assert (record.server.address, record.server.performance_schema) == (None, False)


def test_without_energy_or_a_floor_nothing_has_joules() -> None:
    for changes in ({"energy": KnownFloor(None)}, {"window": window(energy=[])}, {"window": window(c0_percent=None)}):
        record = built(**changes)
        assert record.joules is None
        for part in [*record.statements, *record.background, record.connections]:
            assert (part.joules, part.low_joules, part.high_joules, part.watts, part.kind) == (None,) * 5
        assert record.statements[0].joules_per_call is None
        assert record.statements[0].c0_percent is not None
        assert str(record.notes[-1]).startswith("no joules by statement")


SPLIT = EnergySplit(
    total_joules=30.0,
    kind="measured",
    source="rapl",
    idle_joules=10.0,
    active_joules=20.0,
    parts=[],
    residual_joules=0.0,
)


def interval(
    split: EnergySplit = SPLIT, whole: Total | None = None, **estimated: Any
) -> tuple[float | None, float | None]:
    total = whole or host_energy([reading(**estimated)])
    return pricing._find_interval(split, total, [reading(**estimated)])


def test_the_interval_of_joules_is_that_of_the_energy_above_the_floor() -> None:
    slope = EstimateRange(
        idle_watts=3.0,
        idle_low_watts=2.0,
        idle_high_watts=5.0,
        slope_watts=8.0,
        slope_low_watts=6.0,
        slope_high_watts=14.0,
    )
    assert interval(range=slope) == (0.75, 1.75)
    other = reading(source="model", range=slope)
    assert pricing._find_interval(SPLIT, host_energy([reading()]), [other]) == (None, None)
    floor = msgspec.structs.replace(SPLIT, active_low_joules=15.0, active_high_joules=26.0)
    assert interval(floor) == (0.75, 1.3)
    # 12 W for 2.5 s, and 1 W less or 1.5 W more: 2.5 and 3.75 J of 20 J above the floor.
    low, high = interval(low_watts=11.0, high_watts=13.5)
    assert (low, high) == (pytest.approx(0.875), pytest.approx(1.1875))
    low, high = interval(low_watts=2.0, high_watts=30.0)
    assert (low, high) == (0.0, pytest.approx(3.25))
    assert interval() == (None, None)
    assert interval(msgspec.structs.replace(SPLIT, active_joules=-1.0), low_watts=11.0, high_watts=13.5) == (None, None)


def test_a_share_has_the_interval_of_its_joules() -> None:
    consumers = [pricing.build_consumer("s", [Share(c0_s=0.5, wakeups_count=9), Share(c0_s=1.5)], 0.25)]
    assert (consumers[0].c0_s, consumers[0].wakeups_count) == (2.25, 9)
    total = host_energy([reading(low_watts=11.0, high_watts=13.5)])
    split = ENERGY.split(total, WINDOW_S, CPUS, 37.5, consumers, steal_percent=6.0)
    price = find_price(split, "s", total, [reading(low_watts=11.0, high_watts=13.5)])
    assert price is not None
    second = price_share(Share(c0_s=1.5), 1, 2.25, price, WINDOW_S)
    joules = 20.0 / 3.15 * 1.5
    assert second.joules == pytest.approx(joules)
    assert (second.low_joules, second.high_joules) == (pytest.approx(joules * 0.875), pytest.approx(joules * 1.1875))
    assert second.c0_percent == pytest.approx(100 * 1.5 / 2.25)
    sampled = price_share(Share(c0_s=1.5, c0_percent=12.5), 1, 2.25, price, WINDOW_S)
    assert sampled.c0_percent == 12.5
    assert find_price(split, "another", total, []) is None
    assert price_share(Share(c0_s=1.5), 1, 2.25, price, 0.0).watts is None
    assert price_share(Share(c0_s=0.0), 1, 0.0, None, WINDOW_S).c0_percent is None


COUNTED = (8, 41, 30, 22, 14, 6, 4, 3)


def test_row_counters_are_per_call_of_the_server_and_not_of_the_trace() -> None:
    """The trace has 40 calls of which the server has counted 8 since its last look."""
    text = "SELECT c FROM t WHERE id = ?"
    statement = Statement(text=normalise(text), schema_name="shop", c0_s=1.0, calls_count=40)
    known = ServerReport(digests={("shop", "SELECT `c` FROM `t` WHERE `id` = ?"): COUNTED}, has_digests=True)
    parts = Parts(statements=[statement], background=[], connections=Share(c0_s=0.0), connections_count=1)
    (row,) = built(parts, known=known).statements
    assert (row.rows_examined_per_call, row.rows_sent_per_call, row.rows_affected_per_call) == (5.125, 3.75, 2.75)
    assert (row.tmp_tables_per_call, row.tmp_disk_tables_per_call, row.full_scans_per_call) == (1.75, 0.75, 0.5)
    assert (row.errors_count, row.calls_count) == (3, 40)
    unknown = Statement(text=normalise("SELECT 1"), schema_name="shop", c0_s=1.0, calls_count=40)
    (row,) = pricing.add_row_counts([unknown], known.digests)
    assert (row.rows_sent_per_call, row.errors_count) == (None, None)


def test_rows_of_postgresql_are_those_of_all_lengths_of_a_list() -> None:
    text = "SELECT a FROM t WHERE b IN (1, 2)"
    statement = Statement(text=normalise(text, "postgresql"), schema_name="shop", c0_s=1.0, calls_count=40)
    parts = Parts(statements=[statement], background=[], connections=Share(c0_s=0.0), connections_count=1)
    known = ServerReport(
        statistics={
            ("shop", "SELECT a FROM t WHERE b IN ($1, $2)"): CountedStatement(6, 45, 7),
            ("shop", "SELECT a FROM t WHERE b IN ($1, $2, $3)"): CountedStatement(2, 5, 7),
            ("mall", "SELECT a FROM t WHERE b IN ($1, $2)"): CountedStatement(900, 1, 9),
        }
    )
    postgres = TracedServer(11, "postgres (11)", None, None, "postgresql")
    (row,) = built(parts, server=postgres, known=known).statements
    assert (row.rows_sent_per_call, row.query_id) == (6.25, "7")
    # MariaDB and MySQL have no such counters.
    (row,) = built(parts, known=known).statements
    assert (row.rows_sent_per_call, row.query_id) == (None, None)
