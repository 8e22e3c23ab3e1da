# SPDX-License-Identifier: Apache-2.0
"""Two idle phases of this host without a server: no idle cost claims that they differ.

    .venv/bin/python -m pytest -m nightly -s tests/nightly/test_noise_is_no_answer.py

A run takes 15 s, 40 take 10 minutes; POWERPROF_NOISE: how many. `-s` prints each. Conditions are compared with
themselves in test_repeated_pairs.py.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

from powerprof.database.base import Server
from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdleExperiment, IdlePlan
from powerprof.experiment.phases import judge_costs

COUNT = int(os.environ.get("POWERPROF_NOISE", "40"))
# Verdicts are at 95 %, so one in twenty may be false.
ALLOWED = max(1, COUNT // 20)


def test_a_host_beside_itself() -> None:
    """Two phases without any server in between."""
    wrong = []
    for number in range(1, COUNT + 1):
        plan = IdlePlan(clients=0, duration_s=QUICK_WINDOW_S, repeat=QUICK_REPEAT, trace=False, settle_s=0.5)
        nobody = cast(Server, SimpleNamespace(version="none", private=True, pid=None, check=lambda: None))
        experiment = IdleExperiment(
            plan, server=lambda: nullcontext(nobody), meters=None, complete=lambda window: window, say=lambda _: None
        )
        run = experiment.run()
        found = judge_costs(run, run.phases[0], run.phases[1])
        assert found
        print(f"idle {number}: " + "; ".join(f"{claim.metric} {claim.finding}" for claim in found))
        wrong += [(number, claim) for claim in found if claim.finding == "costs"]
    assert len({number for number, _ in wrong}) <= (0 if COUNT <= 10 else ALLOWED), wrong
