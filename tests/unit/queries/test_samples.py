# SPDX-License-Identifier: Apache-2.0
"""Windows with samples: the share of each part, and the calls."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.pg_stat_statements import CountedStatement
from powerprof.database.server_report import ServerReport, list_own_statements
from powerprof.model.identities import Family
from powerprof.queries import pricing
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import ProbeTrial
from powerprof.queries.records import Share, Statement
from powerprof.queries.samples import Samples, _count_all_calls, join_moments
from powerprof.queries.target import ServerTime, TracedServer
from powerprof.statistics.counts import proportion
from powerprof.tracing.bpf.shared_numbers import COM_QUERY
from powerprof.tracing.captures import RecordedText
from powerprof.tracing.statement_samples import SampledThread, StatementSamples
from tests.unit.queries.windows import KnownFloor, window

POINT, POINT_TOO, BURN, UNREADABLE = 1001, 1002, 1003, 3
KNOWN = ServerReport(
    threads={11: "thread/sql/one_connection", 12: "thread/sql/one_connection", 13: "thread/innodb/page_cleaner_thread"},
    schemas={11: "shop", 12: "shop"},
    digests={("shop", "SELECT `c` FROM `t` WHERE `id` = ?"): (40, 40, 40)},
)


def moments(met: list[SampledThread], family: Family = "mysql") -> StatementSamples:
    texts = [
        RecordedText(POINT, COM_QUERY, 26, b"SELECT c FROM t WHERE id=7"),
        RecordedText(POINT_TOO, COM_QUERY, 28, b"SELECT c FROM t WHERE id = 8"),
        RecordedText(BURN, COM_QUERY, 21, b"SELECT BENCHMARK(9,1)"),
    ]
    return StatementSamples(
        family=family,
        met=met,
        texts=texts,
        events_count=1000,
        lost_count=0,
        unreadable_count=0,
        cut_count=0,
        bpf_s=0.001,
        cost_s=0.002,
    )


def met(id: int, tid: int, count: int, is_client: bool = False) -> SampledThread:
    return SampledThread(id, tid, is_client, count, "mysqld")


def test_samples_between_messages_may_belong_to_the_statements_of_their_thread() -> None:
    rows = [met(POINT, 11, 60, True), met(0, 11, 30, True), met(BURN, 12, 100, True), met(0, 12, 0, True)]
    rows += [met(POINT, 13, 10, True), met(0, 13, 20, True), met(0, 14, 80, True)]
    parts, count = join_moments(moments(rows, "postgresql"), ServerReport(), 3.0, 4.0)
    burn, point = parts.statements
    assert (count, parts.connections.c0_s) == (300, pytest.approx(1.3))
    assert (point.c0_percent, burn.c0_percent) == (pytest.approx(70 / 3), pytest.approx(100 / 3))
    # 70 samples are its own; 50 more are of its two threads.
    assert point.high_percent == proportion(120, 300).high_percent
    assert (point.low_percent, burn.high_percent) == (
        proportion(70, 300).low_percent,
        proportion(100, 300).high_percent,
    )
    plain, _ = join_moments(moments(rows), ServerReport(), 3.0, 4.0)
    assert plain.statements[1].high_percent == proportion(70, 220, of=300).high_percent


def test_percentages_sum_to_all_and_none_is_beyond_its_interval_or_the_server() -> None:
    draw = random.Random(5)
    for _ in range(300):
        counts = [draw.randint(1, 400) for _ in range(draw.choice((1, 1, 2, 4)))]
        ids = [POINT, BURN, 0, 0]
        rows = [met(ids[at], 13 if at == 3 else 11, count) for at, count in enumerate(counts)]
        cpu_s = draw.uniform(1e-3, 30)
        parts, _ = join_moments(moments(rows), KNOWN, cpu_s, 4.0)
        every = [pricing.price_share(one, 0, cpu_s, None, 4.0) for one in [*parts.statements, *parts.background]]
        percents = [one.c0_percent or 0.0 for one in [*every, parts.connections]]
        assert sum(percents) == pytest.approx(100)
        assert max(percents) <= 100
        assert sum(one.c0_s for one in [*every, parts.connections]) == pytest.approx(cpu_s)
        for one in every:
            if isinstance(one, Statement):
                assert one.c0_percent is not None
                assert one.low_percent is not None
                assert one.high_percent is not None
                assert one.low_percent <= one.c0_percent <= one.high_percent


def test_all_of_a_timed_server_is_100_percent() -> None:
    draw = random.Random(7)
    times = [draw.uniform(1e-6, 100) for _ in range(1000)]
    assert {pricing.price_share(Share(c0_s=s), 0, s, None, 1.0).c0_percent for s in times} == {100.0}


def test_a_thread_that_works_by_itself_is_background_whatever_it_executes() -> None:
    known = ServerReport(threads={14: "thread/sql/slave_sql"})
    parts, _ = join_moments(moments([met(BURN, 14, 5)]), known, 1.0, 1.0)
    assert (parts.statements, [one.thread for one in parts.background]) == ([], ["thread/sql/slave_sql"])


def test_of_a_server_that_is_not_asked_threads_with_a_statement_are_connections() -> None:
    rows = [met(POINT, 21, 5), met(0, 21, 3), met(0, 22, 2)]
    parts, _ = join_moments(moments(rows), ServerReport(), 1.0, 1.0)
    assert parts.connections.c0_s == pytest.approx(0.3)
    assert [(one.thread, one.c0_s) for one in parts.background] == [("mysqld", pytest.approx(0.2))]


def test_processes_of_clients_are_told_by_themselves_and_workers_are_no_clients() -> None:
    known = ServerReport(threads={10: "postmaster", 31: "backend of shop"}, schemas={31: "shop"})
    rows = [
        met(POINT, 31, 4, is_client=True),
        met(POINT, 32, 4),  # a parallel worker
        met(0, 33, 1, is_client=True),  # born and gone
        met(0, 34, 1),  # autovacuum's, gone
    ]
    parts, _ = join_moments(moments(rows, "postgresql"), known, 1.0, 1.0)
    (statement,) = parts.statements
    assert (statement.c0_s, statement.schema_name) == (pytest.approx(0.8), "shop")
    assert parts.connections.c0_s == pytest.approx(0.1)
    assert [one.thread for one in parts.background] == ["ended processes"]
    assert parts.connections_count == 2


def test_what_a_worker_does_before_and_after_its_statement_is_part_of_it() -> None:
    rows = [met(POINT, 31, 4, is_client=True), met(POINT, 32, 4), met(0, 32, 2), met(0, 34, 1)]
    parts, _ = join_moments(moments(rows, "postgresql"), ServerReport(threads={31: "backend of shop"}), 1.0, 1.0)
    (statement,) = parts.statements
    assert statement.c0_s == pytest.approx(10 / 11)
    assert [one.c0_s for one in parts.background] == [pytest.approx(1 / 11)]


NAMED = {11: "thread/sql/one_connection"}
CALLED = "SELECT `c` FROM `t` WHERE `id` = ?"


@pytest.mark.parametrize(
    ("schemas", "rows", "digests", "shown"),
    [
        # Short connections: gone before the server is queried, with one that stays.
        ({11: "shop"}, [(11, 46), (21, 31)], {("shop", CALLED): 64_400}, [("shop", 77, 64_400)]),
        # All are gone, and the server has counted one schema.
        ({}, [(21, 46), (22, 31)], {("shop", CALLED): 64_400}, [("shop", 77, 64_400)]),
        # Several schemas: the counts cannot be divided among the connections that are gone.
        ({11: "shop"}, [(11, 46), (21, 31)], {("shop", CALLED): 40, ("mall", CALLED): 60}, [(None, 77, 100)]),
        ({11: "shop", 12: "mall"}, [(11, 4), (12, 5), (21, 6)], {("shop", CALLED): 40}, [(None, 15, 40)]),
        # All connections are known.
        (
            {11: "shop", 12: "mall"},
            [(11, 4), (12, 5)],
            {("shop", CALLED): 40, ("mall", CALLED): 60},
            [("shop", 4, 40), ("mall", 5, 60)],
        ),
        ({11: "shop"}, [(11, 4)], {("shop", CALLED): 40, ("mall", CALLED): 60}, [("shop", 4, 40)]),
        # Without a schema, as the server counts it too.
        ({}, [(21, 4)], {(None, CALLED): 40}, [(None, 4, 40)]),
        ({11: "shop"}, [(11, 4), (21, 5)], {("shop", CALLED): 30, (None, CALLED): 40}, [(None, 9, 70)]),
        # The server counts nothing, or another statement.
        ({11: "shop"}, [(11, 46), (21, 31)], {}, [("shop", 77, None)]),
        (
            {11: "shop", 12: "mall"},
            [(11, 4), (12, 5), (21, 6)],
            {},
            [("shop", 4, None), ("mall", 5, None), (None, 6, None)],
        ),
        ({11: "shop"}, [(11, 4)], {("shop", "SELECT ?"): 5}, [("shop", 4, None)]),
        # Two digests of one normal form.
        (
            {11: "shop"},
            [(11, 4)],
            {("shop", CALLED): 40, ("shop", "SELECT `c` FROM `t` WHERE `id` = - ?"): 2},
            [("shop", 4, 42)],
        ),
    ],
)
def test_each_statement_has_its_calls_once(
    schemas: dict[int, str],
    rows: list[tuple[int, int]],
    digests: dict[tuple[str | None, str], int],
    shown: list[tuple[str | None, int, int | None]],
) -> None:
    known = ServerReport(
        threads=dict.fromkeys(schemas, "thread/sql/one_connection"),
        schemas=schemas,
        digests={name: (count, 0, 0) for name, count in digests.items()},
    )
    total = sum(count for _, count in rows)
    parts, _ = join_moments(moments([met(POINT, tid, count) for tid, count in rows]), known, float(total), 1.0)
    found = {(one.schema_name, round(one.c0_s), one.calls_count) for one in parts.statements}
    assert found == set(shown)
    assert len(parts.statements) == len(shown)


def test_calls_are_unknown_where_performance_schema_lost_some() -> None:
    """The lost ones may be those of another schema."""
    known = ServerReport(digests={("shop", CALLED): (40, 0, 0)}, has_digests=True, lost_digests_count=7)
    parts, _ = join_moments(moments([met(POINT, 21, 4)]), known, 1.0, 1.0)
    assert [(one.schema_name, one.calls_count) for one in parts.statements] == [(None, None)]


@given(
    st.dictionaries(st.integers(11, 14), st.sampled_from(("shop", "mall"))),
    st.lists(st.integers(11, 18), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(("shop", "mall", None)), st.integers(1, 99)),
)
def test_no_call_is_counted_twice(schemas: dict[int, str], tids: list[int], counted: dict[str | None, int]) -> None:
    digests = {(schema, CALLED): (count, 0, 0) for schema, count in counted.items()}
    known = ServerReport(threads=NAMED, schemas=schemas, digests=digests)
    parts, _ = join_moments(moments([met(POINT, tid, 1) for tid in set(tids)]), known, 1.0, 1.0)
    assert sum(one.calls_count or 0 for one in parts.statements) <= sum(counted.values())
    assert len({one.schema_name for one in parts.statements}) == len(parts.statements)
    assert sum(one.c0_s for one in parts.statements) == pytest.approx(1.0)


def test_a_text_that_could_not_be_read_is_said_so_and_no_sample_is_no_part() -> None:
    parts, _ = join_moments(moments([met(UNREADABLE, 11, 1)]), KNOWN, 1.0, 1.0)
    assert parts.statements[0].text == "(COM_QUERY, its text not readable)"
    none, count = join_moments(moments([]), KNOWN, 1.0, 1.0)
    assert (none.statements, none.background, none.connections.c0_s, count) == ([], [], 0.0, 0)


def test_a_window_of_samples_has_the_version_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL is not asked for its version, whichever method is chosen."""

    class Sampled:
        version = "15.14"

        def __init__(self, *_: object) -> None: ...
        def collect(self) -> StatementSamples:
            return moments([met(POINT, 31, 4, is_client=True)], "postgresql")

    monkeypatch.setattr("powerprof.queries.samples.MomentSampler", Sampled)
    server = TracedServer(os.getpid(), "postgres (10)", None, None, "postgresql")
    samples = Samples(server)
    samples.parts[0].begin()
    samples.parts[0].end()
    measured = samples.finish_window(window()).measured
    assert (measured.method, measured.version) == ("samples", "PostgreSQL 15.14")
    energy: Any = KnownFloor()
    assert build_record(server, measured, energy).server.version == "PostgreSQL 15.14"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), min_size=1, max_size=8),
    st.floats(0.01, 60.0),
    st.floats(0.5, 20.0),
)
def test_each_part_has_the_share_of_its_samples_of_all(
    counts: list[tuple[int, int]], cpu_s: float, window_s: float
) -> None:
    """0: a statement with calls, 1: one without, 2: connections, 3: background."""
    kinds = ((POINT, 11), (BURN, 12), (0, 11), (0, 13))
    parts, total = join_moments(moments([met(*kinds[kind], count) for kind, count in counts]), KNOWN, cpu_s, window_s)
    sums = [sum(count for kind, count in counts if kind == wanted) for wanted in range(4)]
    assert total == sum(sums)
    shares = {one.text: one for one in parts.statements}
    shown = [shares.get("SELECT c FROM t WHERE id = ?"), shares.get("SELECT BENCHMARK(?, …)"), parts.connections]
    for part, count in zip([*shown, *(parts.background or [None])], sums, strict=True):
        if part is None:
            assert count == 0
            continue
        assert (part.c0_s, part.c0_percent) == (
            pytest.approx(cpu_s * count / total),
            pytest.approx(100 * count / total),
        )
    point = shown[0]
    if isinstance(point, Statement):
        assert (point.calls_count, point.calls_hz) == (40, pytest.approx(40 / window_s))
        assert point.c0_ms_per_call == pytest.approx(1e3 * point.c0_s / 40)
        assert sum(one.c0_s for one in point.askers) == pytest.approx(point.c0_s)


def test_all_calls_are_those_of_the_server_without_our_own() -> None:
    own = next(text for text in list_own_statements() if "DIGEST_TEXT" in text)
    statistics = {("shop", "SELECT 1"): CountedStatement(500, 5, 9), ("mall", "SELECT 2"): CountedStatement(20, 5, 8)}
    digests = {("shop", CALLED): (40, 7, 7), (None, own): (9000, 7, 7), ("mall", "SELECT ?"): (3, 7, 7)}
    assert _count_all_calls(ServerReport(digests=digests, lost_digests_count=100)) == 143
    assert _count_all_calls(ServerReport(statistics=statistics)) == 520
    # A server that counts has counted the statements of powerprof, so no count is unknown and not 0.
    assert _count_all_calls(ServerReport(has_digests=True)) is None
    assert _count_all_calls(ServerReport(digests={(None, own): (5, 0, 0)})) == 0


def test_the_time_of_a_server_is_that_of_its_window() -> None:
    clocks = iter([2_500_000_000, 6_000_000_000, 5, None])
    time_part = ServerTime(lambda: next(clocks))
    time_part.begin()
    time.sleep(0.01)
    time_part.end()
    cpu_s, took_s = time_part.collect()
    assert cpu_s == pytest.approx(3.5)
    assert 0.01 <= took_s < 30
    time_part.begin()
    time_part.end()
    assert time_part.collect()[0] is None  # it has ended


NOTHING: Any = None

COSTLY, CHEAP = ProbeTrial(0.5, 0.4, 0.02, 10_000, switch_s=0.05), ProbeTrial(0.5, 0.4, 0.01, 5_000)
