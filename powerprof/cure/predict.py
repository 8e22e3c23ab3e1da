# SPDX-License-Identifier: Apache-2.0
"""What a remedy is going to save, from a window before anything is changed."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from powerprof import files, interrupts, paths
from powerprof.cure.choices import CureRequest, SlackChoice
from powerprof.cure.records import CurePrediction
from powerprof.cure.remedies import PlannedChange
from powerprof.diagnosis.collect import rows_of, timers_hz
from powerprof.diagnosis.slack import predicted
from powerprof.errors import CapabilityError
from powerprof.processes.targets import Target
from powerprof.sources.interrupts import timer_interrupts
from powerprof.text import Say
from powerprof.untrusted import whole

_LONGEST_S = 5.0
# futex (asm-generic/unistd.h and syscall_64.tbl); a wait by the wall clock has FUTEX_CLOCK_REALTIME (linux/futex.h).
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_WALL_CLOCK = 256
_TRIES = 20


@dataclass
class _Ticks:
    """Timer interrupts of one CPU a second, by the kernel's count: idle or not. None: unknown."""

    rate_hz: float | None = None


@contextmanager
def _ticks() -> Iterator[_Ticks]:
    counted, before, began_s = _Ticks(), timer_interrupts(), time.monotonic()
    yield counted
    after, passed_s = timer_interrupts(), time.monotonic() - began_s
    if before is not None and after is not None and passed_s > 0:
        counted.rate_hz = (after - before) / passed_s / (os.cpu_count() or 1)


def waits_by_wall_clock(pid: int, tid: int) -> bool | None:
    """By which clock a thread that waits on a futex does so; None where it was not seen waiting on one."""
    place = paths.procfs() / str(pid) / "task" / str(tid) / "syscall"
    for _ in range(_TRIES):
        words = (files.try_text(place) or "").split()
        if len(words) > 3 and words[0] == _FUTEX.get(platform.machine()):
            try:
                return bool(int(words[2], 16) & _WALL_CLOCK)
            except ValueError:
                return None
        time.sleep(0.002)
    return None


def prediction(plan: PlannedChange, target: Target, request: CureRequest, say: Say) -> CurePrediction | None:
    """Of timer slack; None where it is not known whether the thread's waits react to it, and for variables.

    Raises PowerprofError where the process has gone.
    """
    thread = plan.remedy.thread
    if not isinstance(request.choice, SlackChoice) or thread is None:
        return None
    from powerprof.attribution import live, session
    from powerprof.attribution.requests import AttributeRequest

    try:
        with _ticks() as ticks:
            taken = live.capture(target, AttributeRequest(duration_s=min(request.window_s, _LONGEST_S)), dict, say)
        attribution = session.analyse(taken)
        if attribution.interrupted:
            raise interrupts.ended_by()
    except CapabilityError:
        return None  # the windows say why nothing is traced
    finally:
        interrupts.release()  # signals wait from the end of a window: nothing is to be saved of this one
    rows = [row for row in rows_of(attribution) if row.tid == thread.tid]
    own_hz = sum(row.rate_hz for row in rows if row.origin == "own_timer")
    own_wakings_hz = max(own_hz, sum(row.wakings_hz or 0.0 for row in rows if row.origin == "own_timer"))
    cpus = attribution.cpus or 1
    others_hz = max(0.0, (timers_hz(attribution) or 0.0) - own_hz / cpus)
    interrupts_hz = max(0.0, (ticks.rate_hz or 0.0) - own_wakings_hz / cpus)
    by_wall_clock = waits_by_wall_clock(target.pids[0], thread.tid)
    one = predicted(rows, request.choice.slack_ns, others_hz, whole(plan.before) or 0, by_wall_clock, interrupts_hz)
    if one is None:
        return None
    return CurePrediction(now_hz=one.now_hz, then_hz=one.then_hz, most_hz=one.most_hz, is_bound=one.is_bound)
