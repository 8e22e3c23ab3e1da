# SPDX-License-Identifier: Apache-2.0
"""Sample the call paths of running CPUs, or count page faults by call path, and keep the data to name them offline."""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.model import text
from powerprof.model.records import Note
from powerprof.stacks.image import ProcessImage, find_code_ranges, merge_images, snapshot
from powerprof.stacks.registers import X86_64, SavedStack
from powerprof.stacks.remedies import missing_names
from powerprof.stacks.store import TableStore
from powerprof.stacks.symbolizer import Symbolizer
from powerprof.stacks.time_budget import Budget
from powerprof.stacks.unwind import Unwinder
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, UsageError
from powerprof.system.files import try_text
from powerprof.system.next_steps import command_line
from powerprof.system.paths import procfs
from powerprof.system.pid_namespaces import check_process_ids
from powerprof.system.process_stat import read_process_stat
from powerprof.system.reader_process import shared
from powerprof.system.tasks import clean
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.definitions import STACK_RING_PAGES, build_path_definitions
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.sampler import Sampler
from powerprof.tracing.bpf.shared_numbers import PathCount, RecordKind
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.captures import Event, OnCpuCapture, SampleRow, UserStack
from powerprof.tracing.followed import FollowedProcesses
from powerprof.tracing.kernel_symbols import locate_kernel_addresses

SAMPLE_HZ = 99
MAX_HZ = 10_000
# The CPU time of a sample, if it cannot be measured, and of one more stack: a guest whose hypervisor sets the timer.
_USUAL_SAMPLE_NS, _STACK_NS = 20_000.0, 10_000.0
_MOST_LOOKS = 20  # at one process: an address in none of its mappings has it looked at again
# Processes are looked at when their first stack arrives. One that has ended by then cannot be named.
_MAX_CAPTURE_BYTES = 256 << 20
_TARGET = struct.Struct("<4Q")
_SAMPLE = np.dtype([("user", "<u8"), ("kernel", "<u8"), ("statement", "<u8"), ("pid", "<u4"), ("tid", "<u4")])
_HEADER = struct.Struct("<IIQII16s168s")
_KERNEL_HEADER = struct.Struct("<IIQ")


def _load_sampler(every_process: bool, event: Event, ring_pages: int) -> LoadedProgram:
    ids = build_task_definitions(read_kernel_btf())
    return LoadedProgram("oncpu.bpf.c", build_path_definitions(every_process, event, ring_pages) | ids)


class OnCpuTracer(Closeable, WindowPart):
    """The loaded sampling program. A context manager that removes it.

    With cpu-clock it wakes every CPU `frequency_hz` times a second, so it is never part of an energy window.
    """

    def __init__(
        self,
        pids: Sequence[int] | None,
        event: Event = "cpu-clock",
        *,
        find_members: Callable[[], Sequence[int]] | None = None,
        frequency_hz: int = SAMPLE_HZ,
        ring_pages: int = STACK_RING_PAGES,
        beside: LoadedProgram | None = None,
    ) -> None:
        """Load the program for these processes, or for every process if `pids` is None. New threads count.

        `find_members`: the present processes of a target that others may join.

        `beside`: a program of another tracer, which has the paths' part by `build_path_definitions` and is closed by
        that tracer.

        Raises CapabilityError if this host or user may not, PowerprofError if a process has ended.
        """
        if os.uname().machine != "x86_64":
            raise CapabilityError(
                f"profile on {os.uname().machine} is not supported; x86_64 is",
                f"use {command_line('attribute', same_target=True)}",
            )
        for feature in (features.RING_BUFFER, features.CURRENT_TASK, features.TASK_REGISTERS):
            features.require(feature, "profile")
        check_process_ids()
        if not 1 <= frequency_hz <= MAX_HZ:
            raise UsageError(f"a sampling rate of {frequency_hz} Hz makes no sense", f"between 1 and {MAX_HZ:,}")
        self._followed = None if pids is None else FollowedProcesses(pids, find_members)
        self._event: Event = event
        self._frequency_hz = frequency_hz
        self._sample_ns: float | None = None
        self._images: list[ProcessImage] = []
        self._budget, self._aside = Budget(), shared()
        self._looks: Counter[int] = Counter()
        self._filled: set[int] = set()
        self._by_pid: dict[int, int | None] = {}
        # Indexes of the images of a process before and after each exec.
        self._spaces: dict[int, list[int]] = {}
        self._records: list[tuple[bytes, int | None]] = []
        self._bytes = 0
        self._dropped = 0
        for pid in pids or ():
            self._add(pid, must=find_members is None)
        self.program = beside or _load_sampler(pids is None, event, ring_pages)
        self._own = beside is None
        try:
            self._fill_targets()
            self.program.count_run_time()
            self.program.ring("stacks", self._on_record)
            self._sampler = Sampler(self.program.descriptor("sample__path"))
        except BaseException:
            if self._own:
                self.program.close()
            raise

    def close(self) -> None:
        self._aside.close()
        self._sampler.close()
        if self._own:
            self.program.close()

    def _look_at(self, pid: int) -> None:
        self._add_image(snapshot(pid, self._budget, self._aside))

    def _add(self, pid: int, *, must: bool = False) -> None:
        """Look at a process of the target. One of a family may have ended before."""
        try:
            self._look_at(pid)
        except PowerprofError:
            if must:
                raise
            self._by_pid.setdefault(pid, None)

    def _fill_targets(self) -> None:
        for pid, index in self._by_pid.items():
            if index is not None and pid not in self._filled:
                self.program.put("targets", pid, _TARGET.pack(*find_code_ranges(self._images[index])))
                self._filled.add(pid)

    def limit_cost(self, allowed_cpus: float, used_cpus: float) -> float | None:
        """Lower the frequency so that sampling costs at most this part of a CPU. Return a lowered frequency, else None.

        `used_cpus`: the CPU use of the target, whose samples cost more.
        """
        sample_ns = self._sample_ns = self._sampler.measure_sample_ns()
        each_ns = (os.cpu_count() or 1) * (sample_ns or _USUAL_SAMPLE_NS) + used_cpus * _STACK_NS
        most_hz = max(1, int(1e9 * allowed_cpus / each_ns))
        if most_hz >= self._frequency_hz:
            return None
        self._frequency_hz = most_hz
        return float(most_hz)

    def find_cost_s(self, capture: OnCpuCapture) -> float | None:
        """Return the CPU time of the samples of a window, their interrupts included, in seconds; None if unknown."""
        sample_ns = self._sample_ns
        return (
            None if capture.bpf_s is None or not sample_ns else capture.bpf_s + capture.events_count * sample_ns / 1e9
        )

    @property
    def read_interval_s(self) -> float:
        """The interval of reading, in seconds: processes with a new stack may end, and CPUs may come back."""
        return Sampler.RENEW_S

    def open(self) -> None:
        """Open the event on every CPU and drop earlier data."""
        for name in ("samples", "seen"):
            self.program.clear(name)
        self._records.clear()
        self._bytes = self._dropped = 0
        self._moved = self.program.per_cpu_sum("path_counters")
        if self._event == "cpu-clock":
            self._sampler.open_clock(self._frequency_hz)
        else:
            self._sampler.open_faults()

    def begin(self) -> None:
        # The kernel's own count is read inside the program's. If it is larger, events were missed for certain.
        counters = self.program.per_cpu_sum("path_counters")
        self._begun = counters[PathCount.EVENTS]
        self._counted = self._sampler.counted()
        if self._followed is not None:
            self._followed.begin()
            self._find_new(self._followed.pids)
        self._sampler.begin()

    def end(self) -> None:
        if self._followed is not None:
            self._followed.end()
        self._counted = self._sampler.counted() - self._counted
        self._sampler.end()
        self._seen = self.program.per_cpu_sum("path_counters")[PathCount.EVENTS] - self._begun

    def _find_new(self, pids: Sequence[int]) -> None:
        """Add the processes that joined the target. Without a look, all their code counts as one range."""
        for pid in pids:
            if pid not in self._by_pid:
                self._add(pid)
                if self._by_pid.get(pid) is None:
                    self.program.put("targets", pid, bytes(_TARGET.size))
        self._fill_targets()

    def measure(self, duration_s: float, *parts: WindowPart, settle: bool = False) -> OnCpuCapture:
        """Measure for `duration_s`, with other parts of the window.

        `settle`: give up root's privileges once nothing is left to open.
        """
        return self.collect(run_window(duration_s, self, *parts, settle=settle))

    def collect(self, passed: PassedWindow) -> OnCpuCapture:
        """Return the samples of the window."""
        began_s = time.process_time()
        self._read_stacks()
        tool_cpu_s = passed.tool_cpu_s + time.process_time() - began_s
        moved = [now - then for then, now in zip(self._moved, self.program.per_cpu_sum("path_counters"), strict=True)]
        # The clock counts in ns, the fault counters in faults.
        missed = self._counted - self._seen if self._event == "page-faults" else 0
        users, kernel, comms = self._stacks()
        rows = self._rows(comms)
        used_ns = None if self._followed is None else self._followed.cpu_ns()
        names, notes = _names({address for stack in kernel.values() for address in stack})
        return OnCpuCapture(
            event=self._event,
            pids=None if self._followed is None else self._followed.pids,
            window_s=passed.window_s,
            cpus=os.cpu_count() or 1,
            period_ms=1e3 / self._frequency_hz if self._event == "cpu-clock" else None,
            sampled_ms=self._sampler.sampled_ns / 1e6,
            rows=rows,
            users=users,
            images=self._images,
            kernel=kernel,
            kernel_names=names,
            comms=comms,
            events_count=moved[PathCount.EVENTS],
            idle_count=moved[PathCount.IDLE],
            target_count=moved[PathCount.TARGET],
            missed_count=max(missed, 0),
            stacks_count=moved[PathCount.STACKS],
            lost_stacks_count=moved[PathCount.LOST_STACKS] + self._dropped,
            lost_rows_count=moved[PathCount.LOST_ROWS],
            notes=[*passed.notes, *self._sampler.notes(), *notes, *(self._followed.notes() if self._followed else ())],
            unseen_cpu_ms=self._followed.unseen_ns() / 1e6 if self._followed is not None else 0.0,
            process_cpu_ms=used_ns / 1e6 if used_ns is not None else None,
            tool_cpu_s=tool_cpu_s,
            bpf_s=self.program.run_time_s(),
            ended=passed.ended,
        )

    def _on_record(self, data: bytes) -> None:
        if self._bytes + len(data) > _MAX_CAPTURE_BYTES:
            self._dropped += 1
            return
        self._bytes += len(data)
        self._records.append((data, None))

    def read(self) -> None:
        """Read the ring buffer, look at the processes of its stacks while they live, and sample CPUs that came back."""
        self._sampler.renew()
        if self._followed is not None:
            self._find_new(self._followed.find_new())
        self._read_stacks()

    def _read_stacks(self) -> None:
        first = len(self._records)
        self.program.consume()
        for at in range(first, len(self._records)):
            data = self._records[at][0]
            if int.from_bytes(data[:4], "little") != RecordKind.USER:
                continue
            _, _, _, pid, tid, _, registers = _HEADER.unpack_from(data)
            ip, sp = (int.from_bytes(registers[8 * at :][:8], "little") for at in (X86_64.ip, X86_64.sp))
            self._records[at] = (data, self._image_of(pid, ip, sp if tid == pid else None))
        self._fill_targets()

    def _image_of(self, pid: int, ip: int, sp: int | None) -> int | None:
        """Return the index of the image that maps `ip`, or None. `sp`: the stack pointer of a process's first thread.

        The process is looked at again if it loaded a library or executed another program. A stack of the first thread
        from before the exec belongs to the older image. Other threads live for at most one read after an exec.
        """
        index = self._look_again(pid, ip)
        if index is None or sp is None:
            return index
        below = {at: self._images[at].space - sp for at in self._spaces.get(pid, []) if self._images[at].space >= sp}
        return min(below, key=lambda at: below[at], default=index)

    def _look_again(self, pid: int, ip: int) -> int | None:
        """Return the index of the latest image of a process, or None."""
        index = self._by_pid.get(pid)
        if pid in self._by_pid and (index is None or self._is_current(self._images[index], ip)):
            return index
        try:
            self._looks[pid] += 1
            if self._looks[pid] > _MOST_LOOKS:
                return index
            newer = snapshot(pid, self._budget, self._aside)
        except PowerprofError:
            self._by_pid.setdefault(pid, None)
            return index
        if index is not None and merge_images(self._images[index], newer) is not newer:
            self._images[index] = merge_images(self._images[index], newer)
            return index
        self._add_image(newer)
        return self._by_pid[pid]

    @staticmethod
    def _is_current(image: ProcessImage, ip: int) -> bool:
        """Return whether an image maps `ip` and its process has executed no other program since."""
        if image.mapping_at(ip) is None:
            return False
        stat = read_process_stat(image.pid) if image.space else None
        return stat is None or stat.start_stack in (0, image.space)

    def _add_image(self, image: ProcessImage) -> None:
        self._by_pid[image.pid] = len(self._images)
        if image.space:
            self._spaces.setdefault(image.pid, []).append(len(self._images))
        self._images.append(image)

    def _stacks(self) -> tuple[list[UserStack], dict[int, list[int]], dict[int, str]]:
        """Return the stacks of threads, the kernel's stacks by hash, and the names of the threads."""
        users: list[UserStack] = []
        kernel: dict[int, list[int]] = {}
        comms: dict[int, str] = {}
        for data, image in self._records:
            if int.from_bytes(data[:4], "little") == RecordKind.USER:
                _, size, digest, pid, tid, comm, registers = _HEADER.unpack_from(data)
                users.append(UserStack(digest, pid, tid, image, registers, data[_HEADER.size : _HEADER.size + size]))
                comms[tid] = clean(comm.partition(b"\0")[0])
            else:
                _, depth, digest = _KERNEL_HEADER.unpack_from(data)
                kernel[digest] = list(struct.unpack_from(f"<{depth}Q", data, _KERNEL_HEADER.size))
        return users, kernel, comms

    def _rows(self, comms: dict[int, str]) -> list[SampleRow]:
        """Return the sums by stack and thread. Add the missing names of threads to `comms`."""
        keys, counts = self.program.hash_bytes("samples")
        rows = [
            SampleRow(
                int(key["user"]),
                int(key["kernel"]),
                int(key["pid"]),
                int(key["tid"]),
                int(count),
                int(key["statement"]),
            )
            for key, count in zip(np.frombuffer(keys, dtype=_SAMPLE), np.frombuffer(counts, dtype="<u8"), strict=True)
        ]
        for row in rows:
            if row.tid not in comms:
                comm = try_text(procfs() / str(row.pid) / "task" / str(row.tid) / "comm")
                comms[row.tid] = clean(comm) if comm else f"thread {row.tid}"
        return rows


def _names(addresses: set[int]) -> tuple[dict[int, tuple[str, str, int]], list[str]]:
    """Return the kernel's functions at these addresses, and the reason if there are none."""
    try:
        return locate_kernel_addresses(addresses), []
    except CapabilityError as error:
        return {}, [error.message]


class OnCpuFrame(msgspec.Struct, frozen=True):
    """One function of a stack."""

    function: str | None
    module: str
    address: str
    offset: int | None
    label: str
    kernel: bool = False
    inlined: bool = False
    source: str | None = None

    @property
    def placed(self) -> str:
        """The label with the source file and line, if they are known."""
        return text.label_with_source(self.label, self.source)


class PathNames:
    """The frames of each distinct user and kernel path. Each path is resolved once."""

    def __init__(self, capture: OnCpuCapture) -> None:
        self._store = TableStore()
        self._capture = capture
        self._unwinder = Unwinder(self._store)
        self._symbolizers: dict[int, Symbolizer] = {}
        self._users: dict[tuple[int, int], UserStack] = {(user.pid, user.hash): user for user in capture.users}
        self._known: dict[tuple[int, int], tuple[list[OnCpuFrame], str]] = {}

    def of(self, row: SampleRow) -> tuple[list[OnCpuFrame], str]:
        """Return the kernel's and then the program's frames, innermost first, and the state of the user stack."""
        frames = self._kernel(row.kernel) if row.kernel else []
        if not row.user:
            return frames, "kernel"
        outer, state = self._user(row.pid, row.user)
        return [*frames, *outer], state

    def _user(self, pid: int, digest: int) -> tuple[list[OnCpuFrame], str]:
        key = (pid, digest)
        if key not in self._known:
            self._known[key] = self._resolve(self._users.get(key))
        return self._known[key]

    def _resolve(self, saved: UserStack | None) -> tuple[list[OnCpuFrame], str]:
        if saved is None:
            return [], "lost"
        if saved.image is None or not 0 <= saved.image < len(self._capture.images):
            return [], "failed"
        image = self._capture.images[saved.image]
        try:
            unwound = self._unwinder.unwind(image, SavedStack(saved.pid, saved.tid, saved.registers, saved.stack))
        except DataError:
            return [], "failed"
        symbolizer = self._symbolizers.get(saved.image)
        if symbolizer is None:
            symbolizer = self._symbolizers[saved.image] = Symbolizer(image, self._store)
        frames = [
            OnCpuFrame(
                frame.function,
                frame.module,
                f"{frame.address:#x}",
                frame.offset,
                frame.label,
                False,
                frame.inlined,
                frame.source,
            )
            for frame in symbolizer.stack(unwound)
        ]
        state = "complete" if unwound.complete else "truncated" if len(unwound.pcs) > 1 else "failed"
        return frames, state

    def _kernel(self, digest: int) -> list[OnCpuFrame]:
        frames = []
        for address in self._capture.kernel.get(digest, ()):
            name = self._capture.kernel_names.get(address)
            if name is None:
                frames.append(OnCpuFrame(None, "vmlinux", f"{address:#x}", None, f"[kernel] {address:#x}", True))
            else:
                frames.append(OnCpuFrame(name[0], name[1], f"{address:#x}", address - name[2], name[0], True))
        return frames

    @property
    def notes(self) -> list[str | Note]:
        """Notes about unreadable files, and ways to get missing names."""
        unread = dict.fromkeys(note for symbolizer in self._symbolizers.values() for note in symbolizer.notes)
        frames = [frame for known, _ in self._known.values() for frame in known]
        missing = missing_names([(frame.module, frame.function is not None) for frame in frames], self._capture.images)
        return [*unread, *([missing] if missing is not None else [])]
