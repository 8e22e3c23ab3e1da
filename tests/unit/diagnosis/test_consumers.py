# SPDX-License-Identifier: Apache-2.0
"""The part with most of the CPU time is the answer. Without one, the largest part is beside "No known problem"."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.diagnosis.consumers import MAIN_PERCENT, MAIN_SHARE, find_largest_consumer
from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import (
    Evidence,
    Neighbour,
    OpenTransaction,
    ProcessStarts,
    RoleCpu,
    StatementCpu,
    StatementWindow,
    ThreadCpu,
)
from powerprof.diagnosis.rules_clients import find_queue_pollers
from powerprof.diagnosis.rules_connections import find_leaked_connections, find_short_connections
from powerprof.diagnosis.wording import shorten_statement
from powerprof.model.statements import normalise
from powerprof.report.diagnosis import answer_of
from tests.unit.diagnosis.examples import client, counted, evidence, faults, row
from tests.unit.diagnosis.test_diagnose import build_diagnosis

INSPECTIONS = (
    "SHOW GLOBAL STATUS",
    "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = 'a'",
    "SELECT c.x FROM information_schema.columns c STRAIGHT_JOIN information_schema.tables t ON t.a = c.a",
    "SELECT a.x FROM shop.t a JOIN information_schema.tables i ON i.n = a.n",
    "SELECT * FROM pg_stat_activity",
    "SELECT pg_database_size(datname) FROM pg_database",
)
STATEMENTS = ("SELECT a FROM t WHERE b = 5", "UPDATE t SET a = 1", "DO 1", "CALL work()", "SELECT BENCHMARK(5, 'a')")
ROLES = ("walsender app [local] START_REPLICATION", "autovacuum worker shop", "thread/sql/slave_sql", "checkpointer")


def of_server(is_postgres: bool, **fields: Any) -> Evidence:
    if not is_postgres:
        return evidence(exits_hz=3.0, traced_s=8.0, **fields)
    family = {"version": "PostgreSQL 15.18", "family": "postgres", "asked": False, "starts_span_s": 2.0}
    return evidence(exits_hz=3.0, traced_s=8.0, **{**family, **fields})


def window(percent: float, *uses: StatementCpu, **fields: Any) -> StatementWindow:
    return StatementWindow(window_s=2.0, method="probes", percent=percent, statements=list(uses), **fields)


def use(text: str, percent: float, calls_hz: float | None = 1.0, account: str | None = "app@h") -> StatementCpu:
    return StatementCpu(text=normalise(text), percent=percent, calls_hz=calls_hz, account=account)


@given(
    is_postgres=st.booleans(),
    text=st.sampled_from((*STATEMENTS, *INSPECTIONS)),
    server=st.floats(0.1, 1600.0),
    share=st.floats(0.01, 1.0),
    calls_hz=st.one_of(st.none(), st.floats(0.01, 5000.0)),
    long_percent=st.floats(0.0, 1600.0),
)
def test_a_statement_with_most_of_the_cpu_time_is_the_answer_at_any_rate(
    is_postgres: bool, text: str, server: float, share: float, calls_hz: float | None, long_percent: float
) -> None:
    percent = server * share
    here = of_server(
        is_postgres,
        cpu_percent=long_percent,
        wakeups=[row("background writer", 1.0, period_ms=1000.0), row("x", 50.0, stack=["poll"])],
        statement_window=window(server, use(text, percent, calls_hz)),
    )
    found = diagnose(here)
    if percent >= max(MAIN_PERCENT, MAIN_SHARE * server):
        assert found[0].severity == "fault"
        assert found[0].percent == pytest.approx(percent)
        answer = answer_of(build_diagnosis(here))
        assert answer == found[0].text
        assert answer.startswith("app@h ")
        assert shorten_statement(normalise(text)) in answer
        assert [one.rule for one in found].count("main_consumer") <= 1
        assert not (text in INSPECTIONS and any("Index" in line for one in found for line in one.remedy))
    else:
        assert "main_consumer" not in [one.rule for one in found]


@given(
    is_postgres=st.booleans(),
    name=st.sampled_from(ROLES),
    server=st.floats(0.1, 800.0),
    share=st.floats(0.01, 1.0),
    is_in_window=st.booleans(),
)
def test_a_thread_with_most_of_the_cpu_time_is_the_answer_in_either_window(
    is_postgres: bool, name: str, server: float, share: float, is_in_window: bool
) -> None:
    percent = server * share
    thread = ThreadCpu(tid=77, comm="db", name=name, percent=percent, age_s=720.0)
    roles = [RoleCpu(name=name, percent=percent)] if is_in_window else []
    here = of_server(
        is_postgres, cpu_percent=server, threads_cpu=[thread], statement_window=window(server, roles=roles)
    )
    found = [one for one in diagnose(here) if one.rule == "main_consumer"]
    assert len(found) == (percent >= max(MAIN_PERCENT, MAIN_SHARE * server))
    for one in found:
        assert name.removeprefix("thread/") in one.text
        assert "running for 12 min" in one.text


@given(st.lists(st.floats(0.0, 90.0), min_size=1, max_size=8), st.booleans())
def test_without_a_problem_the_server_and_its_largest_part_are_named(percents: list[float], is_postgres: bool) -> None:
    uses = [use(f"SELECT a{number} FROM t", percent, 3.0) for number, percent in enumerate(percents)]
    server = 2.5 * max(sum(percents), 0.01)
    here = of_server(is_postgres, cpu_percent=server, statement_window=window(server, *uses))
    answer = answer_of(build_diagnosis(here))
    assert "No known problem" in answer
    assert here.version in answer
    if max(percents) > 0:
        assert "% of it for SELECT" in answer
        assert uses[percents.index(max(percents))].text in answer


def test_another_program_is_named_beside_a_healthy_server() -> None:
    here = of_server(False, cpu_percent=0.25, neighbour=Neighbour(pid=9, comm="python3", percent=97.4))
    assert answer_of(build_diagnosis(here)) == (
        "No known problem: MariaDB 10.11.19 woke a CPU 3.0 times/s and used 0.25 % of one CPU. "
        "Another program of this host uses 97 % of one CPU: python3 (9)."
    )


@pytest.mark.parametrize("family", ["mariadb", "postgres"])
def test_a_connection_is_named_with_its_time_and_the_way_to_stop_it(family: str) -> None:
    is_postgres = family == "postgres"
    thread = ThreadCpu(
        tid=4711,
        comm="db",
        name="backend of shop" if is_postgres else "thread/sql/one_connection",
        percent=90.0,
        account="app@h" if is_postgres else None,
        age_s=720.0,
    )
    clients = [] if is_postgres else [client(15, "Query", user="app", host="h:5", tid=4711, time_s=312.0)]
    here = of_server(
        is_postgres,
        cpu_percent=91.0,
        threads_cpu=[thread],
        clients_before=clients,
        samples=[clients],
        statement_window=window(91.0, use("SELECT a FROM t", 90.0, 0.5)),
    )
    (fault,) = faults(here)
    assert fault.text == (
        "app@h sends SELECT a FROM t 0.50 times/s on connection "
        + ("4711, open for 12 min. " if is_postgres else "15, in its statement for 5 min. ")
        + "It uses 99 % of this server's CPU time (90 % of one CPU)."
    )
    stop = "SELECT pg_catalog.pg_cancel_backend(4711)" if is_postgres else "KILL QUERY 15"
    assert any(line.startswith(f"to stop it now: {stop}") for line in fault.remedy)


def test_one_of_several_accounts_is_the_answer_without_a_main_statement() -> None:
    many = [use(f"SELECT a{number} FROM t", 6.0, account="batch@h") for number in range(7)]
    (fault,) = faults(of_server(False, cpu_percent=60.0, statement_window=window(60.0, *many, use("DO 1", 9.0))))
    assert fault.text == "batch@h uses 70 % of this server's CPU time (42 % of one CPU) with several statements."
    assert faults(of_server(False, cpu_percent=60.0, statement_window=window(60.0, *many))) == []


def test_the_server_of_another_program_names_its_threads() -> None:
    threads = [ThreadCpu(tid=number, comm=f"erts_sched_{number}", name=None, percent=20.0) for number in (1, 2, 3)]
    here = evidence(version="beam.smp", family="beam.smp", asked=False, cpu_percent=62.0, threads_cpu=threads)
    (fault,) = faults(here)
    assert fault.text == ("beam.smp: 3 threads erts_sched_1 use 97 % of this server's CPU time (60 % of one CPU).")


def test_reasons_of_a_costly_statement_have_their_remedies() -> None:
    transaction = OpenTransaction(connection=12, account="web@h", open_s=95.0)
    sampled = StatementCpu(
        text=normalise("SELECT a FROM t"),
        percent=9.0,
        calls_hz=3.0,
        account="app@h",
        jit_percent=80.0,
        sort_percent=30.0,
    )
    here = of_server(True, cpu_percent=9.5, statement_window=window(9.5, sampled), open_transactions=[transaction])
    fault, other = faults(here)
    assert other.rule == "idle_transaction"
    assert 'ALTER ROLE "app" SET jit = off' in fault.remedy[0]
    assert fault.text.endswith(
        "JIT compilation is 80 % of its CPU time. Sorting is 30 % of its CPU time. "
        "A transaction of web@h, open and idle for at least 95 s, keeps old row versions for it to pass."
    )
    assert any("pg_catalog.pg_terminate_backend(12)" in line for line in fault.remedy)
    counts = counted(Created_tmp_disk_tables=30, Sort_rows=900_000)
    (spilled,) = faults(
        of_server(False, cpu_percent=9.5, statement_window=window(9.5, use("DO 1", 9.0, 3.0)), **counts)
    )
    assert "It writes a temporary table to disk. It sorts 30,000 rows." in spilled.text


def leaking(ages_s: list[float], opened: int, closed: int = 0) -> Evidence:
    old = [client(number, user="app") for number in (1, 2)]
    new = [client(10 + number, user="web", host="h:1", time_s=age) for number, age in enumerate(ages_s)]
    status: dict[str, Any] = counted(Threads_connected=opened, Connections=opened + closed, Questions=2 * opened)
    return evidence(clients_before=old, samples=[[*old, *new]], variables={"max_connections": "1100"}, **status)


@pytest.mark.parametrize(
    ("ages_s", "opened", "closed", "found"),
    [
        ([9.0, 7.0, 5.0, 3.0, 1.0], 97, 0, True),
        ([9.0, 7.0, 5.0, 3.0, 1.0], 97, 98, False),  # most are closed
        ([4.1, 4.1, 4.0, 4.0, 3.9], 97, 0, False),  # a pool opens them at once
        ([9.0, 5.0, 3.0, 1.0], 97, 0, False),
        ([9.0, 7.0, 5.0, 3.0, 1.0], 4, 0, False),
    ],
)
def test_connections_that_stay_are_a_leak_and_not_reconnects(
    ages_s: list[float], opened: int, closed: int, found: bool
) -> None:
    here = leaking(ages_s, opened, closed)
    assert bool(find_leaked_connections(here)) is found
    if found:
        first = faults(here)[0]
        assert first.text == f"web@h opens {opened / 10} connections/s and never closes them: 1097 are open of 1100."
        assert "client_reconnect_loop" not in [one.rule for one in faults(here)]


@pytest.mark.parametrize(
    ("count", "lasting", "spread_s", "found"),
    [(20, 20, 1.9, True), (20, 15, 1.9, False), (20, 20, 0.1, False), (4, 4, 1.9, False), (5, 5, 1.0, True)],
)
def test_processes_of_clients_that_stay_are_a_leak(count: int, lasting: int, spread_s: float, found: bool) -> None:
    starts = ProcessStarts(
        role="backend of", count=count, account="web@h", lasting_count=lasting, lasting_spread_s=spread_s
    )
    here = of_server(True, starts=[starts])
    assert bool(find_leaked_connections(here)) is found
    if found:
        assert faults(here)[0].text.startswith("web@h opens ")


def test_reconnects_with_a_costly_statement_are_about_the_statement() -> None:
    counts = counted(Connections=200, Questions=620)
    cheap = window(10.0, use("SELECT 1", 1.0, 20.0), use("SET NAMES a", 1.0, 20.0), connecting_percent=7.0)
    (fault,) = find_short_connections(of_server(False, statement_window=cheap, cpu_percent=10.0, **counts))
    assert fault.percent == pytest.approx(9.0)
    costly = window(10.0, use("SELECT a FROM t", 9.0, 20.0), connecting_percent=0.5)
    here = of_server(False, statement_window=costly, cpu_percent=10.0, **counts)
    assert find_short_connections(here) == []
    assert faults(here)[0].text.startswith("app@h sends SELECT a FROM t")


@pytest.mark.parametrize(
    ("text", "calls_hz", "others_hz", "found"),
    [
        ("UPDATE jobs SET s = 1 WHERE id = (SELECT id FROM jobs FOR UPDATE SKIP LOCKED LIMIT 1)", 158.0, 0.0, True),
        ("SELECT id FROM jobs WHERE s = 1 LIMIT 1 FOR UPDATE", 10.0, 0.0, True),
        ("SELECT id FROM jobs WHERE s = 1 LIMIT 1 FOR UPDATE", 9.9, 0.0, False),
        ("SELECT id FROM jobs WHERE s = 1 LIMIT 1 FOR UPDATE", 50.0, 51.0, False),
        ("SELECT abalance FROM pgbench_accounts WHERE aid = 7", 500.0, 0.0, False),
        ("SET NAMES utf8", 500.0, 0.0, False),
    ],
)
def test_a_statement_that_looks_for_work_is_named_by_its_wake_ups(
    text: str, calls_hz: float, others_hz: float, found: bool
) -> None:
    uses = [use(text, 0.1, calls_hz), use("SELECT a FROM t", 0.1, others_hz)]
    here = of_server(True, cpu_percent=1.0, statement_window=window(1.0, *uses))
    assert bool(find_queue_pollers(here)) is found
    if found:
        assert faults(here)[0].text.startswith(f"app@h polls {calls_hz:.0f}")
        assert "LISTEN" in faults(here)[0].remedy[0]


@pytest.mark.parametrize(("period_ms", "found"), [(50.0, True), (None, False)])
def test_a_regular_pace_is_a_sign_of_polling(period_ms: float | None, found: bool) -> None:
    rows = [row("backend of shop", 19.0, tid=tid, origin="other_process", period_ms=period_ms) for tid in range(8)]
    looks = window(1.0, use("SELECT id FROM jobs WHERE s = 1", 0.5, 152.0))
    assert bool(find_queue_pollers(of_server(True, cpu_percent=1.0, statement_window=looks, wakeups=rows))) is found


@pytest.mark.parametrize("ended_name", ["ended threads", "ended processes"])
def test_ended_processes_have_the_role_that_the_server_starts(ended_name: str) -> None:
    ended = window(10.0, roles=[RoleCpu(name=ended_name, percent=9.0)])
    for role, account, name in (
        ("autovacuum worker", None, "autovacuum worker"),
        ("backend of", "web@localhost", "opening and closing connections"),
    ):
        starts = [ProcessStarts(role=role, count=3, account=account)]
        consumer = find_largest_consumer(of_server(True, cpu_percent=10.0, statement_window=ended, starts=starts))
        assert consumer is not None
        assert (consumer.name, consumer.account) == (name, account)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("SELECT 1", "SELECT 1"),
        (f"SELECT a, {'b, ' * 40}c FROM t WHERE d = ?", "SELECT a … FROM t WHERE d = ?"),
        (f"UPDATE t SET {'a' * 90} = ?", f"UPDATE t SET {'a' * 66}…"),
    ],
)
def test_a_long_statement_keeps_its_tables(text: str, short: str) -> None:
    assert shorten_statement(text) == short
