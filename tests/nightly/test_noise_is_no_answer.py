# SPDX-License-Identifier: Apache-2.0
"""What is measured beside itself on this host: no row of a comparison, and no idle cost, claims that it differs.

    .venv/bin/python -m pytest -m nightly -s tests/nightly/test_noise_is_no_answer.py

A comparison takes 40 s and an idle run 15 s, 40 of each 40 minutes; POWERPROF_NOISE: how many. `-s` prints each.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from powerprof.database.base import Server
from powerprof.experiment.idle import QUICK_REPEAT, QUICK_WINDOW_S, IdleExperiment, IdlePlan
from powerprof.experiment.phases import judge_costs
from tests.conftest import Cli

COUNT = int(os.environ.get("POWERPROF_NOISE", "40"))
# One in twenty may: verdicts are at 95 %, over all rows of a comparison. One of a few is no proof of more.
ALLOWED = max(1, COUNT // 20)


def test_a_condition_beside_itself(powerprof_cli: Cli, mariadbd: Path) -> None:
    wrong = []
    for number in range(1, COUNT + 1):
        done = powerprof_cli(
            ["compare", "index", "index", "--quick", "--seed", str(number), "--no-save", "--json", "-"], timeout=300
        )
        assert done.code == 0, done.err
        record = json.loads(done.out)
        false = [metric["name"] for metric in record["metrics"] if metric["verdict"] != "inconclusive"]
        print(f"comparison {number}: {len(record['metrics'])} rows, {false or 'no claim'}; {record['verdict']['text']}")
        wrong += [(number, false)] if false else []
    assert len(wrong) <= ALLOWED, wrong


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
