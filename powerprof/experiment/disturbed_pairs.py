# SPDX-License-Identifier: Apache-2.0
"""Find the pairs that other programs disturbed.

They are found by the C0 of neither server, client nor powerprof, never by a result. Each condition is compared with
its quietest window, so its own interrupts and write-back do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.experiment.metrics import rest_percent
from powerprof.experiment.options import MINIMUM_PAIRS
from powerprof.experiment.records import Block
from powerprof.model.records import Note

# Points of C0. On a quiet host the C0 of other programs varies by less than one.
_DISTURBED_POINTS = 5.0
# If fewer pairs than this share of the requested number remain, all are kept: the host was busy throughout.
_KEPT_SHARE = 0.6


def find_disturbed_pairs(blocks: Sequence[Block]) -> set[int]:
    """Return the numbers of the pairs with a window in which other programs ran."""
    counted = [block for block in blocks if not block.dropped]
    disturbed: set[int] = set()
    for arm in ("a", "b"):
        rest = {
            block.pair: value
            for block in counted
            if block.arm == arm and (value := rest_percent(block.window)) is not None
        }
        quiet = min(rest.values(), default=0.0)
        disturbed |= {pair for pair, value in rest.items() if value > quiet + _DISTURBED_POINTS}
    return disturbed


def find_undisturbed_pairs(blocks: Sequence[Block]) -> set[int]:
    """Return the numbers of the other pairs, without the warm-up."""
    return {block.pair for block in blocks if not block.dropped} - find_disturbed_pairs(blocks)


def mark_disturbed_pairs(blocks: Sequence[Block], wanted_pairs: int) -> tuple[list[Block], list[Note]]:
    """Mark the blocks of disturbed pairs if enough other pairs remain. Return the blocks and a note."""
    disturbed, kept = find_disturbed_pairs(blocks), find_undisturbed_pairs(blocks)
    if not disturbed or len(kept) < max(_KEPT_SHARE * wanted_pairs, MINIMUM_PAIRS):
        return list(blocks), []
    marked = [
        msgspec.structs.replace(block, disturbed=True) if block.pair in disturbed and not block.dropped else block
        for block in blocks
    ]
    return marked, [Note("pairs_left_out", {"count": len(disturbed)})]
