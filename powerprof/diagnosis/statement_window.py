# SPDX-License-Identifier: Apache-2.0
"""The statements of a server by CPU use, in a short window of `queries` after the traced window.

The cost of work decides what is a finding (`is_costly`), not its rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from powerprof.diagnosis.evidence import Evidence, RoleCpu, StatementCpu, StatementWindow
from powerprof.diagnosis.server_queries import list_own_statements
from powerprof.diagnosis.wording import format_rate, format_share
from powerprof.measure.progress import announce
from powerprof.model.statements import NormalText, limit_texts, make_key

if TYPE_CHECKING:
    from powerprof.queries.records import Queries, Statement
    from powerprof.queries.target import TracedServer

WINDOW_S = 2.0
_MOST_STATEMENTS = 20
# Of one CPU, and of the server's CPU time.
_COSTLY_PERCENT, _COSTLY_SHARE = 0.2, 0.1
# The window of stacks is long enough for this many samples of each costly statement; a share needs some of them.
_STACKS_HZ, _EXPECTED_SAMPLES, _MIN_SAMPLES = 1999, 20, 5
# It also has some calls of each, if it does not take too long.
_LEAST_CALLS, _MOST_STACKS_S = 4, 3.0
# Functions of heapam.c and nodeSeqscan.c that return the next row of a sequential scan, inlined or not.
_SEQUENTIAL = frozenset(("heap_getnextslot", "heapgettup_pagemode", "heapgettup", "heapgetpage", "SeqNext"))

_SORTING = frozenset(("tuplesort_performsort", "tuplesort_puttupleslot", "tuplesort_gettupleslot", "ExecSort"))
# Files of PostgreSQL's compiler of expressions.
_COMPILERS = ("libLLVM", "llvmjit")
# Two windows contradict each other if their CPU uses, in percent of one CPU, differ by this much and by this share.
_CONTRADICTION_PERCENT, _CONTRADICTION_SHARE, _LONGER = 3.0, 0.5, 4

# Statements that inspect the server, by their texts. Drivers send other SHOW statements as part of the work.
INSPECTS = re.compile(
    r"\W*(?:SHOW\s+(?!WARNINGS|ERRORS|FIELDS|COLUMNS|KEYS|INDEX|CREATE|TABLES)|COM_(?:PING|STATISTICS|PROCESS_INFO)\b"
    r"|(?:SELECT|WITH)\b.*\b(?:FROM|JOIN)\s+[`\"]?(?:information_schema|performance_schema|sys|pg_\w+)\b)",
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
    return format_share(percent, _compute_server_percent(evidence))


def select_uses(evidence: Evidence, pattern: re.Pattern[str] = _ANY) -> list[StatementCpu]:
    """Return the statements of the window whose text matches, the highest CPU use first."""
    window = evidence.statement_window
    return [] if window is None else [use for use in window.statements if pattern.match(use.text)]


def describe_use(use: StatementCpu, evidence: Evidence) -> str:
    """Return a statement with its rate, account and CPU use."""
    rate = "" if use.calls_hz is None else f" {format_rate(use.calls_hz)}"
    account = "" if use.account is None else f", {use.account}"
    return f"{use.text[:160]}{rate}{account}: {describe_share(use.percent, evidence)}"


def measure_statements(
    server: TracedServer, before_percent: float | None, before_s: float, say: Callable[[str], None]
) -> StatementWindow:
    """Measure a window. Raise CapabilityError, PowerprofError.

    `before_percent` is the CPU use of the server in the `before_s` seconds before. If the window disagrees with it, a
    longer one replaces it. PostgreSQL does not report scans: if one of its statements is costly, another window samples
    the stacks.
    """
    from powerprof.energy.request import NO_METER
    from powerprof.queries.session import QueriesRequest, measure

    announce(say, "measuring statements", WINDOW_S)
    with limit_texts():
        request = QueriesRequest(pid=str(server.pid), duration_s=WINDOW_S, energy=NO_METER)
        record, _ = measure(request, server, _ignore)
        window = build_window(record)
        if window.ended is None and is_contradiction(before_percent, window.percent):
            longer_s = max(_LONGER * WINDOW_S, before_s)
            announce(say, "measuring statements again, for longer: the CPU use changed", longer_s)
            record, _ = measure(replace(request, duration_s=longer_s), server, _ignore)
            window = build_window(record)
        costly = list_unknown_scans(window)
        if server.family != "postgresql" or record.method != "probes" or not costly or window.ended is not None:
            return window
        least = min(use.percent for use in costly) / 100.0
        slowest_hz = min(use.calls_hz or 0.0 for use in costly)
        calls_s = _LEAST_CALLS / max(slowest_hz, _LEAST_CALLS / _MOST_STACKS_S)
        stacks_s = max(1.0, calls_s, _EXPECTED_SAMPLES / (least * _STACKS_HZ))
        with_stacks = replace(request, duration_s=stacks_s, method="probes", stacks=True, stacks_hz=_STACKS_HZ)
        sampled, _ = measure(with_stacks, server, _ignore)
        shares = {one.text: measure_work(one, sampled.modules) for one in sampled.statements}
    return replace(window, statements=[replace(use, **shares.get(use.text, {})) for use in window.statements])


def is_contradiction(before_percent: float | None, percent: float) -> bool:
    """Return whether two windows in succession show so different CPU uses that one of them missed the main work."""
    if before_percent is None:
        return False
    larger = max(before_percent, percent)
    return abs(before_percent - percent) > max(_CONTRADICTION_PERCENT, _CONTRADICTION_SHARE * larger)


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

    own_s = 0.0
    uses: dict[NormalText, StatementCpu] = {}
    for statement in record.statements:
        if statement.text.startswith(OWN) or make_key(statement.text) in _list_own_keys():
            own_s += statement.c0_s
            continue
        first = next((asker for asker in statement.askers if asker.user is not None), None)
        use = StatementCpu(
            text=statement.text,
            percent=100.0 * statement.c0_s / record.window_s,
            calls_hz=statement.calls_hz,
            account=None if first is None else f"{first.user}@{first.host or 'localhost'}",
        )
        uses[use.text] = add_use(uses.get(use.text), use)
    return StatementWindow(
        window_s=record.window_s,
        method=record.method,
        percent=100.0 * record.server_c0_s / record.window_s,
        own_percent=100.0 * own_s / record.window_s,
        connecting_percent=100.0 * max(0.0, record.other_c0_s) / record.window_s,
        roles=[
            RoleCpu(name=row.thread, percent=100.0 * row.c0_s / record.window_s, threads_count=row.threads_count)
            for row in record.background[:_MOST_STATEMENTS]
        ],
        statements=sorted(uses.values(), key=lambda use: -use.percent)[:_MOST_STATEMENTS],
        ended=record.ended,
    )


def add_use(first: StatementCpu | None, second: StatementCpu) -> StatementCpu:
    """Return the sum of two rows of one statement, with the account of the larger."""
    if first is None:
        return second
    known = [use.calls_hz for use in (first, second) if use.calls_hz is not None]
    larger, smaller = (first, second) if first.percent >= second.percent else (second, first)
    return replace(
        larger,
        percent=first.percent + second.percent,
        calls_hz=sum(known) if known else None,
        account=larger.account or smaller.account,
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
    roles: dict[str, RoleCpu] = {}
    for window in joined:
        part = window.window_s / whole_s
        for use in window.statements:
            calls_hz = None if use.calls_hz is None else use.calls_hz * part
            own = replace(use, percent=use.percent * part, calls_hz=calls_hz)
            uses[use.text, use.account] = add_use(uses.get((use.text, use.account)), own)
        for role in window.roles:
            earlier = roles.get(role.name)
            roles[role.name] = replace(
                role, percent=role.percent * part + (0.0 if earlier is None else earlier.percent)
            )
    return replace(
        joined[0],
        window_s=whole_s,
        percent=sum(window.percent * window.window_s for window in joined) / whole_s,
        own_percent=sum(window.own_percent * window.window_s for window in joined) / whole_s,
        connecting_percent=sum(window.connecting_percent * window.window_s for window in joined) / whole_s,
        roles=sorted(roles.values(), key=lambda role: -role.percent),
        statements=sorted(uses.values(), key=lambda use: -use.percent)[:_MOST_STATEMENTS],
    )


@cache
def _list_own_keys() -> frozenset[str]:
    return frozenset(make_key(text) for text in list_own_statements())


def measure_work(statement: Statement, modules: Mapping[str, str]) -> dict[str, float | None]:
    """Return the shares of a statement's samples by kind of work; None with too few samples.

    `modules` are the files of frames.
    """
    total = sum(stack.count for stack in statement.stacks)
    kinds: dict[str, Callable[[Sequence[str]], bool]] = {
        "scan_percent": _is_scan,
        "jit_percent": partial(_is_jit, modules),
        "sort_percent": _is_sort,
    }
    if total < _MIN_SAMPLES:
        return dict.fromkeys(kinds)
    counts = {
        kind: sum(one.count for one in statement.stacks if matches(one.frames)) for kind, matches in kinds.items()
    }
    return {kind: 100.0 * count / total for kind, count in counts.items()}


def _has_function(frames: Sequence[str], functions: Collection[str]) -> bool:
    return any(frame.partition("(")[0].partition(".")[0] in functions for frame in frames)


def _is_scan(frames: Sequence[str]) -> bool:
    return _has_function(frames, _SEQUENTIAL)


def _is_sort(frames: Sequence[str]) -> bool:
    return _has_function(frames, _SORTING)


def _is_jit(modules: Mapping[str, str], frames: Sequence[str]) -> bool:
    return any(modules.get(frame, "").rpartition("/")[2].startswith(_COMPILERS) for frame in frames)
