# SPDX-License-Identifier: Apache-2.0
"""The prediction of the savings of a cure, from a window before the change."""

from __future__ import annotations

import os
import platform
import time

from powerprof.cure.records import CurePrediction, Untried
from powerprof.cure.remedies import CureRequest, PlannedChange
from powerprof.cure.threads import SlackChoice
from powerprof.diagnosis.thread_pace import explain_no_slack, group_by_own_timer, predict_slack, sum_woken_hz
from powerprof.diagnosis.thread_wakeups import compute_timers_hz, list_thread_wakeups
from powerprof.measure.target_life import raise_ended
from powerprof.measure.unseen_interrupts import read_timer_interrupts
from powerprof.model.text import Say
from powerprof.reversible.kinds import is_same_value
from powerprof.system import signals
from powerprof.system.errors import CapabilityError
from powerprof.system.foreign_text import whole
from powerprof.system.reader_process import shared
from powerprof.system.targets import Target
from powerprof.system.tasks import read_switches

_MAX_WINDOW_S = 5.0
# futex (asm-generic/unistd.h and syscall_64.tbl); a wait by the wall clock has FUTEX_CLOCK_REALTIME (linux/futex.h).
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_WALL_CLOCK = 256
_MAX_READS = 20
# Origins of wake-ups that timer slack never delays.
_NOT_TIMERS = {"other_thread", "other_process", "device", "runnable"}
# A smaller saving is printed as none.
_MIN_SAVED_HZ, _MIN_SAVED_SHARE = 0.05, 0.01


def waits_by_wall_clock(pid: int, tid: int) -> bool | None:
    """Return whether a thread that waits on a futex uses the wall clock; None if no such wait was seen."""
    for _ in range(_MAX_READS):
        words = (shared().proc_file(pid, f"task/{tid}/syscall", 256) or b"").decode().split()
        if len(words) > 3 and words[0] == _FUTEX.get(platform.machine()):
            try:
                return bool(int(words[2], 16) & _WALL_CLOCK)
            except ValueError:
                return None
        time.sleep(0.002)
    return None


def explain_no_trial(plan: PlannedChange, prediction: CurePrediction | None) -> Untried | None:
    """Return why a trial of this change cannot save anything; None if it can, or if this is unknown."""
    if all(is_same_value(before, plan.value) for before in plan.befores):
        return "same_value"
    if prediction is None:
        return None
    least_hz = max(_MIN_SAVED_HZ, _MIN_SAVED_SHARE * prediction.now_hz)
    return "no_saving" if prediction.now_hz - prediction.then_hz < least_hz else None


def predict_change(plan: PlannedChange, target: Target, request: CureRequest, say: Say) -> CurePrediction | None:
    """Return the prediction for timer slack; None for other changes, and if the effect on the waits is unknown.

    Raise PowerprofError if the process has ended.
    """
    thread = plan.remedy.thread
    if not isinstance(request.choice, SlackChoice) or thread is None:
        return None
    if request.choice.slack_ns <= (whole(plan.befores[0]) or 0):
        return None  # The model covers only longer slack.
    from powerprof.attribution import attribute
    from powerprof.attribution.requests import AttributeRequest

    interrupts_before, started_s = read_timer_interrupts(), time.monotonic()
    switches_before = read_switches(target.pids[0]).get(thread.tid)
    try:
        options = AttributeRequest(duration_s=min(request.window_s, _MAX_WINDOW_S))
        trace = attribute.trace_target(target, options, dict, say)
        interrupts_after, passed_s = read_timer_interrupts(), time.monotonic() - started_s
        switches = read_switches(target.pids[0]).get(thread.tid)
        attribution = attribute.analyse(trace)
        if attribution.ended:
            raise_ended(attribution.ended)
    except CapabilityError:
        return None  # The windows report the reason.
    finally:
        signals.release()  # Signals are held from the end of a window, but this one is not saved.
    rows = [row for row in list_thread_wakeups(attribution) if row.tid == thread.tid]
    own_rows = group_by_own_timer(rows).get(thread.tid, [])
    is_idle = switches is not None and switches == switches_before
    if is_idle or (rows and all(row.origin in _NOT_TIMERS for row in rows)) or explain_no_slack(own_rows, None):
        now_hz = 0.0 if is_idle else sum_woken_hz(rows)
        return CurePrediction(now_hz=now_hz, then_hz=now_hz, is_bound=False)
    own_hz, own_wakings_hz = sum(row.rate_hz for row in own_rows), sum_woken_hz(own_rows)
    cpus = attribution.cpus or 1
    others_hz = max(0.0, (compute_timers_hz(attribution) or 0.0) - own_hz / cpus)
    interrupts_hz = 0.0  # of one CPU, whether idle or not
    if interrupts_before is not None and interrupts_after is not None:
        interrupts_hz = (interrupts_after - interrupts_before) / passed_s / (os.cpu_count() or 1)
    by_wall_clock = waits_by_wall_clock(target.pids[0], thread.tid)
    prediction = predict_slack(
        rows,
        request.choice.slack_ns,
        others_hz,
        whole(plan.befores[0]) or 0,
        by_wall_clock,
        max(0.0, interrupts_hz - own_wakings_hz / cpus),
    )
    if prediction is None:
        return None
    return CurePrediction(
        now_hz=prediction.now_hz, then_hz=prediction.then_hz, most_hz=prediction.most_hz, is_bound=prediction.is_bound
    )
