# SPDX-License-Identifier: Apache-2.0
"""Windows of two conditions in turns, in each of which the functions that the servers ran are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerprof.errors import Interrupted
from powerprof.experiment.judge.functionchanges import SampledWindow
from powerprof.experiment.loads import LoadFailed, LoadOrder, start_load
from powerprof.experiment.measure.order import block_order
from powerprof.experiment.measure.traced import load_at
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.records import Arm
from powerprof.text import Say
from powerprof.windows.runner import wait_out
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.oncpu import OnCpuProfile
    from powerprof.experiment.bench.servers import Bench
    from powerprof.tracing.captures.oncpu import OnCpuCapture
    from powerprof.tracing.oncpu.tracer import OnCpuTracer

WINDOWS = 8
WINDOW_S = 1.5
# Ten samples for each that attribute takes: the windows are short, and none of their joules count. A prime: nothing
# runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3
# More than a window and the sampler's start take: what is left is killed.
_LOAD_S = 30
# With the load's start and the sampler's.
SAMPLED_S = WINDOW_S + 2.0


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """WINDOWS windows of each condition in pairs of random order. Raises CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(WINDOWS, seed):
        sampled += [_window(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _window(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        with load_at(bench, case, rate_hz):
            time.sleep(_RUN_IN_S)
            capture = tracer.measure(WINDOW_S)
        profile = _profile(capture)
    bench.leave(case)
    return SampledWindow(arm, profile.window_s, profile.functions)


def sample_window(bench: Bench, case: Case, rate_hz: float | None, seed: int, say: Say) -> OnCpuProfile:
    """WINDOW_S of a condition under its load, as fast as it goes (`rate_hz` None) or at that rate.

    Raises CapabilityError, PowerprofError, LoadFailed where the client ended within the window.
    """
    bench.enter(case)
    with _sampler(bench, case, say) as tracer:
        running = start_load(case, bench.context(case), LoadOrder(duration_s=_LOAD_S, rate_hz=rate_hz, seed=seed))
        try:
            wait_out((), RAMP_S)
            capture = tracer.measure(WINDOW_S)
            if not running.alive():
                raise LoadFailed(f"{case.qualified}: the client ended before the samples did")
        finally:
            # Stacks are named without it: that takes CPU time, which the clients would not leave.
            running.kill()
        profile = _profile(capture)
    bench.leave(case)
    return profile


def _sampler(bench: Bench, case: Case, say: Say) -> OnCpuTracer:
    from powerprof.tracing.oncpu.tracer import OnCpuTracer

    say(f"{case.name}: sampling what the server runs")
    return OnCpuTracer(bench.pids(case), "cpu-clock", frequency_hz=_FREQUENCY_HZ)


def _profile(capture: OnCpuCapture) -> OnCpuProfile:
    from powerprof.attribution.oncpu import on_cpu_profile

    if capture.interrupted:
        # The signal ended the window and is spent: without this the windows that are left would still be measured.
        raise Interrupted("interrupted")
    return on_cpu_profile(capture, server_names={})
