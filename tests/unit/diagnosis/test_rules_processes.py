# SPDX-License-Identifier: Apache-2.0
"""The rules on processes of PostgreSQL: workers that start again and again, and those that come and go by design."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.diagnosis.diagnose import diagnose, list_coverage
from powerprof.diagnosis.evidence import Evidence, Finding, ProcessStarts, StatementCpu, StatementWindow
from powerprof.diagnosis.postgres_evidence import PostgresFacts, Subscription
from powerprof.diagnosis.process_starts import count_roles
from powerprof.system.server_roles import parse_part
from tests.unit.diagnosis.examples import evidence, row

_RULES = (
    *("restarted_worker", "failed_archiving", "frequent_autovacuum", "parallel_workers", "client_reconnect_loop"),
)
APPLY = "postgres: logical replication worker for subscription 16391 "


def postgres(*titles: str | None, **fields: object) -> Evidence:
    """Return the evidence of two seconds in which processes with these titles started."""
    roles = [None if title is None else parse_part(title) for title in titles]
    base = {"version": "postgres", "family": "postgres", "asked": False, "starts_span_s": 2.0}
    return evidence(**{**base, "starts": count_roles(roles), **fields})


def findings(here: Evidence) -> list[Finding]:
    return [finding for finding in diagnose(here) if finding.rule in _RULES]


@pytest.mark.parametrize(
    ("titles", "text"),
    [
        (
            [APPLY] * 120,
            "number 16391 (its name is unknown without a login) fails: its workers start at least 60 times/s",
        ),
        (["postgres: 15/main: logical replication worker for subscription 7"] * 3, "subscription with number 7 "),
        (
            ["postgres: logical replication apply worker for subscription 16391"] * 10,
            "workers start at least 5.0 times/s",
        ),
        (
            ["postgres: bgworker: logical replication worker for subscription 16391"] * 10,
            "workers start at least 5.0 times/s",
        ),
        (["postgres: logical replication tablesync worker for subscription 9 sync 77"] * 8, "number 9 "),
        (
            ["postgres: logical replication worker for subscription 9 sync 77 "] * 8,
            "workers start at least 4.0 times/s",
        ),
        (
            ["postgres: pglogical apply 16384:2342 "] * 120,
            "pglogical subscription 2342 fails: its workers start at least 60",
        ),
        (
            ["postgres: autovacuum worker shop"] * 5 + ["postgres: autovacuum worker app"] * 5,
            "a worker at least 5.0 times/s",
        ),
        (["postgres: walreceiver "] * 4, "This standby starts its WAL receiver at least 2.0 times/s"),
        (
            ["postgres: walreceiver streaming 0/3000148"] * 4,
            "This standby starts its WAL receiver at least 2.0 times/s",
        ),
        (
            ["postgres: walsender rep shop 10.0.0.9(4711) START_REPLICATION"] * 50,
            "connects to this server at least 25 times/s",
        ),
        (["postgres: checkpointer "] * 3, "The server starts its checkpointer at least 1.5 times/s"),
        (["postgres: my queue worker "] * 40, "the background worker 'my queue worker' at least 20 times/s"),
    ],
)
def test_workers_that_start_again_and_again_are_a_fault(titles: list[str], text: str) -> None:
    (fault,) = findings(postgres(*titles))
    assert fault.severity == "fault"
    assert text in fault.text
    assert fault.rate_hz == len(titles) / 2
    assert fault.evidence
    assert fault.remedy


@pytest.mark.parametrize(
    "titles",
    [
        [],
        ["postgres: parallel worker for PID 4711"] * 400,
        ["postgres: logical replication parallel apply worker for subscription 16391"] * 9,
        # The first copy of 40 tables: each table has one worker.
        [f"postgres: logical replication tablesync worker for subscription 9 sync {table}" for table in range(40)],
        [APPLY, APPLY],  # ALTER SUBSCRIPTION restarts the worker once.
        ["postgres: autovacuum worker shop", "postgres: autovacuum worker app"],
        ["postgres: walreceiver ", "postgres: walsender rep [local] BASE_BACKUP", "postgres: checkpointer "],
        ["postgres: app shop 10.0.0.7(5541) idle"] * 8,  # A pool that opens its connections.
        [None] * 9,
        # Short queries: some of their workers end before they are read.
        ["postgres: parallel worker for PID 4711"] * 40 + [None] * 30,
    ],
)
def test_workers_that_come_and_go_by_design_have_no_finding(titles: list[str | None]) -> None:
    assert findings(postgres(*titles)) == []


@pytest.mark.parametrize(
    ("titles", "text"),
    [
        (["postgres: autovacuum worker shop"] * 3, "Autovacuum starts a worker at least 1.5 times/s."),
        ([None] * 30, "The server starts processes at least 15.0 times/s that end before their titles can be read"),
    ],
)
def test_starts_that_need_not_be_a_failure_are_a_note(titles: list[str | None], text: str) -> None:
    (note,) = findings(postgres(*titles))
    assert note.severity == "note"
    assert text in note.text


@pytest.mark.parametrize("unnamed", [0, 1, 3, 40])
def test_processes_that_ended_too_early_are_of_the_only_kind_that_starts(unnamed: int) -> None:
    """5 starts of a receiver, 3 of them without a title, are 5. With two kinds, those without a title are unknown."""
    titles = ["postgres: walreceiver "] * 2 + [None] * unnamed
    (starts,) = count_roles([parse_part(title or "") for title in titles])
    assert (starts.role, starts.count, starts.unnamed_count) == ("walreceiver", 2 + unnamed, unnamed)
    found = findings(postgres(*titles))
    assert len(found) == int(len(titles) >= 3)
    for one in found:
        assert one.rate_hz == len(titles) / 2
        assert "starts its WAL receiver at least" in one.text
        assert f"{unnamed} of them ended before their titles could be read" in one.evidence[0]
    other = count_roles(["walreceiver", "checkpointer", *[None] * unnamed])
    assert {one.role: one.count for one in other}.get(None, 0) == unnamed
    one = count_roles(["walreceiver", *[None] * unnamed])
    assert {each.role: each.count for each in one}.get(None, 0) == unnamed


@given(roles=st.lists(st.sampled_from([None, "walreceiver", "backend of shop", "backend of mall"]), max_size=20))
def test_law_of_counted_roles(roles: list[str | None]) -> None:
    """All starts are counted once."""
    found = count_roles(roles)
    assert sum(one.count for one in found) == len(roles)
    assert sum(one.unnamed_count for one in found) == roles.count(None)
    assert len({one.role for one in found}) == len(found)


def subscriptions(errors: int | None, name: str = "orders") -> list[Subscription]:
    return [Subscription(oid=16391, name=name, errors_count=errors), Subscription(oid=5, name="idle", errors_count=4)]


def test_a_login_adds_the_name_the_errors_and_the_pause() -> None:
    (fault,) = findings(
        postgres(
            *[APPLY] * 120,
            window_s=10.0,
            subscriptions_before=subscriptions(100, 'my "sub'),
            subscriptions_after=subscriptions(700, 'my "sub'),
            variables={"wal_retrieve_retry_interval": "10"},
        )
    )
    assert (
        fault.text == 'The logical subscription my "sub fails: its workers start at least 60 times/s and end each time.'
    )
    assert fault.evidence == [
        "120 apply workers of it started in 2.0 s",
        "pg_stat_subscription_stats: 600 errors in 10 s",
        "wal_retrieve_retry_interval is 10 ms: the pause between attempts",
    ]
    assert any('ALTER SUBSCRIPTION "my ""sub" DISABLE' in line for line in fault.remedy)


@pytest.mark.parametrize(
    ("title", "name"), [(APPLY, "logical replication launcher"), ("postgres: walreceiver ", "startup")]
)
def test_the_failing_worker_explains_the_wakeups_of_the_process_that_starts_it(title: str, name: str) -> None:
    starter = row(name, 60.0, comm="postgres", stack=["epoll_wait"])
    assert {finding.rule for finding in diagnose(postgres(*[title] * 9, wakeups=[starter]))} == {"restarted_worker"}
    assert "polling_wait" in {finding.rule for finding in diagnose(postgres(wakeups=[starter]))}


@pytest.mark.parametrize(
    ("title", "count"),
    [
        ("postgres: archiver failed on 000000010000000000000001", 1),
        ("postgres: 15/main: archiver failed on 00000002.history", 1),
        ("postgres: archiver last was 000000010000000000000001", 0),
        ("postgres: archiver archiving 000000010000000000000001", 0),
        ("postgres: archiver", 0),
    ],
)
def test_a_failed_archive_command_is_known_by_the_title_of_the_archiver(title: str, count: int) -> None:
    assert len(findings(postgres(archiver=parse_part(title)))) == count


def test_titles_of_extensions_are_not_clients() -> None:
    assert parse_part("postgres: pglogical apply 16384:2342 ") == "pglogical apply 16384:2342"
    assert parse_part("postgres: TimescaleDB Background Worker Scheduler") == "TimescaleDB Background Worker Scheduler"
    assert parse_part("postgres: app shop fe80::1(5541) idle") == "backend of shop"


def test_coverage_names_the_watch_and_the_missing_login() -> None:
    blind = list_coverage(postgres())
    assert "the processes that it started in 2.0 s" in blind.examined
    (missing,) = blind.not_examined
    assert missing.startswith("its settings, sessions, slots, subscriptions and counters (the server refuses this user")
    assert "LOGIN IN ROLE pg_monitor" in missing
    facts = PostgresFacts(version=150_018)
    seen = list_coverage(
        postgres(
            subscriptions_after=subscriptions(0),
            postgres_after=facts,
            asked=True,
            variables={"jit": "on"},
            hidden_connections_count=2,
            refused=["running vacuums"],
        )
    )
    for part in ("1 setting", "logical subscriptions (2)", "replication slots (0)", "counters of 0 databases"):
        assert part in seen.examined
    assert "2 connections of other accounts (needs the role pg_monitor)" in seen.not_visible
    assert seen.not_examined[0] == "running vacuums (refused)"
    assert not any("sessions" in part or "vacuum" in part for part in seen.examined)


@pytest.mark.parametrize(
    ("before", "after", "rate_hz"),
    [(100, 102, 0.25), (100, 101, None), (100, 100, None), (None, 90, None), (90, None, None), (900, 4, None)],
)
def test_errors_of_a_subscription_are_those_of_the_window(
    before: int | None, after: int | None, rate_hz: float | None
) -> None:
    here = postgres(window_s=8.0, subscriptions_before=subscriptions(before), subscriptions_after=subscriptions(after))
    assert [finding.rate_hz for finding in findings(here)] == ([] if rate_hz is None else [rate_hz])
    # A subscription that is new has no earlier count.
    assert findings(postgres(window_s=8.0, subscriptions_before=[], subscriptions_after=subscriptions(90))) == []


def test_starts_and_errors_have_their_own_windows() -> None:
    table = "postgres: logical replication tablesync worker for subscription 16391 sync {}"
    titles = [APPLY] * 3 + [table.format(number) for number in (77, 77, 77, 78, 78, 78, 78, 79)]
    here = postgres(
        *titles,
        starts_span_s=4.0,
        window_s=20.0,
        subscriptions_before=subscriptions(3),
        subscriptions_after=subscriptions(28),
    )
    (fault,) = findings(here)
    assert fault.evidence == [
        "3 apply workers of it started in 4.0 s",
        "7 workers that copy 2 tables of it started in 4.0 s",
        "pg_stat_subscription_stats: 25 errors in 20 s",
    ]
    assert fault.rate_hz == 2.5
    often = postgres(
        starts_span_s=4.0, window_s=5.0, subscriptions_before=subscriptions(3), subscriptions_after=subscriptions(28)
    )
    assert [one.rate_hz for one in findings(often)] == [5.0]


@pytest.mark.parametrize(
    ("title", "count", "severity"),
    [
        ("postgres: checkpointer ", 2, None),
        ("postgres: checkpointer ", 3, "fault"),
        ("postgres: autovacuum worker shop", 7, "note"),
        ("postgres: autovacuum worker shop", 8, "fault"),
        ("postgres: app shop 10.0.0.7(5541) idle", 19, None),
        ("postgres: app shop 10.0.0.7(5541) idle", 20, "fault"),
        (None, 19, None),
        (None, 20, "note"),
    ],
)
def test_each_kind_of_worker_has_its_bounds(title: str | None, count: int, severity: str | None) -> None:
    """In 4 s: 2 autovacuum workers or 5 connections per second, and at least 3 starts."""
    found = findings(postgres(*[title] * count, starts_span_s=4.0, window_s=33.0))
    assert [(one.severity, one.rate_hz) for one in found] == ([] if severity is None else [(severity, count / 4)])


@pytest.mark.parametrize(
    ("count", "ended_percent", "found"), [(20, 24.0, 1), (20, 25.0, 0), (20, None, 0), (19, 1.0, 0), (40, 45.0, 1)]
)
def test_parallel_workers_are_a_fault_if_they_do_not_pay(count: int, ended_percent: float | None, found: int) -> None:
    """5 or more per second, with less than 50 ms of CPU time each."""
    titles = ["postgres: parallel worker for PID 4711"] * count
    here = postgres(*titles, starts_span_s=4.0, window_s=33.0, ended_cpu_percent=ended_percent)
    rules = [finding.rule for finding in findings(here) if finding.severity == "fault"]
    assert rules == ["parallel_workers"] * found


def test_clients_that_connect_are_named_and_a_pool_is_not() -> None:
    starts = [ProcessStarts(role="backend of", count=40, account="app@10.0.0.7", lasting_count=30)]
    (fault,) = findings(postgres(starts=starts))
    assert fault.text.startswith("app@10.0.0.7 connects at least 5.0 times/s")
    assert fault.evidence == ["40 processes of clients started in 2.0 s, 30 of them stayed"]
    grown = [ProcessStarts(role="backend of", count=40, account="app@10.0.0.7", lasting_count=31)]
    assert findings(postgres(starts=grown)) == []
    use = StatementCpu(text="SELECT md5(x)", percent=30.0, calls_hz=5.0)
    window = StatementWindow(window_s=2.0, method="probes", percent=50.0, connecting_percent=9.0, statements=[use])
    (note,) = findings(postgres(starts=starts, statement_window=window))
    assert (note.severity, note.percent) == ("note", None)
    (fault,) = findings(postgres(starts=starts, statement_window=replace(window, statements=[])))
    assert (fault.severity, fault.percent) == ("fault", 9.0)


def test_roles_with_an_account_or_database_are_one_kind() -> None:
    roles = [
        "backend of shop",
        "backend of mall",
        "walsender rep",
        "autovacuum worker a",
        "autovacuum worker b",
        None,
        "x",
    ]
    counts = {starts.role: starts.count for starts in count_roles([*roles, "backend of shop"])}
    assert counts == {"backend of": 3, "walsender": 1, "autovacuum worker": 2, None: 1, "x": 1}
