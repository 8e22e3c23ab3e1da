# SPDX-License-Identifier: Apache-2.0
"""That the parts are the whole, in a sentence: idle exits and their causes, joules and their consumers."""

from __future__ import annotations

from powerprof import text
from powerprof.records import Conservation, EnergySplit
from powerprof.report.wording.notes import texts

# Above this share of idle time (/proc/stat counts in steps of 10 ms) a host that shows no idle exit was not seen.
_IDLED_PERCENT = 1.0
# Three decimals show nothing of less.
_LEAST_JOULES = 0.0005
ALL_ACCOUNTED = "All accounted for."


def is_blind(counts: Conservation) -> bool:
    """No idle exit was seen although the CPUs idled: the trace is empty, not the host still."""
    return not counts.idle_exits_count and (counts.idle_percent is None or counts.idle_percent > _IDLED_PERCENT)


def verdict(counts: Conservation) -> str:
    """Whether all idle exits are accounted for, in one sentence."""
    if is_blind(counts):
        idled = (
            "" if counts.idle_percent is None else f" although its CPUs idled {counts.idle_percent:.0f} % of the time"
        )
        return f"The trace saw no idle exit of this host{idled}: nothing is accounted for."
    if not counts.idle_exits_count:
        return "No CPU went idle."
    if counts.unknown_count or counts.lost_count:
        return f"{counts.unknown_count:,} unknown, {counts.lost_count:,} lost."
    return ALL_ACCOUNTED


def _check(counts: Conservation) -> str:
    """What the sum was checked against; before there was a choice it was cpuidle."""
    if counts.cpuidle_usage_delta_count is not None:
        return f"cpuidle counted {text.count(counts.cpuidle_usage_delta_count)}"
    if counts.checked_against is None:
        return "not checked: this kernel has no other counter of idle exits"
    return f"the kernel's counter of the cpu_idle tracepoint (perf) says {text.count(counts.reference_count)}"


def balance(counts: Conservation, unit: str = " idle exits") -> str:
    """classified + unknown + lost = idle exits, and what that was checked against."""
    return (
        f"{text.count(counts.classified_count)} classified + {text.count(counts.unknown_count)} unknown + "
        f"{text.count(counts.lost_count)} lost = {text.count(counts.idle_exits_count)}{unit}; {_check(counts)}."
    )


def joules(split: EnergySplit, of: str = "") -> str:
    """idle floor + parts + what cannot be attributed = all; what rounds to nothing is left out. `of` says whose, after
    a comma.
    """
    kind = "estimated" if split.kind == "estimated" else f"measured by {split.source}"
    whole = f"Energy{of}, {kind}: {text.number(split.total_joules)} J"
    if split.idle_joules is None or not split.parts:
        return f"{whole} in all; {'; '.join(texts(split.notes))}."
    parts = [
        *((part.name, part.joules) for part in split.parts),
        ("cannot be attributed", split.residual_joules or 0.0),
    ]
    shown = "".join(f", {name} {text.number(value, 3)} J" for name, value in parts if abs(value) >= _LEAST_JOULES)
    return f"{whole} = idle floor {text.number(split.idle_joules)} J{shown}."
