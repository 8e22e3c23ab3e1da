# SPDX-License-Identifier: Apache-2.0
"""Find other causes of a difference: steal, frequency, other programs, drift, and the model of an estimate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from powerprof.experiment.claims import metric_named
from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.records import Block, BlockPair, ControlRecord, Design, Metric, Threat
from powerprof.model.records import Note, Window
from powerprof.statistics.validity import Drift, baseline_drift, block_trend

# With more steal than this, neighbours of the guest were measured as well.
_STEAL_PERCENT = 1.0
_FREQUENCY_PERCENT = 5.0
_OTHER_POINTS = 2.0
# On a host without other programs, interrupts and kernel threads use less than this.
OTHERS_PERCENT = 10.0
# Offered and finished queries differ by chance: two deviations of a Poisson count of 300 are 12 %.
_BEHIND = 0.85

# Busy neighbours and frequency changes move figures by tens of percent, hardly by more.
_DISTURBANCES = ("steal", "frequency", "other_load")
_NOT_BY_CHANCE_PERCENT = (-50.0, 100.0)  # half, or twice


def find_doubts(
    threats: Sequence[Threat], control: ControlRecord | None, metrics: Sequence[Metric], primary: str | None
) -> list[Threat]:
    """Return the reasons to doubt an answer.

    Those are the serious threats, except disturbances if the effect is far larger.
    """
    if not metrics:
        return [Threat(name="no_pairs", serious=True)]
    metric = metric_named(metrics, primary)
    low, high = _NOT_BY_CHANCE_PERCENT
    large = metric is not None and not low <= (metric.difference.percent or 0.0) <= high
    doubts = [threat for threat in threats if threat.serious and not (large and threat.name in _DISTURBANCES)]
    if control is not None and control.kind == "run" and not control.sound:
        doubts.append(Threat(name="control", text=control.text, serious=True))
    return doubts


def find_threats(
    blocks: Sequence[Block],
    pairs: Sequence[BlockPair],
    before: Sequence[Window],
    after: Sequence[Window],
    design: Design,
) -> list[Threat]:
    """Return the threats to the counted `pairs`, and the number of repeated blocks in all `blocks`.

    Threats are steal, frequency, other load, drift of the idle baseline, a trend over the blocks and a missed rate.
    """
    counted = [block for pair in pairs for block in pair]
    threats = [
        _find_steal(counted),
        _find_frequency_change(counted),
        _find_other_load(counted),
        _find_drift(counted, before, after),
    ]
    threats += [_find_trend(counted), _find_saturation(counted, design), _find_repeats(blocks)]
    return [threat for threat in threats if threat is not None]


def _drop_unknown(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _find_steal(blocks: Sequence[Block]) -> Threat | None:
    values = _drop_unknown([block.window.steal_percent for block in blocks])
    if not values:
        return None
    figures: dict[str, float | str] = {"percent": statistics.fmean(values), "most_percent": max(values)}
    serious = max(values) > _STEAL_PERCENT
    return Threat(name="steal", form="steal_varies" if serious else "", values=figures, serious=serious)


def _find_frequency_change(blocks: Sequence[Block]) -> Threat | None:
    by_arm = {
        arm: _drop_unknown([block.window.frequency_mhz for block in blocks if block.arm == arm]) for arm in ("a", "b")
    }
    if not by_arm["a"] or not by_arm["b"]:
        return Threat(name="frequency", form="no_frequency")
    a, b = statistics.fmean(by_arm["a"]), statistics.fmean(by_arm["b"])
    percent = 100 * (b - a) / a
    return Threat(name="frequency", values={"a_mhz": a, "b_mhz": b}, serious=abs(percent) > _FREQUENCY_PERCENT)


def _find_other_load(blocks: Sequence[Block]) -> Threat | None:
    """Judge the C0 of other programs: it must be small and steady."""
    rest = {
        arm: _drop_unknown([rest_percent(block.window) for block in blocks if block.arm == arm]) for arm in ("a", "b")
    }
    if not rest["a"] or not rest["b"] or not blocks or not blocks[0].window.processes:
        return None
    worst = max(max(values) - statistics.median(values) for values in rest.values())
    figures: dict[str, float | str] = {
        **{f"{arm}_percent": statistics.fmean(values) for arm, values in rest.items()},
        "above_points": worst,
    }
    # One window with a foreign load is excluded or has little weight. A foreign load in all windows is a reason for
    # doubt.
    above = [max(0.0, value - statistics.median(values)) for values in rest.values() for value in values]
    steady = statistics.fmean([*rest["a"], *rest["b"]])
    serious = statistics.fmean(above) > _OTHER_POINTS or steady > OTHERS_PERCENT
    return Threat(name="other_load", values=figures, serious=serious)


def note_other_load(blocks: Sequence[Block]) -> list[Note]:
    """Return a note if other programs used so much of the host that they affected its figures."""
    rest = _drop_unknown([rest_percent(block.window) for block in blocks if block.window.processes])
    mean = statistics.fmean(rest) if rest else 0.0
    return [Note("crowded", {"percent": mean})] if mean > OTHERS_PERCENT else []


def measure_drift(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Drift | None:
    """Return the drift of the idle baseline, compared with the difference in C0 between the conditions."""
    means = {
        arm: _drop_unknown([block.window.c0_percent for block in blocks if block.arm == arm]) for arm in ("a", "b")
    }
    effect = None
    if means["a"] and means["b"]:
        effect = statistics.fmean(means["b"]) - statistics.fmean(means["a"])
    return baseline_drift(
        _drop_unknown([window.c0_percent for window in before]),
        _drop_unknown([window.c0_percent for window in after]),
        effect,
    )


def _find_drift(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Threat | None:
    drift = measure_drift(blocks, before, after)
    if drift is None:
        return Threat(name="drift", form="no_baseline")
    form = "drift_failed" if drift.failed else ""
    return Threat(name="drift", form=form, values={"points": drift.points}, serious=drift.failed)


def _find_trend(blocks: Sequence[Block]) -> Threat | None:
    for arm in ("a", "b"):
        values = _drop_unknown([block.window.c0_percent for block in blocks if block.arm == arm])
        trend = block_trend(values)
        if trend is not None and trend.present:
            return Threat(name="trend", form="rises" if trend.tau > 0 else "falls", values={"tau": trend.tau})
    return None


def _find_saturation(blocks: Sequence[Block], design: Design) -> Threat | None:
    if design != "rate":
        return None
    for arm in ("a", "b"):
        chosen = [block for block in blocks if block.arm == arm and block.offered_hz and block.queries]
        offered = sum((block.offered_hz or 0.0) * (block.window.window_s or 0.0) for block in chosen)
        done = sum(block.queries or 0 for block in chosen)
        if offered and done < _BEHIND * offered:
            return Threat(name="saturated", values={"arm": arm, "percent": 100 * done / offered}, serious=True)
    return None


def _find_repeats(blocks: Sequence[Block]) -> Threat | None:
    count = sum(block.attempts_count - 1 for block in blocks)
    return Threat(name="repeats", values={"count": count}) if count else None
