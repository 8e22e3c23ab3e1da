# SPDX-License-Identifier: Apache-2.0
"""The JSON of speedscope (https://www.speedscope.app/file-format-schema.json): one sampled profile per weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from powerprof import __version__
from powerprof.report.stacks.samples import WeightedStack, merged

Unit = Literal["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]


@dataclass(frozen=True)
class Profile:
    """Weighted stacks under a name, in one of the format's units."""

    name: str
    unit: Unit
    stacks: Iterable[WeightedStack]


def speedscope(profiles: Iterable[Profile], name: str) -> dict[str, Any]:
    """The document. Frames are shared between the profiles."""
    frames: dict[str, int] = {}
    documents = []
    for profile in profiles:
        stacks = merged(profile.stacks)
        weights = [value for _, value in stacks]
        documents.append(
            {
                "type": "sampled",
                "name": profile.name,
                "unit": profile.unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in stacks],
                "weights": weights,
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"powerprof@{__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": documents,
    }
