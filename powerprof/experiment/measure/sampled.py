# SPDX-License-Identifier: Apache-2.0
"""Windows of two conditions in turns, in each of which the functions that the servers ran are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerprof.experiment.judge.functionchanges import SampledWindow
from powerprof.experiment.measure.order import block_order
from powerprof.experiment.measure.traced import load_at
from powerprof.experiment.records import Arm
from powerprof.text import Say
from powerprof.workloads.reading import Case

if TYPE_CHECKING:
    from powerprof.experiment.bench.servers import Bench

WINDOWS = 8
WINDOW_S = 1.5
# Ten samples for each that attribute takes: the windows are short, and none of their joules count. A prime: nothing
# runs in step with it.
_FREQUENCY_HZ = 997
_RUN_IN_S = 0.3


def sample_functions(
    bench: Bench, cases: Sequence[Case], rate_hz: float | None, seed: int, say: Say
) -> list[SampledWindow]:
    """WINDOWS windows of each condition in pairs of random order. Raises CapabilityError, PowerprofError."""
    sampled = []
    for pair in block_order(WINDOWS, seed):
        sampled += [_window(bench, cases[0 if arm == "a" else 1], arm, rate_hz, say) for arm in pair]
    return sampled


def _window(bench: Bench, case: Case, arm: Arm, rate_hz: float | None, say: Say) -> SampledWindow:
    from powerprof.attribution import modes
    from powerprof.attribution.requests import ProfileRequest
    from powerprof.processes.targets import Target

    bench.enter(case)
    target = Target(bench.pids(case), case.name)
    request = ProfileRequest(duration_s=WINDOW_S, frequency_hz=_FREQUENCY_HZ)
    with load_at(bench, case, rate_hz):
        time.sleep(_RUN_IN_S)
        profile = modes.on_cpu(target, request, dict, say)
    bench.leave(case)
    return SampledWindow(arm, profile.window_s, profile.functions)
