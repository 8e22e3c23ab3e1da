# SPDX-License-Identifier: Apache-2.0
"""What is printed of a window: the answer first, then the table, then that it adds up."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.database.server_report import ServerReport
from powerprof.model.records import ToolCost
from powerprof.queries.askers import group_statements
from powerprof.queries.join import join_trace
from powerprof.queries.pricing import price_share as priced
from powerprof.queries.records import Asker, Queries, QueryPlanStep, QueryServer, Statement, TracingCost
from powerprof.report.exports import export, render_html
from powerprof.report.kinds import lines_of
from powerprof.report.queries import answer_of
from powerprof.system.errors import UsageError
from powerprof.tracing.captures import StatementUse
from tests.unit.queries.sample import MS, trace

HOSTILE = b"SELECT '\x1b[31m</script><script>alert(1)</script>' FROM `</script><b>`"


def record(**changes: object) -> Queries:
    """The window of `sample`, without joules."""
    taken = trace(**changes)
    parts = join_trace(taken, ServerReport())
    every = [priced(one, at, 1.0, None, 2.0) for at, one in enumerate([*parts.statements, *parts.background])]
    return Queries(
        id=None,
        started_at="2026-01-01T00:00:00.000Z",
        window_s=2.0,
        method="probes",
        server=QueryServer(pid=10, label="mysqld (10)", version="MySQL 8.0.40"),
        host={},
        cpus=2,
        host_c0_percent=40.0,
        server_c0_s=1.0,
        statements=every[: len(parts.statements)],  # type: ignore[arg-type]
        background=every[len(parts.statements) :],  # type: ignore[arg-type]
        connections=priced(parts.connections, 0, 1.0, None, 2.0),
        connections_count=2,
        connections_c0_s=0.09,
        residual_c0_s=0.01,
        other_c0_s=0.10,
        explained_percent=99.0,
        calls_count=417,
        lost_count=0,
        unreadable_count=0,
        cut_count=0,
        joules=None,
        kind=None,
        energy_source=None,
        energy=[],
        energy_split=None,
        tracing=TracingCost(probes_ms=2.4, percent=0.06, per_call_us=5.8),
        tool=ToolCost(version="0", cpu_s=0.1, wakeups_hz=0.5, cpu_percent=2.5),
    )


def test_a_dear_trace_names_the_cheaper_way() -> None:
    cost = TracingCost(probes_ms=31.0, percent=0.8, per_call_us=5.8)
    dear = msgspec.structs.replace(record(), tracing=cost)
    text = " ".join(lines_of(dear, 80))
    assert "3.10 % of the server's CPU time, 5.8 µs per statement" in text
    assert "Cheaper, with intervals: --method samples." in text


def test_a_trace_that_costs_more_than_its_server_has_no_share_of_it() -> None:
    cost = TracingCost(probes_ms=15.0, percent=0.25, per_call_us=None)
    for used_s, words in (
        (0.1, "host and 15.00 % of the server's CPU time"),
        (2e-5, "host, more than the server itself"),
    ):
        measured = msgspec.structs.replace(record(), tracing=cost, server_c0_s=used_s)
        printed = " ".join(" ".join(lines_of(measured)).split())
        assert f"Tracing cost 15 ms of CPU time, 0.25 % of this {words}" in printed


def test_a_plan_is_in_one_line_below_its_statement_in_a_whole_table() -> None:
    plain = record()
    plan = [QueryPlanStep(table="city", access="ALL", rows_count=20_395, extra="Using where")]
    first = msgspec.structs.replace(plain.statements[0], plan=plan)
    lines = lines_of(msgspec.structs.replace(plain, statements=[first, *plain.statements[1:]]), is_whole=True)
    assert [line.strip() for line in lines if "city" in line] == ["plan: city ALL, 20,395 rows (Using where)"]


def test_shares_by_samples_have_their_intervals_instead_of_what_samples_do_not_know() -> None:
    plain = record()
    first = msgspec.structs.replace(plain.statements[0], low_percent=38.2, high_percent=42.9, wakeups_per_call=None)
    sampled = msgspec.structs.replace(plain, method="samples", statements=[first, *plain.statements[1:]])
    found = lines_of(sampled, 80)
    assert any(line.split()[:5] == ["CPU", "%", "95", "%", "calls/s"] for line in found)
    assert any(line.split()[:2] == ["40.5", "38.2–42.9"] for line in found)
    assert "wake-ups  " not in " ".join(found[:6])


def test_a_server_that_does_nothing_is_said_so() -> None:
    idle = record(uses=[], texts=[], latencies={})
    assert lines_of(idle, 80)[0] == "mysqld (10) executed no statements in 2.0 s."


def test_no_text_of_a_client_gets_out_of_its_place() -> None:
    texts = [one if one.id != 1002 else type(one)(1002, 3, len(HOSTILE), HOSTILE) for one in trace().texts]
    hostile = record(texts=texts)
    page = render_html(hostile)
    assert "</script><b>" not in page
    assert "<script>alert" not in page
    assert "\x1b" not in "".join(lines_of(hostile, 80))
    assert b"\x1b" not in export(hostile, "md")


def test_a_column_that_the_server_did_not_tell_is_none() -> None:
    known = record()
    told = [msgspec.structs.replace(one, rows_examined_per_call=20_395.0) for one in known.statements]
    for shown, is_there in ((known, False), (msgspec.structs.replace(known, statements=told), True)):
        page = render_html(shown)
        assert ("rows examined/call</th>" in page) == is_there
        assert "p95 ms</th>" in page
        assert "schema</th>" not in page


def test_the_headline_has_the_interval_of_its_joules() -> None:
    whole = record()
    first = msgspec.structs.replace(
        whole.statements[0], joules=1.562, low_joules=0.81, high_joules=6.05, kind="estimated", text="SELECT 1"
    )
    priced_record = msgspec.structs.replace(whole, joules=3.016, kind="estimated", statements=[first])
    assert "and 1.562 of 3.016 J above the idle floor (estimated, 0.810 to 6.050 J possible)" in answer_of(
        priced_record
    )
    exact = msgspec.structs.replace(first, low_joules=None, high_joules=None, kind="measured")
    measured = msgspec.structs.replace(whole, joules=3.016, kind="measured", statements=[exact])
    assert "J above the idle floor: SELECT 1" in answer_of(measured)


def waiting() -> Queries:
    """The first statement waits 40 ms for locks and 60 for a CPU in each of 2 calls."""
    uses = trace().uses
    burn = [StatementUse(1002, 12, 2, 405 * MS, 800 * MS, 0, 0, 0, (120 * MS, 80 * MS, 0, 0, 0, 0, 0, 0, 0))]
    return record(uses=[*[one for one in uses if one.id != 1002], *burn])


def test_columns_that_are_asked_for_are_shown_in_their_order() -> None:
    found = lines_of(waiting(), 100, columns="id,run-queue,row-lock,p99,cpu")
    (head,) = [line for line in found if line.startswith("    id")]
    assert head.split() == ["id", "run", "queue", "ms", "row", "lock", "ms", "p99", "ms", "CPU", "%", "statement"]
    (first,) = [line for line in found if "BENCHMARK" in line and "%" not in line]
    assert first.split()[1:5] == ["60.0", "40.0", "?", "40.5"]
    assert not [line for line in found if line.startswith("?:")]


def test_a_column_without_figures_has_its_reason() -> None:
    text = " ".join(lines_of(waiting(), 400, columns="rows-sent,joules"))
    assert "?: rows sent/call: the server refuses this user" in text
    assert "?: J: a share of the host's joules needs an idle floor" in text
    unended = msgspec.structs.replace(
        waiting(), statements=[msgspec.structs.replace(one, waits_ms=None) for one in waiting().statements]
    )
    assert "?: row lock: no statement began and ended within the window" in " ".join(
        lines_of(unended, 400, columns="row-lock")
    )
    silent = record(tells_locks=False)
    said = " ".join(lines_of(silent, 400, columns="waits"))
    assert "?: row lock, lock: this server does not report the reason of its waits; its locks are in latch" in said


def test_a_column_of_no_name_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="no column is called 'rowlock'") as refused:
        lines_of(record(), 80, columns="cpu,rowlock")
    assert "row-lock" in (refused.value.hint or "")


def asked() -> Queries:
    """`app` of two hosts, and somebody."""
    first, second, *rest = record().statements
    web = [Asker(user="app", host="web1", c0_s=0.3, calls_count=1), Asker(user="app", host="web2", c0_s=0.105)]
    some = [Asker(user="app", host="web1", c0_s=0.1, calls_count=100), Asker(user=None, host=None, c0_s=0.3)]
    statements = [msgspec.structs.replace(one, askers=who) for one, who in ((first, web), (second, some))]
    return msgspec.structs.replace(record(), statements=[*statements, *rest])


def test_rows_by_host_and_by_user_sum_to_the_statements() -> None:
    hosts = {group.name: group for group in group_statements(asked(), "host")}
    assert {name: round(group.c0_s, 3) for name, group in hosts.items()} == {
        "web1": 0.4,
        "web2": 0.105,
        "(not known)": 0.305,
    }
    assert (hosts["web1"].calls, hosts["web2"].calls, len(hosts["web1"].texts)) == (101, None, 2)
    assert hosts["web1"].first.startswith("SELECT BENCHMARK")
    assert sum(group.c0_s for group in group_statements(asked(), "user")) == pytest.approx(0.81)
    found = lines_of(asked(), 100, by="user")
    assert any(line.split()[:1] == ["50.5"] and " app " in line for line in found)
    assert not any("?" in line for line in found if line.startswith("user"))


def test_who_asks_is_a_column_and_nobody_has_a_reason() -> None:
    found = lines_of(asked(), 100, columns="who,user")
    assert any("app@web1 +1" in line and "BENCHMARK" in line for line in found)
    said = " ".join(lines_of(record(), 200, by="user"))
    assert "user: ?: the server refuses this user" in said
    with pytest.raises(UsageError, match="--by users is not a choice"):
        lines_of(record(), 80, by="users")


def test_the_usual_table_has_the_id_and_who_asks_where_there_is_room() -> None:
    for width, heads in ((70, ["statement"]), (80, ["id", "statement"]), (200, ["id", "account", "statement"])):
        found = lines_of(asked(), width)
        (head,) = [line for line in found if line.startswith("CPU %")]
        assert head.split()[8:] == heads
        assert all(len(line) <= width for line in found)
    (row,) = [line for line in found if "FROM t WHERE" in line and "app@web1" in line]
    at = head.index("statement")
    first = next(one for one in asked().statements if "FROM t WHERE" in one.text)
    assert row[:at].split()[-2:] == [first.id, "app@web1"]
    assert row[at:] == first.text
    # Nobody is known: no empty column.
    assert not any("account" in line for line in lines_of(record(), 200))
    piped = lines_of(asked(), 80, is_whole=True)
    assert any(line.split()[-2:] == ["account", "statement"] for line in piped)


def test_joules_of_a_group_are_by_the_cpu_time_of_its_askers() -> None:
    """Of 8 J for 2 s, `app` used 0.5 s on two hosts. The joules of the other statement are unknown."""
    askers = [
        Asker(user="app", host="web1", c0_s=0.25, calls_count=7),
        Asker(user="app", host="web2", c0_s=0.25, calls_count=None),
        Asker(user="job", host=None, c0_s=1.5, calls_count=20),
    ]
    dear = Statement(text="SELECT a", c0_s=2.0, joules=8.0, calls_count=27, schema_name="shop", askers=askers)
    unpriced = Statement(text="SELECT b", c0_s=3.0, calls_count=None, schema_name="mall", askers=[askers[0]])
    whole = msgspec.structs.replace(record(), statements=[dear, unpriced])
    users = {group.name: group for group in group_statements(whole, "user")}
    assert list(users) == ["job", "app"]
    assert (users["app"].c0_s, users["app"].joules, users["app"].calls) == (0.75, pytest.approx(2.0), 14)
    assert (users["job"].c0_s, users["job"].joules, users["job"].calls) == (1.5, pytest.approx(6.0), 20)
    assert (users["app"].first, users["app"].first_s, len(users["app"].texts)) == ("SELECT a", 0.5, 2)
    schemas = {group.name: (group.c0_s, group.joules, group.calls) for group in group_statements(whole, "database")}
    assert schemas == {"mall": (3.0, None, None), "shop": (2.0, 8.0, 27)}
    assert {group.name for group in group_statements(whole, "account")} == {"app@web1", "app@web2", "job@localhost"}
    hosts = {group.name: group.calls for group in group_statements(whole, "host")}
    assert hosts == {"web1": 14, "web2": None, "localhost": 20}
    later = msgspec.structs.replace(whole, statements=[msgspec.structs.replace(dear, askers=[]), dear])
    assert {group.name: group.c0_s for group in group_statements(later, "user")} == {
        "(not known)": 2.0,
        "job": 1.5,
        "app": 0.5,
    }
