# SPDX-License-Identifier: Apache-2.0
"""The parts of a server's CPU time, and samples of stacks: nothing is counted twice or left out."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.pg_stat_statements import CountedStatement, Statistics
from powerprof.database.server_report import Account, ServerReport, merge_reports
from powerprof.model.statements import normalise
from powerprof.queries import pricing
from powerprof.queries.askers import rank_askers
from powerprof.queries.join import UNKNOWN_PREPARED, StatementNames, StatementSum, estimate_latency, join_trace
from powerprof.queries.records import Statement
from powerprof.queries.statement_stacks import INCOMPLETE, add_stacks
from powerprof.report.exports import export
from powerprof.system.errors import UsageError
from powerprof.tracing.bpf.shared_numbers import SQUARED_NS_LOG, OpenStatement, StatementWait
from powerprof.tracing.captures import (
    OnCpuCapture,
    RecordedText,
    SampleRow,
    StatementUse,
    ThreadUse,
    latency_class_range_ns,
)
from tests.unit.queries.sample import BURN, MS, POINT, trace
from tests.unit.queries.test_report import record


def test_a_statement_is_one_row_whoever_executed_it() -> None:
    first, second, *rest = join_trace(trace(), ServerReport()).statements
    assert (first.text, first.calls_count, first.unfinished_count) == ("SELECT BENCHMARK(?, …)", 2, 1)
    assert (second.text, second.calls_count) == ("SELECT c FROM t WHERE id = ?", 400)
    assert second.c0_ms_per_call == pytest.approx(1.0)
    assert second.wakeups_per_call == pytest.approx(0.15)
    assert [one.text for one in rest] == [UNKNOWN_PREPARED, "(COM_PING)"]


def test_schemas_tell_rows_apart_and_names_come_from_the_server() -> None:
    known = ServerReport(threads={13: "thread/innodb/page_cleaner_thread"}, schemas={11: "shop", 12: "blog"})
    parts = join_trace(trace(), known)
    points = {one.schema_name: one.calls_count for one in parts.statements if "WHERE" in one.text}
    assert points == {"shop": 100, "blog": 300}
    assert parts.background[0].thread == "thread/innodb/page_cleaner_thread"


@pytest.mark.parametrize(
    ("schemas", "digests", "shown"),
    [
        # Ended threads are one with the number 0, of whose schema nothing is known.
        ({12: "shop"}, {}, {"shop": 400}),
        ({}, {}, {None: 400}),
        ({}, {"shop": 400}, {"shop": 400}),
        ({}, {"shop": 300, "mall": 100}, {None: 400}),
        ({12: "shop"}, {"shop": 300, "mall": 100}, {None: 100, "shop": 300}),
        ({12: "shop"}, {"mall": 100}, {None: 100, "shop": 300}),
    ],
)
def test_ended_threads_have_the_schema_of_the_others_if_it_is_one(
    schemas: dict[int, str], digests: dict[str, int], shown: dict[str | None, int]
) -> None:
    uses = [StatementUse(POINT, 0, 100, 100 * MS, 200 * MS, 50, 4), StatementUse(POINT, 12, 300, MS, MS, 10, 0)]
    known = ServerReport(
        schemas=schemas,
        digests={(name, "SELECT `c` FROM `t` WHERE `id` = ?"): (count, 1, 1) for name, count in digests.items()},
    )
    parts = join_trace(trace(uses=uses), known)
    assert {one.schema_name: one.calls_count for one in parts.statements} == shown


def test_workers_that_were_born_and_ended_in_the_window_are_no_connections() -> None:
    scan = 1001
    postgres = trace(
        family="postgresql",
        uses=[StatementUse(scan, 11, 55, 300 * MS, 400 * MS, 5, 0), StatementUse(scan, 0, 0, 220 * MS, 250 * MS, 0, 0)],
        texts=[RecordedText(scan, 3, 22, b"SELECT sum(n) FROM big")],
        threads=[
            ThreadUse(11, "postgres", 301 * MS, 5, 55, 0),
            ThreadUse(12, "postgres", 2 * MS, 0, 1, 0, is_helper=True),
            ThreadUse(0, "ended threads", 218 * MS, 0, 109, 0, 109, is_helper=True),
        ],
        latencies={},
    )
    parts = join_trace(postgres, ServerReport(threads={11: "backend of shop"}, schemas={11: "shop"}))
    (statement,) = parts.statements
    assert (statement.schema_name, statement.calls_count, statement.c0_s) == ("shop", 55, 0.52)
    assert (parts.connections_count, parts.connections.c0_s) == (1, pytest.approx(0.001))


def row(schema: str | None) -> Statement:
    return Statement(text=normalise("SELECT c FROM t WHERE id = 1"), schema_name=schema, c0_s=1.0, calls_count=10)


@pytest.mark.parametrize(
    ("schemas", "errors"),
    [(["shop"], [2]), ([None], [5]), (["shop", "mall"], [2, 3]), (["shop", None], [2, None]), (["blog"], [None])],
)
def test_each_row_has_its_own_errors(schemas: list[str | None], errors: list[int | None]) -> None:
    digests = {
        (schema, "SELECT `c` FROM `t` WHERE `id` = ?"): (10, 0, 20, 0, 0, 0, 0, count)
        for schema, count in (("shop", 2), ("mall", 3))
    }
    found = pricing.add_row_counts([row(schema) for schema in schemas], digests)
    assert [one.errors_count for one in found] == errors
    assert [one.rows_sent_per_call for one in found] == [None if count is None else 2.0 for count in errors]


def test_query_ids_of_several_lengths_of_a_list_are_one_statement_without_a_number() -> None:
    statistics: Statistics = {
        ("shop", "SELECT a FROM t WHERE b IN ($1, $2)"): CountedStatement(3, 30, 7),
        ("shop", "SELECT a FROM t WHERE b IN ($1, $2, $3)"): CountedStatement(1, 30, 8),
        ("shop", "SELECT 1"): CountedStatement(5, 5, 9),
    }
    texts = ("SELECT a FROM t WHERE b IN (1, 2)", "SELECT 2")
    listed = [Statement(text=normalise(text, "postgresql"), schema_name="shop", c0_s=1.0) for text in texts]
    found = pricing.add_statistics(listed, statistics)
    assert [(one.rows_sent_per_call, one.query_id) for one in found] == [(15.0, None), (1.0, "9")]


def test_a_prepared_statement_has_the_text_that_the_server_knows() -> None:
    parts = join_trace(trace(), ServerReport(prepared={(11, 4): "SELECT c FROM t WHERE id = ?"}))
    assert [one.calls_count for one in parts.statements if "WHERE" in one.text] == [410]


def test_a_statement_that_began_before_the_window_is_the_row_of_its_text() -> None:
    uses = [*trace().uses, StatementUse(POINT, 13, 1, 60 * MS, 90 * MS, 7, 0, 1, began_before=True)]
    threads = [*trace().threads, ThreadUse(14, "mysqld", 70 * MS, 7, 0, 0, open=OpenStatement.FOUND)]
    uses[-1] = msgspec.structs.replace(uses[-1], tid=14)
    parts = join_trace(trace(uses=uses, threads=threads), ServerReport())
    alone = join_trace(trace(), ServerReport())
    assert {one.id for one in parts.statements} == {one.id for one in alone.statements}
    (row,), (was,) = ([one for one in each.statements if "WHERE" in one.text] for each in (parts, alone))
    assert row.c0_s == pytest.approx(was.c0_s + 0.06)
    assert (row.calls_count, row.began_before_count, row.unfinished_count) == (401, 1, 1)
    assert (row.c0_ms_per_call, row.latency_ms, row.waits_ms) == (was.c0_ms_per_call, was.latency_ms, was.waits_ms)
    assert parts.connections.c0_s == pytest.approx(alone.connections.c0_s + 0.01)
    # Background threads execute statements too.
    quiet = join_trace(trace(uses=uses, threads=threads), ServerReport(threads={14: "thread/sql/slave_sql"}))
    assert quiet.statements == alone.statements
    assert "thread/sql/slave_sql" in {one.thread for one in quiet.background}


def test_a_text_that_the_kernel_could_not_read_is_the_one_that_the_server_reports() -> None:
    """A command below 256 is a statement without a text."""
    uses = [*trace().uses, StatementUse(3, 14, 1, 60 * MS, 90 * MS, 7, 0, 1, began_before=True)]
    threads = [*trace().threads, ThreadUse(14, "mysqld", 70 * MS, 7, 0, 0, open=OpenStatement.FOUND)]
    found = trace(uses=uses, threads=threads)
    named = join_trace(found, ServerReport(running={14: "SELECT c FROM t WHERE id=91"}))
    assert [(one.calls_count, one.began_before_count) for one in named.statements if "WHERE" in one.text] == [(401, 1)]
    (unnamed,) = [one for one in join_trace(found, ServerReport()).statements if one.began_before_count]
    assert unnamed.text == "(COM_QUERY, its text not readable)"


def test_processes_of_postgresql_that_are_no_clients_have_their_parts() -> None:
    """11 is a client, 12 a parallel worker of its statement, 13 vacuums by itself."""
    scan, vacuum = 1001, 1002
    postgres = trace(
        family="postgresql",
        uses=[
            StatementUse(scan, 11, 3, 300 * MS, 400 * MS, 5, 0),
            StatementUse(scan, 12, 0, 200 * MS, 250 * MS, 0, 0),
            StatementUse(vacuum, 13, 1, 50 * MS, 60 * MS, 0, 0),
        ],
        texts=[
            RecordedText(scan, 3, 22, b"SELECT sum(n) FROM big"),
            RecordedText(vacuum, 3, 33, b"autovacuum: VACUUM ANALYZE public.t"),
        ],
        threads=[
            ThreadUse(11, "postgres", 310 * MS, 5, 3, 0),
            ThreadUse(12, "postgres", 200 * MS, 0, 1, 0),
            ThreadUse(13, "postgres", 60 * MS, 2, 1, 0),
        ],
        latencies={},
    )
    known = ServerReport(threads={11: "backend of shop", 12: "parallel worker"}, schemas={11: "shop"})
    parts = join_trace(postgres, known)
    assert [(one.text, one.schema_name, one.calls_count, one.c0_s) for one in parts.statements] == [
        ("SELECT sum(n) FROM big", "shop", 3, 0.5)
    ]
    assert [(one.thread, one.c0_s) for one in parts.background] == [("autovacuum worker", 0.06)]
    assert (parts.connections.c0_s, parts.connections_count) == (pytest.approx(0.01), 1)


def test_latency_comes_from_classes_of_an_eighth_octave() -> None:
    found = estimate_latency({(20 << 3) | 0: 90, (23 << 3) | 4: 10})
    assert found is not None
    assert found.p50 == pytest.approx(1.11, rel=0.02)
    assert found.p95 == pytest.approx(13.1, rel=0.02)
    assert estimate_latency({}) is None


def test_rows_are_the_servers_own_between_two_looks() -> None:
    digest = (None, "SELECT `c` FROM `t` WHERE `id` = ?")
    before, after = (
        ServerReport(digests={digest: (10, 50, 10)}),
        ServerReport(digests={digest: (30, 150, 30)}, has_digests=True),
    )
    found = pricing.add_row_counts(join_trace(trace(), ServerReport()).statements, merge_reports(before, after).digests)
    (point,) = [one for one in found if "WHERE" in one.text]
    assert (point.rows_examined_per_call, point.rows_sent_per_call) == (5.0, 1.0)
    emptied = merge_reports(ServerReport(digests={digest: (90, 9, 9)}), after)
    assert emptied.digests[digest] == (30, 150, 30)


def test_cpu_times_may_be_smaller_than_the_clock_between_two_switches() -> None:
    # The scheduler's correction can make a short statement negative: it is not clamped, so that the sum stays right.
    parts = join_trace(trace(uses=[], texts=[], latencies={}), ServerReport())
    assert parts.statements == []
    assert parts.connections.c0_s == pytest.approx((140 + 760) * MS / 1e9)


def test_statements_by_number_are_those_of_a_thread_s_one_client() -> None:
    """A thread that served another client meanwhile has had that one's statements by the same numbers."""
    before = ServerReport(
        prepared={(11, 4): "SELECT 1", (12, 1): "SELECT 2", (13, 1): "SELECT 3"}, connections={11: 7, 12: 8}
    )
    after = ServerReport(prepared={(12, 2): "SELECT 4", (14, 1): "SELECT 5"}, connections={11: 7, 12: 9, 14: 10})
    assert merge_reports(before, after).prepared == {(11, 4): "SELECT 1"}


def test_who_asked_sums_to_the_statement_and_who_served_two_accounts_is_nobody() -> None:
    app, other = Account("app", "web1"), Account("report", None)
    before = ServerReport(accounts={11: app, 12: app, 14: app})
    known = merge_reports(before, ServerReport(accounts={12: app, 14: other}))
    assert known.accounts == {11: app, 12: app}
    found = {one.text: one for one in join_trace(trace(), ServerReport(accounts={11: app, 12: other})).statements}
    point = found["SELECT c FROM t WHERE id = ?"]
    assert [(one.user, one.host, one.c0_s, one.calls_count) for one in point.askers] == [
        ("report", None, 0.3, 300),
        ("app", "web1", 0.1, 100),
    ]
    assert sum(one.c0_s for one in point.askers) == pytest.approx(point.c0_s)
    (unknown,) = join_trace(trace(), ServerReport()).statements[0].askers
    assert (unknown.user, unknown.calls_count) == (None, 2)


def test_the_figures_of_a_call_are_by_all_threads_that_made_one() -> None:
    """Two threads with 3 and 5 calls: one call has a quarter of the deviation of both, and its own waits."""
    waits = tuple(number * MS for number in range(8, 80, 8))
    uses = [
        StatementUse(POINT, 11, 3, 30 * MS, 60 * MS, 8, 16, 0, waits, squares=4_000_000_000),
        StatementUse(POINT, 12, 5, 50 * MS, 90 * MS, 24, 8, 0, waits, squares=9_000_000_000),
        StatementUse(POINT, 11, 1, 90 * MS, 90 * MS, 7, 1, began_before=True),
        StatementUse(POINT, 12, 1, 70 * MS, 90 * MS, 9, 2, 1),
    ]
    found = trace(uses=uses, latencies={POINT: {(20 << 3) | 0: 8}}, window_s=2.5)
    (row,) = join_trace(found, ServerReport()).statements
    assert (row.calls_count, row.unfinished_count, row.began_before_count) == (10, 1, 1)
    assert (row.calls_hz, row.c0_s, row.c0_ms_per_call) == (pytest.approx(9 / 2.5), 0.24, pytest.approx(10.0))
    assert (row.wakeups_count, row.wakeups_per_call, row.page_faults_count) == (48, 4.0, 27)
    square = 13_000_000_000 * (2**SQUARED_NS_LOG / 1e6) ** 2 / 8
    assert square > 100
    assert row.c0_ms_deviation == pytest.approx(math.sqrt((square - 100) * 8 / 7))
    assert row.waits_ms is not None
    each = [2.0 * number for number in range(1, 10)]
    known = {wait.name.lower(): each[wait] for wait in StatementWait}
    assert msgspec.structs.asdict(row.waits_ms) == pytest.approx(known)
    assert [(one.c0_s, one.calls_count) for one in row.askers] == [(0.24, 10)]


def test_waits_that_the_kernel_or_the_server_does_not_report_are_unknown() -> None:
    blind = join_trace(trace(has_run_queue=False, tells_locks=False), ServerReport()).statements[0].waits_ms
    assert blind is not None
    assert (blind.run_queue, blind.row_lock, blind.lock) == (None, None, None)
    assert blind.latch is not None
    seen = join_trace(trace(), ServerReport()).statements[0].waits_ms
    assert seen is not None and None not in msgspec.structs.asdict(seen).values()


@pytest.mark.parametrize(("calls", "open_count", "squares"), [(2, 2, 900), (1, 0, 900), (5, 0, 0)])
def test_the_deviation_of_fewer_than_two_calls_is_unknown(calls: int, open_count: int, squares: int) -> None:
    uses = [StatementUse(POINT, 11, calls, MS, MS, 0, 0, open_count, squares=squares)]
    assert join_trace(trace(uses=uses), ServerReport()).statements[0].c0_ms_deviation is None


def test_latencies_of_an_identity_are_shared_by_the_calls_of_its_threads() -> None:
    """Of 40 calls thread 11 of one schema made 10, and thread 12 of another made 30."""
    uses = [StatementUse(POINT, 11, 10, MS, MS, 0, 0), StatementUse(POINT, 12, 30, MS, MS, 0, 0)]
    known = ServerReport(schemas={11: "shop", 12: "mall"})
    found = trace(uses=uses, latencies={POINT: {(20 << 3) | 0: 30, (24 << 3) | 0: 10}})
    rows = {one.schema_name: one.latency_ms for one in join_trace(found, known).statements}
    assert rows["shop"] is not None and rows["mall"] is not None
    assert (rows["shop"].p50, rows["shop"].p95) == pytest.approx((rows["mall"].p50, rows["mall"].p95))
    other = trace(
        uses=[*uses, StatementUse(POINT + 9, 11, 10, MS, MS, 0, 0)],
        texts=[*trace().texts, RecordedText(POINT + 9, 3, 26, b"SELECT c FROM t WHERE id=9")],
        latencies={POINT: {(20 << 3) | 0: 40}, POINT + 9: {(24 << 3) | 0: 10}},
    )
    rows = {one.schema_name: one.latency_ms for one in join_trace(other, known).statements}
    # Half of the calls in `shop` are of the slow identity.
    assert rows["shop"] == estimate_latency({(20 << 3) | 0: 10, (24 << 3) | 0: 10})
    assert rows["mall"] == estimate_latency({(20 << 3) | 0: 30})


@given(st.dictionaries(st.integers(80, 200), st.integers(1, 90), min_size=1, max_size=6))
def test_a_percentile_is_in_the_class_of_its_rank(classes: dict[int, int]) -> None:
    found = estimate_latency(dict(classes))
    assert found is not None and found.p99 is not None
    ranked = [bucket for bucket in sorted(classes) for _ in range(classes[bucket])]
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        rank = max(math.ceil(share * len(ranked) - 1e-9), 1)
        low, high = latency_class_range_ns(ranked[rank - 1])
        assert low / 1e6 - 1e-9 <= value <= high / 1e6 + 1e-9
    assert found.p50 <= found.p95 <= found.p99
    one = estimate_latency({100: 10})
    low, high = latency_class_range_ns(100)
    assert one is not None and one.p50 == pytest.approx((low + 0.5 * (high - low)) / 1e6)
    assert one.p95 == pytest.approx((low + 0.95 * (high - low)) / 1e6)
    two = estimate_latency({100: 6, 104: 4})
    low, high = latency_class_range_ns(104)
    assert two is not None and two.p95 == pytest.approx((low + 3.5 / 4 * (high - low)) / 1e6)


def test_background_threads_of_one_name_are_one_row_with_all_ended_ones() -> None:
    threads = [
        ThreadUse(13, "ib_pg_flush", 90 * MS, 7, 0, 0),
        ThreadUse(14, "ib_pg_flush", 30 * MS, 5, 0, 0),
        ThreadUse(0, "ib_pg_flush", 20 * MS, 3, 0, 0, 4),
        ThreadUse(15, "other", 200 * MS, 1, 0, 0),
    ]
    rows = join_trace(trace(uses=[], texts=[], threads=threads, latencies={}), ServerReport()).background
    assert [(one.thread, one.threads_count, one.c0_s, one.wakeups_count) for one in rows] == [
        ("other", 1, 0.2, 1),
        ("ib_pg_flush", 6, 0.14, 15),
    ]


def test_askers_behind_the_first_twenty_are_one_without_a_name() -> None:
    used = {Account(f"u{number:02}", "h"): (0.01 * number, number) for number in range(1, 31)}
    askers = rank_askers({**used, None: (0.5, None)})
    assert [one.user for one in askers] == [*(f"u{number}" for number in range(30, 10, -1)), None]
    rest = askers[-1]
    assert (rest.c0_s, rest.calls_count) == (pytest.approx(0.5 + sum(0.01 * n for n in range(1, 11))), 55)
    (unknown,) = rank_askers({None: (0.5, None)})
    assert (unknown.c0_s, unknown.calls_count) == (0.5, None)


def test_a_thread_without_an_event_executes_the_statement_that_the_server_reports() -> None:
    """Thread 11 was never switched. The text of thread 12 had ended when the window began: it sent others."""
    app = Account("app", "h")
    known = ServerReport(running={11: "SELECT SLEEP(7)", 12: "SELECT SLEEP(8)"}, accounts={11: app, 12: app})
    threads = [ThreadUse(11, "mysqld", 140 * MS, 0, 0, 0), ThreadUse(12, "mysqld", 760 * MS, 10, 302, 30 * MS)]
    parts = join_trace(trace(uses=[], texts=[], threads=threads, latencies={}), known)
    (row,) = parts.statements
    assert (row.c0_s, row.calls_count, row.unfinished_count, row.began_before_count) == (0.14, 1, 1, 1)
    assert parts.connections.c0_s == pytest.approx(0.76)
    assert [(one.user, one.c0_s, one.calls_count) for one in row.askers] == [("app", 0.14, 1)]
    assert (row.wakeups_count, row.c0_ms_per_call, row.latency_ms, row.waits_ms) == (0, None, None, None)


KNOWN = ServerReport(schemas={11: "shop", 12: "shop"})


def capture(rows: list[SampleRow]) -> OnCpuCapture:
    """Samples with kernel paths only: 1 is read, 2 is write."""
    return OnCpuCapture(
        event="cpu-clock",
        pids=[10],
        window_s=2.0,
        cpus=2,
        period_ms=1e3 / 99,
        rows=rows,
        users=[],
        images=[],
        kernel={1: [0x20, 0x10], 2: [0x30, 0x10]},
        kernel_names={0x10: ("entry", "vmlinux", 0x10), 0x20: ("read", "vmlinux", 0x20), 0x30: ("write", "ext4", 0x30)},
        comms={},
        events_count=100,
        idle_count=0,
        target_count=sum(row.count for row in rows),
        missed_count=0,
        stacks_count=0,
        lost_stacks_count=0,
        lost_rows_count=0,
        notes=[],
        tool_cpu_s=0.0,
    )


ROWS = [
    SampleRow(0, 1, 10, 11, 4, POINT),
    SampleRow(0, 1, 10, 12, 2, POINT),
    SampleRow(0, 2, 10, 12, 3, POINT),
    SampleRow(7, 2, 10, 12, 5, BURN),
    SampleRow(0, 2, 10, 13, 9),
]


def test_paths_of_a_statement_are_those_of_all_its_threads() -> None:
    taken = trace()
    told, modules, notes = add_stacks(
        join_trace(taken, KNOWN).statements, capture(ROWS), StatementNames(taken.texts, "mysql", [], KNOWN).name
    )
    stacks = {one.text: [(one.frames, one.count) for one in one.stacks] for one in told if one.stacks}
    assert stacks == {
        "SELECT c FROM t WHERE id = ?": [(["entry_[k]", "read_[k]"], 6), (["entry_[k]", "write_[k]"], 3)],
        "SELECT BENCHMARK(?, …)": [([INCOMPLETE, "entry_[k]", "write_[k]"], 5)],
    }
    assert modules == {"entry_[k]": "vmlinux", "read_[k]": "vmlinux", "write_[k]": "ext4"}
    assert notes[0].startswith(
        "23 samples of the server, 14 of them in statements; each CPU was woken for them 99 times"
    )


def test_they_leave_as_flame_graphs_and_folded_stacks() -> None:
    taken, whole = trace(), record()
    told, modules, _ = add_stacks(
        whole.statements, capture(ROWS), StatementNames(taken.texts, "mysql", [], ServerReport()).name
    )
    found = msgspec.structs.replace(whole, statements=told, modules=modules)
    lines = export(found, "folded").decode().splitlines()
    assert "SELECT c FROM t WHERE id = ?;entry_[k];read_[k] 6" in lines
    assert b"SELECT c FROM t WHERE id = ?" in export(found, "flame")
    assert export(found, "html").count(b'class="flame"') == 2
    with pytest.raises(UsageError, match="no stacks"):
        export(whole, "folded")


@pytest.mark.parametrize("seed", range(10))
def test_the_cost_of_a_call_is_that_of_whole_calls(seed: int) -> None:
    draw = random.Random(seed)
    uses = [
        StatementUse(
            1, tid, draw.randint(1, 9), draw.randint(1, 10**9), 10**9, draw.randint(0, 9), 0,
            open_count=draw.choice((0, 0, 1)), began_before=draw.random() < 0.3,
        )
        for tid in range(8)
    ]  # fmt: skip
    total = StatementSum()
    for use in uses:
        total.add_use(use)
    whole = [use for use in uses if not use.began_before and not use.open_count]
    assert total.cpu_ns == sum(use.cpu_ns for use in uses)
    assert total.whole_cpu_ns == sum(use.cpu_ns for use in whole) <= total.cpu_ns
    assert total.whole_calls == sum(use.calls for use in whole)
