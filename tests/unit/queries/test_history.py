# SPDX-License-Identifier: Apache-2.0
"""All windows of `queries --watch` as one run: nothing is lost in the sums, and its size is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from powerprof.cli.app import run_app
from powerprof.model.runs import RunStore
from powerprof.queries.comparison import MOST_STEPS, HistoryKeeper, QueriesHistory
from powerprof.queries.records import Queries, Statement
from powerprof.report.exports import export
from powerprof.report.history import about
from powerprof.report.kinds import lines_of
from tests.unit.queries.test_report import record
from tests.unit.report.test_page import Page

START = datetime(2026, 1, 1, tzinfo=UTC)


def window(number: int, *statements: tuple[str, float], server_s: float = 1.0, window_s: float = 2.0) -> Queries:
    began = (START + timedelta(seconds=2.1 * number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.structs.replace(
        record(),
        started_at=began,
        window_s=window_s,
        server_c0_s=server_s,
        calls_count=10 * len(statements),
        joules=server_s * 4,
        lost_count=0,
        statements=[
            Statement(text=text, id=text[-2:].strip(), schema_name="shop", c0_s=c0_s, calls_count=10, joules=4 * c0_s)
            for text, c0_s in statements
        ],
    )


def kept(*windows: Queries | None, most: int = MOST_STEPS) -> QueriesHistory:
    keeper = HistoryKeeper(most)
    for one in windows:
        keeper.add(one)
    made = keeper.record()
    assert made is not None
    return made


def test_the_parts_are_the_server_and_each_statement_has_its_course() -> None:
    made = kept(window(0, ("SELECT a", 0.2)), window(1, ("SELECT a", 0.4), ("SELECT b", 0.5)), None, window(5))
    assert (made.windows_count, made.window_s, made.server_c0_s) == (3, 6.0, 3.0)
    assert {one.text: one.course_percent for one in made.statements} == {
        "SELECT a": pytest.approx([10.0, 20.0, 0.0]),
        "SELECT b": pytest.approx([0.0, 25.0, 0.0]),
    }
    assert made.other_c0_s + sum(one.c0_s for one in made.statements) == pytest.approx(made.server_c0_s)
    assert [(step.at_s, step.until_s) for step in made.steps] == [
        (0.0, 2.0),
        (pytest.approx(2.1), pytest.approx(4.1)),
        (pytest.approx(10.5), pytest.approx(12.5)),
    ]
    assert (made.calls_count, made.joules) == (30, pytest.approx(12.0))
    assert made.statements[0].calls_count == 20
    assert HistoryKeeper().record() is None


def test_a_day_of_windows_is_a_bounded_record_whose_sums_are_whole() -> None:
    count = 3001
    made = kept(*(window(number, ("SELECT a", 0.25), (f"SELECT {number} x", 0.1)) for number in range(count)), most=100)
    assert len(made.steps) <= 100
    assert len(made.statements) == 50
    assert (made.windows_count, made.server_c0_s) == (count, pytest.approx(count))
    first = made.statements[0]
    assert (first.text, first.c0_s, first.calls_count) == ("SELECT a", pytest.approx(0.25 * count), 10 * count)
    assert first.course_percent == pytest.approx([12.5] * len(made.steps))
    assert {step.windows_count for step in made.steps[:-1]} == {64} or {
        step.windows_count for step in made.steps[:-1]
    } == {32}
    assert made.other_c0_s + sum(one.c0_s for one in made.statements) == pytest.approx(made.server_c0_s)
    assert made.steps[-1].until_s == pytest.approx(2.1 * (count - 1) + 2)


def test_joules_that_one_window_lacks_are_unknown() -> None:
    made = kept(window(0), msgspec.structs.replace(window(1), joules=None))
    assert made.joules is None
    assert [step.watts for step in made.steps] == [2.0, None]


def test_the_report_and_the_page_have_the_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = kept(window(0, ("SELECT a", 0.2)), window(1, ("SELECT '<b>' a", 0.8), server_s=1.6), window(2))
    printed = lines_of(made, 100)
    assert "used 60.0 % of one CPU, 80.0 % at most (2 s after the start)" in " ".join(printed)
    assert any(line.split()[:3] == ["13.3", "40.0", "+2"] for line in printed)
    assert all(len(line) <= 100 for line in printed)
    store = RunStore(tmp_path)
    store.save("queries", made, None, about(made))
    assert run_app(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "queries-0001" in capsys.readouterr().out
    page = tmp_path / "x.html"
    assert run_app(["report", "queries-0001", "--runs-dir", str(tmp_path), "--html", str(page)]) == 0
    shown = page.read_text(encoding="utf-8")
    places = {attributes["data-at"] for attributes, _ in Page(shown).figures}
    assert {"/statements/0/cpu_percent", "/statements/1/c0_s"} <= places
    main = shown.partition('id="timeline"')[2]
    assert main.count('<rect class="c0"') == 3 + 2 * 3
    assert "SELECT &#39;&lt;b&gt;&#39; a" in main
    assert "40.0 % of one CPU</title>" in main
    rows = export(made, "csv").decode().splitlines()
    assert len(rows) == 1 + 3 * 3


def test_a_page_of_many_steps_stays_readable() -> None:
    made = kept(*(window(number, ("SELECT a", 0.2)) for number in range(700)))
    assert len(made.steps) == 700
    main = export(made, "html").decode().partition('id="timeline"')[2].partition("</section>")[0]
    assert 200 <= main.count('<rect class="c0"') <= 240


def test_a_step_of_several_windows_has_their_sums_and_the_end_of_the_last() -> None:
    """Windows of 2 and 3 s with pauses: each rate is by the measured time, not by the time that passed."""
    first = msgspec.structs.replace(
        window(0, ("SELECT a", 0.5), server_s=0.75), window_s=2.0, calls_count=30, joules=8.0, lost_count=2
    )
    second = msgspec.structs.replace(
        window(5, ("SELECT a", 0.25), ("SELECT b", 1.0), server_s=1.5),
        window_s=3.0,
        calls_count=45,
        joules=4.0,
        lost_count=5,
    )
    third = msgspec.structs.replace(window(9, ("SELECT b", 0.25), server_s=0.5), calls_count=7, joules=1.0)
    made = kept(first, second, third, most=2)
    step, last = made.steps
    assert (step.at_s, step.until_s, step.window_s, step.windows_count) == (0.0, pytest.approx(13.5), 5.0, 2)
    assert (step.cpu_percent, step.calls_hz, step.watts, step.lost_count) == (45.0, 15.0, pytest.approx(2.4), 7)
    assert (last.windows_count, last.cpu_percent, last.calls_hz, last.watts) == (1, 25.0, 3.5, 0.5)
    assert {one.text: one.course_percent for one in made.statements} == {
        "SELECT b": [20.0, 12.5],
        "SELECT a": [15.0, 0.0],
    }
    assert [one.cpu_percent for one in made.statements] == [pytest.approx(125 / 7), pytest.approx(75 / 7)]
    assert (made.calls_count, made.joules, made.lost_count, made.window_s) == (82, 13.0, 7, 7.0)
    assert (made.server_c0_s, made.other_c0_s) == (2.75, pytest.approx(2.75 - 2.0))
    statements = {one.text: (one.c0_s, one.calls_count, one.joules) for one in made.statements}
    assert statements == {"SELECT b": (1.25, 20, 5.0), "SELECT a": (0.75, 20, 3.0)}


@pytest.mark.parametrize("most", [2, 9])
def test_calls_and_joules_that_a_window_lacks_are_unknown_in_its_step_and_in_all(most: int) -> None:
    unknown = msgspec.structs.replace(window(1, ("SELECT a", 0.25)), calls_count=None, joules=None)
    made = kept(window(0, ("SELECT a", 0.5)), unknown, window(2), most=most)
    assert (made.calls_count, made.joules) == (None, None)
    lacking = [step for step in made.steps if step.calls_hz is None]
    assert len(lacking) == 1 and lacking[0].watts is None
    assert all(step.watts is not None for step in made.steps if step not in lacking)
