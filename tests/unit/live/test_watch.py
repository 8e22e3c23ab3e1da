# SPDX-License-Identifier: Apache-2.0
"""The screen at any size, what keys mean, and the same as lines and as documents."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from powerprof.cli.live import parse_keys
from powerprof.live.intervals import CpuUse, IntervalRow, LiveFinding, RowHistory, RowKey, RowTrend
from powerprof.report.watch import (
    KEYS,
    PLAIN_HEAD,
    ScreenView,
    draw_bars,
    draw_screen,
    interval_document,
    plain_line,
    row_line,
    scroll_rows,
)
from tests.unit.live.intervals import interval, row

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
def test_every_size_is_filled_and_never_left(width: int, height: int, opened: bool) -> None:
    for made in (history(), history(20), history(20, 20, 5120)):
        lines = draw_screen(made, ScreenView(opened=opened, chosen=50), TITLE, width, height)
        assert len(lines) == height
        assert max(map(len, lines)) <= width


def test_what_eighty_columns_show() -> None:
    lines = draw_screen(history(0, 20, 20, 5120), ScreenView(), TITLE, 80, 24)
    assert lines[0].startswith(f"{TITLE} · 2 CPUs · 10 s") and lines[0].endswith("00:00:00")
    assert lines[1].startswith("C0 7.5 %") and "wake-ups 521/s" in lines[1] and "3.0 W" in lines[1]
    assert " ".join(lines[5].split()) == "> 512.0 ▁▁▁█ 2.56 mariadbd · handle_slave_io NEW, 30 s"
    assert "more rows" in lines[20]
    assert lines[21] == "! another server has server_id 2"
    assert lines[22:] == ["itself: 0.1 % of a CPU, 0.3 wake-ups/s", KEYS]
    wide = draw_screen(history(20), ScreenView(), TITLE, 200, 60)[-1]
    assert wide.startswith(KEYS) and wide.endswith("itself: 0.1 % of a CPU, 0.3 wake-ups/s")


def test_rows_that_do_not_fit_are_summed() -> None:
    lines = draw_screen(history(20), ScreenView(), TITLE, 80, 24)
    shown = [line for line in lines if " page_cleaner · " in line]
    rest = next(line for line in lines if "more rows" in line)
    figures = [float(line[1:].split()[0]) for line in (*shown, rest)]
    assert sum(figures) == pytest.approx(11.0, abs=0.2)  # 20 + 10 + 80 exits in 10 s


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("room", [1, 2, 3, 7, 12, 13, 14, 40])
def test_rows_and_the_rest_are_all_wherever_one_scrolls(room: int, opened: bool) -> None:
    for chosen in range(14):  # one more than there are
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


def test_what_sorts_and_filters_is_always_on_the_screen() -> None:
    made = history(20)
    assert draw_screen(made, ScreenView(), TITLE, 80, 24)[3] == "sorted by rate (s: rate, C0, name)"
    filtered = draw_screen(made, ScreenView(sort="C0", wanted="handle"), TITLE, 80, 24)[3]
    assert filtered == "filter “handle”: 1 of 82 rows (Esc: all)  sorted by C0 (s: rate, C0, name)"
    assert draw_screen(made, ScreenView(wanted="handle"), TITLE, 40, 24)[3].startswith("filter “handle”: 1 of 82 rows")


def test_help_names_every_key_and_column() -> None:
    for width, height in ((80, 24), (200, 50)):
        lines = draw_screen(history(20), ScreenView(help=True), TITLE, width, height)
        words = "\n".join(lines)
        assert all(
            f"  {key}" in words for key in ("s ", "/", "Enter", "space", "w ", "q,", "/s", "C0 %", "every", "NEW")
        )
        assert "Any key: back" in words and max(map(len, lines)) <= width


def test_the_process_stays_whatever_is_left_out() -> None:
    """The age goes first, then the thread, then the end of the function."""
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


def test_a_kernel_thread_is_named_rather_than_the_kernel() -> None:
    timer = IntervalRow(
        key=RowKey("kernel", "kworker/u8:2-events_unbound", "delayed_work_timer_fn"),
        exits_count=5,
        c0_s=0.1,
        mechanism="timer",
    )
    assert row_line(RowTrend(timer, 0.5, 0.1, (0.5,), None), 90).endswith(
        "kworker/u8:2-events_unbound · delayed_work_timer_fn"
    )


def test_a_busy_host_says_what_keeps_it_busy() -> None:
    """19.6 of 20 s of both CPUs: 12 s of two compilers, 6 s of a server, the rest has ended."""
    used = {"mariadbd": CpuUse(1, 6.0), "cc1": CpuUse(2, 12.0), "sshd": CpuUse(1, 0.1)}
    made = RowHistory()
    made.add(interval(c0_s=19.6, used=used))
    words = "busy: cc1 (2) 60 %, mariadbd 30 %, processes that ended, and interrupts 8 %"
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


def test_trouble_is_said() -> None:
    made = RowHistory()
    made.add(replace_interval(lost_count=7, suspended_s=30.0))
    lines = draw_screen(made, ScreenView(), TITLE, 80, 24)
    assert "! 7 causes lost, the host was suspended for 30.0 s, which no figure counts" in lines
    assert "! suspended for 30.0 s  " in plain_line(replace_interval(suspended_s=30.0))


def replace_interval(**changes: object):  # type: ignore[no-untyped-def]
    return interval(row("a", 1), **changes)


def test_sparks() -> None:
    assert draw_bars([0, 1, 2, 4], 4) == "▁▂▄█" or draw_bars([0, 1, 2, 4], 4) == "▁▃▅█"
    assert draw_bars([1.0], 4) == "   █"
    assert draw_bars([None, 0.0], 2) == " ▁"


def test_keys() -> None:
    assert parse_keys(b"\x1b[A") == ["up"]
    assert parse_keys(b"\r") == ["enter"]
    assert parse_keys(b"q/x") == ["q", "/", "x"]
    assert parse_keys(b"\x1b[200~") == []
    # Held down, or on a slow line: several at once.
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
    assert replace(ScreenView(), paused=True).paused
