# SPDX-License-Identifier: Apache-2.0
"""A rule on applications that ask a table again and again whether there is work: job tables and queues."""

from __future__ import annotations

from collections import Counter

from powerprof.diagnosis.evidence import Client, Evidence, ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.diagnosis.words import rate, stack_of
from powerprof.text import number, period

# Whole tables read this often by statements that find next to nothing.
_SCANS_HZ = 2.0
_FEWEST = 5
_FOUND_ROWS = 1.0
_MOST_OF_THEM = 0.5
_AS_OFTEN = 0.25
# Statements that change rows, beside each that reads: a worker that finds work takes it.
_CHANGES = 0.2
_CHANGING = ("Com_insert", "Com_update", "Com_delete", "Com_replace")


def table_pollers(evidence: Evidence) -> list[Finding]:
    """Statements that read a whole table at a steady pace, find next to nothing and change nothing."""
    scans, selects = evidence.moved("Select_scan"), evidence.moved("Com_select")
    scans = min(scans, selects)  # SHOW is a scan as well
    often = scans / evidence.window_s if evidence.window_s > 0 else 0.0
    if scans < _FEWEST or often < _SCANS_HZ or scans < _MOST_OF_THEM * selects:
        return []
    changes = evidence.moved(*_CHANGING)
    sent = _sent(evidence, selects)
    if changes > _CHANGES * scans or (sent is not None and sent > _FOUND_ROWS):
        return []
    client, why = _asker(evidence, often)
    rows = [] if client is None else _rows(evidence, client)
    period_ms = next((row.period_ms for row in rows if row.period_ms), None)
    if client is None and sent is None:
        return []
    who = "A client" if client is None else f"{client.user or '(nobody)'}@{_host(client)}"
    pace = f"{period(period_ms)} ({rate(often)})" if period_ms else rate(often)
    text = f"{who} reads a whole table {pace} to see whether there is work: it keeps the CPUs awake."
    read = evidence.moved("Handler_read_rnd_next") / scans
    sentences = [
        f"{rate(often)} a SELECT without an index (Select_scan), {number(read, 0)} rows read for each",
        f"{changes} statements that change rows in the window"
        + (f", {number(sent, 2)} rows found by each SELECT" if sent is not None else ""),
    ]
    if client is not None:
        sentences.append(f"connection {client.id}: {why}")
    statement = _statement(evidence, client)
    if statement:
        sentences.append(f"its statement: {statement[:160]}")
    return [
        Finding(
            rule="table_poller",
            severity="fault",
            text=text,
            evidence=sentences,
            remedy=[
                "an index on what its WHERE names makes each look cheap; a longer pause makes them few",
                "or a queue that blocks until there is work, instead of asking",
                *([] if statement else ["which statement it is: powerprof queries"]),
            ],
            rate_hz=often,
            stack=stack_of(rows),
        )
    ]


def _sent(evidence: Evidence, selects: int) -> float | None:
    """Rows that a SELECT found, on average; None where the server does not count them (MySQL), or others SHOW."""
    if "Rows_sent" not in evidence.status_after or selects <= 0:
        return None
    looking = sum(evidence.moved(name) for name in evidence.status_after if name.startswith("Com_show_"))
    return None if looking else evidence.moved("Rows_sent") / selects


def _asker(evidence: Evidence, often: float) -> tuple[Client | None, str]:
    """The connection that sends them: by the server's count of it, else the one that is woken as often."""
    known = {client.id: client for sample in evidence.samples for client in sample if _asks(client)}
    counted = {
        number: sent.get("Com_select", 0)
        for number, sent in evidence.statements_by_connection.items()
        if number in known
    }
    first = max(counted.items(), key=lambda item: item[1], default=None)
    if first is not None and evidence.window_s > 0 and first[1] / evidence.window_s >= _MOST_OF_THEM * often:
        return known[first[0]], f"the server counted {rate(first[1] / evidence.window_s)} of them on it"
    if len(known) == 1 and not evidence.moved("Connections"):
        return next(iter(known.values())), "it is the only connection"
    woken = {
        one: sum(row.rate_hz if row.wakings_hz is None else row.wakings_hz for row in _rows(evidence, client))
        for one, client in known.items()
    }
    alike = [one for one, hertz in woken.items() if abs(hertz - often) <= max(_AS_OFTEN * often, 1.0) and hertz > 0]
    if len(alike) == 1:
        return known[alike[0]], f"its thread is woken {rate(woken[alike[0]])}, as often as they are asked"
    return None, ""


def _asks(client: Client) -> bool:
    return client.command in ("Query", "Sleep", "Execute") and client.user not in ("system user", "event_scheduler")


def _rows(evidence: Evidence, client: Client) -> list[ThreadWakeups]:
    tid = client.tid if client.tid is not None else evidence.tids.get(client.id)
    return [row for row in evidence.wakeups if tid is not None and row.tid == tid]


def _host(client: Client) -> str:
    return client.host.rpartition(":")[0] or client.host or "localhost"


def _statement(evidence: Evidence, client: Client | None) -> str:
    if client is None:
        return ""
    texts = Counter(
        seen.statement
        for sample in [evidence.clients_before, *evidence.samples]
        for seen in sample
        if seen.id == client.id and seen.statement
    )
    return texts.most_common(1)[0][0] if texts else evidence.last_statements.get(client.id, "")
