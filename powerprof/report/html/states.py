"""How idle states are told apart: one look per state, from the shallowest to the deepest."""

from __future__ import annotations

from collections.abc import Iterable

from powerprof.records import StateResidency

_LOOKS = 6


def looks_of(states: Iterable[StateResidency]) -> dict[str, str]:
    """Names in the order of their first appearance, which is the kernel's; polling states look like C0."""
    looks: dict[str, str] = {}
    number = 0
    for state in states:
        if state.name in looks:
            continue
        looks[state.name] = "poll" if state.polling else f"s{min(number, _LOOKS - 1)}"
        number += not state.polling
    return looks
