# SPDX-License-Identifier: Apache-2.0
"""The kernel's idle counters, `/sys/devices/system/cpu/cpu*/cpuidle/state*/`, live and recorded.

They count the *requests* of the kernel; the hardware may use shallower states. `time` (µs) and `usage` move only when a
CPU leaves the state: `read_edge` accounts for open idle periods.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.measure.program_output import read_dump_cells
from powerprof.measure.window import CpuReading, Snapshot, StateInfo, is_polling, kernel_ns
from powerprof.system import files, paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import DataError, PowerprofError, UsageError
from powerprof.system.files import loader, read_fields, read_outside_table

COUNTERS = ("time", "usage", "above", "below", "rejected")
LATENCY_DEVICE = Path("/dev/cpu_dma_latency")
# The value without a limit (PM_QOS_CPU_LATENCY_DEFAULT_VALUE, include/linux/pm_qos.h).
_NO_LIMIT_US = 2_000_000_000
_STATE_TABLES = Path(__file__).with_name("idle_states.toml")
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
        raise PowerprofError(f"cannot list {folder} ({files.reason_of(error)})", "run as root") from error
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
        self.cpu = cpu
        infos = []
        for folder in folders:
            name = files.read_text(folder / "name")
            description = files.try_text(folder / "desc") or ""
            disabled = files.try_text(folder / "disable") not in (None, "0")
            latency_us, target_us = (files.whole(files.try_text(folder / leaf)) for leaf in ("latency", "residency"))
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

    If a machine has more counters than half the limit of open files, the rest is opened at every reading. Raises
    PowerprofError for an unreadable counter. `cpus` is empty without a cpuidle driver.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.sysfs()
        self.notes: list[str] = []
        self._cpus: dict[int, _Cpu] = {}
        self._budget = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
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
            raise PowerprofError(f"cannot read {path} ({files.reason_of(error)})", "run as root") from error
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
            rows = [
                tuple(self._read(entry, counter, position) for position in width) for counter in range(len(COUNTERS))
            ]
        except _CpuGone:
            return None
        time_us, usage = (tuple(value or 0 for value in row) for row in rows[:_REQUIRED])
        return CpuReading(cpu, at_ns, entry.states, time_us, usage, rows[2], rows[3], rows[4])

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


# Idle periods that are open at a window's edge, resolved without BPF and without root.
#
# The counters of a CPU move only when it leaves an idle state, so those of a sleeping CPU are stale for as long as it
# has slept. On a quiet guest plain differences over 6 s err by ±3 points of C0 for a true 0.5. This code moves itself
# onto each CPU in turn. The CPU wakes up, the exit updates its counters, and no idle period can be open while this
# thread runs: time and counters read at that moment belong together. Each CPU has its own exact window. The exits that
# this causes are counted, from the CPU's usage just before.

_LIBC = ctypes.CDLL(None)


@contextmanager
def restore_affinity() -> Iterator[None]:
    """Restore this thread's CPU set at the end of the context."""
    allowed = _read_allowed_cpus()
    try:
        yield
    finally:
        try:
            os.sched_setaffinity(0, allowed)
        except OSError:
            # All CPUs of the old set went offline: use all others.
            os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _read_allowed_cpus() -> set[int]:
    """Return the CPUs that this thread may use, offline ones included.

    sched_getaffinity(2) leaves offline CPUs out. A thread bound to the rest would not use a CPU that comes back.
    """
    path = Path("/proc/thread-self/status")
    listed = read_fields(path).get("Cpus_allowed_list", "")
    return set(parse_cpu_list(listed, path)) if listed else os.sched_getaffinity(0)


def pin_to_cpu(cpu: int) -> bool:
    """Run on this CPU from now on. Return False if our cpuset (a container's, for example) does not include it."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    return True


def _order_from_here(cpus: Sequence[int]) -> list[int]:
    """Return the CPUs beginning with the current one, which is awake: it need not be woken again."""
    here = _LIBC.sched_getcpu()
    return [cpu for cpu in cpus if cpu >= here] + [cpu for cpu in cpus if cpu < here]


def _read_stateless(cpu: int) -> CpuReading:
    """Return the edge of a CPU without idle states: a moment at which this thread runs on it."""
    resolved = pin_to_cpu(cpu)
    return CpuReading(cpu, kernel_ns(), (), (), (), (), (), (), resolved=resolved)


def _read_awake(reader: CpuidleReader, cpu: int) -> CpuReading | None:
    """Return one CPU's counters, read while this thread runs on it. Unresolved if it may not."""
    if cpu not in reader.cpus:
        return _read_stateless(cpu)
    before = reader.usage(cpu)
    resolved = pin_to_cpu(cpu)
    reading = reader.read_cpu(cpu)
    if reading is None or before is None or not resolved:
        return reading
    forced = tuple(max(0, now - then) for now, then in zip(reading.usage, before, strict=True))
    return replace(reading, resolved=True, forced=forced)


def read_edge(
    reader: CpuidleReader, *, every_cpu: bool = False, at_edge: Callable[[CpuReading], object] | None = None
) -> Snapshot:
    """Return all CPUs' counters without open idle periods; about 0.1 ms per sleeping CPU.

    `every_cpu` includes CPUs without idle states: their readings have a time and no counters. `at_edge` is called with
    each reading while this thread runs on its CPU. CPUs outside our CPU set are read as they are, with a note; so are
    all CPUs of another host's files. Raise PowerprofError for an unreadable counter.
    """
    if not paths.is_this_host():
        snapshot = reader.snapshot()
        note = "recorded counters: open idle periods are not resolved"
        return replace(snapshot, notes=(*snapshot.notes, note))
    readings: dict[int, CpuReading] = {}
    online = set(online_cpus(reader.root))
    with restore_affinity():
        for cpu in _order_from_here(sorted(online) if every_cpu else reader.cpus):
            reading = _read_awake(reader, cpu) if cpu in online else None
            if reading is not None:
                readings[cpu] = reading
                if at_edge is not None:
                    at_edge(reading)
    readings = dict(sorted(readings.items()))
    notes = list(reader.notes)
    unresolved = [cpu for cpu, reading in readings.items() if not reading.resolved]
    if unresolved:
        cpus = format_cpu_list(unresolved)
        notes.append(f"CPU {cpus} is outside our CPU set: its open idle periods are not resolved")
    return Snapshot(readings, tuple(notes))


# Recorded cpuidle trees: text dumps of `/sys/devices/system/cpu`, in the layouts of `program_output`.
#
# Dumps come from other machines: a missing value, a wrong number or a wrong order is an error with its line. Other
# files of the tree are ignored.

_FILE = re.compile(r"(?:\S*/)?cpu(\d{1,6})/cpuidle/state(\d{1,3})/([a-z_]+)")
_DRIVER = re.compile(r"(?:\S*/)?cpuidle/(current_driver|current_governor_ro)")
_DUMPED = re.compile(rf"(?:{_FILE.pattern}|{_DRIVER.pattern})")
_NUMBER = re.compile(r"\d{1,20}")
_NEEDED = ("name", "time", "usage")

Cell = tuple[str, int]  # a value and its line


class Dump(msgspec.Struct, frozen=True):
    """One dump. `lines` maps (cpu, state index, counter) to the line of its value."""

    path: Path
    snapshot: Snapshot
    lines: Mapping[tuple[int, int, str], int]
    driver: str | None = None
    governor: str | None = None


def _collect(text: str, path: Path) -> tuple[dict[int, dict[int, dict[str, Cell]]], dict[str, str]]:
    cpus: dict[int, dict[int, dict[str, Cell]]] = {}
    about: dict[str, str] = {}
    for name, value, line in read_dump_cells(text, path, _DUMPED):
        head = _DRIVER.fullmatch(name)
        if head and value:
            about[head[1]] = value
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        cpu, state, leaf = int(match[1]), int(match[2]), match[3]
        short = f"cpu{cpu}/cpuidle/state{state}/{leaf}"
        if value is None:
            if leaf in COUNTERS or leaf == "name":
                raise DataError(path, f"{short} has no value", line)
            continue
        if leaf in COUNTERS and (not _NUMBER.fullmatch(value) or int(value) >= 1 << 64):
            raise DataError(path, f"{short} is not a counter ({value[:30]!r})", line)
        if not value.isprintable():
            raise DataError(path, f"{short} is not text ({value[:30]!r})", line)
        leaves = cpus.setdefault(cpu, {}).setdefault(state, {})
        if leaf in leaves:
            raise DataError(path, f"{short} appears twice, first on line {leaves[leaf][1]}", line)
        leaves[leaf] = (value, line)
    return cpus, about


@loader
def parse_dump(text: str, path: Path) -> Dump:
    """Return the dump of a text. Raise DataError(path, reason, line) for a damaged text."""
    cpus, about = _collect(text, path)
    if not cpus:
        hint = "a dump has lines like …/cpu0/cpuidle/state1/time"
        raise DataError(path, "no cpuidle counters in it", hint=hint)
    readings: dict[int, CpuReading] = {}
    lines: dict[tuple[int, int, str], int] = {}
    for cpu, states in sorted(cpus.items()):
        infos: list[StateInfo] = []
        for position, (state, leaves) in enumerate(sorted(states.items())):
            for leaf in _NEEDED:
                if leaf not in leaves:
                    first = min(line for _, line in leaves.values())
                    raise DataError(path, f"cpu{cpu}/cpuidle/state{state} has no {leaf}", first)
            name = leaves["name"][0]
            disabled = leaves.get("disable", ("0", 0))[0] != "0"
            latency_us, target_us = (files.whole(leaves.get(leaf, ("", 0))[0]) for leaf in ("latency", "residency"))
            is_poll = is_polling(name, leaves.get("desc", ("", 0))[0])
            infos.append(StateInfo(name, is_poll, disabled, latency_us, target_us))
            lines.update({(cpu, position, leaf): cell[1] for leaf, cell in leaves.items()})
        ordered = [leaves for _, leaves in sorted(states.items())]
        rows = [tuple(int(leaves[leaf][0]) if leaf in leaves else None for leaves in ordered) for leaf in COUNTERS]
        time_us, usage = (tuple(value or 0 for value in row) for row in rows[:2])
        readings[cpu] = CpuReading(cpu, None, tuple(infos), time_us, usage, rows[2], rows[3], rows[4])
    governor = about.get("current_governor_ro")
    return Dump(path, Snapshot(readings), lines, about.get("current_driver"), governor)


def read_dump(path: Path) -> Dump:
    """Return the dump of a file of at most 64 MiB."""
    return parse_dump(read_outside_table(path, 64 << 20), path)


def check_pair(before: Dump, after: Dump) -> None:
    """Raise DataError with the line of `after` if two dumps are not two moments of one machine."""
    old_cpus, new_cpus = before.snapshot.cpus, after.snapshot.cpus
    missing = sorted(set(old_cpus) ^ set(new_cpus))
    if missing:
        inside, outside = (before, after) if missing[0] in old_cpus else (after, before)
        raise DataError(outside.path, f"CPU {missing[0]} is missing, but {inside.path.name} has it")
    for cpu, old in old_cpus.items():
        new = new_cpus[cpu]
        if [state.name for state in old.states] != [state.name for state in new.states]:
            names = [", ".join(state.name for state in reading.states) for reading in (old, new)]
            line = min(line for (number, _, _), line in after.lines.items() if number == cpu)
            reason = f"CPU {cpu} has other idle states ({names[1]}) than before ({names[0]})"
            raise DataError(after.path, reason, line)
        for leaf in COUNTERS:
            rows = [getattr(reading, "time_us" if leaf == "time" else leaf) for reading in (old, new)]
            for position, (then, now) in enumerate(zip(*rows, strict=True)):
                if then is not None and now is not None and now < then:
                    name = f"cpu{cpu}/cpuidle/{new.states[position].name}/{leaf}"
                    line = after.lines[cpu, position, leaf]
                    raise DataError(
                        after.path,
                        f"{name} went backwards ({now} after {then})",
                        line,
                        hint="are the two dumps in order, and from one boot of one machine?",
                    )


def zero_counters(dump: Dump) -> Snapshot:
    """Return the same CPUs with all counters at 0, for the comparison with a single dump."""

    def zero(counters: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if value is None else 0 for value in counters)

    zeros = {}
    for cpu, reading in dump.snapshot.cpus.items():
        none = (0,) * len(reading.states)
        zeros[cpu] = replace(
            reading,
            time_us=none,
            usage=none,
            above=zero(reading.above),
            below=zero(reading.below),
            rejected=zero(reading.rejected),
        )
    return Snapshot(zeros)


def read_state_table(cpu: str) -> tuple[StateInfo, ...]:
    """Return the idle states of a CPU in idle_states.toml, or of the CPUs in a dump of another host's cpuidle files.

    Raise UsageError for an unknown name, DataError for a damaged file and for one whose CPUs have different states.
    """
    known = files.parse(_STATE_TABLES.read_text("utf-8"), _STATE_TABLES)
    if cpu.lower() in known:
        rows = known[cpu.lower()]["states"]
        return tuple(StateInfo(name, False, False, latency_us, target_us) for name, latency_us, target_us in rows)
    path = Path(cpu)
    if not cpu or not os.path.exists(path):  # noqa: PTH110  Path's raises for a long name
        raise UsageError(
            f"--as {cpu[:60]!r}: no such CPU and no such file", f"{', '.join(known)}, or a dump of cpuidle's files"
        )
    readings = read_dump(path).snapshot.cpus
    first, states = next((number, reading.states) for number, reading in readings.items())
    if all(state.target_us is None for state in states if not state.polling):
        raise DataError(path, "no target residency in it (cpuidle/state*/residency)")
    plain = [replace(state, disabled=False) for state in states]
    for number, reading in readings.items():
        if [replace(state, disabled=False) for state in reading.states] != plain:
            reason = f"CPU {number} has other idle states than CPU {first}"
            raise DataError(path, reason, hint="keep the lines of the CPUs of one kind")
    return states
