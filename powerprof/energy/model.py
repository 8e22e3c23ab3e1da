# SPDX-License-Identifier: Apache-2.0
"""The estimate where no meter is: watts from C0 and idle-state residency, and a table of watts a CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerprof import files, paths
from powerprof.energy.cpu import CpuIdentity, this_cpu
from powerprof.energy.families import GENERIC, shipped_models
from powerprof.energy.models_file import CpuMatch, PowerModel, StateWatts, slope_range, user_models
from powerprof.records import EnergyReading, EstimateRange, StateResidency

# Typical figures of neighbouring server generations since Broadwell differ by up to 1.9 times (models/results.txt).
_NEIGHBOUR = 2.0
# Residency of states that a calibrated model does not know, up to which it is still used.
_UNKNOWN_STATES_PERCENT = 5.0
# An interval that is wider than this says little of the absolute figure: reports show differences first.
WIDE = 5.0


@dataclass(frozen=True)
class ChosenModel:
    """A model for one CPU: its title says whose neighbour it is, `doubts` why the figure may be off.

    `widening` divides the lower and multiplies the upper bounds; `cores_per_cpu` above 1: a logical CPU of this host
    may be a whole core of several threads, which only the upper bounds allow for.
    """

    model: PowerModel
    title: str
    doubts: tuple[str, ...]
    widening: float = 1.0
    cores_per_cpu: float = 1.0


def load_models() -> list[PowerModel]:
    """The user's models, then the shipped ones. Raises DataError where a user's file is damaged."""
    return [*user_models(), *shipped_models()]


def choose_model(models: Sequence[PowerModel], cpu: CpuIdentity, *, smt: bool | None = None) -> ChosenModel:
    """The first model for exactly this CPU, or a neighbour's, or the generic one with the widest interval.

    `smt`: whether this host's CPUs are seen to be threads that share a core; None where unknown.
    """
    matches = [(model, match) for model in models for match in model.cpus if _matches(match, cpu)]
    matches.sort(key=lambda pair: pair[1].nearest is not None)
    if not matches:
        model = next(m for m in reversed(models) if m.name == GENERIC)
        doubt = f"{cpu} is not in the table: the median of all its CPUs stands in, with the widest interval"
        return ChosenModel(model, model.name, (doubt, *_doubts(model)))
    model, match = matches[0]
    title, doubts, widening, cores = model.name, (*_doubts(model), *model.doubts), 1.0, 1.0
    if match.nearest is not None:
        title, widening = f"{model.name}, nearest to {match.nearest}", _NEIGHBOUR
        doubt = f"no published figure for {match.nearest}: its nearest neighbour's stands in, the interval is doubled"
        doubts = (doubt, *doubts)
    if smt is False and model.threads_per_core > 1 and model.range_from == "results":
        cores = float(model.threads_per_core)
        doubts = (
            *doubts,
            f"a CPU here may be a core of {model.threads_per_core} threads: the upper bound allows for it",
        )
    return ChosenModel(model, title, doubts, widening, cores)


def model_for_this_host() -> ChosenModel:
    """The model for this host's CPU. Raises DataError where a user's model file is damaged."""
    active = files.try_text(paths.sysfs() / "devices/system/cpu/smt/active")
    return choose_model(load_models(), this_cpu(), smt=None if active is None else active == "1")


def _matches(match: CpuMatch, cpu: CpuIdentity) -> bool:
    if match.vendor != cpu.vendor or match.family != cpu.family or cpu.model is None:
        return False
    if match.models and cpu.model not in match.models:
        return False
    if match.steppings is None:
        return True
    return cpu.stepping is not None and match.steppings[0] <= cpu.stepping <= match.steppings[1]


def _doubts(model: PowerModel) -> list[str]:
    if model.range_from == "fit":
        return []
    doubts = ["watts are these CPUs' share of a whole server of that kind, power supply and memory included"]
    if model.range_from == "results":
        doubts.append("published servers are tuned: one as delivered may idle at several times as much")
    if model.results_count is not None and model.results_count < 10:
        doubts.append(f"only {model.results_count} results are published for it")
    doubts.append("a guest sees its own idle states, not what the hardware or its neighbours do")
    return doubts


def estimate(
    chosen: ChosenModel, cpus: int, window_s: float | None, c0_percent: float | None, states: Sequence[StateResidency]
) -> EnergyReading:
    """Energy of `cpus` CPUs in a window of which they ran `c0_percent`; kind estimated, with low and high watts.

    Per state where the model was calibrated and knows the states, else between idle and full load by C0 (the
    interpolation of Cloud Carbon Footprint and others). Without C0 only the interval is given.
    """
    model, factor = chosen.model, chosen.widening
    upper = factor * chosen.cores_per_cpu
    if c0_percent is None:
        watts, low, high = None, model.idle_range_watts[0], model.full_range_watts[1]
    else:
        busy = min(max(c0_percent, 0.0), 100.0) / 100
        watts, low, high = _by_state(model, busy, cpus, states) or _by_load(model, busy)
    slope_low, slope_high = slope_range(model)
    return EnergyReading(
        source="model",
        domain="cpus",
        scope="model",
        kind="estimated",
        model=chosen.title,
        joules=None if watts is None or not window_s else watts * cpus * window_s,
        watts=None if watts is None else watts * cpus,
        low_watts=low / factor * cpus,
        high_watts=high * upper * cpus,
        range=EstimateRange(
            idle_watts=model.idle_watts * cpus,
            idle_low_watts=model.idle_range_watts[0] / factor * cpus,
            idle_high_watts=model.idle_range_watts[1] * upper * cpus,
            slope_watts=(model.full_watts - model.idle_watts) * cpus,
            slope_low_watts=slope_low / factor * cpus,
            slope_high_watts=slope_high * upper * cpus,
        ),
    )


def active_share(chosen: ChosenModel, c0_percent: float) -> tuple[float, float, float]:
    """The share of the power that is above the idle floor where CPUs run so long: typical, least and most. For a host
    that is metered and not calibrated: only the ratio of idle to running is the model's, not a watt of it.
    """
    model, busy = chosen.model, min(max(c0_percent, 0.0), 100.0) / 100
    slope_low, slope_high = slope_range(model)
    idle_low, idle_high = (
        watts * factor
        for watts, factor in zip(model.idle_range_watts, (1 / chosen.widening, chosen.widening), strict=True)
    )

    def share(slope_watts: float, idle_watts: float) -> float:
        active = max(slope_watts, 0.0) * busy
        return active / (active + idle_watts) if active > 0 else 0.0

    typical = share(model.full_watts - model.idle_watts, model.idle_watts)
    return typical, min(share(slope_low, idle_high), typical), max(share(slope_high, idle_low), typical)


def slope_ends(low: float, high: float, span: EstimateRange) -> tuple[float, float]:
    """A difference's interval with the doubt of the model's slope in it; idle watts cancel in a difference."""
    if span.slope_watts <= 0:
        return low, high
    scales = (span.slope_low_watts / span.slope_watts, span.slope_high_watts / span.slope_watts)
    return min(low * scale for scale in scales), max(high * scale for scale in scales)


def is_wide(reading: EnergyReading) -> bool:
    """Whether the interval says so little that a difference is to be shown before the figure itself."""
    low, high = reading.low_watts, reading.high_watts
    return reading.kind == "estimated" and low is not None and high is not None and high > WIDE * low


def _by_load(model: PowerModel, busy: float) -> tuple[float, float, float]:
    def between(idle: float, full: float) -> float:
        return idle + (full - idle) * busy

    # A calibrated model in a guest, which does not see the host's states: an idle CPU may be in any of them.
    shallow = max((state.range_watts[1] for state in model.states), default=0.0)
    return (
        between(model.idle_watts, model.full_watts),
        between(model.idle_range_watts[0], model.full_range_watts[0]),
        between(max(model.idle_range_watts[1], shallow), max(model.full_range_watts[1], shallow)),
    )


def _by_state(
    model: PowerModel, busy: float, cpus: int, states: Sequence[StateResidency]
) -> tuple[float, float, float] | None:
    """Watts a CPU from its states; None where the model has none or does not know those that were used."""
    known = {state.name: state for state in model.states}
    idle = [(known.get(s.name), s.residency_percent or 0.0) for s in states if not s.polling]
    unknown = sum(share for state, share in idle if state is None)
    used: list[tuple[StateWatts, float]] = [(state, share) for state, share in idle if state is not None]
    share = sum(part for _, part in used)
    if not used or share <= 0 or unknown > _UNKNOWN_STATES_PERCENT:
        return None
    # Rounding and the edges leave idle + C0 a little off 100 %: the idle shares are scaled to what C0 leaves.
    scale = (1 - busy) / share
    rate = sum(s.entries_hz or 0.0 for s in states if not s.polling) / max(cpus, 1)
    wakeup = (model.wakeup.joules, *model.wakeup.range_joules) if model.wakeup else (0.0, 0.0, 0.0)

    def total(full: float, of_state: list[float], per_wakeup: float) -> float:
        idle_watts = sum(w * part for w, (_, part) in zip(of_state, used, strict=True))
        return busy * full + scale * idle_watts + per_wakeup * rate

    return (
        total(model.full_watts, [s.watts for s, _ in used], wakeup[0]),
        total(model.full_range_watts[0], [s.range_watts[0] for s, _ in used], wakeup[1]),
        total(model.full_range_watts[1], [s.range_watts[1] for s, _ in used], wakeup[2]),
    )


def describe(chosen: ChosenModel, reading: EnergyReading) -> str:
    """One line: the model, and how good the figure is."""
    if reading.watts is None or reading.low_watts is None or reading.high_watts is None:
        return f'estimated by the model "{chosen.title}"'
    said = (
        f'estimated by the model "{chosen.title}": {reading.watts:.2f} W, '
        f"between {reading.low_watts:.2f} and {reading.high_watts:.2f} W"
    )
    return f"{said}; {NARROWER}" if is_wide(reading) else said


NARROWER = (
    "what would narrow it: a model calibrated on the metered host (powerprof calibrate), the host's own figures "
    "(--energy-source host:URL), or a meter's log (--meter-log)"
)
