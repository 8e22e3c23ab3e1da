# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof diagnose`: the faults with evidence and remedies, then the notes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from powerprof.diagnosis.consumers import MAIN_PERCENT, MAIN_SHARE, describe_consumer, find_largest_consumer
from powerprof.diagnosis.evidence import Diagnosis, Finding
from powerprof.model import text
from powerprof.report.document import (
    NOT_HTML,
    NOT_TERMINAL,
    TERMINAL,
    Document,
    Item,
    Items,
    Part,
    Section,
    Sentence,
    Shown,
    View,
)
from powerprof.report.table import (
    ALL,
    HTML,
    Cell,
    Column,
    Line,
    Path,
    Places,
    Table,
    TableRow,
    Words,
    figure_columns,
    word_columns,
)

_MAX_FRAMES = 14
_SHOWN_STATEMENTS = 3
# The headline for several clients needs this many executions of each in the window.
_LEAST_CALLS = 5
_CLIENT_RULES = ("monitoring_client", "table_poller")
_COUNTS = ("No", "One", "Two", "Three", "Four")


def answer_of(diagnosis: Diagnosis) -> str:
    """Return the first fault or the sum of several clients; without a fault, the largest consumer of CPU time."""
    if joint := _answer_for_clients(diagnosis):
        return joint
    fault = next((finding for finding in diagnosis.findings if finding.severity == "fault"), None)
    if fault is not None:
        return fault.text
    hidden = f"Not visible: {'; '.join(diagnosis.not_visible)}. " if diagnosis.not_visible else ""
    where = " in the rest" if hidden else ""
    woken, used = _wakeups_text(diagnosis), _cpu_text(diagnosis)
    comma = "," if used and "," in woken else ""
    sentences = [f"{hidden}No known problem{where}: {woken}{comma}{used}."]
    if (neighbour := diagnosis.evidence.neighbour) is not None:
        used = text.number(neighbour.percent, 0)
        sentences.append(f"Another program of this host uses {used} % of one CPU: {neighbour.comm} ({neighbour.pid}).")
    return " ".join(sentences)


def _cpu_text(diagnosis: Diagnosis) -> str:
    """Return the CPU use of a server with its largest consumer; empty if it is unknown."""
    evidence = diagnosis.evidence
    consumer = find_largest_consumer(evidence)
    used = evidence.cpu_percent
    if used is None:
        return ""
    shown = f" and used {text.number(used, 0 if used >= 10 else 1 if used >= 1 else 2)} % of one CPU"
    if consumer is None or not consumer.percent or not consumer.whole_percent:
        return shown
    share = 100.0 * min(1.0, consumer.percent / consumer.whole_percent)
    return f"{shown}, {text.number(share, 0)} % of it for {describe_consumer(consumer)}"


def _wakeups_text(diagnosis: Diagnosis) -> str:
    """Return the wake-ups of a traced server, in words that are true on a busy host, too."""
    evidence, name = diagnosis.evidence, diagnosis.server.version or "the server"
    if evidence.exits_hz is None:
        return f"{name} was not traced"
    woken_hz = sum(row.woken_hz for row in evidence.wakeups)
    if not evidence.exits_hz and woken_hz:
        return f"{name} was woken {text.number(woken_hz, 1)} times/s, while the CPUs were running"
    return f"{name} woke a CPU {text.number(evidence.exits_hz, 1)} times/s"


def _answer_for_clients(diagnosis: Diagnosis) -> str:
    """Return the joint share of several clients that use too much CPU time; empty if a window does not support it.

    Every fault must be such a client, and probes must have measured several executions of each. A client with most of
    the CPU time is the answer itself.
    """
    faults = list_faults(diagnosis)
    window = diagnosis.evidence.statement_window
    if faults and window is not None and (faults[0].percent or 0.0) >= max(MAIN_PERCENT, MAIN_SHARE * window.percent):
        return ""
    if window is None or window.method != "probes" or window.percent <= 0 or not 2 <= len(faults) < len(_COUNTS):
        return ""
    if any(fault.rule not in _CLIENT_RULES for fault in faults):
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


def _other_wakeups(diagnosis: Diagnosis) -> str:
    """Return the wake-ups of a server whose only faults are clients; empty if it was not traced."""
    if diagnosis.evidence.exits_hz is None:
        return ""
    return f"No known problem in its wake-ups: {_wakeups_text(diagnosis)}."


def statement_lines(table: Table, width: int) -> list[str]:
    """Return the statements with most CPU time for a terminal, one line each."""
    rows = table.rows[:_SHOWN_STATEMENTS]
    accounts = [row.words("statement").more for row in rows]
    account_width = min(24, max(map(len, accounts), default=0))
    room = max(12, width - 20 - (account_width + 2 if account_width else 0))
    printed = []
    for row, account in zip(rows, accounts, strict=True):
        share, rate = row.words("share").text, row.words("per_second").text
        shown = text.shorten(" ".join(row.words("statement").text.split()), room)
        line = f"{share:>5} %  {rate:>9}  {shown:<{room}}  {text.shorten(account, account_width or 1)}"
        printed.append(line.rstrip()[:width])
    return printed


def list_scope(diagnosis: Diagnosis) -> list[str]:
    """Return the hidden, the examined and the unexamined areas, and settings that forbid deep idle, if known."""
    lists = (
        ("Not visible", [] if _answers_with_hidden(diagnosis) else diagnosis.not_visible),
        ("Checked", diagnosis.looked_at),
        ("Not checked", diagnosis.not_looked_at),
        ("Deep idle", diagnosis.host.get("idle_limits") or []),
    )
    return [f"{label}: {'; '.join(things)}." for label, things in lists if things]


def _answers_with_hidden(diagnosis: Diagnosis) -> bool:
    """Return whether the answer begins with the areas that are not visible."""
    return bool(diagnosis.not_visible) and not list_faults(diagnosis)


def list_faults(diagnosis: Diagnosis) -> list[Finding]:
    """Return the findings that are faults."""
    return [finding for finding in diagnosis.findings if finding.severity == "fault"]


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
            cells["every"] = places.figure(f"{at}/period_ms", wording=text.period(wakeup.period_ms))
        rows.append(TableRow(cells))
    columns = [
        *figure_columns(rate="exits/s", woken="woken/s", every="every"),
        *word_columns("thread"),
        Column("path", "stack, innermost first", left=True, beside="thread"),
    ]
    caption = "Idle exits and wakings by thread and waiting stack, innermost frame first."
    return Table(columns, rows, "wake-ups by thread", caption, max(0, len(diagnosis.evidence.wakeups) - limit))


def statements_table(diagnosis: Diagnosis, places: Places) -> Table | None:
    """Return one row per statement with its CPU use; None without a window of statements or without CPU time."""
    window = diagnosis.evidence.statement_window
    if window is None or window.percent <= 0:
        return None
    rows = []
    for index, use in enumerate(window.statements):
        at = f"/evidence/statement_window/statements/{index}"
        cells: dict[str, Cell] = {
            "cpu": places.figure(f"{at}/percent", 2),
            "share": Words(text.number(min(100.0, 100.0 * use.percent / window.percent), 0)),
            "rate": places.figure(f"{at}/calls_hz", 1),
            "per_second": Words("unknown" if use.calls_hz is None else f"{text.number(use.calls_hz, 1)}/s"),
            "statement": Words(use.text, use.account or "", code=True),
        }
        rows.append(TableRow(cells))
    columns = [*figure_columns(cpu="% of one CPU", rate="calls/s"), *word_columns("statement")]
    return Table(columns, rows, "statements by CPU time", f"CPU time of statements in {window.window_s:.1f} s.")


def document(diagnosis: Diagnosis, view: View) -> Document:
    """Return the report of a diagnosis: each fault with its evidence and its remedies, and what was checked."""
    notes = [finding for finding in diagnosis.findings if finding.severity == "note"]
    hidden = "" if view.everything or not notes else f"{text.plural(len(notes), 'note')}: --all"
    return Document(
        views=("everything",),
        record=diagnosis,
        answer=answer_of(diagnosis),
        context=context_of(diagnosis),
        parts=partial(_list_parts, diagnosis, view),
        rows=partial(_list_rows, diagnosis),
        setup=_SETUP,
        next_step=hidden,
    )


_SETUP = (
    *(("Server", "/server"), ("Settings", "/evidence/variables"), ("Cost of powerprof", "/tool")),
    ("Host", "/host"),
)
_OPEN_ROWS = 20
_MAX_ROWS = 200


def _list_parts(diagnosis: Diagnosis, view: View) -> Iterator[Part]:
    places, joint = Places(diagnosis), _answer_for_clients(diagnosis)
    if (statements := statements_table(diagnosis, places)) is not None:
        parts: list[Part] = [
            Shown(statements, statement_lines, "statements", what="statements", names=False, is_further=True)
        ]
        if joint:
            parts.append(Sentence(_other_wakeups(diagnosis), forms=TERMINAL))
        yield Section("Statements by CPU time", parts, name="statements", headed=ALL)
    # The answer is the text of the first fault, unless it is about several.
    found = [
        Section(fault.text, [_list_lines(fault, view)], headed=ALL if joint or number else HTML)
        for number, fault in enumerate(list_faults(diagnosis))
    ]
    yield Section("Problems found", found, name="faults")
    wakeups = Shown(wakeups_table(diagnosis, places, _MAX_ROWS), look="wakeups", open_rows=_OPEN_ROWS, names=False)
    yield Section("Wake-ups by thread", [wakeups], name="wakeups", forms=HTML)
    notes = [finding for finding in diagnosis.findings if finding.severity == "note"]
    habits: list[Part] = [Items([Item(note.text, rows=note.remedy) for note in notes], forms=NOT_HTML)]
    habits += [Section(note.text, [_list_lines(note, view)], forms=HTML) for note in notes]
    forms = ALL if view.everything else NOT_TERMINAL
    yield Section("Other wake-ups", habits, "habits", ALL, folded=True, count=len(notes), forms=forms)
    checks = [Sentence(line) for line in list_scope(diagnosis)]
    yield Section("Checks", checks, name="looked")


def _list_lines(finding: Finding, view: View) -> Items:
    """Return the evidence, the stack and the remedies of a finding."""
    # The share of a client says more than its stack.
    is_brief = finding.percent is not None and not view.everything
    stack = [] if is_brief or not finding.stack else [" ← ".join(finding.stack[:_MAX_FRAMES])]
    return Items(
        [
            *(Item(line, "seen") for line in finding.evidence),
            *(Item(frames, "stack", code=True) for frames in stack),
            *(Item(line, "do") for line in finding.remedy),
        ]
    )


def _list_rows(diagnosis: Diagnosis) -> Iterator[Line]:
    """Yield one line per finding."""
    yield ["severity", "rule", "rate_hz", "text", "evidence", "remedy", "stack"]
    for finding in diagnosis.findings:
        joined = ("; ".join(finding.evidence), "; ".join(finding.remedy), " < ".join(reversed(finding.stack)))
        yield [finding.severity, finding.rule, finding.rate_hz, finding.text, *joined]
