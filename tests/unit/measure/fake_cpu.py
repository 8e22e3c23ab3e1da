# SPDX-License-Identifier: Apache-2.0
"""A sysfs tree of CPUs with idle states, as small as the kernel's interface allows, that a test can let run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

POLL = ("POLL", "CPUIDLE CORE POLL IDLE")
C1 = ("C1", "MWAIT 0x00")
C6 = ("C6", "MWAIT 0x20")
HALTPOLL = ("haltpoll idle", "default architecture idle")


class FakeCpus:
    """`FakeCpus(tmp_path, [[POLL, C1], [POLL, C1, C6]])`: one list of (name, desc) a CPU, all counters at 0."""

    def __init__(
        self,
        root: Path,
        cpus: Sequence[Sequence[tuple[str, str]]],
        driver: str = "intel_idle",
        counters: Sequence[str] = ("time", "usage", "above", "below", "rejected"),
    ) -> None:
        self.root = root
        self.folder = root / "devices/system/cpu"
        self.counters = counters
        for cpu, states in enumerate(cpus):
            (self.folder / f"cpu{cpu}").mkdir(parents=True)
            for index, (name, description) in enumerate(states):
                state = self.state(cpu, index)
                state.mkdir(parents=True)
                for leaf, text in (("name", name), ("desc", description), ("disable", "0"), ("power", "4294967295")):
                    (state / leaf).write_text(f"{text}\n")
                for counter in counters:
                    (state / counter).write_text("0\n")
        (self.folder / "cpuidle").mkdir()
        (self.folder / "cpuidle/current_driver").write_text(f"{driver}\n")
        self.online(range(len(cpus)))

    def state(self, cpu: int, index: int) -> Path:
        return self.folder / f"cpu{cpu}/cpuidle/state{index}"

    def online(self, cpus: Sequence[int]) -> None:
        (self.folder / "online").write_text(",".join(str(cpu) for cpu in cpus) + "\n")

    def add(self, cpu: int, index: int, *, us: int = 0, usage: int = 0, above: int = 0, below: int = 0) -> None:
        """Let a CPU leave a state `usage` times after `us` microseconds in it."""
        for counter, more in (("time", us), ("usage", usage), ("above", above), ("below", below)):
            path = self.state(cpu, index) / counter
            if path.exists():
                path.write_text(f"{int(path.read_text()) + more}\n")

    def remake(self, cpu: int) -> None:
        """Make the folders of a CPU's states again, with counters of 0, as when it comes back online."""
        folder, old = self.folder / f"cpu{cpu}/cpuidle", self.root / f"old-{cpu}"
        folder.rename(old)  # kept, so that no file system gives its inodes to the new folders
        shutil.copytree(old, folder)
        for place in folder.glob("state*"):
            for counter in self.counters:
                (place / counter).write_text("0\n")

    def dump(self, bar: bool = False) -> str:
        """The tree as a recorded dump: `path:` and value blocks, or `path|value` lines."""
        lines = [f"/sys/devices/system/cpu/cpuidle/current_driver{'|' if bar else ':'}"]
        lines[0] += "intel_idle" if bar else "\nintel_idle\n"
        for path in sorted(self.folder.glob("cpu*/cpuidle/state*/*")):
            name, value = f"/sys/{path.relative_to(self.root)}", path.read_text().strip()
            lines.append(f"{name}|{value}" if bar else f"{name}:\n{value}\n")
        return "\n".join(lines) + "\n"


def fake_stat(root: Path, cpus: Sequence[tuple[int, int]]) -> None:
    """A /proc/stat with (busy, idle) ticks a CPU."""
    root.mkdir(exist_ok=True)
    rows = [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0" for cpu, (busy, idle) in enumerate(cpus)]
    (root / "stat").write_text("\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *rows, "intr 10 1", "ctxt 20"]) + "\n")
