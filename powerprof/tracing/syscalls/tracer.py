# SPDX-License-Identifier: Apache-2.0
"""System calls by thread and kind, and reads and writes by file, summed in the kernel (probes/bpf/syscalls.bpf.c)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError
from powerprof.processes.reader_process import shared
from powerprof.processes.tasks import clean
from powerprof.tracing.bpf.btf import Btf, kernel_btf
from powerprof.tracing.bpf.definitions import struct_definitions
from powerprof.tracing.bpf.shared_numbers import NAME_BYTES, NUMBERS, CallKind
from powerprof.tracing.bpf.summing import SummingProgram
from powerprof.tracing.captures.syscalls import CallSum, FileSum, SyscallTrace
from powerprof.tracing.syscalls.names import futex_operation, names
from powerprof.windows.runner import Part, Passed, pass_window

_KIND_OF = {
    **dict.fromkeys(("read", "pread64", "readv", "preadv", "preadv2"), CallKind.READ),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), CallKind.WRITE),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range"), CallKind.SYNC),
    "futex": CallKind.FUTEX,
    "io_submit": CallKind.SUBMIT,
}
_CALLS, _FILES = 65536, 65536
_CALL_KEY = np.dtype([("who", "<u8"), ("number", "<u4"), ("operation", "<u4")])
_CALL = np.dtype([(name, "<u8") for name in ("calls", "errors", "ns", "longest_ns")])
_FILE_KEY = np.dtype([(name, "<u8") for name in ("who", "inode", "device")])
_USE_NAMES = ("reads", "read_bytes", "writes", "write_bytes", "syncs", "sync_ns", "mode")
_FILE_USE = np.dtype(
    [*((name, "<u8") for name in _USE_NAMES), ("name", f"S{NAME_BYTES}"), ("folder", f"S{NAME_BYTES}"), ("comm", "S16")]
)
_OPEN_CALL = np.dtype(
    [("began_ns", "<u8"), ("file", "<u8"), *((name, "<u4") for name in ("number", "operation", "kind", "pad"))]
)
_FIELDS = {
    "task_struct_files": ("task_struct", "files"),
    "files_struct_fdt": ("files_struct", "fdt"),
    "fdtable_fd": ("fdtable", "fd"),
    "fdtable_max_fds": ("fdtable", "max_fds"),
    "file_f_inode": ("file", "f_inode"),
    "inode_i_ino": ("inode", "i_ino"),
    "inode_i_sb": ("inode", "i_sb"),
    "inode_i_mode": ("inode", "i_mode"),
    "super_block_s_dev": ("super_block", "s_dev"),
    "file_dentry": ("file", "f_path.dentry"),
    "dentry_name": ("dentry", "d_name.name"),
    "dentry_d_parent": ("dentry", "d_parent"),
}
URING = {
    "io_kiocb_opcode": ("io_kiocb", "opcode"),
    "io_kiocb_cqe_fd": ("io_kiocb", "cqe.fd"),
    "io_rw_addr": ("io_rw", "addr"),
    "io_rw_len": ("io_rw", "len"),
}


def _argument_offsets(btf: Btf, machine: str) -> list[int]:
    """Where pt_regs has a call's first three arguments."""
    if machine == "x86_64":
        return [btf.field_offset("pt_regs", name) for name in ("di", "si", "dx")]
    if machine == "aarch64":
        first = btf.field_offset("pt_regs", "regs")
        return [first, first + 8, first + 16]
    raise CapabilityError(f"system calls are not counted on {machine}", "x86-64 and arm64 are known")


def sees_uring(btf: Btf) -> bool:
    """Whether requests of io_uring can be counted: since Linux 6.3 the tracepoint passes the request."""
    return btf.has_tracepoint("io_uring_submit_req") and all(btf.has_field(*where) for where in URING.values())


def definitions(btf: Btf, *, every_process: bool) -> dict[str, int | str]:
    """What the program needs to know of the running kernel."""
    offsets = _argument_offsets(btf, os.uname().machine)
    return {
        "EVERY_PROCESS": int(every_process),
        "DIRECT": 0,
        "CALLS": _CALLS,
        "FILES": _FILES,
        **{f"ARGUMENT_{number}": offset for number, offset in enumerate(offsets)},
        "OFFSET_task_struct_pid": btf.field_offset("task_struct", "pid"),
        "OFFSET_task_struct_tgid": btf.field_offset("task_struct", "tgid"),
        **struct_definitions(btf, _FIELDS),
        **({"HAVE_URING": 1, **struct_definitions(btf, URING)} if sees_uring(btf) else {}),
    }


class SyscallTracer(Closeable, Part):
    """The counting program, loaded; a context manager that removes it."""

    def __init__(self, pids: Sequence[int] | None) -> None:
        """`pids` None is every process. Threads born in the window count.

        Raises CapabilityError where this host or user may not.
        """
        self._pids = list(pids) if pids is not None else None
        self._paths: dict[tuple[int, int], str] = {}
        btf = kernel_btf()
        self._sees_uring = sees_uring(btf)
        kinds = {
            number: _KIND_OF[name].to_bytes(4, "little")
            for number, name in names().items()
            if name in _KIND_OF and number < NUMBERS
        }
        tables = ("calls", "files", "open_calls")
        defined = definitions(btf, every_process=pids is None)
        self._sums = SummingProgram("syscalls.bpf.c", defined, btf, self._pids, tables, {"kinds": kinds})

    def close(self) -> None:
        self._sums.close()

    def open(self) -> None:
        self._sums.open()
        self._paths = self._open_files()

    def begin(self) -> None:
        self._sums.begin()

    def end(self) -> None:
        self._sums.end()
        self._paths |= self._open_files()

    def measure(self, duration_s: float, *, settle: bool = False) -> SyscallTrace:
        """Count for `duration_s`; an interrupt ends the window early, and the trace says so.

        `settle`: give up what root may do once nothing is left to open.
        """
        return self.collect(pass_window(duration_s, self, settle=settle))

    def collect(self, passed: Passed) -> SyscallTrace:
        """What was counted in the window."""
        began_s = time.process_time()
        calls, files, waiting = self._calls(), self._files(), self._waiting()
        bpf_s = self._sums.bpf_s()
        lost, parts = self._sums.counters()
        uses_uring = any(call.name == "io_uring_enter" for call in calls)
        notes = ["requests of io_uring are not counted on this kernel"] if uses_uring and not self._sees_uring else []
        return SyscallTrace(
            pids=self._pids or [],
            window_s=passed.window_s,
            calls=calls,
            files=files,
            waiting=waiting,
            lost_count=lost,
            parts_count=parts,
            notes=[*passed.notes, *notes],
            tool_cpu_s=passed.tool_cpu_s + time.process_time() - began_s,
            bpf_s=bpf_s,
            interrupted=passed.interrupted is not None,
        )

    def _calls(self) -> list[CallSum]:
        keys, values = self._sums.rows("calls")
        rows = zip(np.frombuffer(keys, _CALL_KEY), np.frombuffer(values, _CALL), strict=True)
        return [
            CallSum(
                pid=int(key["who"]) >> 32,
                tid=int(key["who"]) & 0xFFFFFFFF,
                **_named(int(key["number"]), int(key["operation"])),
                count=int(row["calls"]),
                errors_count=int(row["errors"]),
                ns=int(row["ns"]),
                longest_ns=int(row["longest_ns"]),
            )
            for key, row in rows
            if int(key["who"]) >> 32 != os.getpid()
        ]

    def _waiting(self) -> dict[str, int]:
        keys, values = self._sums.rows("open_calls")
        counts: Counter[str] = Counter()
        for who, row in zip(np.frombuffer(keys, "<u8"), np.frombuffer(values, _OPEN_CALL), strict=True):
            if int(who) >> 32 != os.getpid():
                named = _named(int(row["number"]), int(row["operation"]))
                counts[" ".join(filter(None, named.values()))] += 1
        return dict(counts.most_common())

    def _files(self) -> list[FileSum]:
        keys, values = self._sums.rows("files")
        sums = []
        for key, row in zip(np.frombuffer(keys, _FILE_KEY), np.frombuffer(values, _FILE_USE), strict=True):
            pid = int(key["who"]) >> 32
            if pid == os.getpid():
                continue
            device = int(key["device"])
            place = (os.makedev(device >> 20, device & 0xFFFFF), int(key["inode"]))
            within = f"{clean(bytes(row['folder']))}/{clean(bytes(row['name']))}"
            sums.append(
                FileSum(
                    pid=pid,
                    tid=int(key["who"]) & 0xFFFFFFFF,
                    comm=clean(bytes(row["comm"])),
                    path=self._paths.get(place, within.removeprefix("/")),
                    mode=int(row["mode"]),
                    reads_count=int(row["reads"]),
                    read_bytes=int(row["read_bytes"]),
                    writes_count=int(row["writes"]),
                    write_bytes=int(row["write_bytes"]),
                    syncs_count=int(row["syncs"]),
                    sync_ns=int(row["sync_ns"]),
                )
            )
        return sums

    def _open_files(self) -> dict[tuple[int, int], str]:
        """(device, inode) → path of what the target's processes have open now."""
        found: dict[tuple[int, int], str] = {}
        for pid in self._pids or ():
            found |= shared().open_files(pid)
        return found


def _named(number: int, operation: int) -> dict[str, str]:
    name = names().get(number, f"call {number}")
    return {"name": name, "operation": futex_operation(operation) if name == "futex" else ""}
