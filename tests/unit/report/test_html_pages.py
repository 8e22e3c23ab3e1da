# SPDX-License-Identifier: Apache-2.0
"""Pages as text: complete, self-contained, hostile names harmless, every figure the record's. Drawing is tested in
tests/integration/report, in a browser."""

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
from msgspec.structs import replace

from powerprof.experiment.records import Plan, Threat
from powerprof.model.attribution import StackFrame
from powerprof.report.exports import render_flame, render_html
from powerprof.report.html.page import MAX_EMBEDDED_BYTES, MAX_PAGE_BYTES, Extras
from powerprof.report.stacks import build_flame, modules_of, stacks_of
from powerprof.system.errors import UsageError
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


def test_every_figure_is_the_record_s(kind: str) -> None:
    page = Page(html_of(kind))
    record = page.record()
    assert record == json.loads(msgspec.json.encode(PAGES[kind]()[0]))
    assert len(page.figures) > 25
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


def test_the_headline_figures_are_on_the_page() -> None:
    shown = {attributes["data-at"] for attributes, _ in Page(html_of("comparison")).figures}
    for index, metric in enumerate(comparison().metrics):
        for place in ("a/mean", "b/mean", "difference/b_minus_a", "difference/ci95/0", "difference/ci95/1"):
            assert f"/metrics/{index}/{place}" in shown, metric.name
    shown = {attributes["data-at"] for attributes, _ in Page(html_of("attribution")).figures}
    names = ("idle_exits", "classified", "unknown", "lost", "cpuidle_usage_delta")
    assert {f"/conservation/{name}_count" for name in names} <= shown
    assert {f"/wakeups/{index}/count" for index in range(5)} <= shown
    shown = {attributes["data-at"] for attributes, _ in Page(html_of("idle")).figures}
    assert {"/phases/2/c0_percent", "/deltas/0/difference/mean", "/deltas/0/difference/low", "/tool/cpu_s"} <= shown


def test_the_answer_comes_first(kind: str) -> None:
    text = html_of(kind)
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.DOTALL)
    assert heading is not None
    answers = {
        "comparison": "no-index uses ",
        "idle": "An idle server with 16 silent connections costs ",
        "load": "city:index: the server&#39;s CPU time per query is",
        "sweep": "city:index uses least energy per query with 1 client",
        "sweepcomparison": "From clients 4 on queries/s are lower with sweep-0002",
        "attribution": "mariadbd (8123) wakes the CPUs 6.8 times a second: 2.5 by mysys/statement_timer in ",
        "diagnosis": "The thread innodb/log_files_governor_thread, which keeps the redo log&#39;s files at their size,",
        "oncpu": "the target ran for 25\u00a0ms of 1.0\u00a0s, 2.5\u00a0% of one CPU: 80\u00a0% in vfs_read.",
    }
    assert heading[1].startswith(answers[kind])


def test_nothing_is_fetched_and_only_our_script_may_run(kind: str) -> None:
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


def test_the_same_record_gives_the_same_page(kind: str) -> None:
    record, extras = PAGES[kind]()
    assert render_html(record, extras=extras) == html_of(kind)


def test_hostile_names_add_no_element_and_no_attribute() -> None:
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


def test_hostile_sql_conditions_and_threats_are_text() -> None:
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


def test_a_page_stays_small_where_the_record_is_not() -> None:
    record = attribution()
    bulky = replace(record, notes=["x" * 1000] * 5000)
    text = render_html(bulky)
    assert len(msgspec.json.encode(bulky)) > MAX_EMBEDDED_BYTES
    assert "too much for a page" in text and 'id="download"' not in text


def test_ten_thousand_stacks_fit_in_a_page() -> None:
    stacks = [(tuple(f"function_{(n * 7 + depth) % 997}" for depth in range(30)), 1.0 + n % 5) for n in range(10_000)]
    text = render_html(comparison(), extras=Extras(stacks=stacks, stacks_b=stacks[5000:], unit="idle exits/s"))
    assert len(text.encode()) < MAX_PAGE_BYTES


def test_no_names_make_a_page_too_large() -> None:
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


def test_windows_that_took_turns_stand_side_by_side() -> None:
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


def test_an_empty_or_interrupted_record_has_a_page() -> None:
    run = replace(idle_run(), phases=idle_run().phases[:1], deltas=[], drift=[], server=None, interrupted=True, id=None)
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
        interrupted=True,
    )
    assert "No answer: the power" in render_html(bare)
    assert "no user stack" in render_html(replace(attribution(), wakeups=[replace(attribution().wakeups[0], stack=[])]))


def test_a_flame_graph_alone_is_a_page() -> None:
    rows = attribution().wakeups
    text = render_flame(build_flame(stacks_of(rows), unit="idle exits"), "mariadbd", modules_of(rows))
    page = Page(text)
    boxes = [attributes for tag, attributes in page.elements if attributes.get("role") == "treeitem"]
    # 1 root, 5 threads, and the frames of their stacks, of which none is shared
    assert len(boxes) == 1 + 5 + sum(len(row.stack) for row in rows)
    assert " (libc.so.6): 4 idle exits, 5.9 % of all" in {box["data-info"] for box in boxes}


def test_a_record_without_a_page_is_refused() -> None:
    with pytest.raises(UsageError, match="no HTML report of this record"):
        render_html(idle_run().tool)
