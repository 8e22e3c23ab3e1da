# SPDX-License-Identifier: Apache-2.0
"""Tests for pages: figures of the record, safe content, answers, tiles, charts and size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from markupsafe import Markup
from msgspec.structs import replace

from powerprof.experiment.records import Arm, Plan, Threat, TraceSummary
from powerprof.model.attribution import Attribution, StackFrame
from powerprof.model.records import Estimate, ServerExits, ended_by_signal
from powerprof.report import idle
from powerprof.report.document import View
from powerprof.report.exports import render_flame, render_html
from powerprof.report.flame import build_flame
from powerprof.report.html.intervals import DrawnInterval, interval_axis
from powerprof.report.html.page import MAX_EMBEDDED_BYTES, MAX_PAGE_BYTES
from powerprof.report.html.sweep import TradeoffPoint, tradeoff
from powerprof.report.html.text import TERMS, brief, explain_terms, qualified, split_terms
from powerprof.report.stacks import modules_of, stacks_of
from powerprof.system.errors import UsageError
from tests.conftest import REPOSITORY
from tests.unit.report.sample_pages import PAGES, at, html_of
from tests.unit.report.sample_records import HOSTILE, attribution, comparison, idle_run

_VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Elements with their attributes, figures with their text, and whether all elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.figures: list[tuple[dict[str, str | None], str]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "data":
            self.figures.append((dict(attrs), ""))
        if tag == "script":
            self.scripts.append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            attributes, before = self.figures[-1]
            self.figures[-1] = (attributes, before + data)
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data

    def record(self) -> Any:
        return json.loads(self.scripts[-2])  # the last but our own


@pytest.fixture(params=PAGES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_figure_equals_its_place_in_the_record(kind: str) -> None:
    page = Page(html_of(kind))
    record = page.record()
    assert record == json.loads(msgspec.json.encode(PAGES[kind]()[0]))
    assert len(page.figures) > 20
    for attributes, shown in page.figures:
        value = at(record, attributes["data-at"] or "")
        assert json.loads(attributes["value"] or "") == value, attributes
        if "data-words" in attributes:
            continue
        number = shown.replace(",", "").replace("−", "-").removeprefix("+")
        decimals = len(number.partition(".")[2])
        exact = value * float(attributes["data-scale"] or "1")
        # Half of the last shown digit, and what binary fractions add to it.
        assert abs(float(number) - exact) <= 0.5000001 * 10**-decimals + 1e-12 * abs(exact), (attributes, shown)


def test_policy_allows_only_the_script_of_powerprof(kind: str) -> None:
    page = Page(html_of(kind))
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form"), tag
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    assert "url(" not in html_of(kind) and "@import" not in html_of(kind)
    (policy,) = [a["content"] or "" for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy
    assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"].count(None) == 1


def test_hostile_names_stay_text() -> None:
    record = attribution()
    plain = Page(html_of("attribution"))
    expected = {(tag, *sorted(attributes)) for tag, attributes in plain.elements}
    frames = [StackFrame(function=name, module=name, address="0x1") for name in HOSTILE]
    rows = [
        replace(
            row,
            thread=replace(row.thread, server_name=None, comm=name),
            stack=frames,
            detail=name,
            period_ms=None,
            waker=None if row.waker is None else replace(row.waker, comm=name),
        )
        for row, name in zip(record.wakeups * 4, HOSTILE, strict=True)
    ]
    host = {**record.host, **{name: name for name in HOSTILE}}
    text = render_html(
        replace(
            record,
            wakeups=rows,
            host=host,
            notes=list(HOSTILE),
            id=HOSTILE[0],
            started_at=HOSTILE[2],
            target=replace(record.target, label=HOSTILE[1], executable=HOSTILE[0]),
        )
    )
    page = Page(text)
    assert page.open == []
    allowed = expected | {("details", "class"), ("summary",), ("details", "class", "open"), ("code",)}
    assert {(tag, *sorted(attributes)) for tag, attributes in page.elements} <= allowed
    assert len(page.scripts) == 2 and page.record()["notes"] == list(HOSTILE)
    assert len(text.encode()) < MAX_PAGE_BYTES
    assert "\u202e" not in text.replace("\\u202e", "").partition('type="application/json"')[0]


def test_hostile_sql_conditions_and_threats_stay_text() -> None:
    record = comparison()
    evil = "</pre><script>alert(1)</script>"
    changed = replace(
        record,
        a=replace(record.a, name=evil, title=evil, load={evil: evil}),
        plans=[Plan(arm="a", statement=evil, rows=[{evil: evil}], asserted=False)],
        threats=[Threat(name=evil, text=evil, serious=True)],
        differences=[evil],
        notes=[evil],
        verdict=replace(record.verdict, text=evil, speed=evil),
    )
    page = Page(render_html(changed))
    assert len(page.scripts) == 2 and page.open == []


def test_page_of_a_large_record_is_small() -> None:
    record = attribution()
    bulky = replace(record, notes=["x" * 1000] * 5000)
    text = render_html(bulky)
    assert len(msgspec.json.encode(bulky)) > MAX_EMBEDDED_BYTES
    assert "too much for a page" in text and 'id="download"' not in text


def test_ten_thousand_stacks_fit_in_a_page() -> None:
    record = attribution()
    frames = [StackFrame(function=f"function_{number}", module="m", address="0x1") for number in range(997)]
    stacks = ([frames[(n * 7 + depth) % 997] for depth in range(30)] for n in range(10_000))
    rows = [replace(record.wakeups[0], rate_hz=1.0 + n % 5, stack=stack) for n, stack in enumerate(stacks)]
    a, b = (replace(record, wakeups=rows[first:]) for first in (0, 5000))
    sides: tuple[tuple[Arm, Attribution], ...] = (("a", a), ("b", b))
    traced = [TraceSummary(arm=arm, members={}, attribution=side) for arm, side in sides]
    text = render_html(replace(comparison(), traced=traced))
    assert len(text.encode()) < MAX_PAGE_BYTES


def test_long_names_do_not_enlarge_the_page() -> None:
    """Quotes are five times as long in HTML; three hundred stacks of sixty long frames each."""
    record = attribution()
    frames = [StackFrame(function='"' * 300 + str(n), module="m", address="0x1") for n in range(60)]
    row = record.wakeups[0]
    rows = [
        replace(
            row,
            count=10_000 - n,
            thread=replace(row.thread, server_name=f"{'&' * 300}{n}"),
            stack=frames[n % 60 :] + frames[: n % 60],
        )
        for n in range(300)
    ]
    assert len(render_html(replace(record, wakeups=rows)).encode()) < MAX_PAGE_BYTES


def test_alternating_windows_are_drawn_side_by_side() -> None:
    record = comparison(4)
    first = {block.pair: block.window.started_at for block in reversed(record.blocks)}
    together = [replace(b, window=replace(b.window, started_at=first[b.pair])) for b in record.blocks]
    drawn = re.findall(
        r'<rect class="bar-[ab][^"]*" x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"',
        render_html(replace(record, blocks=together)),
    )
    assert len(drawn) == 8
    edges = [(float(x), float(x) + float(width)) for x, width in drawn]
    for (_, end), (start, _) in pairwise(edges):
        assert start >= end - 0.01


def test_empty_and_interrupted_records_have_pages() -> None:
    run = replace(
        idle_run(), phases=idle_run().phases[:1], deltas=[], drift=[], server=None, ended=ended_by_signal(True), id=None
    )
    assert "Interrupted" in render_html(run)
    record = comparison()
    answer = replace(record.verdict, metric=None, text="No answer: the power was not measured.")
    bare = replace(
        record,
        metrics=[],
        blocks=[],
        baseline=[],
        baseline_after=[],
        plans=[],
        threats=[],
        control=None,
        verdict=answer,
        order=[],
        blocks_count=0,
        ended=ended_by_signal(True),
    )
    assert "No answer: the power" in render_html(bare)
    assert "no user stack" in render_html(replace(attribution(), wakeups=[replace(attribution().wakeups[0], stack=[])]))


def test_flame_graph_has_a_separate_page() -> None:
    rows = attribution().wakeups
    text = render_flame(build_flame(stacks_of(rows), unit="idle exits"), "mariadbd", modules_of(rows))
    page = Page(text)
    boxes = [attributes for tag, attributes in page.elements if attributes.get("role") == "treeitem"]
    # 1 root, 5 threads, and the frames of their stacks, of which none is shared
    assert len(boxes) == 1 + 5 + sum(len(row.stack) for row in rows)
    assert " (libc.so.6): 4 idle exits, 5.9 % of all" in {box["data-info"] for box in boxes}


def test_record_without_a_page_is_an_error() -> None:
    with pytest.raises(UsageError, match="this record has no report"):
        render_html(idle_run().tool)


@pytest.mark.parametrize(
    ("sentence", "headline", "below"),
    [
        (
            "b uses 12.1 times as much CPU time as a (9.53 – 15.2, 95 %).",
            "b uses 12.1 times as much CPU time as a.",
            "9.53 – 15.2, 95 %",
        ),
        (
            "0.4 of 0.5 J (estimated, 0.2 to 1.9 J possible): f(int) ran",
            "0.4 of 0.5 J: f(int) ran",
            "estimated, 0.2 to 1.9 J possible",
        ),
        ("mariadbd (8123) wakes 2 times (1.6 of them x)", "mariadbd (8123) wakes 2 times (1.6 of them x)", ""),
        ("a&lt;b (5 % of all) &amp; c", "a&lt;b &amp; c", "5 % of all"),
        # The level alone, without its interval, is no line of its own.
        ("16 connections add less than 0.8 (95\u00a0%).", "16 connections add less than 0.8 (95\u00a0%).", ""),
    ],
)
def test_intervals_are_below_the_headline(sentence: str, headline: str, below: str) -> None:
    assert brief(Markup(sentence)) == headline
    assert qualified(Markup(sentence)) == below


def test_ratios_beyond_twenty_are_arrows() -> None:
    """339,833 % more rows would leave a difference of 10 % no room."""
    far = interval_axis([DrawnInterval(339_833, 339_000, 340_000, clear=True), DrawnInterval(10, 5, 15, clear=True)])
    assert (far.scale.low, far.scale.high) == (1 / 20, 20.0)
    assert [label for _, label in far.ticks] == ["÷\u00a020", "÷\u00a05", "= A", "×\u00a05", "×\u00a020"]
    assert interval_axis([DrawnInterval(300, 200, 400, clear=True)]).scale.high == 10.0


def test_comparison_without_intervals_has_no_empty_column() -> None:
    record = comparison()
    bare = [
        replace(
            metric,
            minimum_detectable_percent=None,
            difference=replace(metric.difference, ci95=None, b_minus_a=None, percent=None),
            verdict="inconclusive",
        )
        for metric in record.metrics
    ]
    text = render_html(replace(record, metrics=bare))
    table = text[text.index('<table class="metrics"') :].split("</table>")[0]
    assert "smallest detectable" not in table and 'class="draw"' not in table and "B − A" not in table


def test_the_best_points_of_a_sweep_are_marked() -> None:
    settings = [TradeoffPoint("1", 100.0, 3e-3), TradeoffPoint("4", 300.0, 1e-3), TradeoffPoint("16", 400.0, 2e-3)]
    drawn = tradeoff(settings, "clients", "estimated")
    assert drawn.count('class="best"') == 2
    assert "4: least energy<" in drawn and "16: most queries<" in drawn
    assert "energy per query, mJ, estimated" in drawn and "queries per second" in drawn
    assert tradeoff(settings[:1], "clients", "estimated") == ""


def test_count_is_inconclusive_without_an_answer() -> None:
    counted = ServerExits(count=9, window_s=3.0, wakeups_hz=Estimate(mean=3.0, low=2.0, high=4.0))
    run = idle_run()
    phases = [replace(phase, c0_percent=2.0, server_exits=counted, conservation=None) for phase in run.phases]
    quiet = replace(run, phases=phases)
    busy = replace(quiet, phases=[replace(phase, c0_percent=98.0) for phase in quiet.phases])
    heading = "Idle periods ended by the server"
    tiles = [idle.document(each, View()).tiles() for each in (quiet, busy)]
    looks = [[tile.look for tile in of_run if tile.heading == heading] for of_run in tiles]
    assert looks == [[""], ["inconclusive"]]


def test_terms_are_explained_but_not_inside_words() -> None:
    assert split_terms("C0 per query") == [("C0", TERMS["C0"]), (" per query", None)]
    assert split_terms("C01, xC0, wake-upset") == [("C01, xC0, wake-upset", None)]
    assert 'title="The state of a CPU' in explain_terms("C0 <b>")
    assert "&lt;b&gt;" in explain_terms("C0 <b>")
    concepts = (REPOSITORY / "docs/concepts.md").read_text(encoding="utf-8").replace("*", "").lower()
    assert [term for term in TERMS if term.lower() not in concepts] == []
