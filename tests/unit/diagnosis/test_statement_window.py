# SPDX-License-Identifier: Apache-2.0
"""The window of statements: own statements, shares of scans, and connections that the account may not see."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.diagnosis import server_queries
from powerprof.diagnosis.diagnose import list_coverage
from powerprof.diagnosis.evidence import Client, StatementCpu, StatementWindow
from powerprof.diagnosis.server_queries import RawClient, count_hidden, list_own_statements, select_clients
from powerprof.diagnosis.statement_window import build_window, compute_scan_percent, join_windows, list_unknown_scans
from powerprof.model.statements import NO_TEXT, normalise
from powerprof.queries.records import Asker, SampledStack, Statement
from tests.unit.diagnosis.examples import evidence
from tests.unit.queries.test_report import record


def statement(text: str, c0_s: float = 1.0, **fields: object) -> Statement:
    return msgspec.structs.replace(Statement(text=normalise(text), c0_s=c0_s), **fields)


@pytest.mark.parametrize("own", list_own_statements())
def test_statements_of_another_diagnosis_are_in_no_row(own: str) -> None:
    rows = [
        statement(own, 2.0),
        statement("SELECT * FROM orders", 0.5, askers=[Asker(user="app", host=None, c0_s=0.5)]),
    ]
    window = build_window(msgspec.structs.replace(record(), window_s=2.0, server_c0_s=2.6, statements=rows))
    assert [(use.text, use.percent, use.account) for use in window.statements] == [
        ("SELECT * FROM orders", 25.0, "app@localhost")
    ]
    assert (window.percent, window.own_percent) == (130.0, 100.0)


def test_scan_percent_counts_samples_with_a_scan() -> None:
    stacks = [
        SampledStack(["main", "ExecScan", "heap_getnextslot", "memcpy"], 90),
        SampledStack(["main", "index_getnext_slot"], 10),
    ]
    assert compute_scan_percent(statement("SELECT 1", stacks=stacks)) == 90.0
    assert compute_scan_percent(statement("SELECT 1")) is None


def test_costly_statements_without_enough_stacks_are_listed_as_unknown() -> None:
    uses = [
        StatementCpu(text=normalise(text), percent=percent, scan_percent=scan_percent)
        for text, percent, scan_percent in (
            ("SELECT * FROM orders WHERE note = 5", 0.3, None),
            ("SELECT * FROM customers", 0.3, 10.0),
            ("SELECT * FROM pg_stat_database", 0.3, None),
            ("SELECT 1", 0.1, None),
        )
    ]
    window = StatementWindow(window_s=2.0, method="probes", percent=1.0, statements=uses)
    assert [use.text for use in list_unknown_scans(window)] == [uses[0].text]
    coverage = list_coverage(evidence(family="postgresql", asked=False, statement_window=window, starts_span_s=2.0))
    assert "scans of whole tables by 1 costly statement (too few stacks)" in coverage.not_visible


def raw(*entries: tuple[int, str, str]) -> list[RawClient]:
    return [
        (Client(id=number, user=user, host="h", command=command, time_s=0.0, state="", statement=NO_TEXT), "")
        for number, user, command in entries
    ]


@pytest.mark.parametrize(
    ("rows", "connected", "hidden"),
    [
        (raw((7, "me", "Query")), 14, 13),
        (raw((7, "me", "Query"), (8, "me", "Sleep")), 14, 12),
        (raw((7, "me", "Query")), 1, 0),
        (raw((7, "me", "Query"), (8, "app", "Sleep")), 14, 0),
        (raw((7, "me", "Query"), (2, "system user", "Daemon")), 14, 0),
        (raw((7, "me", "Query")), None, None),
        ([], 14, None),
    ],
    ids=["all", "own account", "alone", "one other is visible", "threads are visible", "no count", "no list"],
)
def test_connections_that_the_account_may_not_see(
    rows: list[RawClient], connected: int | None, hidden: int | None
) -> None:
    assert count_hidden(rows, 7, connected) == hidden


def test_connections_of_all_instances_are_no_clients() -> None:
    rows = raw((7, "root", "Query"), (8, "root", "Sleep"), (9, "root", "Sleep"), (10, "app", "Sleep"))
    assert [client.id for client in select_clients(rows, {7, 8, 9})] == [10]
    assert len(server_queries._LOCKS) == len(set(server_queries._LOCKS)) == 16


def test_short_windows_are_joined() -> None:
    """Windows of `watch` have at least the length of those of `diagnose`; shares and rates are those of all."""

    def window(seconds: float, percent: float, calls_hz: float | None, method: str = "probes") -> StatementWindow:
        use = StatementCpu(text=normalise("SELECT 1"), percent=percent, calls_hz=calls_hz, account=None)
        other = StatementCpu(text=normalise(f"SELECT {calls_hz} FROM t"), percent=1.0, calls_hz=1.0, account="a@b")
        uses = [use, other] if percent > 0 else [other]
        return StatementWindow(window_s=seconds, method=method, percent=percent + 1.0, statements=uses)

    assert join_windows([]) is None
    assert join_windows([window(0.5, 1.0, 2.0)] * 3) is None
    assert join_windows([window(5.0, 1.0, 2.0), window(1.0, 1.0, 2.0)]) is not None
    assert join_windows([window(1.0, 1.0, 2.0, "samples"), window(1.0, 1.0, 2.0)]) is None
    assert join_windows([window(9.0, 50.0, 99.0), window(2.0, 1.0, 2.0)]) == window(2.0, 1.0, 2.0)
    joined = join_windows(
        [window(9.0, 50.0, 99.0), window(1.0, 4.0, 8.0), window(1.0, 0.0, None), window(2.0, 1.0, 1.0)]
    )
    assert joined == window(2.0, 1.0, 1.0)
    joined = join_windows([window(1.5, 4.0, 8.0), window(0.5, 0.0, None)])
    assert joined is not None
    assert (joined.window_s, joined.percent) == (2.0, pytest.approx(4.0))
    first = joined.statements[0]
    assert (first.percent, first.calls_hz) == (pytest.approx(3.0), pytest.approx(6.0))
    assert sum(use.percent for use in joined.statements) == pytest.approx(joined.percent)
