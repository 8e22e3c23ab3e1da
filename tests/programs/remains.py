# SPDX-License-Identifier: Apache-2.0
"""What a running command holds of the kernel and of the machine, and what of that is left once it has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
# Commands of bpf(2) by which a kind's ids are listed, and the kind's name in fdinfo.
_NEXT_ID = {"prog_id": 11, "map_id": 12, "link_id": 31}
_KINDS_OF_NAMESPACES = ("mnt", "net")
# The kernel rounds the start of a process to ticks.
_START_SLACK_S = 1.0


def held(pid: int) -> set[tuple[str, int]]:
    """(kind, id) of the BPF programs, maps and links that a process holds open."""
    found = set()
    with contextlib.suppress(OSError):
        for info in list(Path(f"/proc/{pid}/fdinfo").iterdir()):
            with contextlib.suppress(OSError):
                for line in info.read_text().splitlines():
                    kind, _, number = line.partition(":")
                    if kind in _NEXT_ID:
                        found.add((kind, int(number)))
    return found


def held_programs(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds open."""
    return {number for kind, number in held(pid) if kind == "prog_id"}


def exists(kind: str, number: int) -> bool:
    """Whether the kernel has a BPF object of this id. Ids only grow, so none is another object's by now."""
    attributes = ctypes.create_string_buffer(struct.pack("III", number - 1, 0, 0), 128)
    if ctypes.CDLL(None, use_errno=True).syscall(_SYS_BPF, _NEXT_ID[kind], attributes, 128) != 0:
        return False
    return struct.unpack_from("I", attributes.raw, 4)[0] == number


def _namespaces(pid: int) -> set[str]:
    """`net:[…]` and `mnt:[…]` in which a process is, and those that it holds by descriptors."""
    names = []
    with contextlib.suppress(OSError):
        names += [f"/proc/{pid}/ns/{kind}" for kind in _KINDS_OF_NAMESPACES]
        names += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    found = set()
    for name in names:
        with contextlib.suppress(OSError):
            target = os.readlink(name)
            if target.startswith(tuple(f"{kind}:[" for kind in _KINDS_OF_NAMESPACES)):
                found.add(target)
    return found


def _namespaces_of_later_programs(since: float) -> set[str]:
    """Namespaces held by processes without an ancestor older than `since`, except init.

    The kernel gives the number of an ended namespace again, so a number alone does not tell whose namespace it is.
    """
    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            line = [one for one in (process, *process.parents()) if one.pid != 1]
            if line and line[-1].create_time() >= since:
                found |= _namespaces(process.pid)
    return found


def _children(pid: int) -> list[int]:
    """The children of a process. psutil reads the stat of each process of the host, which can wait for their exec."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _mentions(path: str, room: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [line for line in Path(path).read_text().splitlines() if f"{room}/" in line]
    return []


@dataclass
class Footprint:
    """All that one command, whose files are below `rooms`, was seen to hold; `note` looks again."""

    pid: int
    rooms: tuple[Path, ...]
    processes: dict[int, psutil.Process] = field(default_factory=dict)
    bpf: set[tuple[str, int]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    started_at: float = field(default_factory=lambda: time.time() - _START_SLACK_S)

    def descendants(self) -> list[psutil.Process]:
        """The processes that it started, and those that they did."""
        found = []
        pids = _children(self.pid)
        while pids:
            pid = pids.pop()
            pids += _children(pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def note(self) -> None:
        """Look at what it holds now."""
        own = _namespaces(os.getpid())
        for process in self.descendants():
            self.processes.setdefault(process.pid, process)
        for pid in (self.pid, *self.processes):
            self.bpf |= held(pid)
            self.namespaces |= _namespaces(pid) - own

    def left(self) -> list[str]:
        """What of it is still there, and what in its folders nobody but it can have made."""
        found = [f"process {one.pid}" for one in self.processes.values() if one.is_running() and not _is_zombie(one)]
        found += [f"{kind} {number}" for kind, number in self.bpf if exists(kind, number)]
        if self.namespaces:
            found += sorted(self.namespaces & _namespaces_of_later_programs(self.started_at))
        for room in self.rooms:
            found += _mentions("/proc/self/mountinfo", room) + _mentions("/proc/net/unix", room)
            found += [str(path) for path in room.iterdir()]
        return found

    def wait_for_nothing(self, patience_s: float = 30.0) -> list[str]:
        """As `left`, once it is empty or that time is over: the kernel frees some things after their holder's end."""
        limit = time.monotonic() + patience_s
        while (found := self.left()) and time.monotonic() < limit:
            time.sleep(0.1)
        return found


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
