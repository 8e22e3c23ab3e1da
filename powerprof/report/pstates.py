# SPDX-License-Identifier: Apache-2.0
"""P-states in sentences: the driver, its limits, and the P-states of each CPU."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.model.records import Run
from powerprof.model.system_activity import CpuFrequency, Frequencies, FrequencyLimits

_CHOSEN_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SHOWN = 4


def frequency_sentences(found: Frequencies | None) -> list[str]:
    """Return one sentence per group of CPUs: the driver of their frequencies and its limits."""
    return [_describe_limits(limits, found, alone=len(found.limits) == 1) for limits in found.limits] if found else []


def run_frequency_sentences(run: Run) -> list[str]:
    """Return the `sentences` of the last phase that recorded frequencies."""
    known = [phase.system.frequencies for phase in run.phases if phase.system]
    return frequency_sentences(known[-1]) if known else []


def _describe_limits(limits: FrequencyLimits, found: Frequencies, *, alone: bool) -> str:
    where = "" if alone else f" of CPU {limits.cpus}"
    mode = f" ({found.status})" if found.status else ""
    by = f"{limits.driver}{mode}" if limits.driver else "an unknown driver"
    if limits.driver in _CHOSEN_BY_HARDWARE and not found.states:
        choice = f"P-states{where}: chosen by the hardware under {by}, which does not count them"
    else:
        choice = f"P-states{where}: {by}" + (
            "" if found.states else ", which does not count them (no stats/time_in_state)"
        )
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


def pstate_shares(cpu: CpuFrequency) -> str:
    """Return the most used P-states of a CPU, the largest share first: `1,500 MHz 75.0 %, 2,400 MHz 25.0 %`."""
    most: Sequence[tuple[float, float]] = sorted(
        ((state.residency_percent, state.mhz) for state in cpu.states if state.residency_percent), reverse=True
    )
    parts = [f"{mhz:,.0f} MHz {percent:.1f} %" for percent, mhz in most[:_SHOWN]]
    return ", ".join(parts + ([f"{len(most) - _SHOWN} more"] if len(most) > _SHOWN else [])) or "unknown"
