# SPDX-License-Identifier: Apache-2.0
"""Find other causes of a difference: steal, frequency, other programs, drift, and the model of an estimate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from powerprof.energy.uncertainty import Pair, find_corners
from powerprof.experiment.claims import metric_named
from powerprof.experiment.metrics import Baseline, rest_percent
from powerprof.experiment.options import MINIMUM_PAIRS
from powerprof.experiment.records import Block, BlockPair, ConditionRecord, ControlRecord, Design, Metric, Threat
from powerprof.model.records import EnergyReading, EstimateRange, Note, ServerInfo, Window
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
    threats = [_steal(counted), _frequency(counted), _other_load(counted), _drift(counted, before, after)]
    threats += [_trend(counted), _behind(counted, design), _repeats(blocks)]
    return [threat for threat in threats if threat is not None]


def _known_values(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _steal(blocks: Sequence[Block]) -> Threat | None:
    values = _known_values([block.window.steal_percent for block in blocks])
    if not values:
        return None
    figures: dict[str, float | str] = {"percent": statistics.fmean(values), "most_percent": max(values)}
    serious = max(values) > _STEAL_PERCENT
    return Threat(name="steal", form="steal_varies" if serious else "", values=figures, serious=serious)


def _frequency(blocks: Sequence[Block]) -> Threat | None:
    by_arm = {
        arm: _known_values([block.window.frequency_mhz for block in blocks if block.arm == arm]) for arm in ("a", "b")
    }
    if not by_arm["a"] or not by_arm["b"]:
        return Threat(name="frequency", form="no_frequency")
    a, b = statistics.fmean(by_arm["a"]), statistics.fmean(by_arm["b"])
    percent = 100 * (b - a) / a
    return Threat(name="frequency", values={"a_mhz": a, "b_mhz": b}, serious=abs(percent) > _FREQUENCY_PERCENT)


def _other_load(blocks: Sequence[Block]) -> Threat | None:
    """Judge the C0 of other programs: it must be small and steady."""
    rest = {
        arm: _known_values([rest_percent(block.window) for block in blocks if block.arm == arm]) for arm in ("a", "b")
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
    rest = _known_values([rest_percent(block.window) for block in blocks if block.window.processes])
    mean = statistics.fmean(rest) if rest else 0.0
    return [Note("crowded", {"percent": mean})] if mean > OTHERS_PERCENT else []


def measure_drift(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Drift | None:
    """Return the drift of the idle baseline, compared with the difference in C0 between the conditions."""
    means = {
        arm: _known_values([block.window.c0_percent for block in blocks if block.arm == arm]) for arm in ("a", "b")
    }
    effect = None
    if means["a"] and means["b"]:
        effect = statistics.fmean(means["b"]) - statistics.fmean(means["a"])
    return baseline_drift(
        _known_values([window.c0_percent for window in before]),
        _known_values([window.c0_percent for window in after]),
        effect,
    )


def _drift(blocks: Sequence[Block], before: Sequence[Window], after: Sequence[Window]) -> Threat | None:
    drift = measure_drift(blocks, before, after)
    if drift is None:
        return Threat(name="drift", form="no_baseline")
    form = "drift_failed" if drift.failed else ""
    return Threat(name="drift", form=form, values={"points": drift.points}, serious=drift.failed)


def _trend(blocks: Sequence[Block]) -> Threat | None:
    for arm in ("a", "b"):
        values = _known_values([block.window.c0_percent for block in blocks if block.arm == arm])
        trend = block_trend(values)
        if trend is not None and trend.present:
            return Threat(name="trend", form="rises" if trend.tau > 0 else "falls", values={"tau": trend.tau})
    return None


def _behind(blocks: Sequence[Block], design: Design) -> Threat | None:
    if design != "rate":
        return None
    for arm in ("a", "b"):
        chosen = [block for block in blocks if block.arm == arm and block.offered_hz and block.queries]
        offered = sum((block.offered_hz or 0.0) * (block.window.window_s or 0.0) for block in chosen)
        done = sum(block.queries or 0 for block in chosen)
        if offered and done < _BEHIND * offered:
            return Threat(name="saturated", values={"arm": arm, "percent": 100 * done / offered}, serious=True)
    return None


def _repeats(blocks: Sequence[Block]) -> Threat | None:
    count = sum(block.attempts_count - 1 for block in blocks)
    return Threat(name="repeats", values={"count": count}) if count else None


# Pairs that other programs disturbed. They are found by the C0 of neither server, client nor powerprof, never by a
# result. Each condition is compared with its quietest window, so its own interrupts and write-back do not count.

# Points of C0. On a quiet host the C0 of other programs varies by less than one.
_DISTURBED_POINTS = 5.0
# If fewer pairs than this share of the requested number remain, all are kept: the host was busy throughout.
_KEPT_SHARE = 0.6


def disturbed_pairs(blocks: Sequence[Block]) -> set[int]:
    """Return the numbers of the pairs with a window in which other programs ran."""
    counted = [block for block in blocks if not block.dropped]
    disturbed: set[int] = set()
    for arm in ("a", "b"):
        rest = {
            block.pair: value
            for block in counted
            if block.arm == arm and (value := rest_percent(block.window)) is not None
        }
        quiet = min(rest.values(), default=0.0)
        disturbed |= {pair for pair, value in rest.items() if value > quiet + _DISTURBED_POINTS}
    return disturbed


def undisturbed_pairs(blocks: Sequence[Block]) -> set[int]:
    """Return the numbers of the other pairs, without the warm-up."""
    return {block.pair for block in blocks if not block.dropped} - disturbed_pairs(blocks)


def mark_disturbed_pairs(blocks: Sequence[Block], wanted_pairs: int) -> tuple[list[Block], list[Note]]:
    """Mark the blocks of disturbed pairs if enough other pairs remain. Return the blocks and a note."""
    disturbed, kept = disturbed_pairs(blocks), undisturbed_pairs(blocks)
    if not disturbed or len(kept) < max(_KEPT_SHARE * wanted_pairs, MINIMUM_PAIRS):
        return list(blocks), []
    marked = [
        msgspec.structs.replace(block, disturbed=True) if block.pair in disturbed and not block.dropped else block
        for block in blocks
    ]
    return marked, [Note("pairs_left_out", {"count": len(disturbed)})]


# Confounders: everything else that differs between two measurements.

# Ignored: names, and values that are new at each boot.
_HOST_IGNORED = ("hostname", "boot_id", "mitigations")


class Described(Protocol):
    """A saved record with its circumstances."""

    @property
    def started_at(self) -> str: ...
    @property
    def condition(self) -> ConditionRecord: ...
    @property
    def host(self) -> dict[str, Any]: ...
    @property
    def server(self) -> ServerInfo | None: ...
    @property
    def options(self) -> dict[str, Any]: ...


def list_differences(first: Described, second: Described) -> list[str]:
    """Return a line per difference in host, kernel, server and settings; the most important first."""
    texts = []
    for label, a, b in (
        ("host", first.host, second.host),
        ("server", _server_values(first.server), _server_values(second.server)),
        ("setting", first.condition.settings, second.condition.settings),
        ("load", first.condition.load, second.condition.load),
        ("option", first.options, second.options),
    ):
        for key in sorted({*a, *b}):
            if key in _HOST_IGNORED or key in ("pid", "sysfs") or a.get(key) == b.get(key):
                continue
            texts.append(f"{label} {key}: {_show_value(a.get(key))} → {_show_value(b.get(key))}")
    if first.host.get("hostname") != second.host.get("hostname"):
        texts.insert(0, f"host: {_show_value(first.host.get('hostname'))} → {_show_value(second.host.get('hostname'))}")
    if first.condition.work != second.condition.work:
        texts.append(f"condition: {first.condition.name} → {second.condition.name}")
    if first.started_at[:10] != second.started_at[:10]:
        texts.append(f"date: {first.started_at[:10]} → {second.started_at[:10]}")
    return texts


def _server_values(server: ServerInfo | None) -> dict[str, Any]:
    values = {} if server is None else msgspec.structs.asdict(server)
    return {key: value for key, value in values.items() if value not in (None, {})}


def _show_value(value: Any) -> str:
    return "unknown" if value is None else str(value)[:80]


# The uncertainty of the energy model in a difference of estimated figures. Each difference and ratio is judged again
# with every extreme pair of idle watts and slope (`energy.models_file.find_corners`), one pair for both conditions.
# Between windows of equal length the idle part cancels and the uncertainty of the slope remains. If the conditions did
# unequal work, the idle part does not cancel. A ratio keeps the uncertainty of idle ÷ slope.


def estimate_with(watts: float, span: EstimateRange, pair: Pair) -> float:
    """Return the estimate by another model with these idle watts and this slope."""
    idle, slope = pair
    busy = (watts - span.idle_watts) / span.slope_watts if span.slope_watts else 0.0
    return idle + slope * busy


def apply_other_models(pairs: Sequence[BlockPair], baseline: Baseline) -> list[tuple[list[BlockPair], Baseline]]:
    """Return the pairs and the idle host by every other possible model; empty if no energy is estimated."""
    span = next((r.range for pair in pairs for block in pair for r in block.window.energy if r.range is not None), None)
    if span is None:
        return []
    others = []
    for model in find_corners(span):
        watts = None if baseline.watts is None else estimate_with(baseline.watts, span, model)
        moved = [(_apply_model(a, span, model), _apply_model(b, span, model)) for a, b in pairs]
        others.append((moved, replace(baseline, watts=watts)))
    return others


def _apply_model(block: Block, span: EstimateRange, pair: Pair) -> Block:
    energy = [_apply_model_to_reading(reading, span, pair) for reading in block.window.energy]
    return msgspec.structs.replace(
        block,
        window=msgspec.structs.replace(block.window, energy=energy),
        solution_energy=[_apply_model_to_reading(reading, span, pair) for reading in block.solution_energy],
    )


def _apply_model_to_reading(reading: EnergyReading, span: EstimateRange, pair: Pair) -> EnergyReading:
    if reading.range is None or reading.watts is None or reading.joules is None or not reading.watts:
        return reading
    watts = estimate_with(reading.watts, reading.range, _scale_pair(reading.range, span, pair))
    return msgspec.structs.replace(reading, watts=watts, joules=reading.joules * watts / reading.watts)


def _scale_pair(own: EstimateRange, span: EstimateRange, pair: Pair) -> Pair:
    """Scale a pair of idle watts and slope to the CPUs of this reading: a CPU can go offline between windows."""
    scale = own.slope_watts / span.slope_watts if span.slope_watts else 1.0
    return pair[0] * scale, pair[1] * scale
