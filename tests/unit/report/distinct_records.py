# SPDX-License-Identifier: Apache-2.0
"""Records of every kind in which no two figures are equal: a wrong column, sign or factor changes each form.

Of each kind there are two records. One has every optional value; in the other, every optional value is unknown.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from string import Formatter
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from powerprof.attribution.symbols import Symbols
from powerprof.energy.models_file import PowerModel
from powerprof.live.intervals import LiveInterval, RowHistory
from powerprof.live.statements import StatementHistory
from powerprof.report import comparison_words, doctor, energy, profile, queries_watch, wakeup_groups, watch, yearly
from powerprof.report.document import Extras
from powerprof.report.exports import export
from powerprof.report.flame import build_flame_difference
from powerprof.report.kinds import KIND_LOADERS, document_of, lines_of
from powerprof.report.notes import WORDS, fill_template
from powerprof.report.perfetto import build_trace
from powerprof.report.screen import ScreenView
from powerprof.report.statement_tables import COLUMNS
from powerprof.report.timeline import TimelineExit
from powerprof.report.wording import word_record

# Fields whose value selects a form of the report; a tuple has one value after another. Other fields count upwards.
_METRICS = ("c0_ms_per_query_server", "joules_per_query", "latency_p95_ms", "watts", "c0_percent")
_UNITS = ("ms", "J", "ms", "W", "%")
_GIVEN: dict[str, Any] = {
    **{f"{kind}.name": (*_METRICS, "residency_percent:C6", "queries_hz") for kind in ("Metric", "RunMetric")},
    **{f"{kind}.unit": (*_UNITS, "%", "1/s") for kind in ("Metric", "RunMetric")},
    "Difference.b_minus_a": (-2.25, 4.5, 0.75, -6.5, 8.25),
    "Difference.ci95": ((-3.5, -1.25), (3.25, 5.75), (-0.5, 2.0), (-7.75, -5.25), (6.5, 10.0)),
    "Difference.percent": (-21.5, 43.25, 7.5, -65.75, 82.25),
    "Metric.verdict": ("b_lower", "b_higher", "inconclusive"),
    "Ratio.b_over_a": (0.25, 1.4325, 3.5),
    "Ratio.ci95": ((0.125, 0.375), (1.3325, 1.5325), (3.25, 3.75)),
    "PartingWith.name": ("context_switches_hz", "migrations_hz"),
    "PartingWith.unit": "1/s",
    **dict.fromkeys(("PartingWith.ci95", "FunctionChange.ci95", "PartingFunction.ci95"), ((-4.5, -1.5), (2.5, 7.25))),
    "Phase.name": ("baseline", "server", "clients", "baseline-after"),
    "Phase.c0_percent": (2.5, 3.75, 8.125, 2.875),
    "Delta.metric": ("c0_percent", "wakeups_hz"),
    "Delta.from_phase": "baseline",
    "Delta.to_phase": "clients",
    "ServerInfo.version": "MariaDB 10.11.19",
    "IdleRun.statements_hz": 0.125,
    "Point.value": (1, 4, 16),
    "Point.error": (None, None, "the server refused connections"),
    "ComparedPoint.value": (2, 8),
    "StateResidency.name": ("POLL", "C6"),
    "StateShare.name": ("C1", "C6"),
    "ExpectedScope.states_s": ({"C1": (1.25, 2.5), "C6": (0.5, 0.75)}, {"C1": (3.25, 4.5), "C6": (1.5, 1.75)}),
    "Answer.metric": _METRICS[0],
    "Answer.asked": _METRICS[0],
    "SweepComparison.metric": "queries_hz",
    "Trend.metric": "queries_hz",
    "CureVerdict.metric": _METRICS[0],
    "CureVerdict.untried": None,
    "CureVerdict.hurts": None,
    "CureVerdict.text": "",
    "StudyRow.unit": ("ms", "J"),
    "StudyRow.outcome": ("confirmed", "inconclusive", "contradicted", "not measured"),
    "LiveInterval.idle_s": {(0, "C1"): 1.25, (0, "C6"): 2.5, (1, "C6"): 0.75},
    "LiveInterval.idle_counts": {},
    "LiveInterval.polling": frozenset(),
    "LiveInterval.window_s": 3.5,
    "LiveInterval.cpus": 3,
    "LiveInterval.c0_s": 7.25,
    "CpuUse.cpu_s": (1.75, 4.5),
    "CpuLoad.cpu": (3, 7),
    "CpuFrequency.cpu": (7, 3),
    "Block.arm": ("a", "b"),
    "Block.dropped": (True, False, False, False),
    "Block.disturbed": (False, False, True),
    "Comparison.order": ["a", "b", "b", "a"],
    "Queries.method": "probes",
    "StatementWindow.percent": 61.5,
    "OnCpuProfile.percent_of": "target",
    "OnCpuProfile.event": "cpu-clock",
}
_MOST_DEPTH = 9  # some records hold others of their own type
_SIZES = {"phases": 4, "metrics": 7, "points": 3, "rows": 4, "blocks": 6}


# Else a tenth of the CPU time of tests/unit/report is spent on annotations.
_fields = cache(msgspec.structs.fields)


class _Maker:
    """Makes values from types; each figure is larger than the one before."""

    def __init__(self, own: Mapping[str, Any], *, known: bool) -> None:
        self._own, self._known, self._figures = own, known, 0
        self._used: dict[str, int] = {}

    def record(self, kind: type[Any], depth: int = 0) -> Any:
        return kind(**{field.name: self._field(kind, field, depth) for field in _fields(kind)})

    def _field(self, kind: type[Any], field: msgspec.structs.FieldInfo, depth: int) -> Any:
        place = f"{kind.__name__}.{field.name}"
        if not depth and field.name in self._own:
            return self._own[field.name]
        if place not in _GIVEN:
            return self.value(field.type, field.name, depth)
        value, is_optional = _GIVEN[place], types.NoneType in get_args(field.type)
        if is_optional and not self._known:
            return None
        return self._turn(place, value) if isinstance(value, tuple) else value

    def _turn(self, name: str, choices: Sequence[Any]) -> Any:
        self._used[name] = self._used.get(name, -1) + 1
        return choices[self._used[name] % len(choices)]

    def value(self, annotation: Any, name: str, depth: int) -> Any:
        origin, parts = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.value(parts[0], name, depth)
        if origin in (Union, types.UnionType):
            if types.NoneType in parts and not self._known:
                return None
            return self.value(next(part for part in reversed(parts) if part is not types.NoneType), name, depth)
        if origin is Literal:
            return self._turn(name, parts)
        if origin is tuple and parts[-1] is not Ellipsis:
            return tuple(self.value(part, name, depth) for part in parts)
        if origin in (list, tuple, Sequence):
            count = _SIZES.get(name, 2) if depth < _MOST_DEPTH else 0
            return (tuple if origin is tuple else list)(self.value(parts[0], name, depth + 1) for _ in range(count))
        if origin in (dict, Mapping):
            return {f"{name} {self._next()}": self.value(parts[1], name, depth + 1) for _ in range(2)}
        if annotation is bool:
            return self._turn(name, (True, False))
        if annotation is int:
            return self._next()
        if annotation is float:
            # Shares stay below 100.
            return self._next() * 37 % 9973 / 100 if name.endswith("percent") else self._next() + 0.375
        if hasattr(annotation, "__struct_fields__"):
            return self.record(annotation, depth + 1)
        if hasattr(annotation, "_fields"):
            return annotation(*(self.value(part, name, depth) for part in get_type_hints(annotation).values()))
        number = self._next()
        return f"2026-03-0{1 + number % 9}T10:00:00Z" if name.endswith("ed_at") else f"{name} {number}"

    def _next(self) -> int:
        self._figures += 1
        return self._figures


def make(kind: type[Any], *, known: bool, **given: Any) -> Any:
    """Return a record of distinct figures. `given` are its own fields with other values."""
    return _Maker(given, known=known).record(kind)


def make_kind(name: str, *, known: bool) -> Any:
    """Return the record of a kind in `KIND_LOADERS`, with its sentences."""
    schema, _, command = name.partition(" ")
    kind = KIND_LOADERS[name]()
    own = {"schema": schema, **({"command": command} if command else {})}
    return word_record(make(kind.record, known=known, **own))


# The forms of each kind, as text.

Forms = Iterator[tuple[str, str]]


def _usual_forms(name: str, known: bool) -> Forms:
    from tests.programs.golden_files import drawing_of, text_of

    kind, record = KIND_LOADERS[name](), make_kind(name, known=known)
    lines = partial(lines_of, record)
    yield "terminal", "\n".join(lines(200))
    if "everything" in document_of(record).views:
        yield "everything", "\n".join(lines(200, everything=True))
    files = kind.file_kinds()
    if "csv" in files:
        yield "csv", export(record, "csv").decode().replace("\r\n", "\n")
    if "md" in files:
        yield "markdown", export(record, "md").decode()
    if "html" in files:
        extras = Extras(timeline=_timeline()) if name == "powerprof.attribution/1" else None
        page = export(record, "html", extras).decode()
        yield "page", text_of(page)
        yield "drawing", drawing_of(page)
    yield from _other_forms(name, record)


def _other_forms(name: str, record: Any) -> Forms:
    if name == "powerprof.attribution/1":
        for by in wakeup_groups.BY[1:]:
            yield f"by {by}", "\n".join(lines_of(record, 120, by=by, sources=True))
        yield "timeline", "\n".join(map(repr, build_trace(_timeline())["traceEvents"]))
    if name == "powerprof.oncpu/1":
        for by in profile.BY[1:]:
            yield f"by {by}", "\n".join(lines_of(record, 120, by=by, sources=True))
    if name == "powerprof.queries/1":
        for by in ("user", "database"):
            yield f"by {by}", "\n".join(lines_of(record, 160, by=by))
        yield "columns", "\n".join(lines_of(record, 400, columns=",".join(COLUMNS)))
    if name == "powerprof.comparison/1" or name == "powerprof.run/1 run":
        yield "a year", yearly.yearly_sentence(record, yearly.PriceTerms(0.3125, "EUR", 387.5))


def _timeline() -> list[TimelineExit]:
    return [
        TimelineExit(0, 1_000_000, 3_500_000, 3_700_123, "C6", "timer", "statement timer", "mariadbd"),
        TimelineExit(1, 2_000_000, 4_000_000, None, "C1", "no_ipi", "sshd", None),
    ]


def _live_forms(known: bool) -> Forms:
    history = RowHistory()
    first = make(LiveInterval, known=known)
    newest = replace(first, exits_count=17 * first.exits_count, c0_s=9.5, rows=first.rows[1:])
    for interval in (replace(first, rows=first.rows[:2]), newest):
        history.add(interval)
    for view in (ScreenView(), ScreenView(all=True, opened=True, chosen=1), ScreenView(sort="C0", wanted="process")):
        for width in (120, 60):
            yield f"screen, {width}", "\n".join(watch.draw_screen(history, view, "powerprof · watch", width, 22))
    for height in range(9, 15):
        yield "short screen", "\n".join(watch.draw_screen(history, ScreenView(all=True), "watch", 120, height))
    yield "host", "\n".join(watch.draw_screen(_without_target(history), ScreenView(), "watch", 120, 22))
    yield "line", watch.plain_line(newest, 300)
    yield "json lines", _json(watch.interval_document(newest))


def _without_target(history: RowHistory) -> RowHistory:
    whole = RowHistory()
    for interval in history.intervals:
        whole.add(replace(interval, target=""))
    return whole


def _statement_forms(known: bool) -> Forms:
    history = StatementHistory()
    first = make_kind("powerprof.queries/1", known=known)
    newest = replace(first, server_c0_s=first.server_c0_s * 1.75, joules=first.joules and first.joules * 2.25)
    for window in (first, newest):
        history.add(window)
    for view in (ScreenView(sort="CPU", opened=True), ScreenView(sort="p95", chosen=1)):
        for width in (140, 60):
            shown = queries_watch.draw_queries_screen(history, view, "powerprof · queries", width, 20)
            yield f"screen, {width}", "\n".join(shown)
    for probes_ms in (13.5, 437.25):
        costly = replace(newest, tracing=replace(newest.tracing, probes_ms=probes_ms), server_c0_s=2.75)
        yield "costly", "\n".join(queries_watch._queries_trouble(costly))
    for height in range(6, 10):
        shown = queries_watch.draw_queries_screen(history, ScreenView(sort="CPU"), "queries", 140, height)
        yield "short screen", "\n".join(shown)
    yield "line", queries_watch.queries_plain_line(newest, 300)


def _list_forms(known: bool) -> Forms:
    symbols = make(Symbols, known=known)
    yield "symbols", "\n".join(doctor.symbols_lines(symbols, 160))
    yield "calibration", "\n".join(energy.calibration_lines(make(PowerModel, known=known)))
    if known:
        yield "notes", "\n".join(_notes())


def _notes() -> Iterator[str]:
    """Yield each note and threat; those with a count for 0, for 1 and for more."""
    for name, template in [*WORDS.items(), *comparison_words.WORDS.items()]:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field]
        has_count = any(field.endswith("count") for field in fields)
        for count in (0, 1, 2345) if has_count else (7,):
            values = {field: count if field.endswith("count") else 7.25 + at for at, field in enumerate(fields)}
            yield f"{name}: {fill_template(template, values)}"


def _flame_forms(known: bool) -> Forms:
    before = [(("main", "gone"), 6.5), (("main", "same"), 2.25), (("main", "same"), 1.5)]
    after = [(("main", "same"), 2.75), (("main", "new"), 4.125)]
    graph = build_flame_difference(before, after, unit="ms")
    yield "difference", "\n".join(map(repr, graph.frames))


def _case_forms(known: bool) -> Forms:
    from tests.unit.report.case_records import cases

    return cases()


def _json(document: Any) -> str:
    from tests.programs.golden_files import json_text

    return json_text(document)


_OTHER: dict[str, Callable[[bool], Forms]] = {
    "watch": _live_forms,
    "queries-watch": _statement_forms,
    "lists": _list_forms,
    "flames": _flame_forms,
    "cases": _case_forms,
}


KNOWN_ONLY = ("flames", "cases")


def names() -> list[str]:
    """Return the names of all kinds and of the forms of other values."""
    return [*KIND_LOADERS, *_OTHER]


def forms(name: str, *, known: bool) -> Forms:
    """Yield the name and the text of each form."""
    return _OTHER[name](known) if name in _OTHER else _usual_forms(name, known)
