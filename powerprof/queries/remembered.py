# SPDX-License-Identifier: Apache-2.0
"""Pure: samples of running threads and the server's history of statements → the shares of each, with their interval."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from powerprof.database.clients.history import StatementHistory
from powerprof.database.clients.performance import Known
from powerprof.queries.join import Parts, is_connection_name
from powerprof.queries.records import Latency
from powerprof.queries.sampled import Counts, parts_of_counts
from powerprof.statements.normal import key, normal

_UNNAMED = "(the server tells no digest of it)"


@dataclass(frozen=True)
class Remembered:
    """The parts, how many samples they stand on, and how many lay where the history had been overwritten."""

    parts: Parts
    used_count: int
    uncovered_count: int


def remembered_parts(
    ticks: Sequence[tuple[int, int]], history: StatementHistory, known: Known, cpu_s: float, window_s: float
) -> Remembered:
    """Each sample stands for an equal part of the server's CPU time; those of which nothing is known are left out."""
    events = {thread: sorted(rows) for thread, rows in history.events.items()}
    starts = {thread: [row[0] for row in rows] for thread, rows in events.items()}
    strangers = _strangers(history)
    began = [begin for begin, _ in strangers]
    named = {digest: normal(text.replace("...", "?, ?")) for digest, text in history.texts.items()}
    counts = Counts()
    for at_ns, tid in ticks:
        name = known.threads.get(tid, f"thread {tid}")
        if not is_connection_name(name) and tid in known.threads:
            counts.add_background(name, tid)
        elif not any(begin <= at_ns <= end for begin, end in history.covered):
            counts.uncovered += 1
        elif (digest := _at(at_ns, history.threads.get(tid, ()), events, starts)) is None:
            # A connection that came and went between two readings: which thread executed its statements is not known.
            place = bisect_right(began, at_ns) - 1
            if place >= 0 and at_ns <= strangers[place][1]:
                counts.uncovered += 1
            else:
                counts.connections += 1
        else:
            counts.add_statement(named.get(digest, _UNNAMED), known.schemas.get(tid))
    connections_count = sum(is_connection_name(name) for name in known.threads.values())
    latency_of = partial(_latency, history=history)
    parts = parts_of_counts(counts, known, cpu_s, window_s, connections_count, latency_of)
    return Remembered(parts, counts.total - counts.uncovered, counts.uncovered)


def _at(
    at_ns: int, threads: Iterable[int], events: dict[int, list[tuple[int, int, str]]], starts: dict[int, list[int]]
) -> str | None:
    """The digest that a thread, under any of its numbers, executed at a moment; None for none."""
    for thread in threads:
        place = bisect_right(starts.get(thread, []), at_ns) - 1
        if place >= 0:
            _, end, digest = events[thread][place]
            if at_ns <= end:
                return digest
    return None


def _strangers(history: StatementHistory) -> list[tuple[int, int]]:
    """When threads executed statements of which it is not known what threads of the kernel they are."""
    known = set().union(*history.threads.values())
    spans: list[tuple[int, int]] = []
    for begin, end, _ in sorted(row for thread, rows in history.events.items() if thread not in known for row in rows):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def _latency(text: str, history: StatementHistory) -> Latency | None:
    wanted = key(text)
    digests = {digest for digest, said in history.texts.items() if key(said) == wanted}
    took = sorted(end - begin for rows in history.events.values() for begin, end, latency in rows if latency in digests)
    if not took:
        return None
    return Latency(p50=took[len(took) // 2] / 1e6, p95=took[min(int(len(took) * 0.95), len(took) - 1)] / 1e6)
