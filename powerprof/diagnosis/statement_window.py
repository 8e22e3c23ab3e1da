# SPDX-License-Identifier: Apache-2.0
"""The statements of a server by CPU use, in a short window of `queries` after the traced window.

The cost of work decides what is a finding (`is_costly`), not its rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from powerprof.diagnosis.evidence import Evidence, StatementCpu, StatementWindow
from powerprof.diagnosis.server_queries import list_own_statements
from powerprof.diagnosis.wording import format_rate
from powerprof.measure.progress import announce
from powerprof.model.statements import limit_texts, make_key
from powerprof.model.text import number

if TYPE_CHECKING:
    from powerprof.queries.records import Queries, Statement
    from powerprof.queries.target import TracedServer

WINDOW_S = 2.0
_MOST_STATEMENTS = 20
# Of one CPU, and of the server's CPU time.
_COSTLY_PERCENT, _COSTLY_SHARE = 0.2, 0.1
# The window of stacks is long enough for this many samples of each costly statement; a share needs some of them.
_STACKS_HZ, _EXPECTED_SAMPLES, _MIN_SAMPLES = 1999, 20, 5
# Functions of heapam.c and nodeSeqscan.c that return the next row of a sequential scan, inlined or not.
_SEQUENTIAL = frozenset(("heap_getnextslot", "heapgettup_pagemode", "heapgettup", "heapgetpage", "SeqNext"))

# Statements that inspect the server, by their texts. Drivers send other SHOW statements as part of the work.
INSPECTS = re.compile(
    r"\W*(?:SHOW\s+(?!WARNINGS|ERRORS|FIELDS|COLUMNS|KEYS|INDEX|CREATE|TABLES)|COM_(?:PING|STATISTICS|PROCESS_INFO)\b"
    r"|(?:SELECT|WITH)\b.*\bFROM\s+[`\"]?(?:information_schema|performance_schema|sys|pg_catalog|pg_stat\w*|pg_locks)\b)",
    re.IGNORECASE | re.DOTALL,
)
SELECTS = re.compile(r"\W*(?:SELECT|WITH)\b", re.I)
_ANY = re.compile("")


def is_costly(percent: float | None, evidence: Evidence) -> bool:
    """Return whether work with this CPU use, in percent of one CPU, is a problem: a tenth of the server's CPU time."""
    return percent is not None and _is_costly_of(percent, _compute_server_percent(evidence) or 0.0)


def _is_costly_of(percent: float, server_percent: float) -> bool:
    return percent >= max(_COSTLY_PERCENT, _COSTLY_SHARE * server_percent)


def _compute_server_percent(evidence: Evidence) -> float | None:
    window = evidence.statement_window
    return evidence.cpu_percent if window is None else window.percent


def describe_share(percent: float, evidence: Evidence) -> str:
    """Return `27 % of this server's CPU time (0.7 % of one CPU)`."""
    whole = _compute_server_percent(evidence)
    one = f"{number(percent, 0 if percent >= 10 else 1)} % of one CPU"
    return f"{number(100.0 * min(1.0, percent / whole), 0)} % of this server's CPU time ({one})" if whole else one


def select_uses(evidence: Evidence, pattern: re.Pattern[str] = _ANY) -> list[StatementCpu]:
    """Return the statements of the window whose text matches, the highest CPU use first."""
    window = evidence.statement_window
    return [] if window is None else [use for use in window.statements if pattern.match(use.text)]


def describe_use(use: StatementCpu, evidence: Evidence) -> str:
    """Return a statement with its rate, account and CPU use."""
    rate = "" if use.calls_hz is None else f" {format_rate(use.calls_hz)}"
    account = "" if use.account is None else f", {use.account}"
    return f"{use.text[:160]}{rate}{account}: {describe_share(use.percent, evidence)}"


def measure_statements(server: TracedServer, say: Callable[[str], None]) -> StatementWindow:
    """Measure a window. Raise CapabilityError, PowerprofError.

    PostgreSQL does not report scans. If one of its statements is costly, a second window samples the stacks.
    """
    from powerprof.energy.request import NO_METER
    from powerprof.queries.session import QueriesRequest, measure

    announce(say, "measuring statements", WINDOW_S)
    with limit_texts():
        request = QueriesRequest(pid=str(server.pid), duration_s=WINDOW_S, energy=NO_METER)
        record, _ = measure(request, server, _ignore)
        window = build_window(record)
        costly = list_unknown_scans(window)
        if server.family != "postgresql" or record.method != "probes" or not costly or window.interrupted:
            return window
        least = min(use.percent for use in costly) / 100.0
        stacks_s = max(1.0, _EXPECTED_SAMPLES / (least * _STACKS_HZ))
        with_stacks = replace(request, duration_s=stacks_s, method="probes", stacks=True, stacks_hz=_STACKS_HZ)
        scans = {one.text: compute_scan_percent(one) for one in measure(with_stacks, server, _ignore)[0].statements}
    return msgspec.structs.replace(
        window, statements=[msgspec.structs.replace(use, scan_percent=scans.get(use.text)) for use in window.statements]
    )


def list_unknown_scans(window: StatementWindow) -> list[StatementCpu]:
    """Return the costly statements of a window of PostgreSQL without enough stacks to find a scan of a table."""
    return [
        use
        for use in window.statements
        if use.scan_percent is None and _is_costly_of(use.percent, window.percent) and not INSPECTS.match(use.text)
    ]


def _ignore(_: str) -> None:
    """Print nothing: the steps of the short window are no news."""


def build_window(record: Queries) -> StatementWindow:
    """Return the statements of a record by CPU use. Those of powerprof itself are a sum."""
    from powerprof.queries.join import OWN

    uses, own_s = [], 0.0
    for statement in record.statements:
        if statement.text.startswith(OWN) or make_key(statement.text) in _list_own_keys():
            own_s += statement.c0_s
            continue
        first = next((asker for asker in statement.askers if asker.user is not None), None)
        uses.append(
            StatementCpu(
                text=statement.text,
                percent=100.0 * statement.c0_s / record.window_s,
                calls_hz=statement.calls_hz,
                account=None if first is None else f"{first.user}@{first.host or 'localhost'}",
            )
        )
    return StatementWindow(
        window_s=record.window_s,
        method=record.method,
        percent=100.0 * record.server_c0_s / record.window_s,
        own_percent=100.0 * own_s / record.window_s,
        statements=uses[:_MOST_STATEMENTS],
        interrupted=record.ended is not None,
    )


def join_windows(windows: Sequence[StatementWindow]) -> StatementWindow | None:
    """Return the newest windows as one of at least `WINDOW_S`; None if they are shorter together, or differ in method.

    The windows follow one another, the newest last. Windows of `watch` may be shorter than a rule needs.
    """
    joined: list[StatementWindow] = []
    whole_s = 0.0
    for window in reversed(windows):
        if whole_s >= WINDOW_S:
            break
        joined.append(window)
        whole_s += window.window_s
    if whole_s < WINDOW_S or len({window.method for window in joined}) > 1:
        return None
    uses: dict[tuple[str, str | None], StatementCpu] = {}
    for window in joined:
        part = window.window_s / whole_s
        for use in window.statements:
            earlier = uses.get((use.text, use.account))
            calls = [use.calls_hz * part] if use.calls_hz is not None else []
            if earlier is not None and earlier.calls_hz is not None:
                calls.append(earlier.calls_hz)
            uses[use.text, use.account] = msgspec.structs.replace(
                use,
                percent=use.percent * part + (0.0 if earlier is None else earlier.percent),
                calls_hz=sum(calls) if calls else None,
            )
    return msgspec.structs.replace(
        joined[0],
        window_s=whole_s,
        percent=sum(window.percent * window.window_s for window in joined) / whole_s,
        own_percent=sum(window.own_percent * window.window_s for window in joined) / whole_s,
        statements=sorted(uses.values(), key=lambda use: -use.percent)[:_MOST_STATEMENTS],
    )


@cache
def _list_own_keys() -> frozenset[str]:
    return frozenset(make_key(text) for text in list_own_statements())


def compute_scan_percent(statement: Statement) -> float | None:
    """Return the share of a statement's samples in a sequential scan; None with too few samples."""
    total = sum(stack.count for stack in statement.stacks)
    scanning = sum(stack.count for stack in statement.stacks if _is_scan(stack.frames))
    return 100.0 * scanning / total if total >= _MIN_SAMPLES else None


def _is_scan(frames: Sequence[str]) -> bool:
    return any(frame.partition("(")[0].partition(".")[0] in _SEQUENTIAL for frame in frames)
