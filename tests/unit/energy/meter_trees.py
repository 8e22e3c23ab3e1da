# SPDX-License-Identifier: Apache-2.0
"""Builds sysfs trees of machines with meters, and moves their counters on."""

from __future__ import annotations

from pathlib import Path

RANGE_UJ = 262_143_328_850


class Tree:
    """A sysfs below `root`; `write` creates or changes a file of it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: object) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
        return path

    def zone(self, zone_id: str, name: str, energy_uj: int, range_uj: int | None = RANGE_UJ) -> Path:
        folder = f"class/powercap/{zone_id}"
        self.write(f"{folder}/name", name)
        if range_uj is not None:
            self.write(f"{folder}/max_energy_range_uj", range_uj)
        return self.write(f"{folder}/energy_uj", energy_uj)

    def count(self, zone_id: str, energy_uj: int) -> None:
        self.write(f"class/powercap/{zone_id}/energy_uj", energy_uj)
