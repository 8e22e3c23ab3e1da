# SPDX-License-Identifier: Apache-2.0
"""What a terminal says of several servers: replication, storms, and whose wake-ups a traced window shows."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.experiment.measure.traced import RAGED_PERCENT, by_thread, replication_percent, top_stack
from powerprof.experiment.records import Block, Comparison, StormShare, TraceSummary
from powerprof.model import text

_ROWS = 8
_STACKS = 3


def lines(comparison: Comparison, width: int) -> list[str]:
    """The lines of a comparison; empty for single servers."""
    printed = []
    for arm, name in (("a", comparison.a.name), ("b", comparison.b.name)):
        blocks = [block for block in comparison.blocks if block.arm == arm and not block.dropped]
        printed += of_blocks(name, blocks, width)
    for window in comparison.traced:
        printed += traced(window, comparison.a.name if window.arm == "a" else comparison.b.name, width)
    if len(comparison.traced) == 2 and any(len(window.members) > 1 for window in comparison.traced):
        share = replication_percent(*comparison.traced)
        if share is not None:
            printed += text.wrap(
                f"Of the idle exits that {comparison.b.name} has more, {share:.0f} % are on threads of replication.",
                width,
            )
    return printed


def of_blocks(name: str, blocks: Sequence[Block], width: int) -> list[str]:
    """Storm and replication status of one condition."""
    printed = []
    storms = [block.storm for block in blocks if block.storm is not None]
    if storms:
        printed += text.wrap(f"{name}: {_storm(storms)}", width)
    if blocks and blocks[-1].members:
        states = [
            f"{share.name} I/O {status.io_running or '?'}, SQL {'Yes' if status.sql_running else 'No'}"
            + (f" ({status.last_io_error})" if status.last_io_error else "")
            for share in blocks[-1].members
            for status in share.replication
        ]
        if states:
            printed += text.wrap(f"Replication of {name}, by its own status: {' · '.join(states)}", width)
    return printed


def _storm(storms: Sequence[StormShare]) -> str:
    rate = sum(storm.counter_hz for storm in storms) / len(storms)
    shown = f"{storms[0].counter} {text.number(rate, 0 if rate >= 10 else 2)}/s"
    if not any(storm.began for storm in storms):
        return f"the storm did not start: this server backs off ({shown})."
    active = sum(storm.raged_percent for storm in storms) / len(storms)
    restarts = text.some(sum(storm.restarts_count for storm in storms), "time")
    return f"the storm was active {active:.0f} % of the time and was restarted {restarts} within the windows ({shown})."


def traced(window: TraceSummary, name: str, width: int) -> list[str]:
    """The threads that ended most idle periods, by server."""
    record = window.attribution
    total = sum(row.count for row in record.wakeups)
    printed = [
        "",
        *text.wrap(
            f"{name}, traced for {record.window_s:.1f} s: {total / record.window_s:,.0f} idle exits/s by its servers",
            width,
        ),
    ]
    if window.storm is not None and window.storm.raged_percent < RAGED_PERCENT:
        printed += text.wrap(f"In this window {_storm([window.storm])}", width)
    if total:
        printed.append(f"  {'/s':>7}  {'server':<12} thread, and where it was woken most (innermost first)")
    for number, (key, count) in enumerate(by_thread(window).most_common(_ROWS)):
        printed.append(text.cut(f"  {text.number(count / record.window_s, 1):>7}  {key[0]:<12} {key[1]}", width))
        stack = top_stack(window, key) if number < _STACKS else []
        if stack:
            printed += [f"{'':11}{line}" for line in text.wrap(" ← ".join(stack), max(20, width - 11))]
    return printed
