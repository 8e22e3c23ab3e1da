# SPDX-License-Identifier: Apache-2.0
"""Every figure of every kind of record has its unit and its kind in each form, and its interval is possible."""

from __future__ import annotations

import csv
import io
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from powerprof.experiment.metrics import Compared
from powerprof.experiment.verdict import judge_metrics
from powerprof.model.metrics import find_metric
from powerprof.model.records import Estimate, Figures
from powerprof.report import labels
from powerprof.report.document import Document, Part, Section, Shown, View, shown_parts
from powerprof.report.exports import export
from powerprof.report.html.tables import table_html
from powerprof.report.kinds import KIND_LOADERS, document_of
from powerprof.report.render.markdown import draw_table
from powerprof.report.table import Figure, Form, Places, Table, TableRow
from powerprof.statistics.intervals import WIDEST_FACTOR
from tests.programs.golden_files import records, text_of
from tests.unit.report.distinct_records import make_kind
from tests.unit.report.test_words import draw_values

_TIME = r"\b(s|ms|µs|min|seconds)\b"
# Each unit, as a reader may find it beside a figure, in its row or in its heading.
_SHOWN = {
    "%": "%|points",
    "ms": _TIME,
    "s": _TIME,
    "us": _TIME,
    "ms/s": r"\bms/s\b",
    "J": r"\b[mµ]?J\b|joules",
    "J·s": "J·s",
    "W": r"\b[mµ]?W\b|watts",
    "1/s": r"/s\b|per second|every",
    "B": r"\bB\b|bytes|[KM]iB",
    "B/s": r"\bB/s\b",
    "MHz": "MHz",
    "rows": "rows",
}
_SUFFIX = re.compile(r"(?:^|_)(percent|ms|us|s|hz|joules|watts|bytes|mhz)(?=$|_)")
_SUFFIX_UNITS = {"percent": "%", "hz": "1/s", "joules": "J", "watts": "W", "bytes": "B", "mhz": "MHz"}


def _steps(record: Any, pointer: str) -> list[tuple[str, Any]]:
    """Return the names on the way to a figure with the objects that hold them, the figure's own first."""
    places, parts = Places(record), pointer.split("/")
    holders = [_holder(places, "/".join(parts[:end])) for end in range(1, len(parts))]
    return list(zip(parts[1:], holders, strict=True))[::-1]


def _holder(places: Places, pointer: str) -> Any:
    value: Any = places.record
    for part in pointer.split("/")[1:]:
        value = value[int(part)] if isinstance(value, list | tuple) else _member(value, part)
    return value


def _member(value: Any, name: str) -> Any:
    name = name.replace("~1", "/").replace("~0", "~")
    if isinstance(value, msgspec.Struct):
        names = dict(zip(type(value).__struct_encode_fields__, type(value).__struct_fields__, strict=True))
        return getattr(value, names[name])
    return value[name]


def unit_at(record: Any, pointer: str) -> str:
    """Return the unit that the record states for a figure: by the name of its field, or of the metric that holds it."""
    for name, holder in _steps(record, pointer):
        if isinstance(holder, dict) and (defined := find_metric(name)) is not None:
            return defined.unit
        if name == "ratio" or name.endswith("_over_a") or name.endswith("_count"):
            return "1"
        if (suffix := _SUFFIX.search(name)) is not None:
            return _SUFFIX_UNITS.get(suffix[1], suffix[1])
        if (unit := getattr(holder, "unit", None)) is not None:
            return str(unit)
        is_named = pointer.rpartition("/")[2] not in ("mean", "low", "high", "within")
        metric = None if is_named else getattr(holder, "metric", None)
        if metric is not None and (known := find_metric(metric)) is not None:
            return known.unit
    return ""


def kind_at(record: Any, pointer: str) -> str | None:
    """Return whether the record states that a figure is measured or estimated; None if it states neither."""
    last = pointer.rpartition("/")[2]
    if last.endswith("percent") and "residency" not in last:
        return None  # a relation of two figures, whose row has the kind
    for _, holder in _steps(record, pointer):
        if (kind := getattr(holder, "kind", None)) in ("measured", "estimated"):
            is_energy = unit_at(record, pointer) in ("J", "W")
            return str(kind) if is_energy or hasattr(holder, "unit") else None
    return None


def _tables(parts: Iterable[Part]) -> Iterator[Shown]:
    for part in parts:
        if isinstance(part, Section):
            yield from _tables(part.parts)
        elif isinstance(part, Shown):
            yield part


def _figures(table: Table, row: TableRow) -> Iterator[tuple[str, Figure]]:
    for column in table.columns:
        cell = row.cells.get(column.key)
        if isinstance(cell, Figure) and cell.value is not None:
            yield column.key, cell


def _drawn(shown: Shown, form: Form) -> Iterator[tuple[Table, TableRow, str]]:
    """Yield each row of a table with its text in a form: its own lines, with the headings and the caption."""
    table = shown.table.of(form, shown.columns if form == "markdown" else ())
    for row in table.rows:
        one = msgspec.structs.replace(table, rows=[row])
        if form == "terminal":
            text = "\n".join(shown.layout(one, 200))
        elif form == "markdown":
            text = "\n".join([*draw_table(one), one.caption])
        else:
            text = text_of(str(table_html(one, shown.look, names=shown.names))).replace("\n", " ")
        yield table, row, text


def figure_faults(record: Any, document: Document, form: Form) -> Iterator[str]:
    """Yield each figure of the tables of a form whose text lacks its unit or its kind, or has other digits."""
    for shown in _tables(shown_parts(document.parts(), form)):
        for table, row, text in _drawn(shown, form):
            for key, figure in _figures(table, row):
                if not _is_in(text, figure.text) and not _is_in(text, labels.format_significant(figure.value)):
                    continue  # This layout leaves it out.
                unit = unit_at(record, figure.at)
                if unit in _SHOWN and not re.search(_SHOWN[unit], text):
                    yield f"{figure.at} ({key}): no {unit}: {text[:200]!r}"
                if kind_at(record, figure.at) == "estimated" and "est" not in text:
                    yield f"{figure.at} ({key}): not estimated: {text[:200]!r}"
                if figure.ends is not None:
                    yield from _digit_faults(figure)


def _is_in(text: str, figure: str) -> bool:
    return re.search(rf"(?<![\w.,-]){re.escape(figure)}(?![\d.,]\d)", text) is not None


def _digit_faults(figure: Figure) -> Iterator[str]:
    """Yield the faults of the digits of an interval: equal decimals, both ends different, at most three digits more."""
    assert figure.ends is not None
    low, high = figure.ends
    if {figure.digits, low.digits, high.digits} != {figure.digits}:
        yield f"{figure.at}: decimals {figure.digits}, {low.digits}, {high.digits}"
    width = abs(figure.scale * ((high.value or 0.0) - (low.value or 0.0)))
    if width > 1e-6 and low.text == high.text:
        yield f"{figure.at}: {low.text} to {high.text} of {low.value} to {high.value}"
    if (figure.digits or 0) > 0 and 1e-6 < 10.0 ** -(figure.digits or 0) < width / 2000 and low.text.strip("0.") != "":
        yield f"{figure.at}: {figure.text} with ± {width / 2}"


_RECORDS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: make_kind(name, known=True) for name in KIND_LOADERS},  # type: ignore[misc]
    **records(),
}


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
@pytest.mark.parametrize("name", _RECORDS)
def test_every_figure_has_its_unit_and_its_kind(name: str, form: Form) -> None:
    record = _RECORDS[name]()
    found = list(figure_faults(record, document_of(record, View(everything=True)), form))
    assert not found, (len(found), found[:12])


class _Outside(HTMLParser):
    """Collects the figures of a page outside its tables, each with the text of its block: a tile, or a fact."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: list[tuple[str, str]] = []
        self._open: list[tuple[str, list[str], list[str]]] = []
        self._tables, self._term = 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._tables += tag == "table"
        is_block = tag in ("dt", "dd", "li", "h1") or (tag in ("p", "div") and not self._in_tile())
        if is_block:
            self._open.append(("tile" if "tile " in f"{named.get('class')} " else tag, [], []))
        if tag == "data" and not self._tables and self._open:
            self._open[-1][2].append(str(named["data-at"]))

    def _in_tile(self) -> bool:
        return bool(self._open) and self._open[-1][0] == "tile"

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1][1].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tables -= tag == "table"
        if not self._open or (self._open[-1][0] != tag and not (self._in_tile() and tag == "div")):
            return
        _, words, places = self._open.pop()
        text = "".join(words)
        self._term = text if tag == "dt" else self._term
        self.figures += [(place, f"{self._term} {text}" if tag == "dd" else text) for place in places]


@pytest.mark.parametrize("name", _RECORDS)
def test_every_figure_beside_the_tables_of_a_page_has_its_unit_and_its_kind(name: str) -> None:
    record, page = _RECORDS[name](), _Outside()
    page.feed(export(record, "html").decode())
    found = []
    for place, text in page.figures:
        unit = unit_at(record, place)
        if unit in _SHOWN and not place.endswith("/pid") and not re.search(f"{_SHOWN[unit]}|percent", text):
            found.append(f"{place}: no {unit}: {text!r}")
        if kind_at(record, place) == "estimated" and "est" not in text:
            found.append(f"{place}: not estimated: {text!r}")
    assert not found, found[:8]


@pytest.mark.parametrize("name", _RECORDS)
def test_every_column_of_csv_has_its_unit_and_its_kind(name: str) -> None:
    """Either a column states the unit of its row, or the name of the column ends in it."""
    record = _RECORDS[name]()
    found = []
    for number, lines in enumerate(_blocks(export(record, "csv").decode())):
        head = lines[0]
        for line in lines[1:]:
            cells = dict(zip(head, line, strict=False))
            for column, cell in cells.items():
                if not re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", cell):
                    continue
                # A line about several quantities names its unit in another cell.
                names = [column, *(other for other in line if re.fullmatch(r"[a-z_]+", other))]
                has_own = any(re.search(_PURE, name) or _SUFFIX.search(name) for name in names)
                if not has_own and not cells.get("unit"):
                    found.append(f"{number}: {column} has no unit in {head}")
            if any("joules" in column or "watts" in column for column in head) and not any(
                column.startswith("kind") for column in head
            ):
                found.append(f"{number}: no kind in {head}")
    assert not found, sorted(set(found))


# Columns of pure numbers, and of names or values that are typed.
_PURE = r"ratio|_per_call|_per_query|coverage|^(clients|value|version|warning|text|schema|name|labels?|count)$|_count"


def _blocks(text: str) -> Iterator[list[list[str]]]:
    rows: list[list[str]] = []
    for row in csv.reader(io.StringIO(text)):
        if not any(row):
            if rows:
                yield rows
            rows = []
        else:
            rows.append(row)
    if rows:
        yield rows


def test_every_drawn_interval_is_possible() -> None:
    """Each is within the limits of its metric, and its upper end is less than 1,000 times the mean."""
    units = {"watts": "W", "c0_percent": "%", "wakeups_hz": "1/s", "latency_p95_ms": "ms", "joules_per_query_net": "J"}
    found, counted = [], 0
    for seed in range(200):
        chance = random.Random(seed)
        sides = {name: draw_values(chance, chance.choice((3, 4, 5, 8))) for name in units}
        compared = [
            Compared(*(_possible(name, unit, values, scaled=unit == "%") for values in sides[name]))
            for name, unit in units.items()
        ]
        for metric in judge_metrics(compared, "watts", seed, paired=chance.random() < 0.7):
            floor, ceiling = Figures(name=metric.name, unit=metric.unit, kind="measured", values=[]).limits
            for side in (metric.a, metric.b):
                low, high = side.ci95 or (None, None)
                counted += low is not None
                if low is None or high is None or side.mean is None:
                    continue
                is_possible = (floor is None or floor <= low) and (ceiling is None or high <= ceiling)
                if not is_possible or (side.mean > 0 and high >= WIDEST_FACTOR * side.mean) or not low <= high:
                    found.append(f"{seed} {metric.name}: {side.mean} {side.ci95}")
            if metric.ratio is not None and metric.ratio.ci95 is not None:
                low, high = metric.ratio.ci95
                if not 0 <= low <= metric.ratio.b_over_a <= high < WIDEST_FACTOR * metric.ratio.b_over_a:
                    found.append(f"{seed} {metric.name}: {metric.ratio}")
    assert not found, (len(found), found[:5])
    assert counted > 1000


def _possible(name: str, unit: str, values: list[float | None], *, scaled: bool) -> Figures:
    """Return drawn values as a metric has them: none is negative unless it is net of idle, no share exceeds 100 %."""
    if not name.endswith("_net"):
        values = [value and abs(value) for value in values]
    if scaled:
        most = max((value for value in values if value is not None), default=1.0)
        values = [value and 99.9 * value / most for value in values]
    return Figures(name=name, unit=unit, kind="measured", values=values)


class _Charts(HTMLParser):
    """Collects the charts of a page: the caption of the figure around each, and its texts by tag."""

    def __init__(self) -> None:
        super().__init__()
        self.charts: list[tuple[list[str], dict[str, list[str]]]] = []
        self._captions: list[str] = []
        self._into: list[str] | None = None
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "figure":
            self._captions = []
        if tag == "svg":
            if not self._depth:
                label = str(dict(attrs).get("aria-label") or "")
                self.charts.append((self._captions, {"label": [label], "title": [], "text": []}))
            self._depth += 1
        if tag == "figcaption":
            self._captions.append("")
            self._into = self._captions
        elif self._depth and tag in ("title", "text"):
            self._into = self.charts[-1][1][tag]
            self._into.append("")

    def handle_data(self, data: str) -> None:
        if self._into:
            self._into[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "svg"
        if tag == "figure":
            self._captions = []
        if tag in ("figcaption", "title", "text"):
            self._into = None


# A figure in a title, with its interval and its unit: `8: 12.3 [11.9, 12.7] ms`, `+14.3 % [+13.8, +14.9]`.
_NUMBER = r"[+−]?[\d,]+(?:\.\d+)?(?:e[+−]?\d+)?"
_TITLED = re.compile(rf": ({_NUMBER})( %)?(?: \[({_NUMBER}), ({_NUMBER})\])?(/s| \S+)?$")


def _list_metrics(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the label, the unit and the kind of each metric of a record."""
    if isinstance(value, msgspec.Struct):
        if all(hasattr(value, name) for name in ("name", "unit", "kind")):
            yield labels.metric_words(value.name), value.unit, value.kind
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _list_metrics(each)


_MINUS = str.maketrans("−", "-", ",+")


def _find_impossible(title: str, values: list[float], metric: tuple[str, str, str] | None) -> Iterator[str]:
    low, mean, high = values
    is_share = metric is not None and metric[1] == "%" and "% [" not in title
    floor = -100.0 if "% [" in title else -math.inf if "net" in title or ":" in title[:3] else 0.0
    if not floor <= low <= mean <= high <= (100.0 if is_share else math.inf):
        yield f"impossible: {title!r}"
    if high > WIDEST_FACTOR * max(abs(mean), 100.0 if "% [" in title else 0.0):
        yield f"an interval that excludes nothing: {title!r}"


def chart_faults(record: Any, *, is_real: bool = False) -> Iterator[str]:
    """Yield each figure of a chart without its unit or its kind, or whose interval has other digits.

    With `is_real` the intervals were computed from values, so they are possible.
    """
    page, metrics = _Charts(), sorted(set(_list_metrics(record)), key=lambda one: -len(one[0]))
    page.feed(export(record, "html").decode())
    for captions, texts in page.charts:
        named = " ".join([*captions, *texts["label"]])
        metric = next((one for one in metrics if one[0] and one[0] in named), None)
        unit, kind = metric[1:] if metric is not None and "% [" not in named else ("", "")
        words = " ".join([named, *texts["title"], *texts["text"]])
        if unit in ("J", "W") and kind == "estimated" and "estimated" not in words:
            yield f"not estimated: {named!r}"
        for title in (*texts["title"], *texts["label"]):
            figure = _TITLED.search(title)
            if figure is None:
                continue
            mean, percent, low, high, shown_unit = figure.groups()
            if unit not in ("", "1", "rows") and not (shown_unit or percent):
                yield f"no unit: {title!r}"
            if low is None:
                continue
            if len({len(end.partition(".")[2]) for end in (mean, low, high)}) > 1:
                yield f"decimals: {title!r}"
            if is_real:
                yield from _find_impossible(title, [float(one.translate(_MINUS)) for one in (low, mean, high)], metric)
        ticks = [text for text in texts["text"] if re.fullmatch(r"−?-?[\d,.]+(e-?\d+)? ?", text)]
        has_unit = any(re.fullmatch(r"-?[\d,.]+(e-?\d+)? ?(?!\d)\S.*", text) for text in texts["text"])
        has_unit = has_unit or re.search(_SHOWN.get(unit, "$^"), " ".join(texts["text"])) is not None
        if unit not in ("", "1") and len(ticks) > 1 and not has_unit:
            yield f"an axis without its unit: {named!r} {texts['text'][:8]}"


@pytest.mark.parametrize("name", _RECORDS)
def test_every_figure_of_a_chart_has_its_unit_its_kind_and_the_digits_of_its_interval(name: str) -> None:
    found = list(chart_faults(_RECORDS[name](), is_real=name not in KIND_LOADERS and not name.startswith("saved-")))
    assert not found, (len(found), found[:8])


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_comparison_has_charts_with_units_kinds_and_possible_intervals(seed: int) -> None:
    """Each metric is the judged one once, measured or estimated."""
    chance, record = random.Random(seed), _RECORDS["comparison"]()
    units = {"watts": "W", "joules_per_query": "J", "c0_percent": "%", "wakeups_hz": "1/s", "latency_p95_ms": "ms"}
    sides = {name: draw_values(chance, chance.choice((3, 4, 5, 8))) for name in units}
    drawn = [
        [_possible(name, unit, values, scaled=unit == "%") for values in sides[name]] for name, unit in units.items()
    ]
    kinds = {name: chance.choice(("measured", "estimated")) for name in units}
    compared = [Compared(*(msgspec.structs.replace(side, kind=kinds[side.name]) for side in pair)) for pair in drawn]
    metrics = judge_metrics(compared, "watts", seed, paired=True)
    for metric in metrics:
        verdict = msgspec.structs.replace(record.verdict, metric=metric.name)
        one = msgspec.structs.replace(record, metrics=metrics, verdict=verdict)
        found = list(chart_faults(one, is_real=True))
        assert not found, (metric.name, len(found), found[:8])


def test_the_digits_of_a_sentence_follow_its_interval() -> None:
    """Half of an interval has two significant digits; a bound is rounded up and is never below the figure."""
    assert labels.plus_minus(Estimate(mean=6.75, low=6.0, high=7.5), 1) == "6.75 ± 0.75"
    assert labels.plus_minus(Estimate(mean=921.3, low=870.0, high=972.6), 1) == "921 ± 51"
    assert labels.plus_minus(Estimate(mean=-6.75, low=-8.0, high=-5.5), sign=True) == "−6.8 ± 1.2"
    assert labels.plus_minus(Estimate(mean=4.0, low=0.5, high=20.0), 1) == "4.0 (0.5 to 20.0)"
    assert labels.plus_minus(Estimate(mean=6.75, low=None, high=None), 1) == "6.8"
    chance = random.Random(1)
    for _ in range(500):
        mean, half = 10 ** chance.uniform(-3, 6), 10 ** chance.uniform(-4, 5)
        figure, sign, shown = labels.plus_minus(Estimate(mean=mean, low=mean - half, high=mean + half), 1).partition(
            " ± "
        )
        if sign:
            assert len(figure.partition(".")[2]) == len(shown.partition(".")[2])
            assert abs(float(shown.replace(",", "")) - half) <= max(0.05 * half, 5e-4 * (mean + half)), (mean, half)
        bound = float(labels.format_bound(half).replace(",", ""))
        assert half * (1 - 1e-9) <= bound <= 1.11 * half or (half >= 100 and half <= bound <= half + 1)
