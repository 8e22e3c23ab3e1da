# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof diagnose`: the faults with evidence and remedies, then the notes."""

from __future__ import annotations

from collections.abc import Iterator

from powerprof.diagnosis.evidence import Diagnosis, Evidence, Finding
from powerprof.model import text
from powerprof.report.html.page import Extras, clean_name, render_page, split_rows
from powerprof.report.labels import word_notes
from powerprof.report.table import (
    Cell,
    Column,
    Line,
    Path,
    Places,
    Table,
    TableRow,
    Words,
    code_span,
    escape,
    figures,
    words,
)

_MAX_FRAMES = 14
_BUSY_PERCENT = 10.0
_SHOWN_STATEMENTS = 3
# The headline for several clients needs this many executions of each in the window.
_LEAST_CALLS = 5
_COUNTS = ("No", "One", "Two", "Three", "Four")


def render_terminal(diagnosis: Diagnosis, width: int = text.DEFAULT_WIDTH, *, everything: bool = False) -> list[str]:
    """Return the report, at most `width` columns. `everything` adds the notes."""
    faults = [finding for finding in diagnosis.findings if finding.severity == "fault"]
    notes = [finding for finding in diagnosis.findings if finding.severity == "note"]
    printed: list[str] = []
    statements = _statement_rows(diagnosis, width)
    joint = _answer_for_clients(diagnosis)
    if joint:
        printed += [*text.wrap(joint, width), *statements, *text.wrap(_other_wakeups(diagnosis.evidence), width), ""]
        statements = []
    for number, fault in enumerate(faults):
        if number:
            printed.append("")
        printed += _finding_lines(fault, width, with_stack=everything or fault.percent is None)
    if not faults:
        printed += text.wrap(answer_of(diagnosis), width)
    if everything and notes:
        printed += ["", "Other wake-ups"]
        for note in notes:
            printed += text.wrap(note.text, width, "  ")
            for remedy in note.remedy:
                printed += text.wrap(remedy, width, "    ")
    hidden = ""
    if notes and not everything:
        hidden = f" · {text.plural(len(notes), 'note')}: --all"
    scope = scope_lines(diagnosis)
    if not faults and diagnosis.not_visible:
        scope = scope[1:]  # The answer begins with them.
    if statements and (window := diagnosis.evidence.statement_window) is not None:
        used = f"Statements by CPU time, {text.number(window.percent, 1)} % of one CPU in all:"
        printed += ["", *text.wrap(used, width), *statements]
    printed += ["", *text.wrap(f"{context_of(diagnosis)}{hidden}", width)]
    for sentence in scope:
        printed += text.wrap(sentence, width)
    for sentence in dict.fromkeys([*diagnosis.evidence.notes, *word_notes(diagnosis.notes)]):
        printed += text.wrap(f"Note: {sentence}", width)
    return printed


def answer_of(diagnosis: Diagnosis) -> str:
    """Return the sum of clients that use much CPU time, the first fault, or that none was found."""
    if joint := _answer_for_clients(diagnosis):
        return joint
    evidence = diagnosis.evidence
    fault = next((finding for finding in diagnosis.findings if finding.severity == "fault"), None)
    if fault is not None:
        return fault.text
    used = evidence.cpu_percent
    busy = f" It used {text.number(used, 0)} % of one CPU." if used is not None and used >= _BUSY_PERCENT else ""
    hidden = f"Not visible: {'; '.join(diagnosis.not_visible)}. " if diagnosis.not_visible else ""
    where = " in the rest" if hidden else ""
    if evidence.exits_hz is None:
        return f"{hidden}No known problem{where or ' in its status'}.{busy}"
    return f"{hidden}No known problem{where}: {_wakeups_text(evidence)}.{busy}"


def _wakeups_text(evidence: Evidence) -> str:
    """Return the wake-ups of a traced server, in words that are true on a busy host, too."""
    woken_hz = sum(row.woken_hz for row in evidence.wakeups)
    if not evidence.exits_hz and woken_hz:
        return f"it was woken {text.number(woken_hz, 1)} times/s, while the CPUs were running"
    return f"it woke a CPU {text.number(evidence.exits_hz, 1)} times/s"


def _answer_for_clients(diagnosis: Diagnosis) -> str:
    """Return the joint share of several clients that use too much CPU time; empty if a window does not support it.

    Every fault must be such a client, and probes must have measured several executions of each.
    """
    faults = [finding for finding in diagnosis.findings if finding.severity == "fault"]
    window = diagnosis.evidence.statement_window
    if window is None or window.method != "probes" or window.percent <= 0 or not 2 <= len(faults) < len(_COUNTS):
        return ""
    used = sum(fault.percent or 0.0 for fault in faults)
    if any(not fault.percent or (fault.rate_hz or 0.0) * window.window_s < _LEAST_CALLS for fault in faults):
        return ""
    accounts = {fault.account for fault in faults}
    who = "clients" if len(accounts) == len(faults) and None not in accounts else "kinds of statements"
    # The sum of the printed shares.
    share = min(100, sum(round(100.0 * (fault.percent or 0.0) / window.percent) for fault in faults))
    one = text.number(used, 0 if used >= 10 else 1)
    return f"{_COUNTS[len(faults)]} {who} use {share} % of this server's CPU time ({one} % of one CPU)."


def _other_wakeups(evidence: Evidence) -> str:
    """Return the wake-ups of a server whose only faults are clients; empty if it was not traced."""
    return "" if evidence.exits_hz is None else f"No known problem in its wake-ups: {_wakeups_text(evidence)}."


def _finding_lines(finding: Finding, width: int, *, with_stack: bool) -> list[str]:
    printed = text.wrap(finding.text, width)
    for sentence in finding.evidence:
        printed += _labelled_lines("seen", sentence, width)
    if finding.stack and with_stack:
        printed += _labelled_lines("stack", " ← ".join(finding.stack[:_MAX_FRAMES]), width)
    for remedy in finding.remedy:
        printed += _labelled_lines("do", remedy, width)
    return printed


def _labelled_lines(label: str, content: str, width: int) -> list[str]:
    wrapped = text.wrap(content, max(20, width - 9))
    return [f"  {label:<6} {wrapped[0]}", *(f"{'':9}{line}" for line in wrapped[1:])]


def _statement_rows(diagnosis: Diagnosis, width: int) -> list[str]:
    """Return the statements with most CPU time, one line each; empty without a window of statements."""
    window = diagnosis.evidence.statement_window
    rows = [use for use in window.statements if use.percent > 0][:_SHOWN_STATEMENTS] if window is not None else []
    if window is None or not rows or window.percent <= 0:
        return []
    printed = []
    accounts = [use.account or "" for use in rows]
    account_width = min(24, max(map(len, accounts)))
    room = max(12, width - 20 - (account_width + 2 if account_width else 0))
    for use, account in zip(rows, accounts, strict=True):
        share = text.number(min(100.0, 100.0 * use.percent / window.percent), 0)
        rate = "unknown" if use.calls_hz is None else f"{text.number(use.calls_hz, 1)}/s"
        shown = text.shorten(" ".join(use.text.split()), room)
        line = f"{share:>5} %  {rate:>9}  {shown:<{room}}  {text.shorten(account, account_width or 1)}"
        printed.append(line.rstrip()[:width])
    return printed


def scope_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the hidden, the examined and the unexamined areas, and settings that forbid deep idle, if known."""
    lists = (
        ("Not visible", diagnosis.not_visible),
        ("Checked", diagnosis.looked_at),
        ("Not checked", diagnosis.not_looked_at),
        ("Deep idle", diagnosis.host.get("idle_limits") or []),
    )
    return [f"{label}: {'; '.join(things)}." for label, things in lists if things]


def context_of(diagnosis: Diagnosis) -> str:
    """Return the server, the window and the measuring cost."""
    server, evidence = diagnosis.server, diagnosis.evidence
    parts = [server.version or "a server"]
    if server.pid is not None:
        parts[0] += f", pid {server.pid}"
    parts.append(f"watched for {evidence.window_s:.1f} s")
    if evidence.exits_hz is not None:
        rate = text.number(evidence.exits_hz, 1)
        parts.append(f"{rate} idle exits/s are its own" if rate != "1.0" else "1.0 idle exit/s is its own")
    if diagnosis.tool is not None and diagnosis.tool.cpu_percent is not None:
        parts.append(f"powerprof used {diagnosis.tool.cpu_percent:.2f} % CPU")
    return " · ".join(parts)


_ORIGINS = {"own_timer": "its own timer", "other_thread": "another thread", "other_process": "another process"}


def wakeups_table(diagnosis: Diagnosis, places: Places, limit: int) -> Table:
    """Return one row per thread and waiting place, at most `limit`."""
    rows = []
    for index, wakeup in enumerate(diagnosis.evidence.wakeups[:limit]):
        at = f"/evidence/wakeups/{index}"
        cells: dict[str, Cell] = {
            "rate": places.figure(f"{at}/rate_hz", 1),
            "woken": places.figure(f"{at}/wakings_hz", 1),
            "thread": Words(
                (wakeup.name or wakeup.comm).removeprefix("thread/"),
                wakeup.waker or _ORIGINS.get(wakeup.origin, wakeup.origin),
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
    caption = "Idle exits and wakings by thread and waiting stack, innermost frame first."
    return Table(columns, rows, "wake-ups by thread", caption, max(0, len(diagnosis.evidence.wakeups) - limit))


def statements_table(diagnosis: Diagnosis, places: Places) -> Table | None:
    """Return one row per statement with its CPU use; None without a window of statements."""
    window = diagnosis.evidence.statement_window
    if window is None:
        return None
    rows = []
    for index, use in enumerate(window.statements):
        at = f"/evidence/statement_window/statements/{index}"
        cells: dict[str, Cell] = {
            "cpu": places.figure(f"{at}/percent", 2),
            "rate": places.figure(f"{at}/calls_hz", 1),
            "statement": Words(use.text, use.account or "", code=True),
        }
        rows.append(TableRow(cells))
    columns = [*figures(cpu="% of one CPU", rate="calls/s"), *words("statement")]
    return Table(columns, rows, "statements by CPU time", f"CPU time of statements in {window.window_s:.1f} s.")


def render_csv(diagnosis: Diagnosis) -> Iterator[Line]:
    """Yield one line per finding."""
    yield ["severity", "rule", "rate_hz", "text", "evidence", "remedy", "stack"]
    for finding in diagnosis.findings:
        joined = ("; ".join(finding.evidence), "; ".join(finding.remedy), " < ".join(reversed(finding.stack)))
        yield [finding.severity, finding.rule, finding.rate_hz, finding.text, *joined]


def render_markdown(diagnosis: Diagnosis, context_line: str) -> list[str]:
    """Return each fault with its evidence and remedies."""
    written: list[str] = []
    for number, fault in enumerate(finding for finding in diagnosis.findings if finding.severity == "fault"):
        if number:
            written += ["", f"**{escape(fault.text)}**"]
        written += ["", *(f"- seen: {escape(line)}" for line in fault.evidence)]
        if fault.stack:
            written.append(f"- stack: {code_span(' ← '.join(fault.stack[:_MAX_FRAMES]), 600)}")
        written += [f"- do: {escape(line)}" for line in fault.remedy]
    return [*written, "", escape(context_of(diagnosis))]


# The HTML page: faults, evidence and remedies, then all wake-ups behind them.

_OPEN_ROWS = 20
_MAX_ROWS = 200


def render_html(record: Diagnosis, extras: Extras) -> str:
    """Return the HTML page."""
    places = Places(record)
    rows, more = split_rows(wakeups_table(record, places, _MAX_ROWS), _OPEN_ROWS)
    sentence = answer_of(record)
    return render_page(
        "diagnosis.html.j2",
        record,
        places,
        title=clean_name(sentence),
        answer=sentence,
        context=context_of(record),
        faults=[finding for finding in record.findings if finding.severity == "fault"],
        habits=[finding for finding in record.findings if finding.severity == "note"],
        looked=scope_lines(record),
        statements=statements_table(record, places),
        rows=rows,
        more=more,
        notes=list(dict.fromkeys([*record.evidence.notes, *word_notes(record.notes)])),
    )
