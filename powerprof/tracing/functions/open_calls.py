# SPDX-License-Identifier: Apache-2.0
"""Calls that have not returned when the window ends, with their time until then."""

from __future__ import annotations

from typing import Any

import numpy as np

from powerprof.tracing.bpf.shared_numbers import FunctionSum

# A FunctionSum each, in the order of their numbers.
FIELDS = tuple(
    f"{name}_ns" if name.endswith(("wall", "cpu")) else name for name in map(str.lower, FunctionSum.__members__)
)
# The beginning of struct thread, struct frame_key, struct frame.
_THREAD = np.dtype(
    [(name, "<u8") for name in ("off_ns", "out_ns", "returned_sp")] + [(name, "<u4") for name in ("depth", "deepest")]
)
_PLACE = np.dtype([("tid", "<u4"), ("depth", "<u4")])
_FRAME = np.dtype(
    [(name, "<u8") for name in ("sp", "wall_ns", "cpu_ns", "child_wall_ns", "child_cpu_ns")]
    + [(name, "<u4") for name in ("function", "stepped", "children", "stepped_children")]
)


def open_calls(threads: tuple[bytes, bytes], frames: tuple[bytes, bytes], now_ns: int) -> dict[int, dict[str, int]]:
    """Sums by function of the open calls, as FIELDS, from keys and values of the maps of functions.bpf.c."""
    calls: dict[int, dict[str, int]] = {}
    places = np.frombuffer(frames[0], dtype=_PLACE).tolist()
    open_frames = dict(zip(places, np.frombuffer(frames[1], dtype=_FRAME), strict=True))
    tids = np.frombuffer(threads[0], dtype="<u4").tolist()
    size = len(threads[1]) // max(len(tids), 1)
    for number, tid in enumerate(tids):
        thread = np.frombuffer(threads[1], dtype=_THREAD, count=1, offset=number * size)[0]
        out_ns = int(thread["out_ns"])
        off_ns = int(thread["off_ns"]) + (max(now_ns - out_ns, 0) if out_ns else 0)
        stack: list[Any] = []
        while len(stack) < int(thread["depth"]) and (tid, len(stack)) in open_frames:
            stack.append(open_frames[tid, len(stack)])
        _add(stack, now_ns, off_ns, calls)
    return calls


def _add(stack: list[Any], now_ns: int, off_ns: int, calls: dict[int, dict[str, int]]) -> None:
    """One thread's open calls, outermost first, to the sums."""
    numbers = [int(frame["function"]) for frame in stack]
    below_wall = below_cpu = below_stepped = 0
    for at in range(len(stack) - 1, -1, -1):
        frame, number = stack[at], numbers[at]
        wall, cpu = max(now_ns - int(frame["wall_ns"]), 0), max(now_ns - off_ns - int(frame["cpu_ns"]), 0)
        sums = calls.setdefault(number, dict.fromkeys(FIELDS, 0))
        sums["unfinished"] += 1
        sums["self_wall_ns"] += max(wall - int(frame["child_wall_ns"]) - below_wall, 0)
        sums["self_cpu_ns"] += max(cpu - int(frame["child_cpu_ns"]) - below_cpu, 0)
        sums["children"] += int(frame["children"]) + (at + 1 < len(stack))
        sums["stepped_children"] += int(frame["stepped_children"]) + below_stepped
        if number not in numbers[:at]:
            sums["wall_ns"] += wall
            sums["cpu_ns"] += cpu
        below_wall, below_cpu, below_stepped = wall, cpu, int(frame["stepped"])
