# SPDX-License-Identifier: Apache-2.0
"""Answers, threats and controls of recorded blocks in words, and the slices of a window."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.experiment import metrics
from powerprof.experiment.block import add_client_time
from powerprof.experiment.claims import answer_for as answer_of
from powerprof.experiment.claims import choose_primary_metric, is_worse
from powerprof.experiment.metrics import Baseline, list_measured, pair_figures, read_figures
from powerprof.experiment.observers import Slicer, build_slices
from powerprof.experiment.records import Answer, Block, Metric, Threat, list_pairs
from powerprof.experiment.threats import (
    disturbed_pairs,
    find_doubts,
    find_threats,
    mark_disturbed_pairs,
    note_other_load,
)
from powerprof.experiment.verdict import control_from_blocks, half_width_percent, judge_saved
from powerprof.experiment.verdict import judge_metrics as judge_compared
from powerprof.measure.sampling import join_two_windows
from powerprof.model.records import EnergyReading, Figures
from powerprof.report.answers import word_threats as threats_worded
from powerprof.report.comparison import control_text, word_answer
from powerprof.report.labels import word_notes
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
            source=source, domain=domain, kind="measured", joules=joules, watts=joules / 2, contained_in=inside
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


def test_small_and_missing_differences_are_worded() -> None:
    small = judge(blocks(10, 0.100, 0.105), BASELINE, "c0_ms_per_query_server", seed=1)
    text = answer(small, "c0_ms_per_query_server", "a", "b").text
    assert text.startswith("b uses 5.0 % more server CPU time per query than a (")
    same = judge(blocks(10, 0.100, 0.100), BASELINE, "c0_ms_per_query_server", seed=1)
    text = answer(same, "c0_ms_per_query_server", "a", "b").text
    shape = r"No measurable difference between a and b in the server's CPU time per query: less than ([\d.]+) % \("
    bound = re.match(shape, text)
    assert bound is not None
    less_than, ends = same[0].difference.less_than, same[0].difference.ci95
    assert less_than is not None and ends is not None and same[0].a.mean
    assert less_than == max(abs(ends[0]), abs(ends[1])) > 0
    assert float(bound[1]) == pytest.approx(100 * less_than / same[0].a.mean, abs=0.05)
    assert small[0].difference.less_than is None
    width = half_width_percent(same[0])
    assert width is not None and 0 < width < 1.5


def test_measured_joules_are_the_answer_and_cpu_time_its_ground() -> None:
    estimated = blocks(10, 0.1, 0.2)
    measured = [
        replace(
            one,
            window=replace(
                one.window,
                energy=[
                    replace(reading, kind="measured", source="rapl", domain="package-0")
                    for reading in one.window.energy
                ],
            ),
        )
        for one in estimated
    ]
    asked = "c0_ms_per_query_server"
    assert choose_primary_metric(asked, list_measured(read_figures(estimated, BASELINE))) == asked
    primary = choose_primary_metric(asked, list_measured(read_figures(measured, BASELINE)))
    assert primary == "joules_per_query"
    assert (
        choose_primary_metric("wakeups_per_query", list_measured(read_figures(measured, BASELINE)))
        == "wakeups_per_query"
    )
    said = answer(judge(measured, BASELINE, primary, seed=1), primary, "index", "no-index")
    # 3 W and 4 W at the same rate.
    assert said.metric == "joules_per_query"
    assert said.text.startswith("no-index uses 33.3 % more energy per query than index (")
    assert said.ground is not None and said.ground.startswith("no-index uses 2.00 times as much server CPU time")
    said = answer(judge(estimated, BASELINE, asked, seed=1), asked, "index", "no-index")
    assert said.ground is not None
    ends = "(95 % interval: 22.3 % to 45.3 %, estimated)"
    assert said.ground == f"no-index uses 33.3 % more energy per query than index {ends}."


def _told(name: str, a: list[float], b: list[float], *, paired: bool = True) -> str:
    def side(values: list[float | None]) -> Figures:
        return Figures(name=name, unit="1" if name.startswith("wakeups") else "ms", kind="measured", values=values)

    return answer(judge_saved([side([*a])], [side([*b])], name, 1, paired=paired), name, "index", "no-index").text


def test_no_percentage_of_zero() -> None:
    """Net of idle a condition may use nought, and less."""
    spread = [-0.1, 0.2, -0.3, 0.1, 0.2, -0.1]
    said = _told("c0_ms_per_query_net", spread, [value + 2 for value in spread])
    assert said.startswith("The CPU time per query, net of idle: 2.00 ms more with no-index than with index (")
    said = _told("wakeups_per_query", [0.0] * 6, [5.0, 5.1, 5.2, 4.9, 5.0, 5.1])
    assert said.startswith("The wake-ups per query: 5.05 more with no-index than with index (")


def test_the_use_is_never_negative() -> None:
    """Few windows that are no pairs: the interval of the difference is wider than A's mean."""
    said = _told("c0_ms_per_query_server", [2.0, 9.0, 3.0, 11.0], [0.4, 0.5, 0.6, 0.5], paired=False)
    assert all(float(percent) <= 100 for percent in re.findall(r"([\d.]+) % less", said))


@pytest.mark.parametrize(
    ("a", "b", "believed"), [(0.1, 0.5, True), (0.5, 0.1, True), (0.1, 0.15, False), (0.15, 0.1, False)]
)
def test_a_large_effect_is_believed_in_both_directions(a: float, b: float, believed: bool) -> None:
    name = "c0_ms_per_query_server"
    stolen = Threat(name="steal", text="steal 2 %", serious=True)
    doubts = find_doubts([stolen], None, judge(blocks(10, a, b), BASELINE, name, seed=1), name)
    assert _texts(doubts) == ([] if believed else ["steal 2 %"])


def test_wide_intervals_are_printed_in_the_unit() -> None:
    said = _told("wakeups_per_query", [0.6, 1.2, 0.9], [0.7, 1.5, 1.0], paired=False)
    shape = (
        r"Inconclusive whether index and no-index differ in the wake-ups per query: "
        r"the interval is too wide for a bound \(95 % interval: (−.*) to \+(.*)\)\."
    )
    told = re.fullmatch(shape, said)
    assert told is not None
    assert float(told[1].replace("−", "-")) < -0.9


def test_an_interval_of_ten_times_the_figure_is_no_bound() -> None:
    said = _told("wakeups_per_query", [0.5, 1.2, 0.9], [2.0, 60.0, 8.0], paired=False)
    assert said.startswith("Inconclusive whether index and no-index differ in the wake-ups per query: ")
    assert "the interval is too wide for a bound (95 % interval: −" in said


def test_intervals_stay_within_the_limits_of_the_metric() -> None:
    """Student's interval of these wake-ups begins below 0, and that of the time in C0 ends above 100 %."""
    few = [0.0, 0.02, 0.0, 1.9, 0.01, 0.0]
    each = [
        block(pair, arm, queries=100, one=window(100.0 if pair else 60.0, wakeups_hz=50 * hz))
        for pair, hz in enumerate(few)
        for arm in ("a", "b")
    ]
    metrics = judge(each, BASELINE, "c0_ms_per_query_server", seed=1)
    for name in ("wakeups_per_query", "c0_percent"):
        ends = _metric(metrics, name).a.ci95
        assert ends is not None
        assert 0 <= ends[0] < ends[1] <= 100


def test_uncertain_differences_are_inconclusive() -> None:
    (metric,) = (m for m in judge(blocks(10, 0.1, 0.2), BASELINE, "watts", seed=1) if m.name == "joules_per_query")
    said = answer([replace(metric, verdict="inconclusive")], "joules_per_query", "index", "no-index").text
    assert said == (
        "Inconclusive whether index and no-index differ in the energy per query: "
        "+33.3 % (95 % interval: +22.3 % to +45.3 %, estimated) may be chance."
    )


def test_no_answer_without_the_primary_metric() -> None:
    assert answer([], "joules_per_query", "a", "b").metric is None
    few = judge(blocks(1, 0.1, 0.2), BASELINE, "c0_ms_per_query_server", seed=1)
    assert few[0].verdict == "inconclusive"
    assert answer(few, "c0_ms_per_query_server", "a", "b").text.startswith("Too few pairs")


def test_the_own_blocks_of_a_are_a_control() -> None:
    metrics = judge(blocks(12, 0.1, 0.2), BASELINE, "c0_ms_per_query_server", seed=1)
    control = control_from_blocks(metrics[0], seed=1)
    assert control is not None
    assert control.sound
    assert control_text(control).startswith("A/A ±")
    differs = replace(control, sound=False, difference_percent=3.21)
    assert control_text(differs).startswith("the A/A control differs by +3.2 %")
    assert control.pairs_count == 6
    assert control.half_width_percent is not None and control.half_width_percent < 2


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


def test_threats_are_found_and_weighed() -> None:
    quiet = [block(pair, arm) for pair in range(6) for arm in ("a", "b")]
    before = [window(1.0), window(1.05), window(0.95)]
    found = find_threats(quiet, list_pairs(quiet), before, before, "rate")
    threats = {threat.name: threat for threat in threats_worded(found, {})}
    assert not [threat for threat in threats.values() if threat.serious]
    assert threats["frequency"].text == "no frequency data on this host"
    stolen = [block(0, "a", one=window(steal_percent=3.0)), block(0, "b")]
    steal = next(t for t in find_threats(stolen, list_pairs(stolen), before, before, "rate") if t.name == "steal")
    assert (steal.serious, _texts([steal])) == (True, ["steal 1.5 %, up to 3 %"])
    after = [window(31.0), window(31.1), window(30.9)]
    drift = next(t for t in find_threats(quiet, list_pairs(quiet), before, after, "rate") if t.name == "drift")
    assert drift.serious
    assert drift.values == {"points": pytest.approx(30.0)}
    assert _texts([drift]) == ["idle baseline drift +30.00 points of C0: too much"]
    # Nine tenths of the CPUs are somebody else's all the time: steady, and still not a host to ask about energy.
    crowd = [block(pair, arm, one=window(95.0)) for pair in range(6) for arm in ("a", "b")]
    assert next(t for t in find_threats(crowd, list_pairs(crowd), [], [], "rate") if t.name == "other_load").serious
    note = "other programs used 82 % of the CPUs: figures of the whole host include them"
    assert (word_notes(note_other_load(crowd)), note_other_load(quiet)) == ([note], [])
    behind = [block(0, "a", queries=40), block(0, "b")]
    saturated = [
        threat for threat in find_threats(behind, list_pairs(behind), [], [], "rate") if threat.name == "saturated"
    ]
    assert _texts(saturated) == ["index completed only 40 % of the offered load"]
    again = [block(0, "a", attempts=3), block(0, "b")]
    assert "2 blocks failed and were repeated" in _texts(find_threats(again, list_pairs(again), [], [], "rate"))


def test_pairs_that_other_programs_disturbed_are_left_out_if_enough_remain() -> None:
    found = blocks(10, 0.1, 0.2)
    # 30 points more of C0 that are neither server, client nor powerprof.
    found[6] = block(3, "a", one=window(41.0, server_s=0.3))
    assert disturbed_pairs(found) == {3}
    marked, said = mark_disturbed_pairs(found, 10)
    assert word_notes(said) == ["other programs ran during 1 of the pairs, which is left out (the JSON has it)"]
    assert [a.pair for a, _ in list_pairs(marked)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert mark_disturbed_pairs(found, 40) == (found, [])
    # Two pairs have no interval: three disturbed ones say more.
    few = found[4:10]
    assert disturbed_pairs(few) == {3}
    assert mark_disturbed_pairs(few, 3) == (few, [])


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
