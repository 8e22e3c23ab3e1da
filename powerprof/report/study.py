# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof study`: the answer, each finding then and now, and the steps with their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from powerprof.experiment.study import StudyRow, StudyRun, judge_row
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.answers import MAY_BE_CHANCE, bound_text, explain_chance, interval_text, word_claim
from powerprof.report.document import MARKDOWN, NOT_MARKDOWN, TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.table import Cell, Column, Figure, Line, Places, Table, TableRow, Words, word_columns
from powerprof.system.next_steps import command_line
from powerprof.workloads.studies import Basis


def findings_table(record: StudyRun, places: Places) -> Table:
    """Return one row per finding."""
    return Table(
        [
            Column("name", "finding", left=True),
            *word_columns("then", "metric"),
            Column("a", "from", interval="95 %"),
            Column("b", "to", interval="95 %"),
            Column("difference", "difference", interval="95 %"),
            Column("ratio", "times", interval="95 %"),
            Column("within", "tolerance"),
            *word_columns(outcome="verdict", runs="runs"),
        ],
        [_finding_row(row, number, places) for number, row in enumerate(record.rows)],
        "findings",
        explain_findings(record),
    )


def _finding_row(row: StudyRow, number: int, places: Places) -> TableRow:
    at = f"/rows/{number}"
    sides = [row.a.mean if row.a else None, row.b.mean if row.b else None]
    shown = labels.choose_format(row.unit, sides)
    clear = labels.separate(shown.decimals, [shown.factor * side for side in sides if side is not None])
    shown = replace(shown, decimals=clear)
    change_unit = "points" if shown.unit == "%" else shown.unit
    scale = shown.factor

    def estimate(name: str, unit: str, scale: float, *, sign: bool = False, equal: float = 0.0) -> Figure | None:
        place = f"{at}/{name}"
        figure = places.figure(f"{place}/mean", shown.decimals, unit, ends=place, scale=scale, sign=sign, equal=equal)
        return None if figure.value is None else figure

    kind = ", estimated" if row.kind == "estimated" else ""
    within = None if row.within is None else places.figure(f"{at}/within", None, change_unit, scale=scale)
    cells: dict[str, Cell | None] = {
        "name": Words(row.label, ours=True),
        "then": Words(row.then, ours=True),
        "metric": Words(labels.metric_words(row.metric) + kind, ours=True),
        "a": estimate("a", shown.unit, scale),
        "b": estimate("b", shown.unit, scale),
        # A line without intervals has the same decimals on both sides.
        "from": places.figure(f"{at}/a/mean", shown.decimals, shown.unit, scale=scale) if row.a else None,
        "to": places.figure(f"{at}/b/mean", shown.decimals, shown.unit, scale=scale) if row.b else None,
        "difference": estimate("difference", change_unit, scale, sign=True),
        "ratio": estimate("ratio", "", 1.0, equal=1.0),
        "within": within,
        "outcome": Words(_outcome_of(row), _reason_of(row, shown), ours=True, strong=True),
        "runs": Words(", ".join(row.runs)),
    }
    return TableRow({key: cell for key, cell in cells.items() if cell is not None})


def _outcome_of(row: StudyRow) -> str:
    """Return the outcome of a finding in words."""
    judged = judge_row(row)
    if judged.claim.hint is None:
        return judged.outcome
    return word_claim(row.metric, judged.claim, row.judged_count or 1).text


def _reason_of(row: StudyRow, shown: labels.NumberFormat) -> str:
    """Return the rule that decided a finding in words; empty if the interval and the verdict tell it."""
    judged, unit = judge_row(row), labels.spaced("points" if shown.unit == "%" else shown.unit)

    def scaled(value: float) -> str:
        return labels.format_significant(shown.factor * value) + unit

    match judged.reason:
        case "few windows":
            return "too few windows for an interval"
        case "within" | "beyond":
            return f"{judged.reason} the tolerance of {scaled(row.within or 0.0)}"
        case "no room":
            busy = labels.format_significant(row.a.mean if row.a else None)
            return f"at {busy} % it cannot rise by the tolerance of {scaled(row.within or 0.0)}"
        case "wide" if row.expected == "same":
            return f"the interval exceeds the tolerance of {scaled(row.within or 0.0)}"
        case "wide":
            bound = judged.claim.bound
            return f"a difference of up to {scaled(bound)} is possible" if bound else bound_text(0.0, "")
        case _:
            return ""


def explain_findings(record: StudyRun) -> str:
    """Return the explanation of `may be chance` if a finding has it; empty otherwise."""
    hints = [row for row in record.rows if judge_row(row).claim.hint]
    return explain_chance([bool(hints)], max((row.judged_count or 1 for row in hints), default=1))


def today(row: TableRow) -> str:
    """Return today's figures of a finding in one line, or `not measured`."""
    reason = row.words("outcome").more
    return f"{_figures_text(row)}; {reason}" if reason else _figures_text(row)


def _figures_text(row: TableRow) -> str:
    figures = {key: cell for key, cell in row.cells.items() if isinstance(cell, Figure)}
    sides = [figures[key] for key in ("from", "to") if key in figures]
    if not sides:
        return "not measured"
    line = f"{row.words('metric').text}: {' → '.join([*(side.text for side in sides[:-1]), sides[-1].whole])}"
    # The tolerance is one of the difference. Otherwise a ratio is clearer.
    order = ("difference",) if "within" in figures else ("ratio", "difference")
    between = [figures[key] for key in order if key in figures]
    shown = next((figure for figure in between if figure.ends), next(iter(between), None))
    if shown is None:
        return line
    is_ratio = shown is figures.get("ratio")
    unit = " times" if is_ratio else labels.spaced(shown.unit)
    change = f"{'' if is_ratio else 'difference '}{shown.text}{unit}"
    ends = f" {interval_text((shown.ends[0].text, shown.ends[1].text + unit))}" if shown.ends else ""
    return f"{line}; {change}{ends}"


def steps_table(record: StudyRun, places: Places) -> Table:
    """Return one row per step: its command, its run, its duration and its problems."""
    rows = []
    for number, step in enumerate(record.steps):
        cells: dict[str, Cell] = {
            "step": Words(step.typed),
            "run": Words(step.run or ""),
            "time": places.figure(f"/steps/{number}/seconds_s", 0, "s"),
            "problem": Words("; ".join(filter(None, [step.problem, *step.doubts])), ours=True),
        }
        rows.append(TableRow(cells))
    columns = [*word_columns("step", "run"), Column("time", "took"), Column("problem", "remarks", left=True)]
    return Table(columns, rows, "steps")


def answer_of(record: StudyRun) -> str:
    """Return the answer: how many published findings are confirmed today, and how many expectations."""
    named: tuple[tuple[Basis, str], ...] = (("finding", "published finding"), ("expectation", "expectation"))
    counted = [_count_outcomes(record, basis, name) for basis, name in named]
    return f"{record.title}: {'; '.join(filter(None, counted)) or 'no published finding to confirm'}."


def _count_outcomes(record: StudyRun, basis: Basis, name: str) -> str:
    """Return `3 of 4 published findings confirmed, 1 inconclusive`; empty without any."""
    rows = [row for row in record.rows if row.expected is not None and row.basis == basis]
    judged = [judge_row(row) for row in rows]
    counts = {name: sum(row.outcome == name for row in judged) for name in ("confirmed", "contradicted")}
    counts[MAY_BE_CHANCE] = sum(row.claim.hint is not None for row in judged)
    counts["inconclusive"] = sum(row.outcome == "inconclusive" for row in judged) - counts[MAY_BE_CHANCE]
    counts["not measured"] = sum(row.outcome == "not measured" for row in judged)
    hold = f"{counts['confirmed']} of {text.plural(len(rows), name)} confirmed"
    others = [f"{count} {outcome}" for outcome, count in counts.items() if count and outcome != "confirmed"]
    return ", ".join([hold, *others]) if rows else ""


def context_of(record: StudyRun) -> str:
    """Return the published setting, the measured steps and the server."""
    done = sum(step.run is not None or step.seconds_s is not None for step in record.steps)
    steps = f"{done} step{'s' if done != 1 else ''} measured"
    version = record.server and record.server.version
    took = sum(step.seconds_s or 0.0 for step in record.steps)
    parts = [steps, f"in {text.number(took / 60, 0)} min" if took >= 90 else f"in {took:.0f} s", str(version or "")]
    return f"Published: {record.published} Today: {' · '.join(part for part in parts if part)}."


def listing(plans: Mapping[str, str], width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return each study with its title and duration."""
    printed = [f"{len(plans)} studies. To measure one (--quick for a trial): {command_line('study NAME')}"]
    for name, plan in plans.items():
        printed += ["", name, *text.wrap(plan, width, "  ")]
    return printed


def finding_lines(table: Table, width: int) -> list[str]:
    """Return the findings for a terminal: the verdict, what was published, and today's figures."""
    printed: list[str] = []
    for row in table.rows:
        printed += [""] if printed else []
        printed += text.wrap(f"{row.words('outcome').text}: {row.words('name').text}", width)
        printed += text.wrap(f"then   {row.words('then').text}", width, "  ")
        printed += text.wrap(f"today  {today(row)}", width, "  ")
    return printed


def step_lines(table: Table, width: int) -> list[str]:
    """Return the steps for a terminal: the run, its command, and its problems."""
    printed: list[str] = []
    for row in table.rows:
        run, problem = row.words("run").text, row.words("problem").text
        printed += text.wrap(f"{run or 'not saved'}: {row.words('step').text}", width)
        printed += text.wrap(problem, width, "  ") if problem else []
    return printed


def document(record: StudyRun, view: View) -> Document:
    """Return the report of a study: each finding then and now, and the steps with their runs."""
    return Document(
        record=record,
        answer=answer_of(record),
        context=context_of(record),
        parts=partial(_list_parts, record),
        rows=partial(_list_rows, record),
        setup=(("Options", "/options"), ("Server", "/server"), ("Host", "/host")),
        derived=view.extras.derived,
    )


def _list_parts(record: StudyRun) -> Iterator[Part]:
    places = Places(record)
    findings = Shown(findings_table(record, places), finding_lines, forms=NOT_MARKDOWN)
    published = Shown(then_and_now(record), forms=MARKDOWN)
    yield Section("Then and now", [findings, published], name="findings")
    yield Section("", [Sentence(explain_findings(record), forms=TERMINAL)], forms=TERMINAL)
    steps = Shown(steps_table(record, places), step_lines, columns=("step", "run", "problem"), is_further=True)
    yield Section("Measurements", [steps], name="steps")


def then_and_now(record: StudyRun) -> Table:
    """Return the findings for Markdown, published and today, in five columns."""
    table = findings_table(record, Places(record))
    rows = []
    for row, finding in zip(table.rows, record.rows, strict=True):
        cells = {**row.cells, "today": Words(today(row), ours=True)}
        verdict = Words(_outcome_of(finding), ours=True, strong=finding.outcome != "no claim")
        rows.append(replace(row, cells={**cells, "verdict": verdict}, key=""))
    columns = word_columns(name="finding", then="then", today="today", verdict="verdict", runs="run")
    return replace(table, columns=columns, rows=rows)


def _list_rows(record: StudyRun) -> Iterator[Line]:
    """Return one line per finding, after the head."""
    yield [
        *("finding", "then", "metric", "unit", "kind", "a", "a_low", "a_high", "b", "b_low", "b_high"),
        *("difference", "low", "high", "ratio", "ratio_low", "ratio_high", "expected", "basis", "within"),
        *("verdict", "reason", "runs"),
    ]
    for row in record.rows:
        figures = [
            value
            for estimate in (row.a, row.b, row.difference, row.ratio)
            for value in ((estimate.mean, estimate.low, estimate.high) if estimate else (None, None, None))
        ]
        identity = (row.label, row.then, row.metric, row.unit, row.kind)
        judged = judge_row(row)
        yield [
            *(*identity, *figures, row.expected, row.basis, row.within),
            *(judged.outcome, judged.reason, " ".join(row.runs)),
        ]
