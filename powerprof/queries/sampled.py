# SPDX-License-Identifier: Apache-2.0
"""Pure: samples of running threads and the server's history of statements → the shares of each, with their interval."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from powerprof.database.history import History
from powerprof.database.performance import Known
from powerprof.queries.join import Parts, is_connection_name
from powerprof.queries.records import Background, Latency, Share, Statement
from powerprof.statements.normal import key, normal

_Z = 1.96
_UNNAMED = "(the server tells no digest of it)"


@dataclass(frozen=True)
class Sampled:
    """The parts, how many samples they stand on, and how many lay where the history had been overwritten."""

    parts: Parts
    used_count: int
    uncovered_count: int


def sampled_parts(
    ticks: Sequence[tuple[int, int]], history: History, known: Known, cpu_s: float, window_s: float
) -> Sampled:
    """Each sample stands for an equal part of the server's CPU time; those of which nothing is known are left out."""
    events = {thread: sorted(rows) for thread, rows in history.events.items()}
    starts = {thread: [row[0] for row in rows] for thread, rows in events.items()}
    strangers = _strangers(history)
    began = [begin for begin, _ in strangers]
    counts: Counter[tuple[str, str]] = Counter()
    schemas: dict[str, str | None] = {}
    threads: dict[str, set[int]] = defaultdict(set)
    uncovered = 0
    for at_ns, tid in ticks:
        name = known.threads.get(tid, f"thread {tid}")
        if not is_connection_name(name) and tid in known.threads:
            counts["background", name] += 1
            threads[name].add(tid)
        elif not any(begin <= at_ns <= end for begin, end in history.covered):
            uncovered += 1
        elif (digest := _at(at_ns, history.threads.get(tid, ()), events, starts)) is None:
            # A connection that came and went between two readings: which thread executed its statements is not known.
            place = bisect_right(began, at_ns) - 1
            if place >= 0 and at_ns <= strangers[place][1]:
                uncovered += 1
            else:
                counts["connections", ""] += 1
        else:
            text = normal(history.texts[digest].replace("...", "?, ?")) if digest in history.texts else _UNNAMED
            counts["statement", text] += 1
            schemas.setdefault(text, known.schemas.get(tid))
    # Background threads were seen all the time, the others where the history reaches: these stand for all of theirs.
    total = sum(counts.values()) + uncovered
    inside = total - uncovered - sum(count for (kind, _), count in counts.items() if kind == "background")
    weight = (inside + uncovered) / inside if inside else 1.0
    each_s = cpu_s / total if total else 0.0
    calls = _calls(known)
    statements = []
    for (kind, text), count in counts.items():
        if kind == "statement":
            low, high = _interval(count, inside)
            share = 100 * (inside + uncovered) / total
            statement = Statement(
                text=text,
                schema_name=schemas.get(text),
                c0_s=count * weight * each_s,
                low_percent=low * share,
                high_percent=high * share,
                latency_ms=_latency(text, history),
            )
            made = calls.get(key(text))
            if made:
                statement = msgspec.structs.replace(
                    statement, calls_count=made, calls_hz=made / window_s, c0_ms_per_call=1e3 * statement.c0_s / made
                )
            statements.append(statement)
    background = [
        Background(thread=name, threads_count=len(threads[name]), c0_s=count * each_s)
        for (kind, name), count in counts.items()
        if kind == "background"
    ]
    parts = Parts(
        statements=sorted(statements, key=lambda statement: (-statement.c0_s, statement.text)),
        background=sorted(background, key=lambda background: (-background.c0_s, background.thread)),
        connections=Share(c0_s=counts["connections", ""] * weight * each_s),
        connections_count=sum(is_connection_name(name) for name in known.threads.values()),
    )
    return Sampled(parts, total - uncovered, uncovered)


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


def _strangers(history: History) -> list[tuple[int, int]]:
    """When threads executed statements of which it is not known what threads of the kernel they are."""
    known = set().union(*history.threads.values())
    spans: list[tuple[int, int]] = []
    for begin, end, _ in sorted(row for thread, rows in history.events.items() if thread not in known for row in rows):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def _interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not total:
        return 0.0, 1.0
    share, square = count / total, _Z * _Z / total
    middle = (share + square / 2) / (1 + square)
    half = _Z * ((share * (1 - share) + square / 4) / total) ** 0.5 / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _calls(known: Known) -> dict[str, int]:
    """By key of the text: how often the server counted it."""
    calls: dict[str, int] = defaultdict(int)
    for (_, text), (count, _, _) in known.digests.items():
        calls[key(text)] += count
    return calls


def _latency(text: str, history: History) -> Latency | None:
    digests = {digest for digest, said in history.texts.items() if key(said) == key(text)}
    took = sorted(end - begin for rows in history.events.values() for begin, end, latency in rows if latency in digests)
    if not took:
        return None
    return Latency(p50=took[len(took) // 2] / 1e6, p95=took[min(int(len(took) * 0.95), len(took) - 1)] / 1e6)
