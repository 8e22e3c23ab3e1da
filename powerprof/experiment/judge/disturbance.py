# SPDX-License-Identifier: Apache-2.0
"""Pure: which pairs other programs have disturbed, and what becomes of them.

What is judged is the C0 that is neither server, client nor powerprof, and never a result. Each condition is held
against its own quietest window, so that interrupts and write-back that belong to a condition do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from powerprof.experiment.judge.metrics import rest_percent
from powerprof.experiment.options import MINIMUM_PAIRS
from powerprof.experiment.records import Block
from powerprof.records import Note

# Points of C0. On a quiet host the rest varies by less than one.
_DISTURBED_POINTS = 5.0
# With fewer pairs left than this share of those asked for, all are kept: a busy host is then what was measured.
_KEPT_SHARE = 0.6


def disturbed_pairs(blocks: Sequence[Block]) -> set[int]:
    """The numbers of the pairs with a window in which something else ran."""
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


def leave_out(blocks: Sequence[Block], wanted_pairs: int) -> tuple[list[Block], list[Note]]:
    """The blocks with disturbed pairs marked, if enough pairs are left without them; and a note of it."""
    disturbed = disturbed_pairs(blocks)
    kept = {block.pair for block in blocks if not block.dropped} - disturbed
    if not disturbed or len(kept) < max(_KEPT_SHARE * wanted_pairs, MINIMUM_PAIRS):
        return list(blocks), []
    marked = [
        msgspec.structs.replace(block, disturbed=True) if block.pair in disturbed and not block.dropped else block
        for block in blocks
    ]
    return marked, [Note("pairs_left_out", {"count": len(disturbed)})]
