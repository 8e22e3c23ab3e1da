# SPDX-License-Identifier: Apache-2.0
"""What is printed of a window: the answer first, then the table, then that it adds up."""

from __future__ import annotations

import csv
import io

import msgspec

from powerprof.database.clients.performance import Known
from powerprof.queries.join import parts_of
from powerprof.queries.records import Queries, QueryPlanStep, QueryServer, TracingCost
from powerprof.queries.shares import priced
from powerprof.records import ToolCost
from powerprof.report.documents.kinds import lines_of
from powerprof.report.exports.formats import export
from powerprof.report.html import render_html
from powerprof.report.terminal.queries import headline
from tests.unit.queries.sample import trace

HOSTILE = b"SELECT '\x1b[31m</script><script>alert(1)</script>' FROM `</script><b>`"


def record(**changes: object) -> Queries:
    """The window of `sample`, without joules."""
    taken = trace(**changes)
    parts = parts_of(taken, Known())
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


def test_the_answer_the_table_and_the_sum() -> None:
    found = lines_of(record(), 80)
    assert found[0].startswith("One statement takes 40 % of this server's CPU time: SELECT BENCHMARK(")
    assert any(line.split()[:4] == ["40.0", "200.0", "1.00", "0.15"] for line in found)
    text = " ".join(found)
    assert "Statements 0.810 s + background 0.090 s + connections 0.090 s + unexplained 0.010 s = 1.000 s" in text
    assert "Tracing cost 2 ms of CPU time, 0.06 % of this host and 0.24 % of the server's CPU time, 5.8 µs a" in text
    assert "--method samples" not in text
    assert all(len(line) <= 80 for line in found)


def test_a_dear_trace_names_the_cheaper_way() -> None:
    cost = TracingCost(probes_ms=31.0, percent=0.8, per_call_us=5.8)
    dear = msgspec.structs.replace(record(), tracing=cost)
    text = " ".join(lines_of(dear, 80))
    assert "3.10 % of the server's CPU time, 5.8 µs a statement" in text
    assert "--method samples costs a fraction of it" in text


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
    assert lines_of(idle, 80)[0] == "mysqld (10) executed no statement in 2.0 s."


def test_no_text_of_a_client_gets_out_of_its_place() -> None:
    texts = [one if one.id != 1002 else type(one)(1002, 3, len(HOSTILE), HOSTILE) for one in trace().texts]
    hostile = record(texts=texts)
    page = render_html(hostile)
    assert "</script><b>" not in page
    assert "<script>alert" not in page
    assert "\x1b" not in "".join(lines_of(hostile, 80))
    assert b"\x1b" not in export(hostile, "markdown")


def test_csv_has_every_part() -> None:
    lines = list(csv.reader(io.StringIO(export(record(), "csv").decode("utf-8-sig"))))
    assert {len(line) for line in lines[1:5]} == {len(lines[0])}
    assert [line[0] for line in lines[1:]] == ["statement"] * 4 + ["background", "connections", "unexplained"]
    assert sum(float(line[5]) for line in lines[1:]) == 1.0


def test_a_plan_is_told_below_its_statement() -> None:

    plain = record()
    step = QueryPlanStep(table="t", access="ALL", rows_count=20395)
    first = msgspec.structs.replace(plain.statements[0], plan=[step])
    planned = msgspec.structs.replace(plain, statements=[first, *plain.statements[1:]])
    assert any("plan: t ALL, 20,395 rows" in line for line in lines_of(planned, 80))


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
    assert "and 1.562 of 3.016 J above the idle floor (estimated, 0.810 to 6.050 J possible)" in headline(priced_record)
    exact = msgspec.structs.replace(first, low_joules=None, high_joules=None, kind="measured")
    measured = msgspec.structs.replace(whole, joules=3.016, kind="measured", statements=[exact])
    assert "J above the idle floor: SELECT 1" in headline(measured)
