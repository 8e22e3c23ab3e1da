# SPDX-License-Identifier: Apache-2.0
"""A traced window, saved raw: the same attribution can be made from it later, without root, on another machine."""

from __future__ import annotations

import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.measure.idle_counters import StateInfo
from powerprof.model.attribution import StackFrame, TargetInfo
from powerprof.model.records import Ended, EnergyReading, EnergySource, Notes, ToolCost
from powerprof.stacks.image import ProcessImage, check_image
from powerprof.stacks.registers import machine_of
from powerprof.system.errors import DataError, reason_of
from powerprof.system.foreign_data import loader
from powerprof.system.outside_files import open_regular
from powerprof.system.tasks import Task
from powerprof.tracing.captures import CpuEdge
from powerprof.tracing.idle_data import CAUSE, IDLE_EXIT, RUN_TIME, RunTimes, SavedSite, SiteWakings, SleepingStack
from powerprof.tracing.slices import SLICE_COUNT, SlicedTrace

# Limits are checked before the parts of a saved capture are decoded. A list of empty lists takes one byte per entry in
# the file and 64 in memory, and zlib packs 1,000 of them into a byte.
MOST_BYTES = 1 << 30
# Idle exits and stacks are compressed 5 to 20 times. A file with a higher ratio than this is not a capture.
_MOST_RATIO = 40
_LEAST_BYTES = 32 << 20
_MIB = 1 << 20
# Field → (entries, MiB). Other fields have at most _OTHERS.
_MOST = {
    "exits": (MOST_BYTES, 1024),
    "causes": (1 << 26, 64),
    "ran": (1 << 26, 4),
    "edges": (1 << 16, 4),
    "idle_cpus": (1 << 16, 32),
    "states": (1 << 16, 8),
    "functions": (100_000, 8),
    "interrupts": (1 << 16, 4),
    "tasks": (200_000, 32),
    "server_names": (200_000, 32),
    "sites": (200_000, 256),
    "sleeping": (50_000, 512),
    "frames": (200_000, 128),
    "images": (70_000, 64),
    "wakings": (500_000, 64),
    "named": (16, 48),
    "notes": (10_000, 2),
    "sliced": (16, 256),
}
_OTHERS = (2000, 1)


def unpack_bytes(packed: bytes, path: Path) -> bytes:
    """Decompress a capture. Raises DataError if it is cut off or larger than a capture of that size can be."""
    most = min(MOST_BYTES, _LEAST_BYTES + _MOST_RATIO * len(packed))
    worker = zlib.decompressobj()
    data = worker.decompress(packed, most)
    if worker.unconsumed_tail or not worker.eof:
        raise DataError(path, f"cut off, or larger than {most >> 20} MiB when it is unpacked")
    return data


def check_parts(data: bytes, kind: type[msgspec.Struct], path: Path) -> None:
    """Raise DataError if a field of the packed struct exceeds its limit of entries or bytes."""
    parts = msgspec.msgpack.decode(data, type=_raw(kind))
    for name in parts.__struct_fields__:
        part = bytes(getattr(parts, name) or b"")
        entries, most = _MOST.get(name, _OTHERS)
        if count_entries(part) > entries or len(part) > most * _MIB:
            raise DataError(path, f"{name}: more than {entries:,} entries or {most} MiB")


@lru_cache(maxsize=4)
def _raw(kind: type[msgspec.Struct]) -> Any:
    """Return the struct with every field as raw bytes, which msgspec skips without creating objects."""
    fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in kind.__struct_fields__]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields)


def count_entries(part: bytes) -> int:
    """Return the entry count in the header of a packed list or mapping; 0 for other types (MessagePack, "Formats")."""
    first = part[0] if part else 0
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    size = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}.get(first, 0)
    return int.from_bytes(part[1 : 1 + size], "big")


_STACK_LIMIT_BYTES = 0x4000
_CPUS_LIMIT = 1 << 16
_SUMS_LIMIT = 1 << 62
_MOST_US = 1 << 40
_SLICES_LIMIT, _MOST_S = 1 << 16, 1e9
FILE = "capture.bin"
# For a capture of 44 MB this level saves a quarter over the fastest in 0.07 s; the best saves 4 % more in 0.3 s.
_LEVEL = 4


class NamedSite(msgspec.Struct, frozen=True, array_like=True):
    """A site's stack as unwound and named by the capturing host; `frames` are indexes into `NamedSites.frames`."""

    kind: int
    pid: int
    tid: int
    ip: int
    sp: int
    code: int
    pcs: list[int]
    frames: list[int]
    complete: bool
    reason: str | None
    captured: bool


# A capture of another version is refused.
_VERSION = 4


class NamedSites(msgspec.Struct, frozen=True, kw_only=True):
    """The named sites of the capturing host: another host may lack the programs."""

    frames: list[StackFrame]
    sites: list[NamedSite]
    tally: StackTally
    notes: Notes


class IdleCpu(msgspec.Struct, frozen=True, array_like=True):
    """The idle states of one CPU. `package` is None if the topology is unknown.

    `resolved`: the CPU ran at both edges of the window. `above`, `below`: growth of the kernel's counters of wrong
    choices by state, None if unknown.
    """

    cpu: int
    package: int | None
    resolved: bool
    states: list[StateInfo]
    above: list[int | None]
    below: list[int | None]


class StackTally(msgspec.Struct, kw_only=True):
    """Counts of distinct stacks by outcome."""

    captured: int = 0
    complete: int = 0
    truncated: int = 0
    failed: int = 0
    reasons: dict[str, int] = {}


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The complete input of an attribution.

    `causes` are entries of `idle_data.CAUSE`: every idle exit of the window, summed. `exits` are records of
    `idle_data.IDLE_EXIT`, an even sample of one in `sample_1_in`, less `sample_lost_count`. `ran` are entries of
    `idle_data.RUN_TIME`; `ran_others_ns` and `ran_target_ns` hold the time without an entry. `sliced`: the slices of
    the window if only a part was traced: `causes`, `wakings` and `edges` are then sums over the slices, and `ran` is an
    estimate of the whole window.
    """

    started_at: str
    window_s: float
    target: TargetInfo
    host: dict[str, Any]
    tool: ToolCost
    exits: bytes
    lost_count: int
    edges: list[CpuEdge]
    states: dict[int, list[str]]
    functions: dict[int, str]
    interrupts: dict[int, str]
    tasks: list[Task]
    server_names: dict[int, str]
    sites: list[SavedSite]
    sleeping: list[SleepingStack]
    images: list[ProcessImage]
    wakings: list[SiteWakings]
    stacks_lost_count: int
    unsent_count: int
    loaded_count: int
    uncounted_count: int
    counted_from_ns: int
    counted_to_ns: int
    own_pid: int
    c0_percent: float | None = None
    steal_percent: float | None = None
    energy: list[EnergyReading] = []
    idle_watts: float | None = None
    wakeup_joules: float | None = None
    notes: Notes = []
    energy_source: EnergySource | None = None
    ended: Ended | None = None
    named: NamedSites | None = None
    stat_idle_percent: float | None = None
    own_helpers: list[int] = []
    causes: bytes = b""
    sample_1_in: int = 1
    sample_lost_count: int = 0
    ran: bytes = b""
    ran_others_ns: int = 0
    ran_target_ns: int = 0
    idle_cpus: list[IdleCpu] = []
    sliced: SlicedTrace | None = None
    version: int = _VERSION

    def own_pids(self) -> frozenset[int]:
        """Return powerprof's processes: itself and its helpers."""
        return frozenset((self.own_pid, *self.own_helpers))

    def exit_records(self) -> npt.NDArray[Any]:
        """Return the sampled idle exits as an array of `idle_data.IDLE_EXIT`."""
        return np.frombuffer(self.exits, dtype=IDLE_EXIT)

    def cause_entries(self) -> npt.NDArray[Any]:
        """Return every idle exit of the window, summed by cause, as an array of `idle_data.CAUSE`."""
        entries = np.frombuffer(self.causes, dtype=CAUSE)
        counted: npt.NDArray[Any] = entries[entries["count"] > 0]
        return counted

    def run_times(self) -> RunTimes:
        """Return the running time of threads."""
        return RunTimes(np.frombuffer(self.ran, dtype=RUN_TIME), self.ran_others_ns, self.ran_target_ns)

    def cpu_edges(self) -> dict[int, CpuEdge]:
        """Return the window of each CPU."""
        return {edge.cpu: edge for edge in self.edges}


def encode(capture: Capture) -> bytes:
    """Return the capture packed and compressed, for speed rather than size: a busy minute is 100 MB before.

    Stacks and registers of a server hold data of its clients, so their bytes are dropped once the stacks are named.
    """
    if capture.named is not None:
        capture = msgspec.structs.replace(
            capture,
            sites=[
                msgspec.structs.replace(site, registers=bytes(len(site.registers)), stack=b"") for site in capture.sites
            ],
            sleeping=[msgspec.structs.replace(sleeper, stack=b"") for sleeper in capture.sleeping],
        )
    return zlib.compress(msgspec.msgpack.encode(capture), _LEVEL)


@loader(0)
def load(path: Path) -> Capture:
    """Read a capture, which is untrusted input. Raises DataError."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise DataError(path, f"larger than {MOST_BYTES >> 20} MiB")
            packed = file.read()
    except OSError as error:
        raise DataError(path, f"cannot be read ({reason_of(error)})") from error
    data = unpack_bytes(packed, path)
    check_parts(data, Capture, path)
    capture = msgspec.msgpack.decode(data, type=Capture)
    is_broken = (
        len(capture.exits) % IDLE_EXIT.itemsize
        or len(capture.causes) % CAUSE.itemsize
        or len(capture.ran) % RUN_TIME.itemsize
    )
    if capture.sliced is not None:
        _check_slices(capture.sliced, path)
    if is_broken or capture.version != _VERSION:
        raise DataError(path, "a capture of another version")
    stacks = [site.stack for site in capture.sites] + [sleeper.stack for sleeper in capture.sleeping]
    if any(len(stack) > _STACK_LIMIT_BYTES for stack in stacks):
        raise DataError(path, f"a stack of more than {_STACK_LIMIT_BYTES >> 10} KiB")
    for size in {len(site.registers) for site in capture.sites}:
        try:
            machine_of(bytes(size))
        except DataError as error:
            raise DataError(path, f"registers of another machine ({error.reason})") from None
    _check_figures(capture, path)
    for image in capture.images:
        check_image(image, path)
    return capture


def _is_impossible(sums: npt.NDArray[Any]) -> bool:
    return bool(np.any(sums >= _SUMS_LIMIT)) or float(sums.sum(dtype=np.float64)) >= _SUMS_LIMIT


def _check_slices(sliced: SlicedTrace, path: Path) -> None:
    """Raise DataError for slices that cannot be a part of a window."""
    slices = sliced.slices
    if not 0 < len(slices) <= _SLICES_LIMIT or any(
        not 0 <= part.start_s < _MOST_S
        or not 0 <= part.traced_s <= part.stratum_s < _MOST_S
        or not 0 <= part.exits_count < _SUMS_LIMIT
        for part in slices
    ):
        raise DataError(path, "impossible slices of a window")
    for counts in (sliced.causes, sliced.wakings):
        if len(counts) % SLICE_COUNT.itemsize or _is_impossible(np.frombuffer(counts, dtype=SLICE_COUNT)["count"]):
            raise DataError(path, "impossible counts of slices")


def _check_figures(capture: Capture, path: Path) -> None:
    if not 0 < capture.window_s < 1e9 or not 0 <= capture.counted_to_ns - capture.counted_from_ns < 1 << 62:
        raise DataError(path, "a window without length")
    entries = np.frombuffer(capture.causes, dtype=CAUSE)
    for name in ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns"):
        if _is_impossible(entries[name]):
            raise DataError(path, "impossible sums of idle exits")
    unplaced = (capture.ran_others_ns, capture.ran_target_ns)
    if _is_impossible(np.frombuffer(capture.ran, dtype=RUN_TIME)["ns"]) or any(
        not 0 <= ns < _SUMS_LIMIT for ns in unplaced
    ):
        raise DataError(path, "an impossible running time")
    for edge in capture.edges:
        if not 0 <= edge.cpu < _CPUS_LIMIT or not 0 <= edge.start_ns <= edge.end_ns < 1 << 63:
            raise DataError(path, "an impossible window of a CPU")
    times = [us for cpu in capture.idle_cpus for state in cpu.states for us in (state.latency_us, state.target_us)]
    if any(us is not None and not 0 <= us < _MOST_US for us in times):
        raise DataError(path, "an impossible latency of an idle state")
    if capture.named is not None:
        numbers = range(len(capture.named.frames))
        if any(number not in numbers for site in capture.named.sites for number in site.frames):
            raise DataError(path, "a stack with a frame that is not there")
