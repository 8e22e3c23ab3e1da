# SPDX-License-Identifier: Apache-2.0
"""What a reader gets: the page in a real Chromium, at the width of a phone and of a desk, light, dark and on paper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from powerprof.model.attribution import StackFrame
from powerprof.report.document import Extras
from powerprof.report.exports import render_html
from tests.system.report.conftest import Open
from tests.unit.report.live_pages import LIVE_PAGES
from tests.unit.report.sample_pages import PAGES, at
from tests.unit.report.sample_records import HOSTILE, attribution, timeline

Show = Callable[..., Page]
WIDTHS = (400, 800, 1280)

# Contrast of every text on the page (WCAG 2.2, 1.4.3): relative luminance of text and of the nearest opaque
# background, for text in SVG of the shape that it is drawn upon. Opacity is taken into account.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const colours = new Map(), read = (css) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data).map((v, i) => i === 3 ? v / 255 : v); };
  const rgba = (css) => { if (!colours.has(css)) colours.set(css, read(css)); return colours.get(css); };
  const light = ([r, g, b]) => { const f = [r, g, b].map((v) => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const over = (top, under, alpha) => [0, 1, 2].map((i) => top[i] * alpha + under[i] * (1 - alpha));
  const behind = (element) => {
    if (element instanceof SVGElement) {
      const box = element.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
      const shapes = Array.from(element.ownerSVGElement.querySelectorAll("rect.state")).filter((shape) => {
        const r = shape.getBoundingClientRect(); return r.x <= x && r.right >= x && r.y <= y && r.bottom >= y; });
      if (shapes.length) return rgba(getComputedStyle(shapes[shapes.length - 1]).fill);
    }
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const seen = new Set(), bad = [];
  let count = 0;
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest("script, style, title, defs, details:not([open]) > :not(summary)")) continue;
    const own = Array.from(element.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(element);
    if (!own || style.visibility === "hidden" || style.display === "none" || !element.getClientRects().length) continue;
    let alpha = 1;
    for (let at = element; at; at = at.parentElement) alpha *= Number(getComputedStyle(at).opacity);
    const ground = behind(element);
    const text = over(rgba(element instanceof SVGElement ? style.fill : style.color), ground, alpha);
    const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    count++;
    const key = element.tagName + "." + (element.getAttribute("class") || "");
    if (ratio < 4.5 && !seen.has(key)) bad.push([key, ratio.toFixed(2), element.textContent.slice(0, 40)]);
    seen.add(key);
  }
  return { bad, count };
}"""


@pytest.fixture(scope="module", params=[*PAGES, *LIVE_PAGES])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def overflow(page: Page) -> list[str]:
    """Elements that stick out of the page, if the page scrolls sideways at all."""
    found: list[str] = page.evaluate("""() => {
      const root = document.documentElement;
      if (root.scrollWidth <= root.clientWidth) return [];
      return Array.from(document.querySelectorAll("body *"))
        .filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1)
        .map((e) => e.tagName + "." + e.getAttribute("class")).slice(0, 10).concat(["page"]);
    }""")
    return found


def test_every_text_has_contrast(show: Show) -> None:
    page = show()
    for scheme in ("light", "dark"):
        found = show(scheme=scheme).evaluate(CONTRAST)
        assert found["bad"] == [], scheme
        assert found["count"] > 30
    if page.locator(".flame").count():
        # Zoomed in, the callers above are dimmed; hits are marked.
        page.locator(".flame input").first.fill("poll")
        page.locator(".flame").first.locator(".f").nth(5).click()
        assert [show(scheme=scheme).evaluate(CONTRAST)["bad"] for scheme in ("dark", "light")] == [[], []]
        page.get_by_role("button", name="Whole graph").first.click()


def test_contrast_check_finds_pale_text(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["comparison"])
    page.evaluate("document.documentElement.style.setProperty('--muted', '#9a9a94')")
    found = [element for element, _, _ in page.evaluate(CONTRAST)["bad"]]
    assert {"P.kicker", "FIGCAPTION.", "text."} <= set(found)
    page.evaluate("document.documentElement.style.setProperty('--s-text', '#c3d7cd')")
    assert "text.in s1" in {element for element, _, _ in page.evaluate(CONTRAST)["bad"]}


def test_light_and_dark_differ(pages: dict[str, Path], open_page: Open) -> None:
    grounds = [
        open_page(pages["idle"], scheme=scheme).evaluate("getComputedStyle(document.documentElement).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert grounds == ["rgb(252, 251, 248)", "rgb(23, 24, 27)"]


def sticking_out(show: Show) -> dict[str, list[str]]:
    """What sticks out of the page on a screen of each width, with its sections as they are and all open."""
    found = {str(width): overflow(show(width)) for width in WIDTHS}
    page = show()
    page.evaluate("""window.shut = Array.from(document.querySelectorAll('details:not([open])'));
        shut.forEach((one) => { one.open = true; })""")
    found |= {f"{width}, all open": overflow(show(width)) for width in WIDTHS}
    page.evaluate("shut.forEach((one) => { one.open = false; })")
    return {width: elements for width, elements in found.items() if elements}


def test_no_page_scrolls_sideways(show: Show) -> None:
    assert sticking_out(show) == {}


def test_no_column_of_statements_is_cut(kind: str, show: Show) -> None:
    for width in WIDTHS:
        tables = show(width).evaluate(
            "[...document.querySelectorAll('table.wide')].map((t) => [t.scrollWidth, t.parentElement.clientWidth])"
        )
        assert bool(tables) == (kind in ("queries", "queriescomparison"))
        assert all(wide <= room + 1 for wide, room in tables)


def test_visible_figures_equal_the_record(kind: str, show: Show) -> None:
    page = show()
    record = json.loads(page.evaluate("document.getElementById('record').textContent"))
    figures = page.evaluate("""Array.from(document.querySelectorAll('data[data-at]')).map((one) => [
        one.dataset.at, one.value, one.dataset.scale || '1', one.dataset.words || '', one.textContent])""")
    assert len(figures) > (20 if kind in PAGES else 4)
    for place, value, scale, words, shown in figures:
        exact = at(record, place)
        assert json.loads(value) == exact, place
        if not words:
            number = shown.replace(",", "").replace("−", "-").removeprefix("+")
            rounding = 0.5000001 * 10 ** -len(number.partition(".")[2])
            assert abs(float(number) - exact * float(scale)) <= rounding + 1e-12 * abs(exact * float(scale)), place


def test_marks_are_at_their_figures(pages: dict[str, Path], open_page: Open) -> None:
    """The energy's interval: drawn at the places that a logarithmic axis of ÷20 … ×20 gives it; beyond it an arrow."""
    page = open_page(pages["comparison"])
    record = json.loads(page.evaluate("document.getElementById('record').textContent"))
    assert page.locator(".metrics tr.primary td.draw svg path.dot").count() == 1
    metric = next(metric for metric in record["metrics"] if metric["name"] == "joules_per_query")
    drawn = page.evaluate("""() => {
      const svg = document.querySelector('.metrics svg[aria-label^="energy per query:"]');
      const zero = svg.querySelector('.zero').x1.baseVal.valueAsString, dot = svg.querySelector('.dot');
      return [zero, dot.cx.baseVal.valueAsString, svg.querySelector('.bar').x1.baseVal.valueAsString]; }""")
    from math import log10

    def place(percent: float) -> float:
        return 2 + 96 * (log10(1 + percent / 100) / log10(20) + 1) / 2

    low = 100 * metric["difference"]["ci95"][0] / metric["a"]["mean"]
    expected = [place(0), place(metric["difference"]["percent"]), place(low)]
    assert [float(x.rstrip("%")) for x in drawn] == pytest.approx(expected, abs=0.01)
    bars = page.evaluate("""Array.from(document.querySelectorAll('.states svg')).map((svg) =>
        Array.from(svg.querySelectorAll('rect')).map((one) => one.width.baseVal.valueInSpecifiedUnits)
            .reduce((sum, width) => sum + width, 0))""")
    assert bars == pytest.approx([100.0, 100.0], abs=0.01)


def test_the_json_can_be_downloaded(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["idle"])
    with page.expect_download() as waiting:
        page.click("#download")
    assert waiting.value.suggested_filename == "idle-1031.json"
    saved = json.loads(Path(waiting.value.path()).read_text())
    assert saved == json.loads(page.evaluate("document.getElementById('record').textContent"))


def test_keys_reach_and_zoom_a_flame_graph(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["attribution"])
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "treeitem":
            break
    assert page.evaluate("document.activeElement.textContent") == "mariadbd"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    name = page.evaluate("document.activeElement.textContent")
    assert name == "innodb/thread_pool_thread"
    info = page.locator(".flame .info").first
    assert info.text_content() == "innodb/thread_pool_thread: 20 idle exits, 29.4 % of all"
    before = page.evaluate("document.activeElement.getBoundingClientRect().width")
    page.keyboard.press("Enter")
    after, whole = page.evaluate("""[document.activeElement.getBoundingClientRect().width,
        document.activeElement.parentElement.getBoundingClientRect().width]""")
    assert after == pytest.approx(whole, abs=1) and before == pytest.approx(whole * 20 / 68, abs=1)
    shown = page.locator(".flame").first.locator(".f:not(.out)")
    # The thread, its seven frames, and the root above it.
    assert shown.count() == 9
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getBoundingClientRect().width") == pytest.approx(before, abs=1)
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == "mariadbd"


def test_a_function_is_found(pages: dict[str, Path], open_page: Open) -> None:
    figure = open_page(pages["attribution"]).locator(".flame").first
    figure.get_by_label("Find").fill("PTHREAD_cond")
    assert figure.locator(".f.hit").count() == 3
    info = figure.locator(".info")
    assert (info.text_content() or "").startswith("3 boxes with “PTHREAD_cond”: ")
    # The widths of all that wait there, each counted once, of the whole.
    widths = figure.evaluate("(one) => Array.from(one.querySelectorAll('.f.hit')).map((box) => Number(box.dataset.w))")
    assert (info.text_content() or "").endswith(f": {100 * sum(widths):.1f} % of the width")
    figure.get_by_label("Find").press("Enter")
    assert "pthread_cond_timedwait" in (figure.locator(".f:focus").text_content() or "")
    figure.get_by_role("button", name="Whole graph").click()
    assert figure.locator(".f.hit").count() == 0


def test_a_search_is_a_regular_expression_and_counts_nothing_twice(pages: dict[str, Path], open_page: Open) -> None:
    figure = open_page(pages["attribution"]).locator(".flame").first
    find, info = figure.get_by_label("Find"), figure.locator(".info")
    find.fill(".")
    assert (info.text_content() or "").endswith(" boxes with “.”: 100.0 % of the width")
    find.fill("^(poll|syscall)$")
    assert set(figure.locator(".f.hit").all_text_contents()) <= {"poll", "syscall"}
    find.fill("operator(")  # no expression: taken as it stands
    assert info.text_content() == "0 boxes with “operator(”"


def test_view_is_saved_in_the_address(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["attribution"])
    figure = page.locator(".flame").nth(1)
    page.get_by_role("radio", name="C0 time that followed").check()
    figure.get_by_label("Find").fill("poll|wait")
    figure.locator(".f").nth(5).click()
    assert page.evaluate("location.hash") == "#flame=1&box=5&find=poll%7Cwait"
    hits = figure.locator(".f.hit").count()
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    again = page.locator(".flame").nth(1)
    assert page.locator(".flame:visible").count() == 1 and again.is_visible()
    assert again.get_by_label("Find").input_value() == "poll|wait"
    assert again.get_attribute("data-zoomed") == "5"
    assert again.locator(".f.hit").count() == hits > 0
    again.get_by_role("button", name="Whole graph").click()
    assert page.evaluate("location.hash") == ""


def test_lanes_show_any_part_of_the_window(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["attribution"])
    figure = page.locator(".lanes")
    exits = timeline()
    begin_ns = min(one.enter_ns for one in exits)
    whole_ms = (max(one.next_ns or one.exit_ns for one in exits) - begin_ns) / 1e6
    figure.get_by_label("Show").select_option("500")
    for value in ("0", "500", "1000"):
        figure.get_by_role("slider").fill(value)
        from_ms = (whole_ms - 500) * int(value) / 1000
        seen = [
            one
            for one in exits
            if ((one.next_ns or one.exit_ns) - begin_ns) / 1e6 >= from_ms
            and (one.enter_ns - begin_ns) / 1e6 <= from_ms + 500
        ]
        said = figure.locator(".detail svg").get_attribute("aria-label") or ""
        assert abs(int(said.partition(" ")[0]) - len(seen)) <= 1  # whole microseconds in the page
        assert figure.locator(".detail rect.idle").count() > 0.8 * len(seen) > 10
        mark = figure.locator(".window").evaluate("(one) => one.x.baseVal.valueInSpecifiedUnits")
        assert mark == pytest.approx(9 + 90.5 * from_ms / whole_ms, abs=0.1)


def test_the_axis_of_a_narrow_comparison_has_its_ticks(pages: dict[str, Path], open_page: Open) -> None:
    for width, shown in ((400, True), (1600, False)):
        page = open_page(pages["comparison"], width=width)
        assert page.locator("td.draw .ticks").first.is_visible() is shown
    assert "%" in (page.locator("td.draw svg title").first.text_content() or "")


def test_click_zooms_and_second_click_returns(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["comparison"])
    page.locator(".choice > input").last.check()
    figure = page.locator(".flame").last
    total = figure.locator(".f").count()
    box = figure.locator(".f.d3", has_text="new").first
    box.click()
    assert figure.locator(".f:not(.out)").count() == 3  # it, its thread and the root
    box.click()
    assert figure.locator(".f:not(.out)").count() == total


def test_print_is_white_and_shows_open_sections(kind: str, show: Show) -> None:
    page = show(800, "dark", "print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 30, 27)"
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".tools:visible").count() == 0
    assert overflow(page) == []
    if kind == "idle":
        document = page.pdf(format="A4")
        assert len(re.findall(rb"/Type\s*/Page\b", document)) == 2


def test_the_contents_lead_to_every_section(show: Show) -> None:
    page = show()
    links = page.locator(".contents a")
    sections = page.locator("main > section[id]")
    if links.count():
        named = [href[1:] for link in links.all() if (href := link.get_attribute("href"))]
        assert named == [section.get_attribute("id") for section in sections.all()]
    else:
        assert sections.count() < 4


def test_everything_that_scrolls_or_acts_can_be_focused(show: Show) -> None:
    page = show(400)
    stuck = page.evaluate("""Array.from(document.querySelectorAll('body *')).filter((e) => {
        const s = getComputedStyle(e);
        return e.scrollWidth > e.clientWidth + 1 && ['auto', 'scroll'].includes(s.overflowX) && e.tabIndex < 0;
      }).map((e) => e.outerHTML.slice(0, 80))""")
    assert stuck == []


def test_pictures_have_labels(show: Show) -> None:
    page = show()
    assert page.evaluate("""Array.from(document.querySelectorAll('svg[role=img]')).every((one) =>
        one.getAttribute('aria-label').length > 5)""")
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    levels = page.evaluate("Array.from(document.querySelectorAll('h1, h2, h3')).map((one) => Number(one.tagName[1]))")
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_hostile_names_do_not_run_in_a_browser(tmp_path: Path, open_page: Open) -> None:
    record = attribution()
    rows = [
        replace(
            row,
            thread=replace(row.thread, server_name=None, comm=name),
            detail=name,
            stack=[StackFrame(function=one, module=name, address="0x1") for one in HOSTILE],
        )
        for row, name in zip(record.wakeups * 4, HOSTILE, strict=True)
    ]
    exits = [replace_cause(one, HOSTILE[number % len(HOSTILE)]) for number, one in enumerate(timeline(60))]
    evil = replace(
        record,
        wakeups=rows,
        notes=list(HOSTILE),
        target=replace(record.target, label=HOSTILE[1]),
        host={name: name for name in HOSTILE},
        id=HOSTILE[0],
    )
    path = tmp_path / "hostile.html"
    path.write_bytes(render_html(evil, extras=Extras(timeline=exits)).encode())
    for width in (400, 1600):
        page = open_page(path, width=width)
        assert page.evaluate("document.images.length") == 0
        # Ours, the record and the data of the lanes.
        types = page.evaluate("Array.from(document.scripts, (one) => one.type)")
        assert types == ["application/json", "application/json", ""]
        assert overflow(page) == []
        page.locator(".f").nth(5).click()
    assert page.locator("h1").text_content().startswith(HOSTILE[1])


def replace_cause(one: object, name: str) -> object:
    return replace(one, cause=name, thread=name, state=name, mechanism=name)  # type: ignore[type-var]
