# SPDX-License-Identifier: Apache-2.0
"""Measure alternating windows of two conditions with samples of the servers' functions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerprof.experiment.load import LoadFailed, LoadOrder
from powerprof.experiment.load_clients import start_load
from powerprof.experiment.options import RAMP_S
from powerprof.experiment.plan import block_order
from powerprof.experiment.records import Arm
from powerprof.experiment.traced import run_load
from powerprof.experiment.verdict import SampledWindow
from powerprof.measure.target_life import raise_ended
from powerprof.measure.window import wait_and_read
from powerprof.model.text import Say
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.attribution.profile import OnCpuProfile
    from powerprof.experiment.bench import Bench
    from powerprof.tracing.captures import OnCpuCapture
    from powerprof.tracing.profile import OnCpuTracer


SAMPLED_WINDOWS = 8
SAMPLED_WINDOW_S = 1.5
# Ten times the rate of attribute: the windows are short, and their energy does not count. A prime number, so that no
# timer runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3
# Longer than a window and the start of the sampler; the rest of the load is killed.
_LOAD_S = 30
# With the start of the load and the sampler.
SAMPLED_S = SAMPLED_WINDOW_S + 2.0


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """Sample SAMPLED_WINDOWS windows of each condition in pairs. Raise CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(SAMPLED_WINDOWS, seed):
        sampled += [_sample_side(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _sample_side(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    bench.enter(case)
    with _open_sampler(bench, case, say) as tracer:
        with run_load(bench, case, rate_hz):
            time.sleep(_RUN_IN_S)
            capture = tracer.measure(SAMPLED_WINDOW_S)
        profile = _build_profile(capture)
    bench.leave(case)
    return SampledWindow(arm, profile.window_s, profile.functions)


def sample_window(bench: Bench, case: Case, rate_hz: float | None, seed: int, say: Say) -> OnCpuProfile:
    """Sample one window of a condition at `rate_hz`, or at full speed if it is None.

    Raises CapabilityError, PowerprofError, and LoadFailed if the client ended within the window.
    """
    bench.enter(case)
    with _open_sampler(bench, case, say) as tracer:
        running = start_load(case, bench.context(case), LoadOrder(duration_s=_LOAD_S, rate_hz=rate_hz, seed=seed))
        try:
            wait_and_read((), RAMP_S)
            capture = tracer.measure(SAMPLED_WINDOW_S)
            if not running.alive():
                raise LoadFailed(f"{case.qualified}: the client ended before the samples did")
        finally:
            # Name the stacks after the load has ended: that takes CPU time.
            running.kill()
        profile = _build_profile(capture)
    bench.leave(case)
    return profile


def _open_sampler(bench: Bench, case: Case, say: Say) -> OnCpuTracer:
    from powerprof.tracing.profile import OnCpuTracer

    say(f"{case.name}: sampling the server")
    return OnCpuTracer(bench.pids(case), "cpu-clock", frequency_hz=_FREQUENCY_HZ)


def _build_profile(capture: OnCpuCapture) -> OnCpuProfile:
    from powerprof.attribution.profile import build_on_cpu_profile

    if capture.ended is not None:
        # The signal ended only this window. Raise, or the remaining windows would still be measured.
        raise_ended(capture.ended)
    return build_on_cpu_profile(capture, server_names={})
