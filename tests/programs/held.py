# SPDX-License-Identifier: Apache-2.0
"""What a process may do: capabilities are each thread's own, and a thread begins with those of who starts it."""

from __future__ import annotations

from pathlib import Path

from powerprof.system import capabilities

_DOCUMENTED = sum(1 << number for number in capabilities.TRACING.values())


def has_settled(pid: int) -> bool:
    """Whether no thread holds more than a trace needs, nor could get more. False where the process is gone."""
    threads = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue
        said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if "CapEff" not in said:  # it ends
            return False
        held = int(said["CapEff"], 16) | int(said["CapPrm"], 16) | int(said["CapBnd"], 16)
        if held & ~_DOCUMENTED or said["NoNewPrivs"] != "1":
            return False
        threads += 1
    return threads > 0
