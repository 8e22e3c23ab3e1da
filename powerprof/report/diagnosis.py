# SPDX-License-Identifier: Apache-2.0
"""A diagnosis: the answer first, then what shows it, then what ends it; for a terminal, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterator

from powerprof.diagnosis.evidence import Diagnosis, Finding
from powerprof.model import text
from powerprof.report.csv_file import Line
from powerprof.report.html.page import Extras, clean, opened, page
from powerprof.report.labels import texts
from powerprof.report.markdown import code_span, escape
from powerprof.report.table import Cell, Column, Path, Places, Table, TableRow, Words, figures, words

_FRAMES = 14
_BUSY_PERCENT = 10.0


def lines(diagnosis: Diagnosis, width: int = text.DEFAULT_WIDTH, *, all_notes: bool = False) -> list[str]:
    """The report, at most `width` columns. Notes only with `all_notes`."""
    faults = [finding for finding in diagnosis.findings if finding.severity == "fault"]
    notes = [finding for finding in diagnosis.findings if finding.severity == "note"]
    printed: list[str] = []
    for number, fault in enumerate(faults):
        if number:
            printed.append("")
        printed += _finding(fault, width)
    if not faults:
        printed += text.wrap(answer(diagnosis), width)
    if all_notes and notes:
        printed += ["", "What it wakes for besides"]
        for note in notes:
            printed += text.wrap(note.text, width, "  ")
            for remedy in note.remedy:
                printed += text.wrap(remedy, width, "    ")
    hidden = ""
    if notes and not all_notes:
        hidden = f" · {len(notes)} note{'s' if len(notes) > 1 else ''}: --all"
    printed += ["", *text.wrap(f"{context(diagnosis)}{hidden}", width)]
    for sentence in looked_lines(diagnosis):
        printed += text.wrap(sentence, width)
    for sentence in dict.fromkeys([*diagnosis.evidence.notes, *texts(diagnosis.notes)]):
        printed += text.wrap(f"Note: {sentence}", width)
    return printed


def whole(diagnosis: Diagnosis, width: int) -> list[str]:
    """With the notes: who asks for a saved diagnosis wants all of it."""
    return lines(diagnosis, width, all_notes=True)


def answer(diagnosis: Diagnosis) -> str:
    """The first fault; else, that none was found in what was looked at."""
    evidence = diagnosis.evidence
    fault = next((finding for finding in diagnosis.findings if finding.severity == "fault"), None)
    if fault is not None:
        return fault.text
    used = evidence.cpu_percent
    busy = f" It used {text.number(used, 0)} % of one CPU." if used is not None and used >= _BUSY_PERCENT else ""
    if evidence.exits_hz is None:
        return f"No fault was found by its status; its wake-ups were not looked at.{busy}"
    return f"No fault was found: it woke a CPU {text.number(evidence.exits_hz, 1)} times/s.{busy}"


def _finding(finding: Finding, width: int) -> list[str]:
    printed = text.wrap(finding.text, width)
    for sentence in finding.evidence:
        printed += _item("seen", sentence, width)
    if finding.stack:
        printed += _item("stack", " ← ".join(finding.stack[:_FRAMES]), width)
    for remedy in finding.remedy:
        printed += _item("do", remedy, width)
    return printed


def _item(label: str, content: str, width: int) -> list[str]:
    wrapped = text.wrap(content, max(20, width - 9))
    return [f"  {label:<6} {wrapped[0]}", *(f"{'':9}{line}" for line in wrapped[1:])]


def looked_lines(diagnosis: Diagnosis) -> list[str]:
    """What was looked at, and what was not; nothing of a run that was saved before this was written down."""
    lists = (("Looked at", diagnosis.looked_at), ("Not looked at", diagnosis.not_looked_at))
    return [f"{label}: {'; '.join(things)}." for label, things in lists if things]


def context(diagnosis: Diagnosis) -> str:
    """Which server, how long, and what looking cost."""
    server, evidence = diagnosis.server, diagnosis.evidence
    parts = [server.version or "a server"]
    if server.pid is not None:
        parts[0] += f", pid {server.pid}"
    parts.append(f"watched for {evidence.window_s:.1f} s")
    if evidence.exits_hz is not None:
        parts.append(f"{text.number(evidence.exits_hz, 1)} idle exits/s are its own")
    if diagnosis.tool is not None and diagnosis.tool.cpu_percent is not None:
        parts.append(f"powerprof used {diagnosis.tool.cpu_percent:.2f} % CPU")
    return " · ".join(parts)


_ORIGIN = {"own_timer": "its own timer", "other_thread": "another thread", "other_process": "another process"}


def wakeups_table(diagnosis: Diagnosis, places: Places, limit: int) -> Table:
    """A row a thread and place, the first `limit` of what was traced."""
    rows = []
    for index, wakeup in enumerate(diagnosis.evidence.wakeups[:limit]):
        at = f"/evidence/wakeups/{index}"
        cells: dict[str, Cell] = {
            "rate": places.figure(f"{at}/rate_hz", 1),
            "woken": places.figure(f"{at}/wakings_hz", 1),
            "thread": Words(
                (wakeup.name or wakeup.comm).removeprefix("thread/"),
                wakeup.waker or _ORIGIN.get(wakeup.origin, wakeup.origin),
            ),
            "path": Path(wakeup.stack, complete=True),
        }
        if wakeup.period_ms is not None:
            cells["every"] = places.figure(f"{at}/period_ms", words=text.period(wakeup.period_ms))
        rows.append(TableRow(cells))
    columns = [
        *figures(rate="exits/s", woken="woken/s", every="every"),
        *words("thread"),
        Column("path", "stack, innermost first", left=True, beside="thread"),
    ]
    caption = "Idle exits and wakings by thread and the place where it waited; frames innermost first."
    return Table(columns, rows, "wake-ups by thread", caption, max(0, len(diagnosis.evidence.wakeups) - limit))


def csv_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """A line a finding."""
    yield ["severity", "rule", "rate_hz", "text", "evidence", "remedy", "stack"]
    for finding in diagnosis.findings:
        joined = ("; ".join(finding.evidence), "; ".join(finding.remedy), " < ".join(reversed(finding.stack)))
        yield [finding.severity, finding.rule, finding.rate_hz, finding.text, *joined]


def markdown(diagnosis: Diagnosis, context_line: str) -> list[str]:
    """Each fault with what shows it and what ends it."""
    written: list[str] = []
    for number, fault in enumerate(finding for finding in diagnosis.findings if finding.severity == "fault"):
        if number:
            written += ["", f"**{escape(fault.text)}**"]
        written += ["", *(f"- seen: {escape(line)}" for line in fault.evidence)]
        if fault.stack:
            written.append(f"- stack: {code_span(' ← '.join(fault.stack[:_FRAMES]), 600)}")
        written += [f"- what ends it: {escape(line)}" for line in fault.remedy]
    return [*written, "", escape(context(diagnosis))]


# The page of a diagnosis: what to mend, what shows it and what ends it; then all wake-ups that it rests on.

_OPEN_ROWS = 20
_MAX_ROWS = 200


def render(record: Diagnosis, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    rows, more = opened(wakeups_table(record, places, _MAX_ROWS), _OPEN_ROWS)
    sentence = answer(record)
    return page(
        "diagnosis.html.j2",
        record,
        places,
        title=clean(sentence),
        answer=sentence,
        context=context(record),
        faults=[finding for finding in record.findings if finding.severity == "fault"],
        habits=[finding for finding in record.findings if finding.severity == "note"],
        looked=looked_lines(record),
        rows=rows,
        more=more,
        notes=list(dict.fromkeys([*record.evidence.notes, *texts(record.notes)])),
    )
