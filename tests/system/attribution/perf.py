# SPDX-License-Identifier: Apache-2.0
"""The same sleeps as `perf record --call-graph dwarf` sees them: perf's own unwinder as the judge of ours."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerprof.system.program_search import need
from powerprof.system.programs import start, stop

# The largest that perf takes: our own copies are 16 KiB.
_DUMP_BYTES = 65528
_USER_END = 1 << 47


@dataclass(frozen=True)
class Agreement:
    """Frames of perf's stacks that ours have at the same place, of those that both can have."""

    stacks: int
    comparable: int
    agreeing: int
    differing: list[tuple[int, list[int], list[int]]]


@contextmanager
def recording(pid: int, data: Path) -> Iterator[None]:
    """Record every sleep of a process. tracefs is mounted for perf alone, in a mount namespace of its own."""
    command = [
        need("perf", "linux-perf"),
        "record",
        "--quiet",
        "-e",
        "sched:sched_switch",
        "--filter",
        "prev_state != 0",
        "--call-graph",
        f"dwarf,{_DUMP_BYTES}",
        "-m",
        "16M",
        "-p",
        str(pid),
        "-o",
        str(data),
    ]
    script = f"mount -t tracefs none /sys/kernel/tracing && exec {shlex.join(map(str, command))}"
    process = start(["unshare", "--mount", "sh", "-c", script])
    try:
        yield
    finally:
        stop(process, kind=2)


def stacks(data: Path) -> set[tuple[int, tuple[int, ...]]]:
    """(tid, user addresses in their files, innermost first) of every distinct stack."""
    text = subprocess.run(
        [need("perf", "linux-perf"), "script", "--no-inline", "-i", data, "-F", "tid,ip"],
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    found = set()
    for block in text.split("\n\n"):
        words = block.split()
        if words:
            addresses = tuple(pc for word in words[1:] if (pc := int(word, 16)) < _USER_END)
            found.add((int(words[0]), addresses))
    return found


def _in_file(frame: dict[str, Any]) -> int:
    if frame["function_start"] is None:
        return -1
    return int(frame["function_start"], 16) + int(frame["offset"])


def compare(theirs: set[tuple[int, tuple[int, ...]]], rows: list[dict[str, Any]]) -> Agreement:
    """Each of perf's stacks beside ours of that thread and pc. perf says where the call is, we where it returns."""
    ours: dict[tuple[int, int], list[list[int]]] = {}
    for row in rows:
        addresses = [_in_file(frame) for frame in row["stack"] if not frame["inlined"]]
        if addresses:
            ours.setdefault((row["thread"]["tid"], addresses[0]), []).append(addresses)
    count = comparable = agreeing = 0
    differing = []
    for tid, stack in sorted(theirs):
        candidates = ours.get((tid, stack[0])) if stack else None
        if not candidates:
            continue  # a sleep that began in the window and did not end in it
        count += 1
        equal, mine = max(
            (sum(own - other in (0, 1) for own, other in zip(one, stack, strict=False)), one) for one in candidates
        )
        comparable += max(len(stack), len(mine))
        agreeing += equal
        if equal < max(len(stack), len(mine)):
            differing.append((tid, list(stack), mine))
    return Agreement(count, comparable, agreeing, differing)
