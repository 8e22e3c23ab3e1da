# SPDX-License-Identifier: Apache-2.0
"""What a remedy is going to save, from a window before anything is changed."""

from __future__ import annotations

from powerprof import interrupts
from powerprof.cure.choices import CureRequest, SlackChoice
from powerprof.cure.records import CurePrediction
from powerprof.cure.remedies import Plan
from powerprof.diagnosis.collect import rows_of, timers_hz
from powerprof.diagnosis.slack import predicted
from powerprof.errors import CapabilityError
from powerprof.processes.targets import Target
from powerprof.text import Say
from powerprof.untrusted import whole

_LONGEST_S = 5.0


def prediction(plan: Plan, target: Target, request: CureRequest, say: Say) -> CurePrediction | None:
    """Of timer slack; None where it is not known whether the thread's waits react to it, and for variables.

    Raises PowerprofError where the process has gone.
    """
    thread = plan.remedy.thread
    if not isinstance(request.choice, SlackChoice) or thread is None:
        return None
    from powerprof.attribution import live, session
    from powerprof.attribution.requests import AttributeRequest

    try:
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
    others_hz = max(0.0, (timers_hz(attribution) or 0.0) - own_hz / (attribution.cpus or 1))
    one = predicted(rows, request.choice.slack_ns, others_hz, whole(plan.before) or 0)
    return None if one is None else CurePrediction(now_hz=one.now_hz, then_hz=one.then_hz, is_bound=one.is_bound)
