# SPDX-License-Identifier: Apache-2.0
"""The kernel's idle counters, `/sys/devices/system/cpu/cpu*/cpuidle/state*/`.

They count the *requests* of the kernel; the hardware may use shallower states. `time` (µs) and `usage` move only when a
CPU leaves the state: `idle_edges` accounts for open idle periods.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from powerprof.measure.clock import kernel_ns
from powerprof.measure.idle_counters import CpuReading, Snapshot, StateInfo, is_polling
from powerprof.system import errors, files, open_files, paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import whole

COUNTERS = ("time", "usage", "above", "below", "rejected")
LATENCY_DEVICE = Path("/dev/cpu_dma_latency")
# The value without a limit (PM_QOS_CPU_LATENCY_DEFAULT_VALUE, include/linux/pm_qos.h).
_NO_LIMIT_US = 2_000_000_000
_REQUIRED = 2  # `above` and `below` came with Linux 5.0 (04dab58a39d7), `rejected` with 5.9 (8a6b3abbd0b7)
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.EIO})
_CPU = re.compile(r"cpu(\d+)")
_STATE = re.compile(r"state(\d+)")


def parse_cpu_list(text: str, what: object) -> list[int]:
    """Return the CPUs of a kernel list: `0-3,8` → 0, 1, 2, 3, 8. Raise PowerprofError for another text."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise files.not_understood(what, f"not a list of CPUs: {text.strip()[:40]!r}")
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cpus)


def _list_numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PowerprofError(f"cannot list {folder} ({errors.reason_of(error)})", "run as root") from error
    folders = [(int(match[1]), entry) for entry in entries if (match := pattern.fullmatch(entry.name))]
    return sorted(folders)


def online_cpus(root: Path | None = None) -> list[int]:
    """Return the CPUs that are online. Without the list `online`, return all CPUs of the tree."""
    folder = (root or paths.sysfs()) / "devices/system/cpu"
    path = folder / "online"
    if path.exists():
        return parse_cpu_list(files.read_text(path), path)
    return [cpu for cpu, _ in _list_numbered(folder, _CPU)]


def read_packages(root: Path | None = None) -> dict[int, int]:
    """Return the package of each CPU that is online; without a topology no CPU."""
    root = root or paths.sysfs()
    packages = {
        cpu: files.try_int(root / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id")
        for cpu in online_cpus(root)
    }
    return {cpu: package for cpu, package in packages.items() if package is not None and package >= 0}


def read_driver(root: Path | None = None) -> str | None:
    """Return the cpuidle driver in use. None without one (many guests and containers)."""
    name = files.try_text((root or paths.sysfs()) / "devices/system/cpu/cpuidle/current_driver")
    return None if name in (None, "", "none") else name


def read_latency_us(device: Path = LATENCY_DEVICE) -> int | None:
    """Return the host's CPU latency limit in µs; None without a limit. Raise OSError if it cannot be read."""
    # Opening adds a request without a value, which limits nothing.
    handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.read(handle, 4)
    finally:
        os.close(handle)
    if len(data) != 4:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), str(device))
    value: int = struct.unpack("i", data)[0]
    return value if value < _NO_LIMIT_US else None


class _Cpu:
    """The open counter files of one CPU."""

    def __init__(self, cpu: int, folders: Sequence[Path]) -> None:
        self.cpu, self.folder = cpu, folders[0]
        infos = []
        for folder in folders:
            name = files.read_text(folder / "name")
            description = files.try_text(folder / "desc") or ""
            disabled = files.try_text(folder / "disable") not in (None, "0")
            latency_us, target_us = (whole(files.try_text(folder / leaf)) for leaf in ("latency", "residency"))
            infos.append(StateInfo(name or folder.name, is_polling(name, description), disabled, latency_us, target_us))
        self.states = tuple(infos)
        # One list per counter, so that `usage` can be read alone. None: this kernel has no such counter.
        self.files: list[list[Path | None]] = [
            [folder / counter if index < _REQUIRED or (folder / counter).exists() else None for folder in folders]
            for index, counter in enumerate(COUNTERS)
        ]
        self.handles: list[list[int | None]] = [[None] * len(folders) for _ in COUNTERS]


class CpuidleReader(Closeable):
    """Reads the counters of every CPU through descriptors that stay open: about 3 µs per counter.

    If a machine has more counters than half of the spare open files, the rest is opened at every reading. Raises
    PowerprofError for an unreadable counter. `cpus` is empty without a cpuidle driver.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.sysfs()
        self.notes: list[str] = []
        self._cpus: dict[int, _Cpu] = {}
        self._budget = open_files.count_spare() // 2
        without = []
        for cpu in online_cpus(self.root):
            states = _list_numbered(self.root / f"devices/system/cpu/cpu{cpu}/cpuidle", _STATE)
            if states:
                self._cpus[cpu] = _Cpu(cpu, [folder for _, folder in states])
            else:
                without.append(cpu)
        if without and self._cpus:
            self.notes.append(f"no idle states for CPU {format_cpu_list(without)}: left out")

    def close(self) -> None:
        """Close every descriptor."""
        for cpu in self._cpus.values():
            for row in cpu.handles:
                for position, handle in enumerate(row):
                    if handle is not None:
                        os.close(handle)
                    row[position] = None

    @property
    def cpus(self) -> list[int]:
        """The CPUs with idle states."""
        return list(self._cpus)

    def states(self, cpu: int) -> tuple[StateInfo, ...]:
        """Return the idle states of one CPU, shallowest first."""
        return self._cpus[cpu].states

    def polls(self) -> set[int]:
        """Return the numbers of polling states. Without a driver that is state 0, of `idle=poll`."""
        numbers = {number for cpu in self._cpus.values() for number, state in enumerate(cpu.states) if state.polling}
        return numbers if self._cpus else {0}

    def state_names(self) -> dict[int, list[str]]:
        """Return the names of every CPU's idle states, shallowest first."""
        return {cpu: [state.name for state in entry.states] for cpu, entry in self._cpus.items()}

    def _read(self, entry: _Cpu, counter: int, position: int) -> int | None:
        path = entry.files[counter][position]
        if path is None:
            return None
        handle = entry.handles[counter][position]
        try:
            data = None if handle is None else self._read_open(entry, counter, position)
            if data is None:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    data = os.pread(handle, 32, 0)
                except OSError:
                    os.close(handle)
                    raise
                if self._budget > 0:
                    self._budget -= 1
                    entry.handles[counter][position] = handle
                else:
                    os.close(handle)
        except OSError as error:
            if error.errno in _GONE:
                raise _CpuGone from error
            raise PowerprofError(f"cannot read {path} ({errors.reason_of(error)})", "run as root") from error
        try:
            return int(data)
        except ValueError:
            raise files.not_understood(path, f"not a number: {data[:20]!r}") from None

    def _read_open(self, entry: _Cpu, counter: int, position: int) -> bytes | None:
        """Return a counter through its open descriptor; None if the file was replaced.

        A change of the idle governor removes the files of all CPUs and makes them again (cpuidle_switch_governor).
        """
        handle = entry.handles[counter][position]
        assert handle is not None  # noqa: S101  open
        try:
            return os.pread(handle, 32, 0)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            os.close(handle)
            entry.handles[counter][position] = None
            self._budget += 1
            return None

    def usage(self, cpu: int) -> tuple[int, ...] | None:
        """Return the entries of each state of one CPU. None if the CPU no longer exists."""
        entry = self._cpus[cpu]
        try:
            return tuple(self._read(entry, 1, position) or 0 for position in range(len(entry.states)))
        except _CpuGone:
            return None

    def read_cpu(self, cpu: int) -> CpuReading | None:
        """Return all counters of one CPU, with the time just before. None if the CPU no longer exists (hotplug)."""
        entry = self._cpus[cpu]
        width = range(len(entry.states))
        at_ns = kernel_ns()
        try:
            life = self._read_life(entry)
            rows = [
                tuple(self._read(entry, counter, position) for position in width) for counter in range(len(COUNTERS))
            ]
        except _CpuGone:
            return None
        time_us, usage = (tuple(value or 0 for value in row) for row in rows[:_REQUIRED])
        return CpuReading(cpu, at_ns, entry.states, time_us, usage, rows[2], rows[3], rows[4], life=life)

    def _read_life(self, entry: _Cpu) -> int:
        """Return the inode of the counters' folder. A CPU that comes back gets another folder, with other counters.

        Without it, counters that had grown beyond their values before the reset had a plausible difference.
        """
        try:
            return entry.folder.stat().st_ino
        except OSError as error:
            if error.errno in _GONE:
                raise _CpuGone from error
            raise PowerprofError(f"cannot read {entry.folder} ({errors.reason_of(error)})", "run as root") from error

    def snapshot(self) -> Snapshot:
        """Return the counters of all online CPUs, read one after the other, without resolving open idle periods."""
        readings = {}
        online = set(online_cpus(self.root))
        for cpu in self._cpus:
            reading = self.read_cpu(cpu) if cpu in online else None
            if reading is not None:
                readings[cpu] = reading
        return Snapshot(readings, tuple(self.notes))


class _CpuGone(Exception):
    """A CPU went offline while its counters were open."""


def format_cpu_list(cpus: Sequence[int]) -> str:
    """Return CPU numbers as the kernel writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
