# SPDX-License-Identifier: Apache-2.0
"""Long texts in narrow columns: those that begin alike are shown by their beginning and by what differs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from powerprof import text

_LEAST = 24  # narrower, there is no room for both
_BEGINNING = 12


def distinguishable(texts: Sequence[str], ids: Sequence[str], room: int) -> list[str]:
    """Each text in `room` characters. Where two would be shown alike, each has its id, its beginning and what differs:
    `#3f9a1c SELECT a, …, z AS one`."""
    shown = [text.cut(one, room) for one in texts]
    alike: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(shown):
        alike[one].append(at)
    for group in alike.values():
        if len(group) < 2 or room < _LEAST:
            continue
        for at in group:
            same = max(_common(texts[at], texts[other]) for other in group if other != at)
            shown[at] = _with_difference(texts[at], ids[at], same, room)
    return shown


def _with_difference(whole: str, id: str, same: int, room: int) -> str:
    label = f"#{id} " if id else ""
    most = min(_BEGINNING, room // 4)
    beginning = f"{label}{whole[:most]}…"
    left = room - len(beginning)
    # The word that differs from its beginning on; more of what lies before where the text ends early.
    start = max(whole.rfind(" ", 0, same) + 1, same - left // 2)
    start = max(min(start, len(whole) - left), most)
    if len(whole) <= room - len(label):
        return label + whole
    return beginning + text.cut(whole[start:], left)


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
