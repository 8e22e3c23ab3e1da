# SPDX-License-Identifier: Apache-2.0
"""Two saved sweeps: where they part, by how much, and what parts with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from powerprof.cli.compare import _judge
from powerprof.experiment.sweep_comparison import are_sweeps, compare_sweeps
from powerprof.experiment.sweep_rounds import Sweep
from powerprof.model.runs import RunStore
from powerprof.report.kinds import lines_of, word_record
from powerprof.system.errors import UsageError, WorseError
from tests.unit.report.sample_records import load_run, sweep, sweep_comparison


def _saved(tmp_path: Path, *sweeps: Sweep) -> Path:
    for one in sweeps:
        RunStore(tmp_path).save("sweep", replace(one, id=None))
    return tmp_path


def test_diverging_points_have_a_difference_with_an_interval() -> None:
    found = sweep_comparison()
    assert [(point.value, point.parted) for point in found.points] == [(1, False), (2, False), (4, True), (8, True)]
    assert found.metric == "queries_hz"
    assert found.text.startswith(
        "From clients 4 on queries/s are lower with sweep-0002 than with sweep-0001: −30.0 % ("
    )
    metric = next(one for one in found.points[3].metrics if one.name == "queries_hz")
    assert metric.difference.percent == pytest.approx(-30.0)
    assert metric.difference.ci95 is not None
    assert -8000 * 0.45 < metric.difference.ci95[0] < -8000 * 0.30 < metric.difference.ci95[1] < -8000 * 0.15
    assert found.differences == ["host kernel: 6.1.0-32-amd64 → 6.12.1-amd64"]


def test_the_system_metric_with_most_contrast_comes_first() -> None:
    first, *others = sweep_comparison().parted_with
    assert first.name == "context_switches_per_query"
    assert (first.a_mean, first.b_mean) == pytest.approx((10.0, 10 / 0.49))
    assert first.percent == pytest.approx(200 * (10 / 0.49 - 10) / (10 / 0.49 + 10))
    assert first.elsewhere_percent == pytest.approx(0.0)
    assert first.verdict == "b_higher"
    # Faults are as many a query in both, and disks were not read: neither parts.
    assert {one.name: one.verdict for one in others} == {
        "page_faults_per_query": "inconclusive",
        "disk_reads_per_query": "inconclusive",
    }


def test_the_report_fits_a_terminal() -> None:
    found = "\n".join(lines_of(sweep_comparison(), 80))
    assert max(map(len, found.splitlines())) <= 80
    assert "switches/query" in found
    assert "6.1.0-32-amd64 → 6.12.1-amd64" in found


def test_a_difference_by_its_own_interval_alone_is_only_possible() -> None:
    found = sweep_comparison()
    first, *others = found.parted_with
    unsure = replace(found, parted_with=[replace(first, verdict="inconclusive"), *others])
    _, _, said = "\n".join(lines_of(unsure, 80)).partition("No system metric differs significantly at these values.")
    assert "1 of 3 differences may be chance:" in said
    assert "May be chance (1 of 3 metrics):" in "\n".join(lines_of(unsure, 80))
    assert "switches/query" in said and "page faults" not in said
    nothing = replace(found, parted_with=[replace(one, verdict="inconclusive", ci95=None) for one in found.parted_with])
    assert "may be chance" not in "\n".join(lines_of(nothing, 80))


def test_a_sweep_compared_with_itself_does_not_diverge(tmp_path: Path) -> None:
    runs = _saved(tmp_path, sweep(), sweep())
    found = word_record(compare_sweeps("sweep-0001", "sweep-0002", runs, 1))
    assert not any(point.parted for point in found.points)
    assert found.text.startswith(
        "No measurable difference between sweep-0001 and sweep-0002 in queries/s at any of 4 values"
    )
    assert found.parted_with == []
    assert [threat.text for threat in found.threats if threat.serious] == [
        "sweep-0001 is unfinished",
        "sweep-0002 is unfinished",
    ]


def test_unshared_values_are_left_out_with_a_note(tmp_path: Path) -> None:
    whole = sweep()
    runs = _saved(tmp_path, whole, replace(whole, points=whole.points[1:3]))
    found = word_record(compare_sweeps("sweep-0001", "sweep-0002", runs, 1))
    assert [point.value for point in found.points] == [2, 4]
    assert found.notes == ["clients 1, 8, 1024: not measured in both sweeps"]


def test_incomparable_sweeps_are_refused(tmp_path: Path) -> None:
    whole = sweep()
    runs = _saved(tmp_path, whole, replace(whole, workload="oltp"), replace(whole, key="load.rate_hz"))
    with pytest.raises(UsageError, match="one sweep ran city and the other oltp"):
        compare_sweeps("sweep-0001", "sweep-0002", runs, 1)
    with pytest.raises(UsageError, match=r"varied load\.clients and the other load\.rate_hz"):
        compare_sweeps("sweep-0001", "sweep-0003", runs, 1)
    RunStore(runs).save("run", replace(load_run(), id=None))
    with pytest.raises(UsageError, match="run-0001 is not"):
        are_sweeps("sweep-0001", "run-0001", runs)


def test_a_worse_sweep_fails_on_request() -> None:
    with pytest.raises(WorseError, match="lower with sweep-0002"):
        _judge(sweep_comparison())
