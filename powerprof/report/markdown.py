"""Markdown for pull requests: the answer, its table, the doubts, and where the figures are from.

Names from outside are code spans: there GitHub sees no link, no mention and no HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from powerprof import text
from powerprof.attribution.records import Attribution
from powerprof.errors import UsageError
from powerprof.experiment.records import Comparison, LoadRun
from powerprof.experiment.sweep import Sweep
from powerprof.records import Cause, Conservation, IdleRun, Run
from powerprof.report import labels
from powerprof.report.kinds import said as said_of

_NAME_LIMIT = 120
_STACK_LIMIT = 8
_ROWS = 25
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
_VERDICTS = {"b_lower": "lower", "b_higher": "higher", "inconclusive": "inconclusive"}


def code(name: object, limit: int = _NAME_LIMIT) -> str:
    """A code span that nothing in the name can end; `|` is escaped, since tables split at it even there."""
    clean = text.cut(_CONTROL.sub(" ", str(name)), limit).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", clean)), default=0))
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    # Backslashes before a | would escape the escape.
    inner = clean.replace("\\|", "|").replace("|", "\\|")
    return f"{fence}{pad}{inner}{pad}{fence}"


def plain(sentence: str, limit: int = 1000) -> str:
    """A sentence with everything escaped that Markdown would take for its own; addresses and mentions are broken."""
    one_line = text.cut(_CONTROL.sub(" ", sentence), limit)
    escaped = _SPECIAL.sub(r"\\\1", one_line)
    # A zero-width space: GitHub has no escape for mentions and bare addresses.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    rule = ["---" if index < left else "---:" for index in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def _times(value: float | None, shown: labels.Shown) -> float | None:
    return None if value is None else value * shown.factor


def _number(value: float | None, shown: labels.Shown) -> str:
    return text.number(_times(value, shown), shown.decimals)


def _range(low: float | None, high: float | None, shown: labels.Shown) -> str:
    return "" if low is None or high is None else f"{_number(low, shown)} to {_number(high, shown)}"


def _label(name: str, shown: labels.Shown, kind: str) -> str:
    unit = f" ({shown.unit})" if shown.unit else ""
    return plain(labels.metric(name) + unit + (", estimated" if kind == "estimated" else ""))


def _percent(value: float) -> str:
    return text.signed(value, 1 if abs(value) < 1000 else 0, " %")


def to_markdown(record: msgspec.Struct) -> str:
    """The record as Markdown. Raises UsageError for a record without one."""
    if isinstance(record, Comparison):
        lines = _comparison(record)
    elif isinstance(record, Attribution):
        lines = _attribution(record)
    elif isinstance(record, Run):
        lines = _run(record)
    elif isinstance(record, Sweep):
        lines = _sweep(record)
    else:
        raise UsageError(f"there is no Markdown for a {type(record).__name__.lower()}", "use --json FILE")
    return "\n".join(lines) + "\n"


def _notes(notes: Iterable[str]) -> list[str]:
    found = [f"- {plain(note)}" for note in notes]
    return ["", *found] if found else []


def _comparison(record: Comparison) -> list[str]:
    said = said_of(record)
    rows = []
    for metric in record.metrics:
        ends = metric.difference.ci95
        shown = labels.shown(metric.unit, (metric.a.mean, metric.b.mean))
        change = text.signed(_times(metric.difference.b_minus_a, shown), shown.decimals)
        percent = "" if metric.difference.percent is None else _percent(metric.difference.percent)
        verdict = _VERDICTS[metric.verdict]
        rows.append(
            [
                _label(metric.name, shown, metric.kind),
                _number(metric.a.mean, shown),
                _number(metric.b.mean, shown),
                change,
                _range(*ends, shown) if ends else "",
                percent,
                verdict if verdict == "inconclusive" else f"**{verdict}**",
            ]
        )
    a, b = code(record.a.name, 60), code(record.b.name, 60)
    found = [f"**{plain(record.verdict.text)}**", "", plain(said[1]), ""]
    found += _table(["metric", f"A {a}", f"B {b}", "B − A", "95 %", "", "verdict"], rows)
    if record.threats:
        found += ["", "Threats: " + plain("; ".join(threat.text for threat in record.threats)) + "."]
    return found + _notes([*record.differences, *record.notes]) + _source(record.id)


def _balance(found: Conservation | None) -> list[str]:
    if found is None:
        return []
    usage = text.number(found.cpuidle_usage_delta_count, 0)
    return [
        "",
        (
            f"{found.classified_count:,} classified + {found.unknown_count:,} unknown + {found.lost_count:,} lost "
            f"= {found.idle_exits_count:,} idle exits; cpuidle counted {usage}."
        ),
    ]


def _causes(causes: Sequence[Cause]) -> list[str]:
    rows = [
        [
            code(f"{cause.process or 'unknown'} {cause.thread or ''}".strip()),
            code(cause.mechanism.replace("_", "-")),
            text.period(cause.period_ms),
            text.number(cause.wakeups_hz, 1),
            text.number(cause.percent, 1),
        ]
        for cause in causes[:_ROWS]
    ]
    return _table(["who", "why", "", "/s", "%"], rows, left=2)


def _run(record: Run) -> list[str]:
    said = said_of(record)
    found = [f"**{plain(said[0])}**", "", plain(said[1])]
    if isinstance(record, LoadRun) and record.metrics:
        rows = []
        for one in record.metrics:
            shown = labels.shown(one.unit, [one.estimate.mean])
            ends = _range(one.estimate.low, one.estimate.high, shown)
            rows.append([_label(one.name, shown, one.kind), _number(one.estimate.mean, shown), ends])
        found += ["", *_table(["metric", "mean", "95 %"], rows)]
    if record.phases:
        names = dict.fromkeys(state.name for phase in record.phases for state in phase.states if not state.polling)
        rows = [["C0 (running), %", *(text.number(phase.c0_percent, 2) for phase in record.phases)]]
        for name in names:
            states = [next((s for s in phase.states if s.name == name), None) for phase in record.phases]
            rows.append([code(name, 40) + ", %", *(text.number(s.residency_percent if s else None, 2) for s in states)])
        rows.append(["wake-ups from idle, /s", *(text.number(phase.wakeups_hz, 1) for phase in record.phases)])
        found += ["", *_table(["", *(code(phase.name, 40) for phase in record.phases)], rows)]
    if isinstance(record, IdleRun) and record.deltas:
        rows = [
            [
                plain(labels.metric(d.metric)),
                f"{code(d.to_phase, 40)} − {code(d.from_phase, 40)}",
                text.signed(d.difference.mean, 2),
                _range(d.difference.low, d.difference.high, labels.Shown("", 1.0, 2)),
            ]
            for d in record.deltas
        ]
        found += ["", *_table(["change", "", "mean", "95 %"], rows, left=2)]
    traced = next((phase for phase in reversed(record.phases) if phase.causes and phase.name != "baseline-after"), None)
    if traced is not None:
        found += ["", f"What woke the CPUs, {code(traced.name, 40)}:", "", *_causes(traced.causes)]
        found += _balance(traced.conservation)
    return found + _notes(record.notes) + _source(record.id)


def _attribution(record: Attribution) -> list[str]:
    said = said_of(record)
    rows = []
    for row in record.wakeups[:_ROWS]:
        frames = [frame.label for frame in row.stack[:_STACK_LIMIT]]
        more = " ← …" if len(row.stack) > _STACK_LIMIT else ""
        rows.append(
            [
                code(row.thread.label),
                code((" ← ".join(frames) + more) if frames else "no user stack", 400),
                text.period(row.period_ms),
                text.number(row.rate_hz, 1),
                f"{row.count:,}",
                text.number(row.c0_ms, 2),
            ]
        )
    found = [f"**{plain(said[0])}**", ""]
    found += _table(["thread", "stack, innermost first", "", "/s", "exits", "C0 ms"], rows, left=2)
    left = record.wakeups[_ROWS:]
    if left:
        found += ["", f"{len(left)} more rows with {sum(row.count for row in left):,} idle exits."]
    return found + _balance(record.conservation) + _notes(record.notes) + _source(record.id)


def _sweep(record: Sweep) -> list[str]:
    said = said_of(record)
    names = dict.fromkeys(metric.name for point in record.points for metric in point.metrics)
    rows = []
    for name in names:
        same = [next((one for one in point.metrics if one.name == name), None) for point in record.points]
        first = next(one for one in same if one is not None)
        shown = labels.shown(first.unit, [one.estimate.mean for one in same if one])
        cells = [_number(one.estimate.mean if one else None, shown) for one in same]
        rows.append([_label(name, shown, first.kind), *cells])
    found = [f"**{plain(said[0])}**", "", plain(said[1]), ""]
    found += _table([code(record.parameter, 40), *(code(point.value, 20) for point in record.points)], rows)
    errors = [f"{record.parameter} {point.value}: {point.error}" for point in record.points if point.error]
    return found + _notes([*errors, *record.notes]) + _source(record.id)


def _source(name: str | None) -> list[str]:
    from powerprof import __version__

    return ["", f"powerprof {__version__}" + (f", run {code(name, 60)}" if name else "")]
