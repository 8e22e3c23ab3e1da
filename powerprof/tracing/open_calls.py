# SPDX-License-Identifier: Apache-2.0
"""Calls that have not returned when the window ends, with their time until then."""

from __future__ import annotations

from typing import Any

FIELDS = (
    "calls",
    "returns",
    "abandoned",
    "unfinished",
    "wall_ns",
    "cpu_ns",
    "self_wall_ns",
    "self_cpu_ns",
    "children",
    "stepped_children",
)  # enum stat_field of functions.bpf.c


def open_calls(threads: Any, frames: Any, now_ns: int) -> dict[int, dict[str, int]]:
    """Sums by function of the open calls in the maps of functions.bpf.c, as FIELDS."""
    found: dict[int, dict[str, int]] = {}
    for tid, thread in threads.items():
        off_ns = int(thread.off_ns) + (max(now_ns - int(thread.out_ns), 0) if thread.out_ns else 0)
        below_wall = below_cpu = 0
        rows: list[tuple[int, ...]] = []
        for depth in range(int(thread.depth)):
            try:
                frame = frames[frames.Key(tid.value, depth)]
            except KeyError:
                break
            wall = max(now_ns - int(frame.wall_ns), 0)
            cpu = max(now_ns - off_ns - int(frame.cpu_ns), 0)
            rows.append(
                (
                    int(frame.function),
                    wall,
                    cpu,
                    int(frame.child_wall_ns),
                    int(frame.child_cpu_ns),
                    int(frame.children),
                    int(frame.stepped_children),
                    int(frame.stepped),
                )
            )
        for at in range(len(rows) - 1, -1, -1):
            number, wall, cpu, child_wall, child_cpu, children, stepped_children, _ = rows[at]
            inner = rows[at + 1] if at + 1 < len(rows) else None
            sums = found.setdefault(number, dict.fromkeys(FIELDS, 0))
            sums["unfinished"] += 1
            sums["self_wall_ns"] += max(wall - child_wall - below_wall, 0)
            sums["self_cpu_ns"] += max(cpu - child_cpu - below_cpu, 0)
            sums["children"] += children + (inner is not None)
            sums["stepped_children"] += stepped_children + (inner[-1] if inner else 0)
            if all(row[0] != number for row in rows[:at]):
                sums["wall_ns"] += wall
                sums["cpu_ns"] += cpu
            below_wall, below_cpu = wall, cpu
    return found
