# SPDX-License-Identifier: Apache-2.0
"""The screen and the lines of `queries --watch`: trends of statements, order, filter, and a server that is away."""

from __future__ import annotations

import msgspec

from powerprof.live.statements import StatementHistory
from powerprof.queries.records import Statement, TracingCost
from powerprof.report.watch import (
    AWAY,
    QUERIES_PLAIN_HEAD,
    QUERIES_SORTS,
    ScreenView,
    draw_queries_screen,
    queries_chosen_lines,
    queries_plain_line,
)
from tests.unit.queries.test_report import record


def history() -> StatementHistory:
    """A window without the point selects, then the one with them."""
    found = StatementHistory()
    now = record()
    found.add(msgspec.structs.replace(now, statements=[one for one in now.statements if "BENCHMARK" in one.text]))
    found.add(now)
    return found


def test_the_screen_has_the_whole_and_each_statement_with_its_trend() -> None:
    lines = draw_queries_screen(history(), ScreenView(sort="CPU"), "powerprof queries", 100, 24)
    assert len(lines) == 24
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("powerprof queries · mysqld (10) · 2 s")
    assert "not measured" not in lines[1]
    assert lines[1].startswith("CPU 50.0 % of one")
    assert "208 statements/s" in lines[1]
    assert lines[2] == "statements 81.0 % + background 9.0 % + connections 9.0 % + unexplained 1.0 %"
    assert lines[5].startswith(">")
    rows = {line.split("  ")[-1]: line for line in lines[5:12] if line.strip()}
    point = next(line for name, line in rows.items() if "FROM t WHERE" in name)
    assert point.split()[:5] == ["20.0", "▁█", "200", "1.000", "0.59"]
    assert "itself: 5.8 µs a statement" in lines[-1]


def test_what_lies_between_two_windows_is_said() -> None:
    kept = history()
    kept.add(msgspec.structs.replace(record(), gap_before_s=0.0312))
    assert "31 ms not measured before it" in draw_queries_screen(kept, ScreenView(sort="CPU"), "t", 120, 24)[1]


def test_rows_are_sorted_filtered_and_opened() -> None:
    kept = history()
    assert queries_chosen_lines(kept, ScreenView(sort="calls"))[0].statement.text == "SELECT c FROM t WHERE id = ?"
    assert "BENCHMARK" in queries_chosen_lines(kept, ScreenView(sort="ms a call"))[0].statement.text
    assert len(queries_chosen_lines(kept, ScreenView(sort="CPU", wanted="benchmark"))) == 1
    opened = draw_queries_screen(kept, ScreenView(sort="CPU", opened=True), "t", 60, 24)
    assert opened[6].strip().startswith("SELECT BENCHMARK")
    assert QUERIES_SORTS[0] == "CPU"


def test_a_server_that_is_away_is_said_and_the_last_window_stays() -> None:
    kept = StatementHistory()
    kept.add(None)
    assert any(AWAY in line for line in draw_queries_screen(kept, ScreenView(), "t", 80, 10))
    kept = history()
    kept.add(None)
    lines = draw_queries_screen(kept, ScreenView(), "t", 80, 24)
    assert any(AWAY in line for line in lines)
    assert any("BENCHMARK" in line for line in lines)
    assert queries_plain_line(None) == AWAY
    kept.add(record())
    assert not any(AWAY in line for line in draw_queries_screen(kept, ScreenView(), "t", 80, 24))


def test_what_does_not_fit_is_summed() -> None:
    whole = record()
    many = [Statement(text=f"SELECT {name} FROM t", c0_s=0.02, c0_percent=2.0) for name in "abcdefghijklmnopqrst"]
    kept = StatementHistory()
    kept.add(msgspec.structs.replace(whole, statements=many))
    lines = draw_queries_screen(kept, ScreenView(sort="CPU"), "t", 80, 14)
    rows = [line for line in lines if "FROM t" in line]
    rest = next(line for line in lines if "more rows" in line)
    assert float(rest.split()[0]) + len(rows) == 20.0  # 1 % of a CPU each


def test_a_dear_trace_and_a_line_for_a_log() -> None:
    dear = msgspec.structs.replace(record(), tracing=TracingCost(probes_ms=50.0, percent=1.0, per_call_us=9.0))
    kept = StatementHistory()
    kept.add(dear)
    assert "! tracing takes 5.0 % of the server's CPU time" in draw_queries_screen(kept, ScreenView(), "t", 80, 24)
    line = queries_plain_line(record(), 100)
    assert len(line) <= 100
    assert line.split()[:3] == ["00:00:00", "50.0", "208"]
    assert len(QUERIES_PLAIN_HEAD.split()) >= 5
