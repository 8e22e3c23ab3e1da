# SPDX-License-Identifier: Apache-2.0
"""A traced window, saved raw: the same attribution can be made from it later, without root, on another machine."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from powerprof.attribution import bounds
from powerprof.attribution.records import StackFrame, TargetInfo
from powerprof.errors import DataError
from powerprof.files import open_regular, reason_of
from powerprof.processes.tasks import Task
from powerprof.records import EnergyReading, EnergySource, Notes, ToolCost
from powerprof.stacks.image import ProcessImage, check
from powerprof.stacks.pycode import PythonFrame
from powerprof.stacks.registers import machine_of
from powerprof.tracing.captures.edges import CpuEdge, in_window
from powerprof.tracing.idle.aggregate import aggregate
from powerprof.tracing.idle.layout import CAUSE, CAUSE_BEFORE, IDLE_EXIT, RUN_TIME
from powerprof.tracing.idle.running import RunTimes
from powerprof.tracing.idle.sites import SavedSite, SiteWakings, SleepingStack
from powerprof.untrusted import loader

_STACK_LIMIT_BYTES = 0x4000
_CPUS_LIMIT = 1 << 16
_SUMS_LIMIT = 1 << 62
FILE = "capture.bin"
# A quarter smaller than the fastest for 0.07 s of a capture of 44 MB; the best is 4 % smaller still, for 0.3 s.
_LEVEL = 4


class NamedSite(msgspec.Struct, frozen=True, array_like=True):
    """A site's stack as it was unwound and named when it was captured; `frames` are places in NamedSites.frames."""

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


class NamedSites(msgspec.Struct, frozen=True, kw_only=True):
    """What this host made of the sites: another one may lack the programs that they are stacks of."""

    frames: list[StackFrame]
    sites: list[NamedSite]
    tally: StackTally
    notes: Notes


class StackTally(msgspec.Struct, kw_only=True):
    """Distinct stacks by what became of them."""

    captured: int = 0
    complete: int = 0
    truncated: int = 0
    failed: int = 0
    disagreeing: int = 0
    reasons: dict[str, int] = {}


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an attribution is made from.

    `causes` are entries of layout.CAUSE: every idle exit of the window, summed. `exits` are records of
    layout.IDLE_EXIT, an even sample of one in `sample_1_in`, less `sample_lost_count`. `ran` are entries of
    layout.RUN_TIME, `ran_others_ns` and `ran_target_ns` what has no entry. Version 2 did not know how long threads ran;
    version 1 had records only, all of them.
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
    interrupted: bool = False
    named: NamedSites | None = None
    stat_idle_percent: float | None = None
    causes: bytes = b""
    sample_1_in: int = 1
    sample_lost_count: int = 0
    ran: bytes = b""
    ran_others_ns: int = 0
    ran_target_ns: int = 0
    frames: list[PythonFrame] = []
    version: int = 3

    def exit_records(self) -> npt.NDArray[Any]:
        """The idle exits as a numpy array."""
        return np.frombuffer(self.exits, dtype=IDLE_EXIT)

    def cause_entries(self) -> npt.NDArray[Any]:
        """Every idle exit of the window, summed by cause."""
        if self.version == 1:
            return aggregate(in_window(self.exit_records(), self.cpu_edges()))
        entries = np.frombuffer(self.causes, dtype=_cause_type(self.version))
        counted: npt.NDArray[Any] = entries[entries["count"] > 0]
        if self.version == 2:
            before, counted = counted, np.zeros(len(counted), dtype=CAUSE)
            for name in CAUSE_BEFORE.names or ():
                counted[name] = before[name]
        return counted

    def run_times(self) -> RunTimes | None:
        """How long threads ran; None where that was not traced yet."""
        if self.version < 3:
            return None
        return RunTimes(np.frombuffer(self.ran, dtype=RUN_TIME), self.ran_others_ns, self.ran_target_ns)

    def cpu_edges(self) -> dict[int, CpuEdge]:
        """Each CPU's window."""
        return {edge.cpu: edge for edge in self.edges}


def _cause_type(version: int) -> np.dtype[np.void]:
    return CAUSE if version >= 3 else CAUSE_BEFORE


def encode(capture: Capture) -> bytes:
    """Packed and compressed. Fast rather than small: a busy minute is a hundred megabytes before, and people wait.

    Stacks and registers of a server hold values of its clients, so their bytes are not kept once the stacks are named.
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


@loader
def load(path: Path) -> Capture:
    """Read a capture as hostile. Raises DataError."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > bounds.MOST_BYTES:
                raise DataError(path, f"larger than {bounds.MOST_BYTES >> 20} MiB")
            packed = file.read()
    except OSError as error:
        raise DataError(path, f"cannot be read ({reason_of(error)})") from error
    data = bounds.unpacked(packed, path)
    bounds.check_parts(data, Capture, path)
    capture = msgspec.msgpack.decode(data, type=Capture)
    causes = _cause_type(capture.version).itemsize
    broken = (
        len(capture.exits) % IDLE_EXIT.itemsize or len(capture.causes) % causes or len(capture.ran) % RUN_TIME.itemsize
    )
    if broken or capture.version not in (1, 2, 3):
        raise DataError(path, "a capture of another version")
    stacks = [site.stack for site in capture.sites] + [sleeper.stack for sleeper in capture.sleeping]
    if any(len(stack) > _STACK_LIMIT_BYTES for stack in stacks):
        raise DataError(path, f"a stack of more than {_STACK_LIMIT_BYTES >> 10} KiB")
    for size in {len(site.registers) for site in capture.sites}:
        try:
            machine_of(bytes(size))
        except DataError as error:
            raise DataError(path, f"registers of another machine ({error.reason})") from None
    _check(capture, path)
    for image in capture.images:
        check(image, path)
    return capture


def _is_impossible(sums: npt.NDArray[Any]) -> bool:
    return bool(np.any(sums >= _SUMS_LIMIT)) or float(sums.sum(dtype=np.float64)) >= _SUMS_LIMIT


def _check(capture: Capture, path: Path) -> None:
    if not 0 < capture.window_s < 1e9 or not 0 <= capture.counted_to_ns - capture.counted_from_ns < 1 << 62:
        raise DataError(path, "a window without length")
    entries = np.frombuffer(capture.causes, dtype=_cause_type(capture.version))
    for name in {"count", "running_ns", "idle_ns", "own_ns", "kernel_ns"} & set(entries.dtype.names or ()):
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
    if capture.named is not None:
        known = range(len(capture.named.frames))
        if any(number not in known for site in capture.named.sites for number in site.frames):
            raise DataError(path, "a stack with a frame that is not there")
