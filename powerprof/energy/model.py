# SPDX-License-Identifier: Apache-2.0
"""The estimate where no meter is: watts from C0 and idle-state residency, and a table of watts a CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from powerprof.energy.domains import EnergyRequest, Vcpu
from powerprof.energy.families import GENERIC, bound_over_range, find_kind, identify_kind, shipped_models
from powerprof.energy.models_file import CpuIdentity, PowerModel, StateWatts, estimate_range_of, this_cpu, user_models
from powerprof.model.records import EnergyReading, EstimateRange, StateResidency
from powerprof.system import files, paths

# Typical figures of neighbouring server generations since Broadwell differ by up to 1.9 times (models/results.txt).
_NEIGHBOUR = 2.0
# Residency of states that a calibrated model does not know, up to which it is still used.
_UNKNOWN_STATES_PERCENT = 5.0
# An interval that is wider than this says little of the absolute figure: reports show differences first.
WIDE = 5.0


@dataclass(frozen=True)
class ChosenModel:
    """A model for one CPU: its title says whose neighbour it is, `doubts` why the figure may be off.

    `widening` divides the lower and multiplies the upper bounds; `scale` multiplies all: one CPU of this host is so
    many of the model's. `cores_per_cpu` above 1: it may be so many, which only the upper bounds allow for.
    """

    model: PowerModel
    title: str
    doubts: tuple[str, ...]
    widening: float = 1.0
    cores_per_cpu: float = 1.0
    scale: float = 1.0

    def span(self, cpus: int = 1) -> EstimateRange:
        """What an estimate for so many CPUs of this host goes by."""
        typical = self.scale * cpus
        return estimate_range_of(
            self.model, low=typical / self.widening, typical=typical, high=typical * self.widening * self.cores_per_cpu
        )


def load_models() -> list[PowerModel]:
    """The user's models, then the shipped ones. Raises DataError where a user's file is damaged."""
    return [*user_models(), *shipped_models()]


def choose_model(
    models: Sequence[PowerModel],
    cpu: CpuIdentity,
    *,
    smt: bool | None = None,
    cpu_model: str | None = None,
    vcpu: Vcpu | None = None,
) -> ChosenModel:
    """The model of the CPU that is named, else the first model for exactly this CPU, or a neighbour's, or the generic
    one with the widest interval.

    `smt`: whether this host's CPUs are seen to be threads that share a core; None where unknown. `cpu_model` and `vcpu`
    are what the caller says of it. Raises UsageError where `cpu_model` names no CPU of the table.
    """
    if cpu_model is not None:
        kind = find_kind(cpu_model)
        return _on_this_cpu(kind.model(), kind.title, kind.doubts_on(cpu), smt, vcpu)
    matches = [(model, match) for model in models for match in model.cpus if match.holds(cpu)]
    matches.sort(key=lambda pair: pair[1].nearest is not None)
    if not matches:
        model = next(m for m in reversed(models) if m.name == GENERIC)
        doubt = f"{cpu} is not in the table: the median of all its CPUs stands in, with the widest interval"
        return _on_this_cpu(model, model.name, (doubt,), smt, vcpu)
    model, match = matches[0]
    if match.nearest is None:
        shown = identify_kind(cpu) if model.range_from == "results" else None
        if shown is not None:
            return _on_this_cpu(shown.model(), shown.title, (), smt, vcpu)
        return _on_this_cpu(model, model.name, (), smt, vcpu)
    doubt = f"no published figure for {match.nearest}: its nearest neighbour's stands in, the interval is doubled"
    chosen = _on_this_cpu(model, f"{model.name}, nearest to {match.nearest}", (doubt,), smt, vcpu)
    return replace(chosen, widening=_NEIGHBOUR)


def _on_this_cpu(
    model: PowerModel, title: str, doubts: tuple[str, ...], smt: bool | None, vcpu: Vcpu | None
) -> ChosenModel:
    """The model with what is known of this host's CPUs: threads that share a core, or whole cores."""
    all_doubts = (*doubts, *_doubts(model), *model.doubts)
    threads = model.threads_per_core if model.range_from == "results" else 1
    if threads == 1:
        return ChosenModel(model, title, all_doubts)
    if vcpu == "core":
        return ChosenModel(model, title, all_doubts, scale=float(threads))
    if vcpu is None and smt is False:
        doubt = (
            f"a CPU here may be a core of {threads} threads: the upper bound allows for it, and --vcpu thread or "
            "--vcpu core says it"
        )
        return ChosenModel(model, title, (*all_doubts, doubt), cores_per_cpu=float(threads))
    return ChosenModel(model, title, all_doubts)


def model_for_this_host(request: EnergyRequest) -> ChosenModel:
    """The model for this host's CPU. Raises DataError where a user's model file is damaged, UsageError where the named
    CPU is not in the table."""
    active = files.try_text(paths.sysfs() / "devices/system/cpu/smt/active")
    return choose_model(
        load_models(),
        this_cpu(),
        smt=None if active is None else active == "1",
        cpu_model=request.cpu_model,
        vcpu=request.vcpu,
    )


def _doubts(model: PowerModel) -> list[str]:
    if model.range_from == "fit":
        return []
    doubts = ["includes power supply and memory", "watts are these CPUs' share of a server of that kind"]
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
    model, span = chosen.model, chosen.span(cpus)
    busy = None if c0_percent is None else min(max(c0_percent, 0.0), 100.0) / 100
    upper = chosen.scale * chosen.cores_per_cpu * chosen.widening
    watts, low, high = None, span.idle_low_watts, upper * model.full_range_watts[1] * cpus
    if busy is not None:
        watts, low, high = _by_state(model, busy, cpus, states) or _by_load(chosen, span, busy, cpus)
    return EnergyReading(
        source="model",
        domain="cpus",
        scope="model",
        kind="estimated",
        model=chosen.title,
        joules=None if watts is None or not window_s else watts * window_s,
        watts=watts,
        low_watts=low,
        high_watts=high,
        range=span,
    )


def estimate_active_share(chosen: ChosenModel, c0_percent: float) -> tuple[float, float, float]:
    """The share of the power that is above the idle floor where CPUs run so long: typical, least and most. For a host
    that is metered and not calibrated: only the ratio of idle to running is the model's, not a watt of it.
    """
    busy = min(max(c0_percent, 0.0), 100.0) / 100
    # Whether a CPU is a thread or a core multiplies both parts.
    span = replace(chosen, cores_per_cpu=1.0).span()

    def share(idle: float, slope: float) -> float:
        return slope * busy / (slope * busy + idle) if slope * busy > 0 else 0.0

    typical = share(span.idle_watts, span.slope_watts)
    low, high = bound_over_range(span, share)
    return typical, min(low, typical), max(high, typical)


def bound_difference(low: float, high: float, span: EstimateRange) -> tuple[float, float]:
    """A difference's interval with the doubt of the model's slope in it; idle watts cancel in a difference."""
    if span.slope_watts <= 0:
        return low, high
    scales = (span.slope_low_watts / span.slope_watts, span.slope_high_watts / span.slope_watts)
    return min(low * scale for scale in scales), max(high * scale for scale in scales)


def bound_ratio(before_watts: float, after_watts: float, span: EstimateRange) -> tuple[float, float] | None:
    """Within what two estimates of one host stand to each other, with one model for both; None where nothing says."""
    if span.slope_watts <= 0:
        return None
    before, after = ((watts - span.idle_watts) / span.slope_watts for watts in (before_watts, after_watts))
    if min(before, after) < 0 or span.idle_low_watts <= 0:
        return None
    return bound_over_range(span, lambda idle, slope: (idle + slope * after) / (idle + slope * before))


def is_wide(reading: EnergyReading) -> bool:
    """Whether the interval says so little that a difference is to be shown before the figure itself."""
    low, high = reading.low_watts, reading.high_watts
    return reading.kind == "estimated" and low is not None and high is not None and high > WIDE * low


def _by_load(chosen: ChosenModel, span: EstimateRange, busy: float, cpus: int) -> tuple[float, float, float]:
    model = chosen.model
    watts = span.idle_watts + span.slope_watts * busy
    if model.odds_range is not None:
        low, high = bound_over_range(span, lambda idle, slope: idle + slope * busy)
        return watts, min(low, watts), max(high, watts)
    # A calibrated model in a guest, which does not see the host's states: an idle CPU may be in any of them.
    shallow = max((state.range_watts[1] for state in model.states), default=0.0)
    idle_high, full_high = (max(ends[1], shallow) for ends in (model.idle_range_watts, model.full_range_watts))
    factor = chosen.widening
    return (
        watts,
        _between(model.idle_range_watts[0], model.full_range_watts[0], busy) / factor * cpus,
        _between(idle_high, full_high, busy) * factor * cpus,
    )


def _between(idle: float, full: float, busy: float) -> float:
    return idle + (full - idle) * busy


def _by_state(
    model: PowerModel, busy: float, cpus: int, states: Sequence[StateResidency]
) -> tuple[float, float, float] | None:
    """Watts from the CPUs' states; None where the model has none or does not know those that were used."""
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
        cpus * total(model.full_watts, [s.watts for s, _ in used], wakeup[0]),
        cpus * total(model.full_range_watts[0], [s.range_watts[0] for s, _ in used], wakeup[1]),
        cpus * total(model.full_range_watts[1], [s.range_watts[1] for s, _ in used], wakeup[2]),
    )


def describe_estimate(chosen: ChosenModel, reading: EnergyReading) -> str:
    """One line: the model, and how good the figure is."""
    if reading.watts is None or reading.low_watts is None or reading.high_watts is None:
        return f'estimated by the model "{chosen.title}"'
    summary = (
        f'estimated by the model "{chosen.title}": {reading.watts:.2f} W, '
        f"between {reading.low_watts:.2f} and {reading.high_watts:.2f} W"
    )
    return f"{summary}; {HOW_TO_NARROW}" if is_wide(reading) else summary


HOW_TO_NARROW = (
    "what would narrow it: the CPU's name (--cpu-model) and --vcpu where this guest hides them, "
    "a model calibrated on the metered host (powerprof calibrate), the host's own figures "
    "(--energy-source host:URL), or a meter's log (--meter-log)"
)
