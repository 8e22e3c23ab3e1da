# SPDX-License-Identifier: Apache-2.0
"""Conservation in a sentence: the parts add up to all idle exits, and to all joules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerprof.model import text
from powerprof.report.notes import describe_blindness, word_notes

if TYPE_CHECKING:
    from powerprof.model.records import Conservation, EnergySplit


# Less is 0.000 in three decimals.
_LEAST_JOULES = 0.0005
ALL_ACCOUNTED = "All accounted for."


def describe_accounting(counts: Conservation) -> str:
    """Return a sentence on whether all idle exits are accounted for."""
    if blind := describe_blindness(counts):
        return f"{blind.removesuffix('.')}, so causes are unknown."
    if not counts.idle_exits_count:
        return "No CPU went idle."
    if counts.unknown_count or counts.lost_count:
        return f"{counts.unknown_count:,} unknown, {counts.lost_count:,} lost."
    return ALL_ACCOUNTED


def _check(counts: Conservation) -> str:
    """Return the counter that the sum was checked against; old records were checked against cpuidle."""
    if counts.cpuidle_usage_delta_count is not None:
        return f"cpuidle counted {text.count(counts.cpuidle_usage_delta_count)}"
    if counts.checked_against is None:
        return "not checked: this kernel has no other counter of idle exits"
    return f"the kernel's cpu_idle tracepoint counted {text.count(counts.reference_count)}"


def describe_balance(counts: Conservation, unit: str = " idle exits") -> str:
    """Return the sentence "classified + unknown + lost = idle exits" and its check."""
    return (
        f"{text.count(counts.classified_count)} classified + {text.count(counts.unknown_count)} unknown + "
        f"{text.count(counts.lost_count)} lost = {text.count(counts.idle_exits_count)}{unit}; {_check(counts)}."
    )


def describe_energy(split: EnergySplit, of: str = "") -> str:
    """Return the sentence "idle floor + parts + unattributed = total"; parts that round to zero are left out.

    `of` names the owner of the energy, after a comma.
    """
    kind = "estimated" if split.kind == "estimated" else f"measured by {split.source}"
    whole = f"Energy{of}, {kind}: {text.number(split.total_joules)} J"
    if split.idle_joules is None or not split.parts:
        return f"{whole} in total; {'; '.join(word_notes(split.notes))}."
    parts = [
        *((part.name, part.joules) for part in split.parts),
        ("cannot be attributed", split.residual_joules or 0.0),
    ]
    shown = "".join(f", {name} {text.number(value, 3)} J" for name, value in parts if abs(value) >= _LEAST_JOULES)
    return f"{whole} = idle floor {text.number(split.idle_joules)} J{shown}."
