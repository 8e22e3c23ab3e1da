# SPDX-License-Identifier: Apache-2.0
"""Lines, numbers and time stamps of recorded output: turbostat, PowerTOP, powercap, cpuidle and meter logs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from powerprof.system.errors import DataError

# The line before each dump of a series: `Timestamp | 1764230400.5`.
TIMESTAMP = re.compile(r"Timestamp\s*\|\s*(\S+)\s*")
# The year 5138. Larger figures are milliseconds or other units.
_LATEST_EPOCH_S = 1e11


def numbered_lines(text: str, path: Path | str, longest: int = 4096) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line. Raise DataError at a line above `longest` characters."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > longest:
            raise DataError(path, "line too long", number)
        yield number, line


def parse_number(word: str, low: float = float("-inf"), high: float = float("inf")) -> float | None:
    """Return the number of a word, or None if it is no number from `low` to `high`. NaN is no number."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if low <= value <= high else None


def parse_epoch(word: str, path: Path | str, line: int) -> float:
    """Return epoch seconds. Raise DataError for another word."""
    value = parse_number(word, 0.0, _LATEST_EPOCH_S)
    if not value:
        raise DataError(path, f"not an epoch time: {word[:30]!r}", line)
    return value


def median_step_s(times_s: Sequence[float]) -> float:
    """Return the median distance of neighbouring times; 0 for fewer than two."""
    steps = sorted(b - a for a, b in itertools.pairwise(times_s)) or [0.0]
    return steps[len(steps) // 2]
