# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof study`: the answer, each finding then and now, and the steps with their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from powerprof.experiment.study import StudyRow, StudyRun
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.answers import MAY_BE_CHANCE, explain_chance, interval_text, word_claim
from powerprof.report.document import MARKDOWN, NOT_MARKDOWN, TERMINAL, Document, Part, Section, Sentence, Shown, View
from powerprof.report.table import CSV, Cell, Column, Figure, Line, Places, Table, TableRow, Words, word_columns
from powerprof.statistics.verdicts import Claim, judge_claim
from powerprof.system.next_steps import command_line

_EXPECTED = {"higher": "higher", "lower": "lower", "same": "the same"}


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
            *word_columns(outcome="verdict", runs="runs"),
            Column("expected", "published", left=True, forms=CSV),
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

    def estimate(
        name: str, *, sign: bool = False, unit: str = shown.unit, scale: float = shown.factor
    ) -> Figure | None:
        value = getattr(row, name)
        if value is None:
            return None
        digits = shown.decimals
        if name == "ratio":
            ends = [end for end in (value.low, value.high) if end is not None]
            digits = labels.separate(labels.count_decimals(value.mean), [1.0, *ends])
        place = f"{at}/{name}"
        return places.figure(f"{place}/mean", digits, unit, ends=place, scale=scale, sign=sign)

    cells: dict[str, Cell | None] = {
        "name": Words(row.label, ours=True),
        "then": Words(row.then, ours=True),
        "metric": Words(labels.metric_words(row.metric), ours=True),
        "a": estimate("a"),
        "b": estimate("b"),
        "difference": estimate("difference", sign=True),
        "ratio": estimate("ratio", unit="", scale=1.0),
        "outcome": Words(_outcome_of(row), ours=True, strong=True),
        "runs": Words(", ".join(row.runs)),
        "expected": Words(_EXPECTED.get(row.expected or "", "")),
        "doubt": Words(_doubt_of(row, shown)),
    }
    return TableRow({key: cell for key, cell in cells.items() if cell is not None})


def _claim_of(row: StudyRow) -> Claim:
    """Return the permitted statements about an inconclusive finding; a finding of `the same` has no hint."""
    difference = row.difference
    if row.outcome != "inconclusive" or difference is None or difference.low is None or difference.high is None:
        return Claim(unknown=True)
    claim = judge_claim("inconclusive", (difference.low, difference.high))
    return Claim(bound=max(abs(difference.low), abs(difference.high))) if row.expected == "same" else claim


def _outcome_of(row: StudyRow) -> str:
    """Return the outcome of a finding in words."""
    claim = _claim_of(row)
    return word_claim(row.metric, claim, row.judged_count or 1).text if claim.hint else row.outcome


def explain_findings(record: StudyRun) -> str:
    """Return the explanation of `may be chance` if a finding has it; empty otherwise."""
    hints = [row for row in record.rows if _claim_of(row).hint]
    return explain_chance([bool(hints)], max((row.judged_count or 1 for row in hints), default=1))


def _doubt_of(row: StudyRow, shown: labels.NumberFormat) -> str:
    """Return the largest possible difference of an inconclusive finding; empty if it is unknown or may be chance."""
    bound = _claim_of(row).bound
    if bound is None:
        return ""
    unit = {"1/s": "/s", "%": " points"}.get(shown.unit, f" {shown.unit}")
    if not bound:
        return "all windows measured the same value"
    most = shown.factor * bound
    figure = text.number(most, shown.decimals)
    if not round(most, shown.decimals):
        figure = labels.format_significant(most)
    return f"a difference of up to {figure}{unit} is possible"


def today(row: TableRow) -> str:
    """Return today's figures of a finding in one line, or `not measured`."""
    doubt = row.words("doubt").text
    return f"{_figures_text(row)}; {doubt}" if doubt else _figures_text(row)


def _figures_text(row: TableRow) -> str:
    figures = {key: cell for key, cell in row.cells.items() if isinstance(cell, Figure)}
    if "b" not in figures:
        return "not measured"
    sides = [figures[key] for key in ("a", "b") if key in figures]
    line = f"{row.words('metric').text}: {' → '.join(side.text for side in sides)}"
    unit = sides[-1].unit
    line += f"{'' if unit.startswith('/') else ' '}{unit}" if unit and unit != "1/s" else " /s" if unit else ""
    between = [figures[key] for key in ("ratio", "difference") if key in figures]
    shown = next((figure for figure in between if figure.ends), next(iter(between), None))
    if shown is not None:
        is_ratio = shown is figures.get("ratio")
        in_unit = " times" if is_ratio else {"1/s": "/s", "": ""}.get(unit, f" {unit}")
        change = f"{'' if is_ratio else 'difference '}{shown.text}{in_unit}"
        ends = f" {interval_text((shown.ends[0].text, shown.ends[1].text + in_unit))}" if shown.ends else ""
        return f"{line}; {change}{ends}"
    return line


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
    """Return the answer: the number of published findings that are confirmed today."""
    claims = [row for row in record.rows if row.expected is not None]
    counts = {name: sum(row.outcome == name for row in claims) for name in ("confirmed", "contradicted")}
    counts[MAY_BE_CHANCE] = sum(_claim_of(row).hint is not None for row in claims)
    counts["inconclusive"] = sum(row.outcome == "inconclusive" for row in claims) - counts[MAY_BE_CHANCE]
    counts["not measured"] = sum(row.outcome == "not measured" for row in claims)
    hold = f"{counts['confirmed']} of {len(claims)} published finding{'s' if len(claims) != 1 else ''} confirmed"
    others = [f"{count} {name}" for name, count in counts.items() if count and name != "confirmed"]
    return f"{record.title}: {', '.join([hold, *others])}."


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
    steps = Shown(steps_table(record, places), step_lines, columns=("step", "run", "problem"))
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
        *("difference", "low", "high", "ratio", "ratio_low", "ratio_high", "published", "verdict", "runs"),
    ]
    for row in record.rows:
        figures = [
            value
            for estimate in (row.a, row.b, row.difference, row.ratio)
            for value in ((estimate.mean, estimate.low, estimate.high) if estimate else (None, None, None))
        ]
        identity = (row.label, row.then, row.metric, row.unit, row.kind)
        yield [*identity, *figures, row.expected, row.outcome, " ".join(row.runs)]
