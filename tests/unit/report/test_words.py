# SPDX-License-Identifier: Apache-2.0
"""Draw comparisons, trends, studies and statements: no form contradicts another, nor its interval."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.experiment.claims import answer_for
from powerprof.experiment.metrics import Compared
from powerprof.experiment.records import Answer, Comparison, ConditionRecord, Difference, Metric, Ratio, Side
from powerprof.experiment.study import build_rows
from powerprof.experiment.sweep_comparison import _points
from powerprof.experiment.trend import Trend, TrendPoint, _judge_steps
from powerprof.experiment.verdict import judge_metrics
from powerprof.measure.means import interval
from powerprof.model.records import Figures, RunMetric
from powerprof.queries.comparison import compare_queries
from powerprof.report import comparison as report
from powerprof.report import comparison_words
from powerprof.report.document import View
from powerprof.report.exports import export, render_markdown
from powerprof.report.kinds import lines_of
from powerprof.report.labels import define_metric, metric_words
from powerprof.report.render.terminal import render_terminal
from powerprof.report.wording import word_record
from tests.programs.golden_files import text_of
from tests.unit.experiment.test_studies import STUDY, finding, study_run
from tests.unit.queries.test_comparison import of, window
from tests.unit.report.sample_records import comparison, sweep_comparison

DRAWS = 300
# A page takes twenty times as long as all other forms.
_PAGES_EVERY = 40
_METRICS = (
    *(("c0_ms_per_query_server", "ms"), ("c0_ms_per_query_net", "ms"), ("joules_per_query", "J"), ("watts", "W")),
    *(("joules_per_query_net", "J"), ("wakeups_per_query", "1"), ("latency_p50_ms", "ms"), ("latency_p95_ms", "ms")),
    *(("latency_p99_ms", "ms"), ("queries_hz", "1/s"), ("c0_percent", "%"), ("residency_percent:C1", "%")),
    *(("page_faults_per_query", "1"), ("time_to_solution_s", "s")),
)
_PRIMARY = ("c0_ms_per_query_server", "joules_per_query", "c0_ms_per_query_net", "latency_p95_ms", "watts")
_DECIDED = ("better", "worse", "higher", "lower")
_SAMPLE = comparison(3)
_CHANCE, _NONE = "may be chance", "no measurable difference"


def draw_values(chance: random.Random, pairs: int) -> tuple[list[float | None], list[float | None]]:
    """Draw both sides of a metric: effect, noise and outliers; zeros, negatives, equal and missing values."""
    shape = chance.choices(
        ("plain", "zeros", "negative", "equal", "one-sided", "missing", "tiny"), (60, 8, 10, 6, 6, 6, 4)
    )[0]
    level = chance.choice((0.003, 0.4, 3.0, 60.0, 9000.0)) * (1e-4 if shape == "tiny" else 1)
    noise = chance.choice((0.001, 0.01, 0.03, 0.1, 0.5))
    effect = chance.choice((1.0, 1.0, 1.005, 1.02, 0.97, 1.1, 0.7, 1.6, 8.0, 0.1))
    scatter = [abs(level * (1 + chance.gauss(0, noise))) for _ in range(2 * pairs)]
    a: list[float | None] = [*scatter[:pairs]]
    b: list[float | None] = [effect * value for value in scatter[pairs:]]
    if chance.random() < 0.15:
        b[chance.randrange(pairs)] = 30 * level
    match shape:
        case "zeros":
            a = [0.0 if chance.random() < 0.7 else value for value in a]
        case "negative":
            shift = chance.choice((1.0, 1.5)) * level
            a, b = ([value - shift for value in side if value is not None] for side in (a, b))
        case "equal":
            a = b = [level] * pairs
        case "one-sided":
            a, b = chance.choice(((a, [0.0] * pairs), ([0.0] * pairs, b)))
        case "missing":
            a = [None if chance.random() < 0.5 else value for value in a]
    return a, b


def draw(seed: int) -> Comparison:
    """Return a comparison of drawn values, judged and worded as a measured one."""
    chance = random.Random(seed)
    pairs, is_paired = chance.choices((2, 3, 4, 5, 12), (1, 1, 2, 2, 0.5))[0], chance.random() < 0.8
    energy = chance.choice(("measured", "estimated"))
    compared = []
    for name, unit in _METRICS:
        if chance.random() < 0.25:
            continue
        kind = energy if unit in ("J", "W") else "measured"
        a, b = (Figures(name=name, unit=unit, kind=kind, values=side) for side in draw_values(chance, pairs))  # type: ignore[arg-type]
        compared.append(Compared(a, b))
    primary = chance.choice(_PRIMARY)
    # Models of an estimate with a larger and a smaller difference widen its intervals.
    models = [
        [Compared(each.a, replace(each.b, values=[v and v * factor for v in each.b.values])) for each in compared]
        for factor in ((0.97, 1.03) if energy == "estimated" else ())
    ]
    metrics = judge_metrics(compared, primary, seed, paired=is_paired, by_model=models, typical=True)
    empty: dict[str, Any] = {"control": None, "threats": [], "blocks": [], "baseline": [], "baseline_after": []}
    record = replace(
        _SAMPLE,
        **empty,
        traced=[],
        on_cpu=None,
        system=[],
        plans=[],
        metrics=metrics,
        verdict=answer_for(metrics, primary),
        blocks_count=2 * pairs if is_paired else 0,
    )
    return word_record(record)


def _class_of(metric: dict[str, Any]) -> str:
    """Return decided, chance, open or unknown: the only permitted outcome, from the JSON alone."""
    ends = metric["difference"]["ci95"]
    if metric["typical"] is not None:
        return "decided"
    if ends is None:
        return "unknown"
    if metric["verdict"] != "inconclusive":
        return "decided"
    return "open" if ends[0] <= 0 <= ends[1] else "chance"


def _class_of_text(words: str) -> str:
    words = words.lower()
    if _CHANCE in words:
        return "chance"
    if "too few" in words or "unknown" in words:
        return "unknown"
    return "open" if _NONE in words or "no measurable difference" in words or "inconclusive" in words else "decided"


def _rows(lines: list[str], record: Comparison) -> list[str]:
    """Return the row of each metric, in the order of the record: some metrics have the same short name."""
    rows, rest = [], iter(lines)
    for metric in record.metrics:
        label = define_metric(metric.name).short + (", est." if metric.kind == "estimated" else "")
        rows.append(next(line for line in rest if re.match(re.escape(label) + "[ :]", line)))
    return rows


def contradictions(record: Comparison, *, with_page: bool) -> Iterator[str]:
    """Yield each statement of a form that its interval does not permit, or that differs from another form."""
    data = json.loads(msgspec.json.encode(record))
    metrics = {metric["name"]: metric for metric in data["metrics"]}
    verdict = data["verdict"]
    chosen = metrics.get(verdict["metric"])
    sentence = verdict["text"]
    if chosen is not None:
        if _class_of_text(sentence) != _class_of(chosen):
            yield f"sentence {_class_of(chosen)}: {sentence}"
        for line in (verdict["ground"], verdict["speed"], verdict["power"]):
            named = [m for m in metrics.values() if line and _subject(m["name"]) in line]
            if line and named and _class_of_text(line.partition("; p95")[0]) not in {_class_of(m) for m in named}:
                yield f"line {[(m['name'], _class_of(m)) for m in named]}: {line}"
            if line and named and verdict["speed"] == line and "p95 latency)" in line:
                decided = [
                    _class_of(metrics[n]) == "decided" for n in ("latency_p95_ms", "latency_p50_ms") if n in metrics
                ]
                if decided == [False, True]:
                    yield f"speed is undecided although the median is decided: {line}"
        for outer in re.findall(r"\(([^()]*95 %[^()]*)\)", sentence):
            if re.search(r"\d, 95 %", outer):
                yield f"95 % looks like the unit: {sentence}"
    shown = report.document(record, View()).tiles()
    tiles = {tile.heading.partition(", est")[0].partition(", meas")[0]: tile for tile in shown}
    for metric in metrics.values():
        tile = tiles.get(metric_words(metric["name"]))
        if tile is None:
            continue
        if _class_of_text(tile.note) != _class_of(metric):
            yield f"tile {_class_of(metric)}: {tile.note}"
        if metric is chosen and _bound(tile.note) != _bound(sentence):
            yield f"bound in one of two: {tile.note!r}, {sentence!r}"
        if metric is chosen and (_bound(sentence) is None) != (metric["difference"]["less_than"] is None):
            yield f"bound in JSON {metric['difference']['less_than']}: {sentence}"
        if metric["a"]["mean"] <= 0 and "%" in tile.value:
            yield f"percent of {metric['a']['mean']}: {tile.value}"
    for metric in metrics.values():
        ends = metric["difference"]["ci95"]
        hint = None if _class_of(metric) != "chance" else "b_higher" if ends[0] > 0 else "b_lower"
        if metric.get("hint") != hint:
            yield f"JSON hint {metric.get('hint')} for {ends}"
        if metric["a"]["mean"] <= 0 and metric["difference"]["percent"] is not None:
            yield f"JSON percent of {metric['a']['mean']}"
    yield from _table_contradictions(record, list(metrics.values()), with_page=with_page)


def _table_contradictions(record: Comparison, metrics: list[dict[str, Any]], *, with_page: bool) -> Iterator[str]:
    wide, pipe = (_everything(record, width) for width in (200, 80))
    markdown = render_markdown(record).splitlines()
    forms = {"terminal": wide, "pipe": pipe, "short": lines_of(record, 80), "markdown": markdown}
    if with_page:
        forms["page"] = text_of(export(record, "html").decode()).splitlines()
    for form in ("terminal", "pipe"):
        for metric, row in zip(metrics, _rows(forms[form], record), strict=True):
            if _class_of_row(row) != _class_of(metric):
                yield f"{form} row {_class_of(metric)}: {row}"
    for metric in metrics:
        rows = [
            row
            for row in markdown
            if row.startswith(f"| {metric_words(metric['name'])},")
            or row.startswith(f"| {metric_words(metric['name'])} |")
        ]
        if rows and _class_of_row(rows[0].rstrip("| ")) != _class_of(metric):
            yield f"markdown row {_class_of(metric)}: {rows[0]}"
    for form, lines in forms.items():
        text = " ".join(" ".join(lines).replace("\\", "").split())
        has_word = any(_class_of(metric) == "chance" for metric in metrics)
        if form == "short":
            has_word = any(_CHANCE in line and not line.startswith(("May", "Inc", "inc")) for line in lines)
        explained = len(re.findall(r"May be chance[^:]*: the 95 % interval excludes 0", text))
        if has_word != bool(explained) or explained > 1:
            yield f"{form} explains {explained} times, row with the word: {has_word}"
        if "they do not" in text or re.search(r"filled where the interval excludes", text):
            yield f"{form} explains its marks by the interval"


def _class_of_row(row: str) -> str:
    last = row.replace("*", "").replace("|", " ")
    if re.search(r"may be chance( \(among \d+ metrics\))?$", last.strip()):
        return "chance"
    return {"inconclusive": "open", "unknown": "unknown"}.get(last.split()[-1], "decided")


def _everything(record: Comparison, width: int) -> list[str]:
    return render_terminal(report.document(record, View(everything=True)), width)


def _bound(words: str) -> str | None:
    found = re.search(r"less than ([\d.,e−]+)", words)
    return found[1] if found else None


def _subject(name: str) -> str:
    return {
        "latency_p95_ms": "(p95 latency",
        "latency_p50_ms": "(median latency",
        "time_to_solution_s": "(time to solution",
        "watts": "(watts",
        "c0_percent": "(time in C0",
        "joules_per_query": "energy per query",
        "c0_ms_per_query_server": "server",
    }.get(name, "\0")


def count(draws: int = DRAWS) -> tuple[list[str], dict[str, int]]:
    """Return the contradictions of drawn comparisons, and how many metrics of each class were drawn."""
    found, classes = [], dict.fromkeys(("decided", "chance", "open", "unknown"), 0)
    for seed in range(draws):
        record = draw(seed)
        found += [f"{seed}: {text}" for text in contradictions(record, with_page=not seed % _PAGES_EVERY)]
        for metric in json.loads(msgspec.json.encode(record))["metrics"]:
            classes[_class_of(metric)] += 1
    return found, classes


def test_no_form_contradicts_its_interval_or_another_form() -> None:
    found, classes = count()
    assert not found, (len(found), found[:5])
    assert min(classes.values()) > 50, classes


def _metric(
    mean: float,
    ends: tuple[float, float] | None,
    verdict: str = "inconclusive",
    *,
    name: str = "c0_ms_per_query_server",
    ratio: tuple[float, float, float] | None = None,
    own: tuple[float, float] | None = None,
    kind: str = "measured",
) -> Metric:
    """Return a metric with the middle of its interval as the difference."""
    middle = None if ends is None else (ends[0] + ends[1]) / 2
    difference = Difference(b_minus_a=middle, ci95=ends, percent=100 * middle / mean if middle and mean > 0 else None)
    return Metric(
        name=name,
        unit="J" if name.startswith("joules") else "ms",
        kind=kind,  # type: ignore[arg-type]
        a=Side(mean=mean, ci95=own),
        b=Side(mean=mean + (middle or 0.0), ci95=None),
        difference=difference,
        verdict=verdict,  # type: ignore[arg-type]
        minimum_detectable_percent=None,
        ratio=None if ratio is None else Ratio(b_over_a=ratio[0], ci95=ratio[1:]),
    )


# The right sentence, and the right phrase of the tile, of what a record may contain.
_CASES = {
    "twice": (_metric(1, (0.8, 1.2), "b_higher", ratio=(2, 1.8, 2.2)), "b uses 2.00 times as much", "worse"),
    "a tenth": (_metric(1, (-0.92, -0.88), "b_lower", ratio=(0.1, 0.08, 0.12)), "a uses 10.0 times as", "better"),
    "falls": (
        _metric(1, (-0.5, -0.2), "b_lower"),
        "b uses 35.0 % less server CPU time per query than a (95 % interval: 20.0 % to 50.0 %).",
        "better",
    ),
    "5 %": (_metric(1, (0.04, 0.06), "b_higher", ratio=(1.05, 1.04, 1.06)), "b uses 5.0 % more", "worse"),
    "chance": (_metric(1, (0.1, 0.9)), "+50.0 % (95 % interval: +10.0 % to +90.0 %) may be chance.", "may be chance"),
    "small chance": (
        _metric(1, (1e-4, 5e-4)),
        "+0.0300 % (95 % interval: +0.0100 % to +0.0500 %) may be",
        "may be chance",
    ),
    "below a": (_metric(1, (-0.3, -0.1)), "−20.0 % (95 % interval: −30.0 % to −10.0 %) may be chance", "may be chance"),
    "bound": (_metric(1, (-0.05, 0.06)), "less than 6.0 % (95 % interval: −5.0 % to +6.0 %)", "less than 6.0 %"),
    "ends at 0": (_metric(1, (0.0, 0.2)), "No measurable difference", "less than 20.0 %"),
    "wide": (_metric(1, (-0.9, 3.0)), "the interval is too wide for a bound", "too wide for a bound"),
    "typical": (
        replace(_metric(1, (-0.2, 5.0)), typical=Ratio(b_over_a=1.3, ci95=(1.25, 1.4))),
        "b typically uses 30.0 % more server CPU time per query than a (95 % interval: 25.0 % to 40.0 %; by the ranks",
        "typically worse",
    ),
    "typical, half": (
        replace(_metric(1, None), typical=Ratio(b_over_a=0.5, ci95=(0.4, 0.8))),
        "a typically uses 2.00 times as much server CPU time per query as b (95 % interval: 1.25 to 2.50 times; by",
        "typically better",
    ),
    "typical against the mean": (
        replace(_metric(1, (0.1, 0.9)), typical=Ratio(b_over_a=0.9, ci95=(0.8, 0.95))),
        "may be chance.",
        "may be chance",
    ),
    "typical beside a verdict": (
        replace(_metric(1, (0.04, 0.06), "b_higher"), typical=Ratio(b_over_a=0.9, ci95=(0.8, 0.95))),
        "b uses 5.0 % more",
        "worse",
    ),
    "equal": (_metric(1, (0.0, 0.0)), "all windows measured the same value.", "all windows measured the same value"),
    "rounding": (_metric(1, (-1e-17, 1e-17)), "all windows measured the same", "all windows measured the same"),
    "few": (_metric(1, None), "Too few pairs to judge", "unknown"),
    "negative a": (_metric(-2, (2.0, 4.0), "b_higher"), "3.00 ms more with b than with a", "worse"),
    "negative a, chance": (
        _metric(-2, (2.0, 4.0)),
        "+3.00 ms (95 % interval: +2.00 ms to +4.00 ms) may be",
        "may be chance",
    ),
    "negative a, bound": (_metric(-2, (-1.0, 4.0)), "less than 4.00 ms", "less than 4.00 ms"),
    "zero a": (_metric(0, (4.0, 6.0), "b_higher"), "5.00 ms more with b", "worse"),
    "a may be 0": (_metric(0.02, (0.5, 1.5), "b_higher", own=(-1.0, 1.0)), "1.00 ms more with b", "worse"),
    "falls by more than all": (_metric(1, (-1.8, -0.4), "b_lower"), "1.10 ms less with b", "better"),
    "a ratio that may be 1": (_metric(1, (0.2, 1.4), "b_higher", ratio=(1.8, 0.9, 3)), "b uses 80.0 % more", "worse"),
    "a verdict without its interval": (_metric(1, (-0.1, 0.2), "b_higher"), "No measurable", "less than 20.0 %"),
    "a verdict against its interval": (_metric(1, (0.1, 0.2), "b_lower"), "may be chance", "may be chance"),
    "estimated": (
        _metric(1, (0.1, 0.3), "b_higher", name="joules_per_query", kind="estimated"),
        "b uses 20.0 % more energy per query than a (95 % interval: 10.0 % to 30.0 %, estimated).",
        "worse",
    ),
    "no phrase": (
        _metric(1, (-0.1, 0.1), name="nosuch"),
        "between a and b in the nosuch: less than 10.0 %",
        "less than",
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_sentence_and_tile_state_what_the_interval_permits(case: str) -> None:
    metric, sentence, phrase = _CASES[case]
    answer = comparison_words.word_answer(Answer(metric=metric.name), [metric], "a", "b")
    assert sentence in answer.text
    record = replace(comparison(3), metrics=[metric], verdict=answer)
    note = report.document(record, View()).tiles()[0].note
    assert phrase in note


_SLOWER, _OPEN, _HINT = ("b_higher", (0.5, 1.5)), ("inconclusive", (-0.5, 3.0)), ("inconclusive", (0.5, 1.5))


@pytest.mark.parametrize(
    ("p95", "p50", "said"),
    [
        (_SLOWER, _OPEN, "b is slower (p95 latency)"),
        (
            _OPEN,
            _SLOWER,
            "b is slower (median latency); p95 latency: inconclusive: the interval is too wide for a bound",
        ),
        (_HINT, _SLOWER, "b is slower (median latency); p95 latency: may be chance (among 2 metrics)"),
        (None, _SLOWER, "b is slower (median latency)"),
        (_HINT, _OPEN, "the difference in speed (p95 latency) may be chance (among 2 metrics)"),
        (_OPEN, None, "speed (p95 latency) is inconclusive: the interval is too wide for a bound"),
    ],
)
def test_speed_is_judged_by_the_median_if_p95_is_undecided(p95: Any, p50: Any, said: str) -> None:
    given = (("latency_p50_ms", p50), ("latency_p95_ms", p95))
    metrics = [_metric(1, each[1], each[0], name=name) for name, each in given if each is not None]
    answer = comparison_words.word_answer(Answer(metric=metrics[0].name), metrics, "a", "b")
    assert answer.speed == said


_DRAWS_OF = {"sweep": 60, "trend": 100, "study": 25, "statements": 60}
Interval = tuple[float, float] | None
_SWEEPS, _STUDY_RUN = sweep_comparison(), study_run()


def _run_metric(chance: random.Random, name: str, level: float) -> RunMetric:
    noise, effect = chance.choice((0.002, 0.02, 0.1)), chance.choice((1.0, 1.0, 1.02, 1.1, 1.2))
    count = chance.choice((2, 3, 5, 8))
    values: list[float | None] = [abs(level * effect * (1 + chance.gauss(0, noise))) for _ in range(count)]
    return RunMetric(name=name, unit="1/s", kind="measured", estimate=interval(values), values=values)


def _sweep(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    """Return two compared sweeps, with the interval and the claim at each value."""
    chance = random.Random(seed)
    both = []
    for value in range(1, chance.choice((2, 3, 6))):
        sides = [[_run_metric(chance, name, 900.0 * value) for name in ("queries_hz", "wakeups_hz")] for _ in "ab"]
        both.append(tuple(_point(value, metrics) for metrics in sides))
    points = _points(both, [({}, {})] * len(both), "queries_hz", seed)  # type: ignore[arg-type]
    record = word_record(replace(_SWEEPS, points=points, parted_with=[], functions=[], text=""))
    judged = [next(m for m in point.metrics if m.name == "queries_hz") for point in points]
    return record, [(m.difference.ci95, point.parted) for m, point in zip(judged, points, strict=True)]


def _point(value: int, metrics: list[RunMetric]) -> Any:
    from powerprof.experiment.sweep_record import Point

    return Point(value=value, metrics=metrics)


def _trend(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    chance = random.Random(seed)
    metrics = [_run_metric(chance, "queries_hz", 900.0) for _ in range(chance.choice((2, 3, 6)))]

    class Side:
        def __init__(self, metric: RunMetric) -> None:
            self.metrics: Sequence[Figures] = [metric]

    steps = _judge_steps([Side(metric) for metric in metrics], "queries_hz")  # type: ignore[misc]
    points = [
        TrendPoint(run=f"run-{number:04}", started_at="2026-11-20T10:00:00Z", metrics=[metric], step=step)
        for number, (metric, step) in enumerate(zip(metrics, steps, strict=True), 1)
    ]
    condition = ConditionRecord(name="index", workload="city", title="", load={}, settings={}, work="city/point")
    record = Trend(id=None, command="trend", started_at="", condition=condition, metric="queries_hz", points=points)
    known = [step for step in steps if step is not None]
    return word_record(record), [(step.difference.ci95, step.verdict != "inconclusive") for step in known]


def _study(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    record = draw(seed)
    metrics = [metric for metric in record.metrics if metric.difference.b_minus_a is not None]
    wanted = [finding(m.name, "index:a", "index:b", expected="higher") for m in metrics]
    rows = build_rows(replace(STUDY, findings=wanted), {"index": record}, 1)
    claims = [(m.difference.ci95, m.verdict != "inconclusive") for m in metrics]
    return replace(_STUDY_RUN, rows=rows), claims


def _statements(seed: int) -> tuple[Any, list[tuple[Interval, bool]]]:
    chance = random.Random(seed)
    names = [f"s{number:05}" for number in range(chance.choice((1, 4, 12)))]
    sides = [
        window(
            *(of(name, chance.choice((1.0, 1.0, 1.02, 1.05, 1.5)), chance.choice((3, 60, 400)), 0.3) for name in names)
        )
        for _ in "ab"
    ]
    record = compare_queries(*sides, "2026-01-01T00:00:00.000Z")  # type: ignore[misc]
    claims: list[tuple[Interval, bool]] = []
    for one in record.statements:
        common = record.common_ratio
        ends = None if not (one.low and one.high and common) else (one.low / common - 1, one.high / common - 1)
        claims.append((ends, one.became in ("more expensive", "cheaper")))
    return record, claims


def wording_faults(record: Any, claims: list[tuple[Interval, bool]]) -> Iterator[str]:
    """Yield each statement that the intervals do not permit; `claims` are intervals and whether each has a verdict."""
    excludes = [ends is not None and not ends[0] <= 0 <= ends[1] for ends, _ in claims]
    hints = sum(out and not claimed for out, (_, claimed) in zip(excludes, claims, strict=True))
    forms = {
        "80": " ".join(" ".join(lines_of(record, 80)).split()),
        "200": " ".join(" ".join(lines_of(record, 200)).split()),
        "page": text_of(export(record, "html").decode()).replace("\n", " "),
    }
    if record.command != "trend":
        forms["markdown"] = render_markdown(record).replace("\\", "").replace("\n", " ")
    for name, text in forms.items():
        if re.search(r"[Nn]o measurable", text) and any(excludes):
            yield f"{name}: no measurable difference in {claims}: {text[:200]}"
        if re.search(r"\d, 95 %", text):
            yield f"{name}: 95 % looks like the unit: {text[:200]}"
        words = len(re.findall(r"may be chance", text))
        explained = len(re.findall(r"May be chance[^:]*: the 95 % interval excludes", text))
        if bool(hints) != bool(words) or explained != bool(hints) or words < hints:
            yield f"{name}: {hints} hints, {words} words, {explained} explanations: {text[:300]}"


_KINDS: dict[str, Callable[[int], tuple[Any, list[tuple[Interval, bool]]]]] = {
    "sweep": _sweep,
    "trend": _trend,
    "study": _study,
    "statements": _statements,
}


@pytest.mark.parametrize("kind", _KINDS)
def test_no_form_contradicts_its_intervals(kind: str) -> None:
    found, with_hint = [], 0
    for seed in range(_DRAWS_OF[kind]):
        record, claims = _KINDS[kind](seed)
        found += [f"{seed}: {text}" for text in wording_faults(record, claims)]
        with_hint += any(ends and not ends[0] <= 0 <= ends[1] and not claimed for ends, claimed in claims)
    assert not found, (len(found), found[:3])
    assert with_hint
