# SPDX-License-Identifier: Apache-2.0
"""Suggestions: the most effective remedies against the wake-ups of a traced process, predicted from its window."""

from __future__ import annotations

from powerprof.diagnosis.evidence import Evidence
from powerprof.diagnosis.thread_pace import format_prediction, rank_by_saving
from powerprof.diagnosis.thread_wakeups import compute_timers_hz, list_thread_wakeups
from powerprof.model.attribution import Attribution
from powerprof.model.text import number
from powerprof.system.next_steps import command_line

_MAX_SUGGESTIONS = 3
_MIN_SAVED_HZ = 2.0
# These runtimes put all timers on a few threads; `cure` rejects them.
_RUNTIMES = ("libjvm.so", "libcoreclr.so", "beam.smp", "node", "nodejs")
_GO_PREFIX = "runtime."


def suggest_remedies(record: Attribution) -> list[str]:
    """Return suggestions against the target's wake-ups, one sentence per thread, the largest saving first.

    Timer slack has a predicted effect. The absence of a thread has only an upper bound: another thread may end those
    idle periods instead. Return an empty list if no large saving is predicted or none can be tried.
    """
    if record.target.system or record.ended or _uses_managed_runtime(record):
        return []
    rows = [row for row in list_thread_wakeups(record) if row.tid and "one_connection" not in (row.name or "")]
    evidence = Evidence(
        version="",
        family=record.target.label,
        window_s=record.window_s,
        wakeups=rows,
        timers_hz=compute_timers_hz(record),
        cpus=record.cpus,
    )
    pids = {row.thread.tid: row.thread.pid for row in record.wakings_without_exit}
    pids |= {row.thread.tid: row.thread.pid for row in record.wakeups}
    suggestions: list[str] = []
    for row, prediction in rank_by_saving(evidence):
        pid = pids.get(row.tid) or record.target.pid
        if prediction.saved_hz < _MIN_SAVED_HZ or pid is None or len(suggestions) == _MAX_SUGGESTIONS:
            continue
        exits_hz = sum(each.rate_hz for each in rows if each.tid == row.tid)
        label = (row.name or row.comm).removeprefix("thread/")
        # If other programs kept the CPUs busy, the thread's idle exits are no bound.
        absent = f"; without the thread at most {number(exits_hz, 1)} idle exits/s less" if exits_hz >= 1 else ""
        then = format_prediction(prediction.then_hz, prediction.most_hz, prediction.is_bound)
        suggestions.append(
            f"{label}: with 50 ms of timer slack {number(prediction.now_hz, 1)} → {then} wake-ups/s (predicted)"
            f"{absent}. To try it: {command_line('cure --pid {} --thread {} --slack 50ms', pid, row.tid)}"
        )
    return suggestions


def _uses_managed_runtime(record: Attribution) -> bool:
    stacks = [row.stack for row in record.wakeups] + [row.stack for row in record.wakings_without_exit]
    frames = [frame for stack in stacks for frame in stack]
    return any(
        frame.module.rpartition("/")[2] in _RUNTIMES or (frame.function or "").startswith(_GO_PREFIX)
        for frame in frames
    )
