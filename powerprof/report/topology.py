# SPDX-License-Identifier: Apache-2.0
"""Several servers: replication, storms, and the wake-ups of a traced window by server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from powerprof.experiment.records import Block, Comparison, StormShare, TraceSummary
from powerprof.experiment.traced import RAGED_PERCENT, count_by_thread, replication_percent, top_stack
from powerprof.model import text
from powerprof.report.document import Part, Section, Sentence, Shown
from powerprof.report.table import ALL, Cell, Column, CsvCell, Line, Path, Table, TableRow, Words, word_columns
from powerprof.report.wakeups import wakeup_lines

_MAX_THREADS = 8
_MAX_STACKS = 3


def list_servers(comparison: Comparison) -> Iterator[Section]:
    """Yield replication, storms and traced windows of a comparison; nothing for single servers."""
    sentences = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        blocks = [block for block in comparison.blocks if block.arm == arm and not block.dropped]
        sentences += topology_of(name, blocks)
    if len(comparison.traced) == 2 and any(len(window.members) > 1 for window in comparison.traced):
        share = replication_percent(*comparison.traced)
        if share is not None:
            sentences.append(
                f"Replication threads account for {share:.0f} % of the additional idle exits of {comparison.b.name}."
            )
    yield Section("Servers", [Sentence(sentence) for sentence in sentences], "servers")
    for name, window in list_traced(comparison):
        yield traced_section(window, name)


def list_traced(comparison: Comparison) -> list[tuple[str, TraceSummary]]:
    """Return the traced windows, each with the name of its condition."""
    return [((comparison.a if window.arm == "a" else comparison.b).name, window) for window in comparison.traced]


def topology_of(name: str, blocks: Sequence[Block]) -> list[str]:
    """Return the storm and replication status of one condition."""
    sentences = []
    storms = [block.storm for block in blocks if block.storm is not None]
    if storms:
        sentences.append(f"{name}: {_storm_text(storms)}")
    if blocks and blocks[-1].members:
        states = [
            f"{share.name} I/O {status.io_running or '?'}, SQL {'Yes' if status.sql_running else 'No'}"
            + (f" ({status.last_io_error})" if status.last_io_error else "")
            for share in blocks[-1].members
            for status in share.replication
        ]
        if states:
            sentences.append(f"Replication of {name}, by its own status: {' · '.join(states)}")
    return sentences


def _storm_text(storms: Sequence[StormShare]) -> str:
    rate = sum(storm.counter_hz for storm in storms) / len(storms)
    shown = f"{storms[0].counter} {text.number(rate, 0 if rate >= 10 else 2)}/s"
    if not any(storm.began for storm in storms):
        return f"the storm did not start: this server backs off ({shown})."
    active = sum(storm.raged_percent for storm in storms) / len(storms)
    restarts = text.plural(sum(storm.restarts_count for storm in storms), "time")
    return f"the storm was active {active:.0f} % of the time and was restarted {restarts} within the windows ({shown})."


def traced_section(window: TraceSummary, name: str) -> Section:
    """Return the threads of a traced window that ended most idle periods, with their servers and their stacks."""
    record = window.attribution
    total = sum(row.count for row in record.wakeups)
    rate = f"{total / record.window_s:,.0f} idle exits/s by its servers"
    parts: list[Part] = []
    if window.storm is not None and window.storm.raged_percent < RAGED_PERCENT:
        parts.append(Sentence(f"In this window {_storm_text([window.storm])}"))
    rows = []
    for key, count in count_by_thread(window).most_common(_MAX_THREADS) if total else []:
        cells: dict[str, Cell] = {
            "rate": Words(text.number(count / record.window_s, 1), ours=True),
            "server": Words(key[0]),
            "thread": Words(key[1]),
            "stack": Path(top_stack(window, key), complete=True),
        }
        rows.append(TableRow(cells))
    stack = Column("stack", "most frequent stack, innermost first", left=True)
    columns = [Column("rate", "/s"), *word_columns("server", "thread"), stack]
    table = Table(columns, rows, f"threads of {name} by idle exits")
    shown = Shown(table, _thread_lines, names=False)
    return Section(f"{name}, traced for {record.window_s:.1f} s: {rate}", [*parts, shown], headed=ALL)


def traced_lines(name: str, window: TraceSummary) -> Iterator[Line]:
    """Yield an empty line, a head of CSV, and the wake-ups of a traced window with their condition and server."""
    head, *lines = wakeup_lines(window.attribution)
    servers: dict[CsvCell, str] = {pid: server for server, pid in window.members.items()}
    yield []
    yield ["condition", "server", *head]
    place = list(head).index("pid")
    yield from ([name, servers.get(line[place]), *line] for line in lines)


def _thread_lines(table: Table, width: int) -> list[str]:
    """Return the threads for a terminal, the first ones with their stacks."""
    rows = [["/s", "server", "thread and its most frequent stack (innermost first)"]]
    rows += [[row.words(key).text for key in ("rate", "server", "thread")] for row in table.rows]
    entries, indent = text.name_rows(rows, width, left=(1,))
    printed = [*entries[0]]
    for number, (entry, row) in enumerate(zip(entries[1:], table.rows, strict=True)):
        stack = row.cells["stack"]
        frames = stack.frames if isinstance(stack, Path) and number < _MAX_STACKS else ()
        printed += [*entry, *(text.wrap(" ← ".join(frames), width, " " * min(11, indent)) if frames else [])]
    return printed
