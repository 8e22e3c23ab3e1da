"""That the parts are the whole, in a sentence: idle exits and their causes, joules and their consumers."""

from __future__ import annotations

from powerprof import text
from powerprof.records import Conservation, EnergySplit


def balance(found: Conservation, unit: str = " idle exits") -> str:
    """classified + unknown + lost = idle exits, beside what cpuidle counted itself."""
    return (
        f"{text.count(found.classified_count)} classified + {text.count(found.unknown_count)} unknown + "
        f"{text.count(found.lost_count)} lost = {text.count(found.idle_exits_count)}{unit}; "
        f"cpuidle counted {text.count(found.cpuidle_usage_delta_count)}."
    )


def joules(split: EnergySplit, of: str = "") -> str:
    """idle floor + parts + what cannot be attributed = all. `of` says whose, after a comma."""
    kind = "estimated" if split.kind == "estimated" else f"measured by {split.source}"
    whole = f"Energy{of}, {kind}: {text.number(split.total_joules)} J"
    if split.idle_joules is None or not split.parts:
        return f"{whole} in all; {'; '.join(split.notes)}."
    parts = ", ".join(f"{part.name} {text.number(part.joules, 3)} J" for part in split.parts)
    rest = text.number(split.residual_joules, 3)
    return f"{whole} = idle floor {text.number(split.idle_joules)} J, {parts}, cannot be attributed {rest} J."
