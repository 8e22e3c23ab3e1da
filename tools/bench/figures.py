# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says in the end, and small statistics."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`met`: the target was met. `doubt`: why the figures are not to be believed, empty where they are."""

    text: str
    met: bool
    doubt: str = ""

    @property
    def missed(self) -> bool:
        """Missed by a figure that can be believed."""
        return not self.met and not self.doubt

    def word(self, quick: bool) -> str:
        """One word for the verdict."""
        if quick or self.doubt:
            return "no verdict"
        return "met" if self.met else "missed"


def spread(values: Sequence[float]) -> str:
    """Median with the range: `38.1 (36.0 … 41.2)`."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} … {max(values):.1f})"


def half_range(values: Sequence[float]) -> float:
    """Half of the way from the lowest to the highest."""
    return (max(values) - min(values)) / 2
