# SPDX-License-Identifier: Apache-2.0
"""Two windows of statements: what became more expensive, and what cannot be known."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import pytest

from powerprof.cli.app import run_app
from powerprof.model.runs import RunStore
from powerprof.queries.comparison import StatementChange, compare_queries, select_changes
from powerprof.queries.records import Queries, QueryServer, Statement
from powerprof.report.exports import export
from powerprof.report.kinds import lines_of, word_record
from powerprof.system.errors import UsageError, WorseError
from tests.unit.queries.test_report import record
from tests.unit.report.test_page import Page


def window(*statements: Statement, **changes: object) -> Queries:
    return msgspec.structs.replace(record(), statements=list(statements), **changes)


def of(text: str, each_ms: float, calls: int = 400, deviation: float | None = 0.1) -> Statement:
    return Statement(
        text=text,
        id=text[-6:],
        c0_s=each_ms * calls / 1e3,
        calls_count=calls,
        calls_hz=calls / 2,
        c0_ms_per_call=each_ms,
        c0_ms_deviation=deviation,
    )


def changed(a: Queries, b: Queries) -> dict[str, StatementChange]:
    return {one.text: one for one in compare_queries(a, b, "2026-01-01T00:00:00.000Z").statements}


def test_each_statement_is_what_it_became() -> None:
    before = window(of("slow", 1.0), of("same", 1.0), of("quick", 1.0), of("old", 0.5), of("rare", 1.0, 3))
    after = window(of("slow", 1.5), of("same", 1.001), of("quick", 0.5), of("added", 0.5), of("rare", 9.0, 3))
    found = changed(before, after)
    assert {text: one.became for text, one in found.items()} == {
        "slow": "more expensive",
        "same": "unchanged",
        "quick": "cheaper",
        "old": "gone",
        "added": "new",
        "rare": "unknown",
    }
    slow = found["slow"]
    assert (slow.ratio, slow.change_percent_of_cpu) == (1.5, pytest.approx(10.0))
    error = 0.1 * math.hypot(1 / 1.0, 1 / 1.5) / 20
    assert slow.low is not None
    assert slow.high is not None
    assert math.log(slow.high / slow.low) == pytest.approx(2 * 1.96 * error, rel=1e-3)
    assert (found["rare"].ratio, found["rare"].low) == (9.0, None)
    assert (found["added"].a, found["old"].b) == (None, None)


def test_of_statements_that_did_not_change_few_are_said_to_have() -> None:
    """40 in each of 100 comparisons: of all comparisons at most one in twenty says so of any, but for chance."""
    chance, wrong = random.Random(7), 0
    for _ in range(100):
        pair = []
        for _ in range(2):
            pair.append(window(*(of(f"s{at}", 1 + chance.gauss(0, 0.5) / 20, 400, 0.5) for at in range(40))))
        wrong += any(one.became not in ("unchanged",) for one in changed(*pair).values())
    assert wrong <= 11


def test_samples_have_the_ratio_of_their_shares() -> None:
    one = Statement(text="s", c0_s=0.4, c0_percent=40.0, low_percent=36.0, high_percent=44.0)
    other = msgspec.structs.replace(one, c0_s=0.8, c0_percent=80.0, low_percent=76.0, high_percent=84.0)
    found = changed(window(one, method="samples"), window(other, method="samples"))["s"]
    assert (found.ratio, found.became) == (2.0, "more expensive")


def test_a_host_that_is_busier_is_said_and_kinds_of_servers_are_not_mixed() -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(5)))
    after = window(*(of(f"s{at}", 1.3) for at in range(5)))
    compared = word_record(compare_queries(before, after, "2026-01-01T00:00:00.000Z"))
    assert compared.common_ratio == pytest.approx(1.3)
    assert "the host or the server changed, not one statement" in " ".join(lines_of(compared, 400))
    assert len(select_changes(compared, "more expensive")) == 5
    other = window(of("s", 1.0), server=QueryServer(pid=1, label="postgres", family="postgresql"))
    with pytest.raises(UsageError, match="two kinds of servers"):
        compare_queries(before, other, "")


def test_the_report_names_the_statement_and_its_interval() -> None:
    compared = word_record(compare_queries(window(of("SELECT a", 1.0)), window(of("SELECT a", 1.5)), ""))
    found = lines_of(compared, 100)
    assert found[0].startswith("One statement became more expensive. The largest: × 1.50 the CPU time")
    assert any("20.00 → 30.00" in line and "1.48–1.52" in line and "more expensive" in line for line in found)
    assert all(len(line) <= 100 for line in found)
    assert b"SELECT a" in export(compared, "csv")
    assert b"more expensive" in export(compared, "markdown")


def test_saved_runs_are_compared_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    store.save("queries", window(of("SELECT a", 1.0)))
    store.save("queries", window(of("SELECT a", 1.5)))
    words = ["compare", "queries-0001", "queries-0002", "--runs-dir", str(tmp_path)]
    assert run_app(words) == 0
    assert "One statement became more expensive" in capsys.readouterr().out
    assert run_app([*words, "--no-save", "--fail-if-worse"]) == WorseError.exit_code
    assert run_app([*words, "--html", str(tmp_path / "x.html")]) == 0
    shown = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "One statement became more expensive" in shown
    assert run_app(["report", "compare-0001", "--runs-dir", str(tmp_path), "--html", str(tmp_path / "y.html")]) == 0
    assert "<code>SELECT a</code>" in (tmp_path / "y.html").read_text(encoding="utf-8")


def test_the_page_has_each_statement_with_its_figures_and_its_interval() -> None:
    hostile = "SELECT '<script>alert(1)</script>' FROM `\u202ea`"
    before = window(of("slow", 1.0), of("same", 1.0), of("old", 0.5), of(hostile, 1.0, 3))
    after = window(of("slow", 1.5), of("same", 1.001), of("added", 0.5), of(hostile, 9.0, 3))
    compared = compare_queries(before, after, "2026-01-01T00:00:00.000Z")
    page = Page(export(word_record(compared), "html").decode())
    places = {attributes["data-at"] for attributes, _ in page.figures}
    for number, one in enumerate(compared.statements):
        assert f"/statements/{number}/change_percent_of_cpu" in places
        for letter, side in (("a", one.a), ("b", one.b)):
            assert (f"/statements/{number}/{letter}/c0_ms_per_call" in places) is (side is not None), one.text
        assert (f"/statements/{number}/low" in places) is (one.low is not None), one.text
    raw = export(word_record(compared), "html").decode()
    assert raw.count('class="draw"') == 1 + 5
    assert raw.count('class="dot clear"') == 1
    assert "<script>alert" not in raw.partition('id="statements"')[2].partition("</section>")[0]
    assert "\u202e" not in raw.partition('id="statements"')[2].partition("</section>")[0]
    assert page.open == []
