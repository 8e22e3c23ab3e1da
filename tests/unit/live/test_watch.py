# SPDX-License-Identifier: Apache-2.0
"""The screens of `watch` and `queries --watch` at any size, their keys, lines and documents."""

from __future__ import annotations

import json

import msgspec
import pytest

from powerprof.cli.live import parse_keys
from powerprof.live.intervals import CpuUse, IntervalRow, LiveFinding, RowHistory, RowKey, RowTrend, ServedStatements
from powerprof.live.statements import StatementHistory
from powerprof.queries.records import Statement
from powerprof.report.queries_watch import (
    AWAY,
    QUERIES_SORTS,
    draw_queries_screen,
    queries_chosen_lines,
    queries_plain_line,
)
from powerprof.report.screen import ScreenView, draw_bars, scroll_rows
from powerprof.report.watch import KEYS, PLAIN_HEAD, draw_screen, interval_document, plain_line, row_line
from tests.unit.live.intervals import interval, row, served
from tests.unit.queries.test_report import record

STORM = LiveFinding(rule="duplicate_server_id", severity="fault", text="another server has server_id 2")
TITLE = "powerprof watch · mariadbd"


def history(*counts: int) -> RowHistory:
    found = RowHistory()
    for count in counts:
        rows = [row("handle_slave_io", count), row("page_cleaner", 10), *(row(f"f{n:02}", 1) for n in range(80))]
        found.add(interval(*rows, findings=(STORM,) if count > 1000 else ()))
    return found


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 8), (20, 4)])
@pytest.mark.parametrize("opened", [False, True])
def test_a_screen_fills_every_size_exactly(width: int, height: int, opened: bool) -> None:
    for made in (history(), history(20), history(20, 20, 5120)):
        lines = draw_screen(made, ScreenView(opened=opened, chosen=50), TITLE, width, height)
        assert len(lines) == height
        assert max(map(len, lines)) <= width


def test_a_screen_of_eighty_columns() -> None:
    lines = draw_screen(history(0, 20, 20, 5120), ScreenView(), TITLE, 80, 24)
    assert lines[0].startswith(f"{TITLE} · 2 CPUs · 10 s") and lines[0].endswith("00:00:00")
    assert lines[1].startswith("C0 7.5 %") and "wake-ups 521/s" in lines[1] and "3.0 W" in lines[1]
    assert " ".join(lines[5].split()) == "> 512.0 ▁▁▁█ 2.56 mariadbd · handle_slave_io NEW, 30 s"
    assert "more rows" in lines[20]
    assert lines[21] == "! another server has server_id 2"
    assert lines[22:] == ["itself: 0.1 % of a CPU, 0.3 wake-ups/s", KEYS]
    wide = draw_screen(history(20), ScreenView(), TITLE, 200, 60)[-1]
    assert wide.startswith(KEYS) and wide.endswith("itself: 0.1 % of a CPU, 0.3 wake-ups/s")


def watched(statements: ServedStatements | None, target_percent: float | None = 2.64) -> RowHistory:
    found = RowHistory()
    python = msgspec.structs.replace(row("futex", 1000, process="python"), is_other=True)
    scan = replace_finding("A client scans a whole table 3.2 times/s. It uses 69 % of this server's CPU time " * 2)
    found.add(
        interval(
            row("timer_handler", 7),
            python,
            target="mariadbd",
            target_percent=target_percent,
            statements=statements,
            findings=(scan,),
            used={f"program{number}": CpuUse(3, 3.0) for number in range(4)},
            c0_s=19.0,
        )
    )
    return found


def replace_finding(text: str) -> LiveFinding:
    return msgspec.structs.replace(STORM, text=text, server="mariadbd:3306", account="mysql")


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (40, ["mariadbd 3003                   00:00:00", "2.6 % of a CPU · 0.7 wake-ups/s", "18 statements/s"]),
        (80, ["mariadbd 3003 · 2.6 % of a CPU · 0.7 wake-ups/s · 18 statements/s       00:00:00"]),
    ],
)
def test_the_head_of_a_target_has_its_load(width: int, head: list[str]) -> None:
    """On 20 lines there is room for rows at each width, and a cut finding ends with a sign."""
    lines = draw_screen(watched(served(calls_count=180)), ScreenView(), "mariadbd 3003", width, 20)
    assert lines[: len(head)] == head
    assert lines[len(head)].startswith("host: ")
    assert len(lines) == 20
    assert max(map(len, lines)) <= width
    assert any(line.startswith(">") and " 0.7 " in line for line in lines), lines
    assert not any("of mysql" in line for line in lines)
    finding = next(number for number, line in enumerate(lines) if line.startswith("! A client"))
    assert lines[finding + 1].endswith("…")


def test_unknown_load_of_a_target_is_unknown() -> None:
    for statements, words in ((served(calls_count=None), "statements unknown"), (None, "wake-ups/s  ")):
        made = watched(statements, target_percent=None)
        assert (
            f"CPU unknown · 0.7 wake-ups/s{' · ' if statements else ''}"
            in draw_screen(made, ScreenView(), "x", 100, 20)[0]
        )
        assert words in draw_screen(made, ScreenView(), "x", 100, 20)[0]
        newest = made.last
        assert newest is not None
        assert interval_document(newest)["target"] == {
            "name": "mariadbd",
            "cpu_percent": None,
            "wakeups_hz": pytest.approx(0.7),
            "statements_hz": None,
        }
    assert interval_document(interval())["target"] is None


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("room", [1, 2, 3, 7, 12, 13, 14, 40])
def test_rows_and_the_rest_are_complete_at_every_scroll_position(room: int, opened: bool) -> None:
    for chosen in range(14):  # one more than the rows
        rows = scroll_rows(
            [1 << n for n in range(13)],
            ScreenView(chosen=chosen, opened=opened),
            room,
            row=lambda line: f" {line}",
            details=lambda line: [f"   of {line}", "   two"],
            rest=lambda left: f" {sum(left)}",
        )
        assert len(rows) <= room
        marked = rows.index(f">{1 << min(chosen, 12)}")
        if opened and room > 2:
            assert rows[marked + 1] == f"   of {1 << min(chosen, 12)}"
        if room > 1:
            figures = [int(row[1:].split()[0]) for row in rows if not row.startswith("   ")]
            assert sum(figures) == (1 << 13) - 1
        more = [row for row in rows if "more row" in row]
        shown = sum(not row.startswith("   ") for row in rows) - len(more)
        assert not more or (more == rows[-1:] and f"  {13 - shown} more row" in more[0])


def test_filter_sort_and_choice() -> None:
    made = history(20)
    only = draw_screen(made, ScreenView(wanted="HANDLE"), TITLE, 80, 24)
    assert sum(" · " in line for line in only[5:20]) == 1
    assert any("no row contains “xyz”" in line for line in draw_screen(made, ScreenView(wanted="xyz"), TITLE, 80, 24))
    by_name = draw_screen(made, ScreenView(sort="name", chosen=1), TITLE, 80, 24)
    assert "f00" in by_name[5] and by_name[6].startswith(">")
    assert draw_screen(made, ScreenView(wanted="ab", typing=True), TITLE, 80, 24)[-1] == "/ab_"


def test_order_and_filter_are_always_on_the_screen() -> None:
    made = history(20)
    assert draw_screen(made, ScreenView(), TITLE, 80, 24)[3] == "sorted by rate (s: rate, C0, name)"
    filtered = draw_screen(made, ScreenView(sort="C0", wanted="handle"), TITLE, 80, 24)[3]
    assert filtered == "filter “handle”: 1 of 82 rows (Esc: all)  sorted by C0 (s: rate, C0, name)"
    narrow = draw_screen(made, ScreenView(wanted="handle"), TITLE, 40, 24)
    assert any(line.startswith("filter “handle”: 1 of 82 rows") for line in narrow)


def _watched_server() -> RowHistory:
    found = RowHistory()
    rows = [row("timer_handler", 7), row("python", 1070), row("kworker/0:1", 970), row("sshd", 5)]
    others = [
        msgspec.structs.replace(each, key=RowKey(*names), is_other=True)
        for each, names in zip(
            rows[1:],
            [("python", "python", "main"), ("kernel", "kworker/0:1", "work"), ("sshd", "sshd", "poll")],
            strict=True,
        )
    ]
    found.add(interval(rows[0], *others))
    return found


@pytest.mark.parametrize(
    ("width", "words"),
    [(80, "others: python 107/s, kworker 97/s, sshd 0.5/s"), (40, "others: python 107/s, 2 more 98/s")],
)
def test_other_processes_than_the_target_have_one_line(width: int, words: str) -> None:
    made = _watched_server()
    lines = draw_screen(made, ScreenView(), TITLE, width, 24)
    assert words in lines
    shown = [line for line in lines if "python" in line]
    assert shown == [words] and any(line.split()[:2] == [">", "0.7"] for line in lines)
    every = draw_screen(made, ScreenView(all=True), TITLE, width, 24)
    assert sum("python" in line for line in every) == 1 and not any(line.startswith("others") for line in every)


def test_help_names_every_key_and_column() -> None:
    for width, height in ((80, 24), (200, 50)):
        lines = draw_screen(history(20), ScreenView(help=True), TITLE, width, height)
        words = "\n".join(lines)
        assert all(
            f"  {key}" in words for key in ("s ", "/", "Enter", "space", "w ", "q,", "/s", "C0 %", "every", "NEW")
        )
        assert "Any key: back" in words and max(map(len, lines)) <= width


def test_a_narrow_row_keeps_the_process() -> None:
    """The age is dropped first, then the thread, then the end of the function."""
    key = RowKey("python3", "worker-thread-17", "wait_for_more_work_of_any_kind")
    worker = IntervalRow(key=key, exits_count=5, c0_s=0.1, mechanism="timer")
    line = RowTrend(worker, 0.5, 0.1, (0.5,), 12.0)
    for width in range(49, 140):
        shown = row_line(line, width)
        assert "python3" in shown and len(shown) <= width
    assert row_line(line, 140).endswith("python3 worker-thread-17 · wait_for_more_work_of_any_kind  NEW, 12 s")
    assert row_line(line, 100).endswith("python3 worker-thread-17 · wait_for_more_work_of_any_kind  NEW")
    assert row_line(line, 90).endswith("python3 · wait_for_more_work_of_any_kind  NEW, 12 s")
    assert row_line(line, 70).endswith("python3 · wait_for_more_work_of_…")


def test_a_kernel_thread_is_named_instead_of_the_kernel() -> None:
    timer = IntervalRow(
        key=RowKey("kernel", "kworker/u8:2-events_unbound", "delayed_work_timer_fn"),
        exits_count=5,
        c0_s=0.1,
        mechanism="timer",
    )
    assert row_line(RowTrend(timer, 0.5, 0.1, (0.5,), None), 90).endswith(
        "kworker/u8:2-events_unbound · delayed_work_timer_fn"
    )


def test_a_busy_host_shows_its_busiest_processes() -> None:
    """Both CPUs ran 19.6 of 20 s: 12 s in two compilers, 6 s in a server, the rest in ended processes."""
    used = {"mariadbd": CpuUse(1, 6.0), "cc1": CpuUse(2, 12.0), "sshd": CpuUse(1, 0.1)}
    made = RowHistory()
    made.add(interval(c0_s=19.6, used=used))
    words = "busy: cc1 (2) 60 %, mariadbd 30 %, other processes, and interrupts 8 %"
    assert words in draw_screen(made, ScreenView(), TITLE, 80, 24)
    assert "no CPU left an idle state in this interval" in draw_screen(made, ScreenView(), TITLE, 80, 24)
    assert f"! {words}" in plain_line(interval(c0_s=19.6, used=used), 200)
    assert interval_document(interval(c0_s=19.6, used=used))["used"][0] == {
        "process": "cc1",
        "processes_count": 2,
        "cpu_s": 12.0,
    }
    assert interval_document(interval())["used"] is None
    assert "busy" not in " ".join(draw_screen(history(20), ScreenView(), TITLE, 80, 24))


def test_sparks() -> None:
    assert draw_bars([0, 1, 2, 4], 4) == "▁▂▄█" or draw_bars([0, 1, 2, 4], 4) == "▁▃▅█"
    assert draw_bars([1.0], 4) == "   █"
    assert draw_bars([None, 0.0], 2) == " ▁"


def test_keys() -> None:
    assert parse_keys(b"\x1b[A") == ["up"]
    assert parse_keys(b"\r") == ["enter"]
    assert parse_keys(b"q/x") == ["q", "/", "x"]
    assert parse_keys(b"\x1b[200~") == []
    # A held key or a slow line sends several keys at once.
    assert parse_keys(b"\x1b[B\x1b[B\x1bOA\r\x1b[3~s\x1bq\x1b") == ["down", "down", "up", "enter", "s", "escape"]
    assert parse_keys("ü\x01".encode()) == ["ü"]


def test_an_interval_as_a_line_and_as_a_document() -> None:
    made = interval(row("handle_slave_io", 5120), untraced=3, findings=(STORM,))
    line = plain_line(made)
    assert len(line) <= 100 and "512.3" in line and "! duplicate_server_id" in line
    assert PLAIN_HEAD.split()[0] == "time"
    found = json.loads(json.dumps(interval_document(made)))
    assert (found["schema"], found["idle_exits_count"], found["mechanisms_count"]["untraced"]) == (
        "powerprof.interval/1",
        5123,
        3,
    )
    assert found["rows"][0]["function"] == "handle_slave_io"
    assert (found["watts"], found["kind"]) == (3.0, "measured")


def queries_history() -> StatementHistory:
    """Return a window without the point selects and one with them."""
    found = StatementHistory()
    now = record()
    found.add(msgspec.structs.replace(now, statements=[one for one in now.statements if "BENCHMARK" in one.text]))
    found.add(now)
    return found


def test_statements_are_sorted_filtered_and_opened() -> None:
    kept = queries_history()
    assert queries_chosen_lines(kept, ScreenView(sort="calls"))[0].statement.text == "SELECT c FROM t WHERE id = ?"
    assert "BENCHMARK" in queries_chosen_lines(kept, ScreenView(sort="ms a call"))[0].statement.text
    assert len(queries_chosen_lines(kept, ScreenView(sort="CPU", wanted="benchmark"))) == 1
    opened = draw_queries_screen(kept, ScreenView(sort="CPU", opened=True), "t", 60, 24)
    chosen = next(number for number, line in enumerate(opened) if line.startswith(">"))
    assert opened[chosen + 1].strip().startswith("SELECT BENCHMARK")
    assert QUERIES_SORTS[0] == "CPU"


def test_the_last_window_stays_while_the_server_is_away() -> None:
    kept = StatementHistory()
    kept.add(None)
    assert any(AWAY in line for line in draw_queries_screen(kept, ScreenView(), "t", 80, 10))
    kept = queries_history()
    kept.add(None)
    lines = draw_queries_screen(kept, ScreenView(), "t", 80, 24)
    assert any(AWAY in line for line in lines)
    assert any("BENCHMARK" in line for line in lines)
    assert queries_plain_line(None) == AWAY
    kept.add(record())
    assert not any(AWAY in line for line in draw_queries_screen(kept, ScreenView(), "t", 80, 24))


def test_statements_that_do_not_fit_are_summed() -> None:
    whole = record()
    many = [Statement(text=f"SELECT {name} FROM t", c0_s=0.02, c0_percent=2.0) for name in "abcdefghijklmnopqrst"]
    kept = StatementHistory()
    kept.add(msgspec.structs.replace(whole, statements=many))
    lines = draw_queries_screen(kept, ScreenView(sort="CPU"), "t", 80, 14)
    rows = [line for line in lines if "FROM t" in line]
    rest = next(line for line in lines if "more rows" in line)
    assert float(rest.split()[0]) + len(rows) == 20.0  # 1 % of a CPU each
