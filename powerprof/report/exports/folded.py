# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: a line a stack, frames from the outermost joined by `;`, a blank and the weight.

It is the input of flamegraph.pl, inferno and many viewers. The format has no escapes of its own: `;` and control
characters in a name are written as %3B and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from powerprof.report.stacks.samples import WeightedStack, merged

_UNSAFE = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")


def _escaped(name: str) -> str:
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def folded(stacks: Iterable[WeightedStack]) -> str:
    """The text; equal stacks are one line. Weights keep at most six decimals."""
    lines = []
    for frames, value in merged(stacks):
        weight = f"{value:.6f}".rstrip("0").rstrip(".")
        lines.append(f"{';'.join(map(_escaped, frames)) or 'unknown'} {weight}\n")
    return "".join(lines)
