# SPDX-License-Identifier: Apache-2.0
"""The estimate without a meter: watts from C0 and idle-state residency by a table of watts per CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from powerprof.energy.cpu_kinds import find_kind, identify_kind
from powerprof.energy.families import GENERIC, shipped_models
from powerprof.energy.models_file import CpuIdentity, PowerModel, StateWatts, estimate_range_of, this_cpu, user_models
from powerprof.energy.request import EnergyRequest, Vcpu
from powerprof.energy.uncertainty import bound_over_range
from powerprof.model.records import EnergyReading, EstimateRange, StateResidency
from powerprof.system import files, paths
from powerprof.system.next_steps import command_line
from powerprof.system.virtualisation import read_cpu_flags

# Typical figures of neighbouring server generations since Broadwell differ by up to 1.9 times (models/results.txt).
_NEIGHBOUR = 2.0
# A calibrated model is used up to this residency of states that it does not know.
_UNKNOWN_STATES_PERCENT = 5.0
# A wider interval makes the absolute figure uncertain: reports show differences first.
WIDE = 5.0


class ChosenModel(msgspec.Struct, frozen=True):
    """A model for one CPU of this host.

    Attributes:
        title: names the neighbour if the model stands in for another CPU.
        doubts: the reasons why the figure may be off.
        widening: divides the lower and multiplies the upper bounds.
        cores_per_cpu: one CPU of this host may be this many of the model's. Only the upper bounds allow for it.
        scale: one CPU of this host is this many of the model's.
    """

    model: PowerModel
    title: str
    doubts: tuple[str, ...]
    widening: float = 1.0
    cores_per_cpu: float = 1.0
    scale: float = 1.0

    def span(self, cpus: int = 1) -> EstimateRange:
        """Return the range of an estimate for a number of CPUs of this host."""
        typical = self.scale * cpus
        return estimate_range_of(
            self.model, low=typical / self.widening, typical=typical, high=typical * self.widening * self.cores_per_cpu
        )


def load_models() -> list[PowerModel]:
    """Return the user's models, then the shipped ones. Raise DataError for a damaged user file."""
    return [*user_models(), *shipped_models()]


def choose_model(
    models: Sequence[PowerModel],
    cpu: CpuIdentity,
    *,
    smt: bool | None = None,
    cpu_model: str | None = None,
    vcpu: Vcpu | None = None,
) -> ChosenModel:
    """Return the model of the named CPU, else of this CPU, of a neighbour, or the generic model.

    `smt` is whether CPUs of this host are threads that share a core; None if unknown. `cpu_model` and `vcpu` are the
    user's answers. Raise UsageError if the table has no CPU named `cpu_model`.
    """
    if cpu_model is not None:
        kind = find_kind(cpu_model)
        return _adapt_to_host(kind.model(), kind.title, kind.doubts_on(cpu), smt, vcpu)
    matches = [(model, match) for model in models for match in model.cpus if match.holds(cpu)]
    matches.sort(key=lambda pair: pair[1].nearest is not None)
    if not matches:
        model = next(m for m in reversed(models) if m.name == GENERIC)
        doubt = f"{cpu} is not in the table: estimated by the median of all its CPUs, with the widest interval"
        return _adapt_to_host(model, model.name, (doubt,), smt, vcpu)
    model, match = matches[0]
    if match.nearest is None:
        shown = identify_kind(cpu) if model.range_from == "results" else None
        if shown is not None:
            return _adapt_to_host(shown.model(), shown.title, (), smt, vcpu)
        return _adapt_to_host(model, model.name, (), smt, vcpu)
    doubt = f"no published figure for {match.nearest}: estimated by its nearest neighbour, with a doubled interval"
    chosen = _adapt_to_host(model, f"{model.name}, nearest to {match.nearest}", (doubt,), smt, vcpu)
    return replace(chosen, widening=_NEIGHBOUR)


def _adapt_to_host(
    model: PowerModel, title: str, doubts: tuple[str, ...], smt: bool | None, vcpu: Vcpu | None
) -> ChosenModel:
    """Return the model with the doubts of this host: its CPUs are threads that share a core, or whole cores."""
    all_doubts = (*doubts, *_list_doubts(model), *model.doubts)
    threads = model.threads_per_core if model.range_from == "results" else 1
    if threads == 1:
        return ChosenModel(model, title, all_doubts)
    if vcpu == "core":
        return ChosenModel(model, title, all_doubts, scale=float(threads))
    if vcpu is None and smt is False:
        doubt = (
            f"a CPU here may be a core of {threads} threads (included in the upper bound); to narrow it: "
            "--meter model@thread or --meter model@core"
        )
        return ChosenModel(model, title, (*all_doubts, doubt), cores_per_cpu=float(threads))
    return ChosenModel(model, title, all_doubts)


def model_for_this_host(request: EnergyRequest) -> ChosenModel:
    """Return the model for this host's CPU.

    Raise DataError for a damaged user file, and UsageError if the table does not contain the named CPU.
    """
    active = files.try_text(paths.sysfs() / "devices/system/cpu/smt/active")
    smt = None if active is None else active == "1"
    vcpu = request.vcpu
    if vcpu is None and smt is False and shows_its_topology():
        vcpu = "core"
    return choose_model(load_models(), this_cpu(), smt=smt, cpu_model=request.cpu_model, vcpu=vcpu)


# Makers of guests whose CPUs show the host's threads (DMI sys_vendor), and the smallest guest of which that holds. A
# guest with one CPU of Google or Azure can be one thread of a core. Nitro sells whole cores only; its older Xen guests
# have another sys_vendor. Azure differs from other Hyper-V hosts by the chassis's asset tag.
_CLOUDS = {"Amazon EC2": 1, "Google": 2, "Microsoft Corporation": 2}
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


def shows_its_topology() -> bool:
    """Return whether this host shows which of its CPUs share a core: without a hypervisor, or in a known cloud.

    CPUs without a sibling are then whole cores.
    """
    flags = read_cpu_flags()
    if flags and "hypervisor" not in flags:
        return True
    dmi = paths.sysfs() / "class/dmi/id"
    vendor, tag = ((files.try_text(dmi / name) or "").strip() for name in ("sys_vendor", "chassis_asset_tag"))
    if vendor == "Microsoft Corporation" and tag != _AZURE_TAG:
        return False
    cpuinfo = files.try_text(paths.procfs() / "cpuinfo") or ""
    cpus = sum(line.startswith("processor") for line in cpuinfo.splitlines())
    return bool(flags) and vendor in _CLOUDS and cpus >= _CLOUDS[vendor]


def _list_doubts(model: PowerModel) -> list[str]:
    if model.range_from == "fit":
        return []
    doubts = ["includes power supply and memory", "watts are these CPUs' share of a server of that kind"]
    if model.range_from == "results":
        doubts.append("published servers are tuned: yours may draw several times as much when idle")
    if model.results_count is not None and model.results_count < 10:
        doubts.append(f"only {model.results_count} results are published for it")
    doubts.append("a guest sees only its own idle states, not those of the hardware or of other guests")
    return doubts


def estimate(
    chosen: ChosenModel, cpus: int, window_s: float | None, c0_percent: float | None, states: Sequence[StateResidency]
) -> EnergyReading:
    """Return the estimated energy of `cpus` CPUs in a window with `c0_percent`, with low and high watts.

    A calibrated model that knows the idle states sums over states. Others interpolate between idle and full load by C0
    (as Cloud Carbon Footprint and others do). Without C0 the reading has only the interval.
    """
    model, span = chosen.model, chosen.span(cpus)
    busy = None if c0_percent is None else min(max(c0_percent, 0.0), 100.0) / 100
    upper = chosen.scale * chosen.cores_per_cpu * chosen.widening
    watts, low, high = None, span.idle_low_watts, upper * model.full_range_watts[1] * cpus
    if busy is not None:
        watts, low, high = _estimate_by_state(model, busy, cpus, states) or _estimate_by_load(chosen, span, busy, cpus)
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
    """Return the share of power above the idle floor at this C0: typical, least and most.

    It serves metered hosts without a calibration. Only the model's ratio of idle to running power counts, not its
    watts.
    """
    busy = min(max(c0_percent, 0.0), 100.0) / 100
    # The doubt between a thread and a core multiplies both parts and cancels.
    span = replace(chosen, cores_per_cpu=1.0).span()

    def share(idle: float, slope: float) -> float:
        return slope * busy / (slope * busy + idle) if slope * busy > 0 else 0.0

    typical = share(span.idle_watts, span.slope_watts)
    low, high = bound_over_range(span, share)
    return typical, min(low, typical), max(high, typical)


def is_wide(reading: EnergyReading) -> bool:
    """Return whether the interval is so wide that reports show a difference before the figure itself."""
    low, high = reading.low_watts, reading.high_watts
    return reading.kind == "estimated" and low is not None and high is not None and high > WIDE * low


def _estimate_by_load(chosen: ChosenModel, span: EstimateRange, busy: float, cpus: int) -> tuple[float, float, float]:
    model = chosen.model
    watts = span.idle_watts + span.slope_watts * busy
    if model.odds_range is not None:
        low, high = bound_over_range(span, lambda idle, slope: idle + slope * busy)
        return watts, min(low, watts), max(high, watts)
    # A calibrated model in a guest that hides the host's states: an idle CPU may be in any of them.
    shallow = max((state.range_watts[1] for state in model.states), default=0.0)
    idle_high, full_high = (max(ends[1], shallow) for ends in (model.idle_range_watts, model.full_range_watts))
    return (
        watts,
        _interpolate(model.idle_range_watts[0], model.full_range_watts[0], busy) / chosen.widening * cpus,
        _interpolate(idle_high, full_high, busy) * chosen.widening * cpus,
    )


def _interpolate(idle: float, full: float, busy: float) -> float:
    return idle + (full - idle) * busy


def _estimate_by_state(
    model: PowerModel, busy: float, cpus: int, states: Sequence[StateResidency]
) -> tuple[float, float, float] | None:
    """Return watts by the CPUs' states. None if the model has no states or does not know the used ones."""
    states_by_name = {state.name: state for state in model.states}
    idle = [(states_by_name.get(s.name), s.residency_percent or 0.0) for s in states if not s.polling]
    unknown_percent = sum(share for state, share in idle if state is None)
    used: list[tuple[StateWatts, float]] = [(state, share) for state, share in idle if state is not None]
    share = sum(part for _, part in used)
    if not used or share <= 0 or unknown_percent > _UNKNOWN_STATES_PERCENT:
        return None
    # Rounding and the edges leave idle + C0 slightly off 100 %: scale the idle shares to the rest of C0.
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
    """Return one line with the model and its interval."""
    if reading.watts is None or reading.low_watts is None or reading.high_watts is None:
        return f'estimated by the model "{chosen.title}"'
    summary = (
        f'estimated by the model "{chosen.title}": {reading.watts:.2f} W, '
        f"between {reading.low_watts:.2f} and {reading.high_watts:.2f} W"
    )
    return f"{summary}; {_suggest_narrowing()}" if is_wide(reading) else summary


def _suggest_narrowing() -> str:
    return (
        "to narrow it: the CPU that this guest hides (--meter 'model:EPYC 7763@core'), "
        f"a model calibrated on the metered host ({command_line('energy --calibrate')}), the host's own figures "
        "(--meter host:URL), or a meter's log (--meter FILE)"
    )
