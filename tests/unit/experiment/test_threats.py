# SPDX-License-Identifier: Apache-2.0
"""Threats of odd blocks, in each condition alone; the uncertainty of the energy model."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.experiment.confounders import list_differences
from powerprof.experiment.disturbed_pairs import find_disturbed_pairs, find_undisturbed_pairs, mark_disturbed_pairs
from powerprof.experiment.metrics import Baseline, mean_baseline, pair_figures, rest_percent
from powerprof.experiment.model_uncertainty import apply_other_models, estimate_with
from powerprof.experiment.records import (
    Arm,
    Block,
    ConditionRecord,
    ControlRecord,
    Difference,
    Metric,
    Side,
    Threat,
    list_pairs,
)
from powerprof.experiment.threats import find_doubts, find_threats, measure_drift, note_other_load
from powerprof.experiment.verdict import judge_metrics
from powerprof.model.records import EnergyReading, EstimateRange, ServerInfo, Window
from tests.unit.experiment import builders
from tests.unit.experiment.builders import ARMS, odd_block, odd_window

QUIET = {"steal_percent": 0.4, "frequency_mhz": 3000.0}


def pair_blocks(count: int = 3, a: dict[str, object] | None = None, b: dict[str, object] | None = None) -> list[Block]:
    """Return pairs with about 3 points of other programs, and these fields of the windows of A and of B."""
    made = []
    for number in range(count):
        for arm, more in zip(ARMS, (a, b), strict=True):
            block = replace(odd_block(number, arm), attempts_count=1)
            known = sum(process.percent or 0.0 for process in block.window.processes)
            quiet = {**QUIET, "c0_percent": known + 3.0 + 0.2 * number, **(more or {})}
            made.append(replace(block, window=replace(block.window, **quiet)))  # type: ignore[arg-type]
    return made


def threat(
    name: str, blocks: list[Block], before: Sequence[Window] = (), after: Sequence[Window] = ()
) -> Threat | None:
    found = find_threats(blocks, list_pairs(blocks), before, after, "rate")
    return next((each for each in found if each.name == name), None)


def with_windows(blocks: list[Block], name: str, values: list[float]) -> list[Block]:
    """Return the blocks with these values of one field, in their order."""
    return [
        replace(block, window=replace(block.window, **{name: value}))  # type: ignore[arg-type]
        for block, value in zip(blocks, values, strict=True)
    ]


@pytest.mark.parametrize("place", range(6))
def test_steal_of_any_window_is_serious(place: int) -> None:
    values = [0.2, 0.3, 0.1, 0.4, 0.5, 0.6]
    values[place] = 1.4
    found = threat("steal", with_windows(pair_blocks(), "steal_percent", values))
    assert found == Threat(
        name="steal", form="steal_varies", values={"percent": fmean(values), "most_percent": 1.4}, serious=True
    )
    values[place] = 0.9
    calm = threat("steal", with_windows(pair_blocks(), "steal_percent", values))
    assert calm is not None and not calm.serious and calm.form == ""
    assert threat("steal", pair_blocks(a={"steal_percent": None}, b={"steal_percent": None})) is None


@pytest.mark.parametrize(
    ("a", "b", "serious"),
    # 5 % of A: 2,850 to 3,150.
    [(3000, 2845, True), (3000, 2855, False), (3000, 3145, False), (3000, 3155, True), (2800, 3000, True)],
)
def test_another_frequency_is_serious_in_both_directions(a: float, b: float, serious: bool) -> None:
    found = threat("frequency", pair_blocks(a={"frequency_mhz": a}, b={"frequency_mhz": b}))
    assert found == Threat(name="frequency", values={"a_mhz": a, "b_mhz": b}, serious=serious)
    unknown = threat("frequency", pair_blocks(a={"frequency_mhz": a}, b={"frequency_mhz": None}))
    assert unknown == Threat(name="frequency", form="no_frequency")


def rest(block: Block) -> float:
    value = rest_percent(block.window)
    assert value is not None
    return value


def louder(block: Block, points: float) -> Block:
    """Return the block with more C0 of other programs."""
    return replace(block, window=replace(block.window, c0_percent=(block.window.c0_percent or 0.0) + points))


@pytest.mark.parametrize("arm", ARMS)
def test_other_programs_are_serious_if_they_use_much_or_vary(arm: Arm) -> None:
    quiet = pair_blocks(4)
    found = threat("other_load", quiet)
    by_arm = {each: [rest(block) for block in quiet if block.arm == each] for each in ARMS}
    assert found is not None and not found.serious
    assert found.values == {
        "a_percent": pytest.approx(fmean(by_arm["a"])),
        "b_percent": pytest.approx(fmean(by_arm["b"])),
        "above_points": pytest.approx(max(max(each) - median(each) for each in by_arm.values())),
    }
    # 14 points more in each window of one condition: steady, but a mean of more than 10 % of both.
    loud = [louder(block, 14.0) if block.arm == arm else block for block in quiet]
    steady = threat("other_load", loud)
    assert steady is not None and steady.serious
    # 19 points more in one window of eight are 2.3 points on average.
    varying = [louder(block, 19.0) if (block.pair, block.arm) == (2, arm) else block for block in quiet]
    assert (threat("other_load", varying) or Threat(name="")).serious
    assert threat("other_load", pair_blocks(a={"processes": []}, b={"processes": []})) is None
    assert note_other_load(quiet) == []
    (note,) = note_other_load(loud)
    assert note.values["percent"] == pytest.approx(fmean(map(rest, loud)))


def test_the_drift_is_weighed_against_the_difference_of_the_conditions() -> None:
    before, after = ([odd_window(0)] * 3, [odd_window(0)] * 3)
    before = [replace(one, c0_percent=each) for one, each in zip(before, (4.1, 4.2, 4.15), strict=True)]
    after = [replace(one, c0_percent=each) for one, each in zip(after, (6.2, 6.25, 6.15), strict=True)]
    for b, failed in ((24.0, True), (30.0, True), (34.0, False), (14.0, False)):
        blocks = pair_blocks(a={"c0_percent": 24.0}, b={"c0_percent": b})
        drift = measure_drift(blocks, before, after)
        assert drift is not None and drift.points == pytest.approx(2.05) and drift.failed is failed
        assert threat("drift", blocks, before, after) == Threat(
            name="drift",
            form="drift_failed" if failed else "",
            values={"points": pytest.approx(2.05)},  # type: ignore[dict-item]
            serious=failed,
        )
    back = measure_drift(pair_blocks(), after, before)
    assert back is not None and back.points == pytest.approx(-2.05) and back.failed
    assert threat("drift", pair_blocks()) == Threat(name="drift", form="no_baseline")


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("sign", "form"), [(1, "rises"), (-1, "falls")])
def test_a_trend_in_either_condition_is_a_threat(arm: Arm, sign: int, form: str) -> None:
    blocks = pair_blocks(8, {"c0_percent": 24.0}, {"c0_percent": 24.0})
    moved = [
        replace(b, window=replace(b.window, c0_percent=24.0 + sign * b.pair)) if b.arm == arm else b for b in blocks
    ]
    assert threat("trend", moved) == Threat(name="trend", form=form, values={"tau": pytest.approx(sign)})  # type: ignore[dict-item]
    assert threat("trend", blocks) is None


@pytest.mark.parametrize("arm", ARMS)
def test_either_condition_can_be_saturated(arm: Arm) -> None:
    """Windows of unequal length: the offered load is the rate times the time of each."""

    def offered(block: Block) -> float:
        return (block.offered_hz or 0.0) * (block.window.window_s or 0.0)

    kept = [replace(block, queries=round(0.97 * offered(block))) for block in pair_blocks()]
    assert threat("saturated", kept) is None
    behind = [replace(b, queries=round(0.8 * offered(b))) if b.arm == arm else b for b in kept]
    own = [block for block in behind if block.arm == arm]
    percent = 100 * sum(block.queries or 0 for block in own) / sum(map(offered, own))
    assert threat("saturated", behind) == Threat(
        name="saturated",
        values={"arm": arm, "percent": pytest.approx(percent)},
        serious=True,  # type: ignore[dict-item]
    )
    assert not [each for each in find_threats(behind, list_pairs(behind), [], [], "work") if each.name == "saturated"]
    unknown = [replace(block, offered_hz=None) for block in behind]
    assert threat("saturated", unknown) is None


def test_every_further_attempt_is_a_repeat() -> None:
    blocks = [
        replace(block, attempts_count=count) for block, count in zip(pair_blocks(), (1, 3, 2, 1, 1, 1), strict=True)
    ]
    assert threat("repeats", blocks) == Threat(name="repeats", values={"count": 3})
    assert threat("repeats", pair_blocks()) is None
    # Warm-up counts here, but in no other threat.
    warm = replace(pair_blocks(1)[0], dropped=True, attempts_count=2)
    assert threat("repeats", [warm, *pair_blocks()]) == Threat(name="repeats", values={"count": 1})


@pytest.mark.parametrize("arm", ARMS)
def test_a_pair_is_disturbed_above_the_quietest_window_of_its_condition(arm: Arm) -> None:
    blocks = [louder(block, 8.0) if block.arm == "b" else block for block in pair_blocks(6)]
    least = min(rest(block) for block in blocks if block.arm == arm)

    def disturbed(points: float) -> list[Block]:
        """Return the blocks with this much more than the quietest in pair 4."""
        return [
            louder(block, least + points - rest(block)) if (block.pair, block.arm) == (4, arm) else block
            for block in blocks
        ]

    assert find_disturbed_pairs(disturbed(4.9)) == set()
    loud = disturbed(5.1)
    assert (find_disturbed_pairs(loud), find_undisturbed_pairs(loud)) == ({4}, {0, 1, 2, 3, 5})
    marked, (note,) = mark_disturbed_pairs(loud, 8)
    assert note.values == {"count": 1}
    assert [block.pair for block in marked if block.disturbed] == [4, 4]
    assert [a.pair for a, _ in list_pairs(marked)] == [0, 1, 2, 3, 5]
    # Five of nine are less than 60 %.
    assert mark_disturbed_pairs(loud, 9) == (loud, [])
    dropped = [replace(block, dropped=block.pair == 4) for block in loud]
    assert find_disturbed_pairs(dropped) == set()


def test_pairs_are_sorted_and_complete() -> None:
    blocks = pair_blocks(4)
    mixed = [*blocks[::-1][:7], replace(blocks[1], pair=9)]
    assert [(a.pair, a.arm, b.pair, b.arm) for a, b in list_pairs(mixed)] == [(n, "a", n, "b") for n in (1, 2, 3)]
    assert [
        b.is_counted for b in (blocks[0], replace(blocks[0], dropped=True), replace(blocks[0], disturbed=True))
    ] == [True, False, False]


def metric(percent: float | None) -> Metric:
    side = Side(mean=5.0, ci95=None)
    return Metric(
        name="watts",
        unit="W",
        kind="measured",
        a=side,
        b=side,
        difference=Difference(b_minus_a=1.0, ci95=None, percent=percent),
        verdict="inconclusive",
        minimum_detectable_percent=None,
    )


@pytest.mark.parametrize(
    ("percent", "left"),
    [
        (-49.0, ["steal", "drift"]),
        (-51.0, ["drift"]),
        (99.0, ["steal", "drift"]),
        (101.0, ["drift"]),
        (None, ["steal", "drift"]),
    ],
)
def test_only_a_large_effect_overrules_disturbances(percent: float | None, left: list[str]) -> None:
    threats = [
        Threat(name="steal", serious=True),
        Threat(name="drift", serious=True),
        Threat(name="repeats", serious=False),
    ]
    control = ControlRecord(kind="run", pairs_count=6, sound=False, half_width_percent=2.0, text="differs")
    found = find_doubts(threats, control, [metric(percent)], "watts")
    assert [each.name for each in found] == [*left, "control"] and found[-1].text == "differs"
    for calm in (replace(control, sound=True), replace(control, kind="own_blocks"), None):
        assert [each.name for each in find_doubts(threats, calm, [metric(percent)], "watts")] == left
    assert [each.name for each in find_doubts(threats, control, [], "watts")] == ["no_pairs"]


SPAN = EstimateRange(
    idle_watts=3.1,
    idle_low_watts=2.3,
    idle_high_watts=6.7,
    slope_watts=11.0,
    slope_low_watts=7.9,
    slope_high_watts=19.0,
)


def test_another_model_changes_idle_watts_and_slope_of_every_reading() -> None:
    # 8.6 W are 3.1 W and half of 11 W.
    assert estimate_with(8.6, SPAN, (2.3, 19.0)) == pytest.approx(2.3 + 9.5)
    assert estimate_with(8.6, replace(SPAN, slope_watts=0.0), (2.3, 19.0)) == pytest.approx(2.3)
    reading = EnergyReading(
        source="model", domain="cpus", scope="model", kind="estimated", watts=8.6, joules=21.5, range=SPAN
    )
    # A CPU went offline: two thirds of the idle watts and of the slope.
    fewer = replace(SPAN, idle_watts=SPAN.idle_watts * 2 / 3, slope_watts=SPAN.slope_watts * 2 / 3)
    small = replace(reading, watts=6.0, joules=12.0, range=fewer)
    metered = replace(reading, range=None, watts=40.0, joules=100.0)
    blocks = [
        replace(
            odd_block(0, arm), window=replace(odd_window(0, arm), energy=[reading, metered]), solution_energy=[small]
        )
        for arm in ARMS
    ]
    models = apply_other_models(list_pairs(blocks), Baseline(2.9, 37.0, 4.2))
    corners = [(2.3, 7.9), (6.7, 7.9), (6.7, 19.0), (2.3, 19.0)]
    assert len(models) == len(corners)
    for (pairs, baseline), (idle, slope) in zip(models, corners, strict=True):
        assert baseline.watts == pytest.approx(idle + slope * (4.2 - 3.1) / 11.0)
        for block in pairs[0]:
            first, second = block.window.energy
            assert first.watts == pytest.approx(idle + slope / 2)
            assert first.joules == pytest.approx(21.5 * (idle + slope / 2) / 8.6)
            assert second == metered
            share = (6.0 - fewer.idle_watts) / fewer.slope_watts
            watts = 2 / 3 * (idle + slope * share)
            (solution,) = block.solution_energy
            assert (solution.watts, solution.joules) == pytest.approx((watts, 12.0 * watts / 6.0))
    unknown = [replace(block, window=replace(block.window, energy=[metered])) for block in blocks]
    assert apply_other_models(list_pairs(unknown), Baseline(2.9, 37.0, 4.2)) == []
    assert {baseline.watts for _, baseline in apply_other_models(list_pairs(blocks), Baseline(None, None, None))} == {
        None
    }


class Saved:
    """A saved record with its circumstances."""

    def __init__(self, name: str, kernel: str, **more: object) -> None:
        self.started_at = "2026-01-01T10:00:00Z" if name == "index" else "2026-01-02T10:00:00Z"
        self.condition = ConditionRecord(
            name=name, workload="city", title="", load={"clients": len(name)}, settings={"x": kernel}, work=name
        )
        self.host = {"hostname": f"db-{kernel}", "kernel": kernel, "boot_id": name, "mitigations": name, **more}
        self.server = ServerInfo(version=kernel, pid=len(name))
        self.options = {"window_s": 2.0, "sysfs": name}


def test_differences_are_listed_from_the_first_to_the_second() -> None:
    first, second = Saved("index", "6.1", cpus=2), Saved("no-index", "6.12")
    assert list_differences(first, second) == [
        "host: db-6.1 → db-6.12",
        "host cpus: 2 → unknown",
        "host kernel: 6.1 → 6.12",
        "server version: 6.1 → 6.12",
        "setting x: 6.1 → 6.12",
        "load clients: 5 → 8",
        "condition: index → no-index",
        "date: 2026-01-01 → 2026-01-02",
    ]
    assert list_differences(first, first) == []


# Two CPUs: 1 W idle (0.5 to 4), 4 W more when both run (half to twice as much).
WIDE_SPAN = EstimateRange(
    idle_watts=1.0, idle_low_watts=0.5, idle_high_watts=4.0, slope_watts=4.0, slope_low_watts=2.0, slope_high_watts=8.0
)


def model_blocks(queries_b: int = 100) -> list[Block]:
    """A runs 10 %, B 20 % of the time, with a little noise."""
    found = []
    for pair in range(10):
        for arm, c0, queries in (("a", 10.0, 100), ("b", 20.0, queries_b)):
            share = (c0 + 0.1 * (pair % 3)) / 100
            watts = WIDE_SPAN.idle_watts + WIDE_SPAN.slope_watts * share
            reading = EnergyReading(
                source="model",
                domain="cpus",
                scope="model",
                kind="estimated",
                joules=2 * watts,
                watts=watts,
                range=WIDE_SPAN,
            )
            window = msgspec.structs.replace(builders.window(100 * share, watts=None), energy=[reading])
            found.append(builders.block(pair, "a" if arm == "a" else "b", queries=queries, one=window))
    return found


def both(measured: list[Block], name: str) -> tuple[Metric, Metric]:
    baseline = mean_baseline([], measured)
    pairs = list_pairs(measured)
    each = pair_figures(pairs, baseline)
    sampled = judge_metrics(each, "watts", 1)
    by_model = [pair_figures(*model) for model in apply_other_models(pairs, baseline)]
    widened = judge_metrics(each, "watts", 1, by_model=by_model)
    before, after = (next(m for m in metrics if m.name == name) for metrics in (sampled, widened))
    return before, after


@pytest.mark.parametrize(("name", "factor"), [("watts", 1.0), ("joules_per_query", 0.02)])
def test_between_equal_work_only_the_slope_is_uncertain(name: str, factor: float) -> None:
    sampled, widened = both(model_blocks(), name)
    # 10 % of 4 W; half to twice as much by the slope, and not the eightfold that the idle watts are in doubt.
    assert widened.difference.b_minus_a == pytest.approx(0.4 * factor)
    assert sampled.difference.ci95 == widened.difference.sampling_ci95
    assert widened.difference.ci95 == (pytest.approx(0.2 * factor, rel=0.01), pytest.approx(0.8 * factor, rel=0.01))
    assert (sampled.verdict, widened.verdict) == ("b_higher", "b_higher")


def test_measured_metrics_are_left_alone() -> None:
    sampled, widened = both(model_blocks(), "c0_percent")
    assert sampled == widened
