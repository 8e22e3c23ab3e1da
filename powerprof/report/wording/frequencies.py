# SPDX-License-Identifier: Apache-2.0
"""P-states in sentences: who chooses them, between what, and each CPU's own."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof import text
from powerprof.records import Run
from powerprof.system_records import CpuFrequency, Frequencies, FrequencyLimits, OsRates

_CHOSEN_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SHOWN = 4


def sentences(found: Frequencies | None) -> list[str]:
    """Who chooses the frequencies and within what limits, one sentence a group of CPUs."""
    return [_sentence(limits, found, alone=len(found.limits) == 1) for limits in found.limits] if found else []


def of_run(run: Run) -> list[str]:
    """`sentences` of the last phase that knows."""
    known = [phase.system.frequencies for phase in run.phases if phase.system]
    return sentences(known[-1]) if known else []


def _sentence(limits: FrequencyLimits, found: Frequencies, *, alone: bool) -> str:
    where = "" if alone else f" of CPU {limits.cpus}"
    mode = f" ({found.status})" if found.status else ""
    by = f"{limits.driver}{mode}" if limits.driver else "an unknown driver"
    if limits.driver in _CHOSEN_BY_HARDWARE and not found.states:
        choice = f"P-states{where}: chosen by the hardware under {by}, which counts none"
    else:
        choice = f"P-states{where}: {by}" + ("" if found.states else ", which counts none (no stats/time_in_state)")
    parts = [choice]
    if limits.minimum_mhz is not None and limits.maximum_mhz is not None:
        span = f"{limits.minimum_mhz:,.0f} to {limits.maximum_mhz:,.0f} MHz allowed"
        able = (limits.hardware_minimum_mhz, limits.hardware_maximum_mhz)
        if None not in able and able != (limits.minimum_mhz, limits.maximum_mhz):
            span += f" of {able[0]:,.0f} to {able[1]:,.0f}"
        parts.append(span)
    parts += [f"governor {limits.governor}"] if limits.governor else []
    parts += [f"preference {limits.preference}"] if limits.preference else []
    parts += [f"turbo {'on' if found.turbo else 'off'}"] if found.turbo is not None else []
    return ", ".join(parts) + "."


def cpu_lines(system: OsRates | None) -> list[str]:
    """A line a CPU: how busy it was, at which frequency it ran and which P-states were requested, most first."""
    if system is None or system.frequencies is None or not system.frequencies.cpus:
        return []
    busy = {load.cpu: load.busy_percent for load in system.cpus}
    ran = any(cpu.busy_mhz is not None for cpu in system.frequencies.cpus)
    rows = [["CPU", "busy", *(["running at"] if ran else [])]]
    for cpu in system.frequencies.cpus:
        speed = [text.number(cpu.busy_mhz, 0, " MHz")] if ran else []
        rows.append([str(cpu.cpu), text.number(busy.get(cpu.cpu), 1, " %"), *speed])
    states = ["P-states requested", *map(shares, system.frequencies.cpus)]
    return [f"{line}  {state}" for line, state in zip(text.columns(rows, left=0), states, strict=True)]


def shares(cpu: CpuFrequency) -> str:
    """`1,500 MHz 75.0 %, 2,400 MHz 25.0 %`, those with the largest share first."""
    most: Sequence[tuple[float, float]] = sorted(
        ((state.residency_percent, state.mhz) for state in cpu.states if state.residency_percent), reverse=True
    )
    parts = [f"{mhz:,.0f} MHz {percent:.1f} %" for percent, mhz in most[:_SHOWN]]
    return ", ".join(parts + ([f"{len(most) - _SHOWN} more"] if len(most) > _SHOWN else [])) or "unknown"
