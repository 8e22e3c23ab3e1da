# SPDX-License-Identifier: Apache-2.0
"""How many idle exits a second the programs can sum, by exits of CPUs that do not exist, and what is lost of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.programs import injecting
from tools.bench.figures import Verdict

TARGET_HZ = 200_000


def run(quick: bool) -> Verdict:
    """Every CPU makes exits as fast as it can run the programs; CPU time counts, so that neighbours do not."""
    count, workers = (20_000, 1) if quick else (500_000, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder, injecting.tracer() as tracer:
        program = injecting.build(Path(folder))
        injecting.opened(tracer)
        spent_s = injecting.inject(program, tracer, count, workers)
        trace = tracer.snapshot()
    rate, lost = workers * count / spent_s, workers * count - int(trace.causes["count"].sum())
    print(f"injected idle exits: {rate:,.0f}/s on {workers} CPUs, {workers * count:,} in all, {lost:,} lost")
    print(f"  single periods kept {len(trace.sample):,}, too many for their buffer {trace.sample_lost_count:,}")
    return Verdict(
        f"{rate:,.0f} idle exits/s are summed without loss (target {TARGET_HZ:,})", lost == 0 and rate >= TARGET_HZ, ""
    )
