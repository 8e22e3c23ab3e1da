# SPDX-License-Identifier: Apache-2.0
"""Does a comparison find what is there, and nothing else? 60 real comparisons, 45 minutes: `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.request import NO_METER
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.compare import compare_conditions
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import Comparison

# BENCHMARK computes and reads nothing: its CPU time is proportional to its first argument. 2,000 rounds take some
# 2 ms, beside which parsing and answering (40 µs) are small: 5 % more rounds are 4.9 % more CPU time.
WORKLOAD = """\
schema = "powerprof.workload/1"
name = "burn"
title = "CPU time of a known size"

[load]
clients = 2
rate_hz = 320

[conditions.plain]
load.sql = ["SELECT BENCHMARK(2000, MD5(CONCAT('x', RAND())))"]

[conditions.dearer]
load.sql = ["SELECT BENCHMARK(2100, MD5(CONCAT('x', RAND())))"]
"""
INJECTED_PERCENT = 4.9


def _compare(folder: Path, a: str, b: str, seed: int) -> Comparison:
    options = ExperimentOptions(pairs=12, window_s=1.2, seed=seed, energy=NO_METER, baseline_windows=2)
    return compare_conditions(a, b, BenchOptions(), options, extra=[folder], say=lambda text: None)


@pytest.fixture
def burn(tmp_path: Path, mariadbd: Path, sysbench: Path) -> Path:
    """The folder of a workload whose difference is known."""
    (tmp_path / "burn").mkdir()
    (tmp_path / "burn/workload.toml").write_text(WORKLOAD)
    return tmp_path


def test_of_40_comparisons_of_a_condition_with_itself_at_most_5_find_a_difference(burn: Path) -> None:
    found = [_compare(burn, "plain", "plain", seed) for seed in range(40)]
    verdicts = [one.metrics[0].verdict for one in found]
    assert sum(verdict != "inconclusive" for verdict in verdicts) <= 5, verdicts
    # Any word in any row: 5 % of 40 are 2; more than 5 come once in 70 such soaks.
    words = [[metric.name for metric in one.metrics if metric.verdict != "inconclusive"] for one in found]
    assert sum(map(bool, words)) <= 5, words


def test_of_20_comparisons_with_5_percent_more_work_18_find_it_and_the_intervals_cover_it(burn: Path) -> None:
    right = covered = 0
    for seed in range(20):
        metric = _compare(burn, "plain", "dearer", 100 + seed).metrics[0]
        assert metric.name == "c0_ms_per_query_server"
        right += metric.verdict == "b_higher"
        ends, mean = metric.difference.ci95, metric.a.mean
        assert ends is not None and mean
        covered += ends[0] <= INJECTED_PERCENT / 100 * mean <= ends[1]
    assert right >= 18
    assert covered >= 17  # 85 %
