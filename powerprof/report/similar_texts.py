# SPDX-License-Identifier: Apache-2.0
"""Long texts in narrow columns: similar texts are shown by their beginning and their difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from powerprof.model import text

_MIN_ROOM = 24  # a narrower column has no room for both
_BEGINNING = 12


def distinguishable(texts: Sequence[str], ids: Sequence[str], room: int) -> list[str]:
    """Return each text in `room` characters.

    Texts that would look alike are shown with their id, their beginning and the difference: `#3f9a1c SELECT a, …, z AS
    one`.
    """
    shown = [text.shorten(whole, room) for whole in texts]
    alike: dict[str, list[int]] = defaultdict(list)
    for at, short in enumerate(shown):
        alike[short].append(at)
    for group in alike.values():
        if len(group) < 2 or room < _MIN_ROOM:
            continue
        for at in group:
            same = max(_common_length(texts[at], texts[other]) for other in group if other != at)
            shown[at] = _with_difference(texts[at], ids[at], same, room)
    return shown


def _with_difference(whole: str, id: str, same: int, room: int) -> str:
    label = f"#{id} " if id else ""
    most = min(_BEGINNING, room // 4)
    beginning = f"{label}{whole[:most]}…"
    left = room - len(beginning)
    # Show the differing word from its start, and more text before it if the text ends early.
    start = max(whole.rfind(" ", 0, same) + 1, same - left // 2)
    start = max(min(start, len(whole) - left), most)
    if len(whole) <= room - len(label):
        return label + whole
    return beginning + text.shorten(whole[start:], left)


def _common_length(a: str, b: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
