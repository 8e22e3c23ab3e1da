# SPDX-License-Identifier: Apache-2.0
"""What would help most against the wake-ups of a traced process, predicted from its window, and how to try it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.diagnosis.collect import rows_of, timers_hz
from powerprof.diagnosis.evidence import Evidence
from powerprof.diagnosis.slack import most_helpful, then_text
from powerprof.text import number

if TYPE_CHECKING:
    from powerprof.attribution.records import Attribution

_MOST = 3
_WORTH_HZ = 2.0
# Run-times whose timers hang on a few threads; `cure` refuses them.
_RUNTIMES = ("libjvm.so", "libcoreclr.so", "beam.smp", "node", "nodejs")
_GO = "runtime."


def helps(record: Attribution) -> list[str]:
    """A sentence a thread, most saved first; empty where nothing is predicted to save much, or nothing can be tried.

    Timer slack is predicted; what the thread's absence would save is a bound: somebody else may end those periods.
    """
    if record.target.system or record.interrupted or _has_runtime(record):
        return []
    rows = [row for row in rows_of(record) if "one_connection" not in (row.name or "")]
    evidence = Evidence(
        version="",
        family=record.target.label,
        window_s=record.window_s,
        wakeups=rows,
        timers_hz=timers_hz(record),
        cpus=record.cpus,
    )
    pids = {row.thread.tid: row.thread.pid for row in record.wakings_without_exit}
    pids |= {row.thread.tid: row.thread.pid for row in record.wakeups}
    suggestions: list[str] = []
    for row, one in most_helpful(evidence):
        pid = pids.get(row.tid) or record.target.pid
        if one.saved_hz < _WORTH_HZ or pid is None or len(suggestions) == _MOST:
            continue
        exits_hz = sum(each.rate_hz for each in rows if each.tid == row.tid)
        label = (row.name or row.comm).removeprefix("thread/")
        # Where others kept the CPUs busy, its idle exits bound nothing.
        absent = f"; without the thread at most {number(exits_hz, 1)} idle exits/s less" if exits_hz >= 1 else ""
        then = then_text(one.then_hz, one.most_hz, one.is_bound)
        suggestions.append(
            f"{label}: with 50 ms of timer slack {number(one.now_hz, 1)} → {then} wake-ups/s (predicted){absent}. "
            f"To try it: powerprof cure --pid {pid} --thread {row.tid} --slack 50ms"
        )
    return suggestions


def _has_runtime(record: Attribution) -> bool:
    stacks = [row.stack for row in record.wakeups] + [row.stack for row in record.wakings_without_exit]
    frames = [frame for stack in stacks for frame in stack]
    return any(
        frame.module.rpartition("/")[2] in _RUNTIMES or (frame.function or "").startswith(_GO) for frame in frames
    )
