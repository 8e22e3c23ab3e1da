# SPDX-License-Identifier: Apache-2.0
"""Pure: what else could have made the difference."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from powerprof.experiment.judge.metrics import rest_percent
from powerprof.experiment.judge.verdict import pairs_of
from powerprof.experiment.records import Block, ControlRecord, Design, Metric, Threat
from powerprof.records import Window
from powerprof.statistics import Drift, baseline_drift, block_trend

# A hypervisor that took more than this from the guest has measured its neighbours too.
_STEAL_PERCENT = 1.0
_FREQUENCY_PERCENT = 5.0
_OTHER_POINTS = 2.0
# Interrupts and the kernel's own threads stay below it on a host that does nothing else.
OTHERS_PERCENT = 10.0
# Offered and finished differ by chance: two deviations of a Poisson count of 300 are 12 %.
_BEHIND = 0.85


# A busy neighbour or a change of frequency moves figures by tens of percent, hardly by more.
_DISTURBANCES = ("steal", "frequency", "other_load")
_NOT_BY_CHANCE_PERCENT = (-50.0, 100.0)  # half, or twice as much


def doubts_of(
    threats: Sequence[Threat], control: ControlRecord | None, metrics: Sequence[Metric], primary: str | None
) -> list[str]:
    """Why an answer is not to be believed: the serious threats, but for disturbances where the effect is far larger."""
    metric = next((metric for metric in metrics if metric.name == primary), None)
    low, high = _NOT_BY_CHANCE_PERCENT
    large = metric is not None and not low <= (metric.difference.percent or 0.0) <= high
    doubts = [threat.text for threat in threats if threat.serious and not (large and threat.name in _DISTURBANCES)]
    if control is not None and control.kind == "run" and not control.sound:
        doubts.append(control.text)
    return doubts


def find_threats(
    blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window], design: Design
) -> list[Threat]:
    """Steal, frequency, other load, drift of the idle baseline and over the blocks, a rate not kept, repeats."""
    counted = [block for pair in pairs_of(blocks) for block in pair]
    threats = [_steal(counted), _frequency(counted), _other_load(counted), _drift(counted, before, after)]
    threats += [_trend(counted), _behind(counted, design), _repeats(blocks)]
    return [threat for threat in threats if threat is not None]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _steal(blocks: Sequence[Block]) -> Threat | None:
    values = _known([block.window.steal_percent for block in blocks])
    if not values:
        return None
    serious = max(values) > _STEAL_PERCENT
    worst = f", up to {max(values):.2g} %" if serious else ""
    return Threat(name="steal", text=f"steal {statistics.fmean(values):.2g} %{worst}", serious=serious)


def _frequency(blocks: Sequence[Block]) -> Threat | None:
    by_arm = {arm: _known([block.window.frequency_mhz for block in blocks if block.arm == arm]) for arm in ("a", "b")}
    if not by_arm["a"] or not by_arm["b"]:
        return Threat(name="frequency", text="no frequency data on this host")
    a, b = statistics.fmean(by_arm["a"]), statistics.fmean(by_arm["b"])
    percent = 100 * (b - a) / a
    text = f"frequency {a:.0f} and {b:.0f} MHz"
    return Threat(name="frequency", text=text, serious=abs(percent) > _FREQUENCY_PERCENT)


def _other_load(blocks: Sequence[Block]) -> Threat | None:
    """What is neither server, client nor powerprof: it must be little, and steady."""
    rest = {arm: _known([rest_percent(block.window) for block in blocks if block.arm == arm]) for arm in ("a", "b")}
    if not rest["a"] or not rest["b"] or not blocks or not blocks[0].window.processes:
        return None
    worst = max(max(values) - statistics.median(values) for values in rest.values())
    text = (
        f"other CPU use {statistics.fmean(rest['a']):.1f} % and {statistics.fmean(rest['b']):.1f} %"
        f" (interrupts included), at most {worst:.1f} points above its median"
    )
    # One window with a guest in it is left out or weighs little; a guest in all of them is the doubt.
    above = [max(0.0, value - statistics.median(values)) for values in rest.values() for value in values]
    steady = statistics.fmean([*rest["a"], *rest["b"]])
    serious = statistics.fmean(above) > _OTHER_POINTS or steady > OTHERS_PERCENT
    return Threat(name="other_load", text=text, serious=serious)


def crowded(blocks: Sequence[Block]) -> list[str]:
    """A note where others used so much of the host that its figures are theirs as well."""
    rest = _known([rest_percent(block.window) for block in blocks if block.window.processes])
    mean = statistics.fmean(rest) if rest else 0.0
    said = f"other programs used {mean:.0f} % of the CPUs: what is said of the whole host is theirs as well"
    return [said] if mean > OTHERS_PERCENT else []


def drift_of(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Drift | None:
    """How far the idle baseline moved, weighed against the difference in C0 between the conditions."""
    means = {arm: _known([block.window.c0_percent for block in blocks if block.arm == arm]) for arm in ("a", "b")}
    effect = None
    if means["a"] and means["b"]:
        effect = statistics.fmean(means["b"]) - statistics.fmean(means["a"])
    return baseline_drift(
        _known([window.c0_percent for window in before]), _known([window.c0_percent for window in after]), effect
    )


def _drift(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Threat | None:
    drift = drift_of(blocks, before, after)
    if drift is None:
        return Threat(name="drift", text="no idle baseline at both ends")
    points = f"{drift.points:+.2f}".replace("-", "−")
    text = f"idle baseline drift {points} points of C0"
    return Threat(name="drift", text=text + (": too much" if drift.failed else ""), serious=drift.failed)


def _trend(blocks: Sequence[Block]) -> Threat | None:
    for arm in ("a", "b"):
        values = _known([block.window.c0_percent for block in blocks if block.arm == arm])
        trend = block_trend(values)
        if trend is not None and trend.present:
            change = "rises" if trend.tau > 0 else "falls"
            return Threat(
                name="trend", text=f"C0 {change} from block to block (Kendall's tau {trend.tau:+.2f})", serious=False
            )
    return None


def _behind(blocks: Sequence[Block], design: Design) -> Threat | None:
    if design != "rate":
        return None
    for arm in ("a", "b"):
        chosen = [block for block in blocks if block.arm == arm and block.offered_hz and block.queries]
        offered = sum((block.offered_hz or 0.0) * (block.window.window_s or 0.0) for block in chosen)
        done = sum(block.queries or 0 for block in chosen)
        if offered and done < _BEHIND * offered:
            return Threat(
                name="saturated",
                text=f"condition {arm} finished {100 * done / offered:.0f} % of what was offered",
                serious=True,
            )
    return None


def _repeats(blocks: Sequence[Block]) -> Threat | None:
    count = sum(block.attempts_count - 1 for block in blocks)
    if not count:
        return None
    return Threat(name="repeats", text=f"{count} block{'s' if count > 1 else ''} failed and were repeated")
