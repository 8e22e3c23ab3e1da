# SPDX-License-Identifier: Apache-2.0
"""Answers, threats and controls of recorded blocks in words, and the slices of a window."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence

import msgspec
import pytest

from powerprof.energy.layouts import rapl_scope
from powerprof.experiment import metrics
from powerprof.experiment.block import add_client_time
from powerprof.experiment.claims import answer_for as answer_of
from powerprof.experiment.claims import is_worse
from powerprof.experiment.metrics import Baseline, pair_figures, read_figures
from powerprof.experiment.records import Answer, Block, Metric, Threat, list_pairs
from powerprof.experiment.slicer import Slicer, build_slices
from powerprof.experiment.verdict import judge_metrics as judge_compared
from powerprof.experiment.verdict import judge_saved
from powerprof.measure.joined_windows import join_two_windows
from powerprof.model.records import EnergyReading, Figures
from powerprof.report.comparison_words import word_answer
from powerprof.report.comparison_words import word_threats as threats_worded
from tests.unit.experiment.builders import block, blocks, window

BASELINE = Baseline(c0_percent=1.0, wakeups_hz=40.0, watts=1.0)


def judge(measured: Sequence[Block], baseline: Baseline, primary: str, seed: int) -> list[Metric]:
    """The metrics of all complete pairs."""
    return judge_compared(pair_figures(list_pairs(measured), baseline), primary, seed)


def answer(metrics: list[Metric], asked: str, a: str, b: str) -> Answer:
    """The answer in words."""
    return word_answer(answer_of(metrics, asked), metrics, a, b)


def _texts(threats: Sequence[Threat]) -> list[str]:
    return [threat.text for threat in threats_worded(threats, {"a": "index", "b": "no-index"})]


def _metric(metrics: list[Metric], name: str) -> Metric:
    return next(metric for metric in metrics if metric.name == name)


def test_overlapping_domains_and_a_second_meter_are_not_added() -> None:
    def reading(source: str, domain: str, joules: float, inside: str | None = None) -> EnergyReading:
        return EnergyReading(
            source=source,
            domain=domain,
            kind="measured",
            joules=joules,
            watts=joules / 2,
            contained_in=inside,
            scope=rapl_scope(domain),
        )

    one = msgspec.structs.replace(
        window(watts=None),
        energy=[
            reading("rapl", "package-0", 10),
            reading("rapl", "core", 6, "package-0"),
            reading("rapl", "dram", 3),
            reading("hwmon", "board", 99),
        ],
    )
    of_one = block(0, "a", queries=1, one=one)
    values = {figures.name: figures for figures in read_figures([of_one], BASELINE)}
    assert values["watts"].source == "rapl"
    assert values["watts"].values == [6.5]
    assert values["joules_per_query"].values == [13.0]


def test_a_twofold_difference_is_found_with_its_interval() -> None:
    metrics = judge(blocks(10, 0.1, 0.2), BASELINE, "c0_ms_per_query_server", seed=1)
    first = metrics[0]
    assert first.name == "c0_ms_per_query_server"
    assert first.verdict == "b_higher"
    assert (first.a.mean, first.b.mean) == (pytest.approx(1.0, rel=0.01), pytest.approx(2.0, rel=0.01))
    assert first.ratio is not None and first.ratio.ci95 is not None
    assert first.ratio.ci95[0] < 2.0 < first.ratio.ci95[1]
    assert _metric(metrics, "joules_per_query").kind == "estimated"
    said = answer(metrics, "c0_ms_per_query_server", "index", "no-index")
    assert said.text.startswith("no-index uses 2.00 times as much server CPU time per query as index (")
    assert said.power == "no-index is higher in power (watts, estimated)"
    same = "all windows measured the same value"
    assert said.speed == f"speed (p95 latency) shows no measurable difference: {same}"
    assert is_worse(metrics, "c0_ms_per_query_server")
    assert not is_worse(judge(blocks(10, 0.2, 0.1), BASELINE, "c0_ms_per_query_server", seed=1), first.name)


def _told(name: str, a: list[float], b: list[float], *, paired: bool = True) -> str:
    def side(values: list[float | None]) -> Figures:
        return Figures(name=name, unit="1" if name.startswith("wakeups") else "ms", kind="measured", values=values)

    return answer(judge_saved([side([*a])], [side([*b])], name, 1, paired=paired), name, "index", "no-index").text


def test_the_use_is_never_negative() -> None:
    """Few windows that are no pairs: the interval of the difference is wider than A's mean."""
    said = _told("c0_ms_per_query_server", [2.0, 9.0, 3.0, 11.0], [0.4, 0.5, 0.6, 0.5], paired=False)
    assert all(float(percent) <= 100 for percent in re.findall(r"([\d.]+) % less", said))


def test_no_answer_without_the_primary_metric() -> None:
    assert answer([], "joules_per_query", "a", "b").metric is None
    few = judge(blocks(1, 0.1, 0.2), BASELINE, "c0_ms_per_query_server", seed=1)
    assert few[0].verdict == "inconclusive"
    assert answer(few, "c0_ms_per_query_server", "a", "b").text.startswith("Too few pairs")


def test_two_windows_in_a_row_are_joined_by_time() -> None:
    both = join_two_windows(
        window(30.0, window_s=1.0, watts=5.0, server_s=0.5), window(10.0, window_s=3.0, watts=1.0, server_s=0.1)
    )
    assert both.window_s == 4.0
    assert both.c0_percent == pytest.approx(15.0)
    assert both.energy[0].joules == pytest.approx(8.0)
    assert both.energy[0].watts == pytest.approx(2.0)
    assert both.processes[0].cpu_s == pytest.approx(0.6)
    assert both.states[0].residency_percent == pytest.approx(85.0)
    client = add_client_time(both, 0.8).processes[-1]
    assert (client.name, client.percent) == ("client", pytest.approx(10.0))


def test_unreadable_counters_have_no_figure() -> None:
    slices = build_slices([(0.0, None, 5), (0.25, 7, 9), (0.5, 8, 9)])
    assert slices.write_bytes == []
    assert metrics.mean_hz(slices, metrics.written_per_slice) is None
    assert metrics.peak_hz(None, metrics.woken_per_slice) is None
    assert metrics.mean_hz(slices, metrics.woken_per_slice) == pytest.approx(8)


def test_a_failed_window_leaves_no_reading_thread() -> None:
    before = threading.active_count()
    slicer = Slicer([os.getpid()], slice_s=0.01)
    with pytest.raises(RuntimeError, match="the load failed"), slicer:
        slicer.start()
        raise RuntimeError("the load failed")
    assert threading.active_count() == before
    with Slicer([], slice_s=0.01):
        pass  # nor does one that never began hang
