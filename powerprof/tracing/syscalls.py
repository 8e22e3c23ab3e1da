# SPDX-License-Identifier: Apache-2.0
"""Count system calls by thread and kind, and reads and writes by file, in the kernel."""

from __future__ import annotations

import csv
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from powerprof.measure.window import PassedWindow, WindowPart, run_window
from powerprof.system.errors import CapabilityError
from powerprof.system.own_processes import own_pids
from powerprof.system.reader_process import shared
from powerprof.system.tasks import clean
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from powerprof.tracing.bpf.definitions import build_struct_definitions
from powerprof.tracing.bpf.shared_numbers import NAME_BYTES, SYSCALL_SLOTS, Abi, CallKind
from powerprof.tracing.bpf.summing_program import SummingProgram
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.captures import CallSum, FileSum, SyscallTrace
from powerprof.tracing.followed import FollowedProcesses

NUMBERS_FILE = Path(__file__).with_name("syscalls.csv")
"""Numbers of system calls by ABI, which tools/syscall_numbers.py writes from the kernel's headers."""

_COLUMNS: Mapping[tuple[str, int], str] = {
    ("x86_64", Abi.NATIVE): "x86_64",
    ("x86_64", Abi.COMPAT): "ia32",
    ("x86_64", Abi.X32): "x32",
    ("aarch64", Abi.NATIVE): "aarch64",
}
_FIRST_COMMON = 424
_ABI_NAMES: Mapping[tuple[str, int], str] = {
    ("x86_64", Abi.COMPAT): "ia32",
    ("x86_64", Abi.X32): "x32",
    ("aarch64", Abi.COMPAT): "arm",
}
_FUTEX = {
    0: "WAIT",
    1: "WAKE",
    3: "REQUEUE",
    4: "CMP_REQUEUE",
    5: "WAKE_OP",
    6: "LOCK_PI",
    7: "UNLOCK_PI",
    8: "TRYLOCK_PI",
    9: "WAIT_BITSET",
    10: "WAKE_BITSET",
    11: "WAIT_REQUEUE_PI",
    13: "LOCK_PI2",
}
FUTEX_WAITS = frozenset(("WAIT", "WAIT_BITSET", "LOCK_PI", "WAIT_REQUEUE_PI", "LOCK_PI2"))
"""The operations in which a thread sleeps until a lock is free or a condition is signalled."""


@cache
def syscall_names(machine: str | None = None, abi: int = Abi.NATIVE) -> Mapping[int, str]:
    """Return the names of system calls by number in an ABI of this machine or `machine`.

    An unknown ABI has the names of numbers from 424 on, which are the same on every machine since Linux 5.1.
    """
    column = _COLUMNS.get((machine or os.uname().machine, abi))
    with NUMBERS_FILE.open(newline="", encoding="utf-8") as file:
        numbers = ((row["name"], row[column or "aarch64"]) for row in csv.DictReader(file))
        names = {int(number): name for name, number in numbers if number}
    return names if column else {number: name for number, name in names.items() if number >= _FIRST_COMMON}


def name_futex_operation(number: int) -> str:
    """Return the name of an operation of futex(2)."""
    return _FUTEX.get(number, f"operation {number}")


_KIND_OF = {
    **dict.fromkeys(("read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"), CallKind.READ),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"), CallKind.WRITE),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range"), CallKind.SYNC),
    **dict.fromkeys(("futex", "futex_time64"), CallKind.FUTEX),
    **dict.fromkeys(("sendfile", "sendfile64"), CallKind.SEND),
    **dict.fromkeys(("splice", "copy_file_range"), CallKind.SPLICE),
    "tee": CallKind.TEE,
    "vmsplice": CallKind.PIPE,
    "io_submit": CallKind.SUBMIT,
}
# Calls whose bytes are in no sum: they return a number of messages, or carry several operations.
_BYTES_UNKNOWN = frozenset(("recvmmsg", "recvmmsg_time64", "sendmmsg", "socketcall"))
_CALLS, _FILES = 65536, 65536
_CALL_KEY = np.dtype([("who", "<u8"), ("number", "<u4"), ("operation", "<u4"), ("abi", "<u8")])
_CALL = np.dtype([(name, "<u8") for name in ("calls", "errors", "ns", "longest_ns")])
_FILE_KEY = np.dtype([(name, "<u8") for name in ("who", "inode", "device")])
_USE_NAMES = ("reads", "read_bytes", "writes", "write_bytes", "syncs", "sync_ns", "mode")
_FILE_IO = np.dtype(
    [*((name, "<u8") for name in _USE_NAMES), ("name", f"S{NAME_BYTES}"), ("folder", f"S{NAME_BYTES}"), ("comm", "S16")]
)
_OPEN_CALL = np.dtype(
    [
        *((name, "<u8") for name in ("start_ns", "file", "destination")),
        *((name, "<u4") for name in ("number", "operation", "kind", "abi")),
    ]
)
_FIELDS = {
    "task_struct_files": ("task_struct", "files"),
    "files_struct_fdt": ("files_struct", "fdt"),
    "fdtable_fd": ("fdtable", "fd"),
    "fdtable_max_fds": ("fdtable", "max_fds"),
    "file_f_inode": ("file", "f_inode"),
    "file_f_mode": ("file", "f_mode"),
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


def _build_argument_definitions(btf: Btf, machine: str) -> dict[str, int | str]:
    """Return the places of a call's first three arguments in pt_regs, and the mark of a thread in a 32-bit call.

    The marks are TS_COMPAT (arch/x86/include/asm/thread_info.h) and TIF_32BIT (arch/arm64/include/asm/thread_info.h).
    """
    if machine == "x86_64":
        native, compat = (
            [btf.field_offset("pt_regs", name) for name in names] for names in (("di", "si", "dx"), ("bx", "cx", "dx"))
        )
        mark, mask = "thread_info.status", 1 << 1
    elif machine == "aarch64":
        first = btf.field_offset("pt_regs", "regs")
        native = compat = [first, first + 8, first + 16]
        mark, mask = "thread_info.flags", 1 << 22
    else:
        raise CapabilityError(f"system calls are not counted on {machine}", "x86-64 and arm64 are known")
    return {
        **{f"ARGUMENT_{number}": offset for number, offset in enumerate(native)},
        **{f"OFFSET_compat_argument_{number}": offset for number, offset in enumerate(compat)},
        "OFFSET_task_struct_compat": btf.field_offset("task_struct", mark),
        "COMPAT_MASK": mask,
    }


def can_count_uring(btf: Btf) -> bool:
    """Return whether requests of io_uring can be counted: since Linux 6.3 the tracepoint passes the request."""
    return btf.has_tracepoint("io_uring_submit_req") and all(btf.has_field(*where) for where in URING.values())


def build_syscall_definitions(btf: Btf, *, every_process: bool, machine: str | None = None) -> dict[str, int | str]:
    """Return the definitions of syscalls.bpf.c for this kernel, on this machine or `machine`."""
    has_uring = can_count_uring(btf)
    return {
        "EVERY_PROCESS": int(every_process),
        "DIRECT": 0,
        "CALLS": _CALLS,
        "FILES": _FILES,
        **_build_argument_definitions(btf, machine or os.uname().machine),
        **build_task_definitions(btf),
        **build_struct_definitions(btf, _FIELDS),
        "HAVE_URING": int(has_uring),
        **(build_struct_definitions(btf, URING) if has_uring else {f"OFFSET_{name}": 0 for name in URING}),
    }


class SyscallTracer(SummingProgram):
    """The loaded program that counts system calls. A context manager that removes it."""

    def __init__(self, pids: Sequence[int] | None, find_members: Callable[[], Sequence[int]] | None = None) -> None:
        """Load the program for these processes, or for every process if `pids` is None. New threads count.

        `find_members`: the present processes of a target that others may join.

        Raises CapabilityError if this host or user may not.
        """
        self._paths: dict[tuple[int, int], str] = {}
        btf = read_kernel_btf()
        self._can_count_uring = can_count_uring(btf)
        kinds = {
            abi * SYSCALL_SLOTS + number: _KIND_OF[name].to_bytes(4, "little")
            for abi in Abi
            for number, name in syscall_names(abi=abi).items()
            if name in _KIND_OF and number < SYSCALL_SLOTS
        }
        definitions = build_syscall_definitions(btf, every_process=pids is None)
        tables = ("calls", "files", "open_calls", "exited")
        super().__init__(
            "syscalls.bpf.c",
            definitions,
            btf,
            None if pids is None else FollowedProcesses(pids, find_members),
            tables,
            {"kinds": kinds},
        )

    def open(self) -> None:
        super().open()
        self._paths = self._open_files()

    def end(self) -> None:
        super().end()
        self._paths |= self._open_files()

    def measure(self, duration_s: float, *parts: WindowPart, settle: bool = False) -> SyscallTrace:
        """Measure for `duration_s`, with other parts of the window.

        `settle`: give up root's privileges once nothing is left to open.
        """
        return self.collect(run_window(duration_s, self, *parts, settle=settle))

    def collect(self, passed: PassedWindow) -> SyscallTrace:
        """Return the counts of the window."""
        began_s = time.process_time()
        calls, files, waiting = self._calls(), self._files(), self._waiting()
        bpf_s = self.bpf_s()
        lost, parts = self.counters()
        names = {call.name for call in calls}
        notes = []
        if "io_uring_enter" in names and not self._can_count_uring:
            notes.append("requests of io_uring are not counted on this kernel")
        if unknown := sorted(names & _BYTES_UNKNOWN):
            notes.append(f"bytes of {', '.join(unknown)} are in no sum: the kernel does not return them for each file")
        return SyscallTrace(
            pids=self.pids(),
            window_s=passed.window_s,
            calls=calls,
            files=files,
            waiting=waiting,
            exited_names=self._exited_names(),
            lost_count=lost,
            parts_count=parts,
            notes=[*passed.notes, *notes, *self.notes()],
            tool_cpu_s=passed.tool_cpu_s + time.process_time() - began_s,
            bpf_s=bpf_s,
            ended=passed.ended,
        )

    def _calls(self) -> list[CallSum]:
        own = own_pids()
        keys, values = self.rows("calls")
        sums: dict[tuple[int, str, str], CallSum] = {}
        for key, row in zip(np.frombuffer(keys, _CALL_KEY), np.frombuffer(values, _CALL), strict=True):
            who, (name, operation) = int(key["who"]), _name_call(key)
            if who >> 32 in own:
                continue
            # A thread may make the same call by two ABIs.
            known = sums.get((who, name, operation))
            count, errors, ns, longest_ns = (int(row[field]) for field in _CALL.names or ())
            sums[who, name, operation] = CallSum(
                pid=who >> 32,
                tid=who & 0xFFFFFFFF,
                name=name,
                operation=operation,
                count=count + (known.count if known else 0),
                errors_count=errors + (known.errors_count if known else 0),
                ns=ns + (known.ns if known else 0),
                longest_ns=max(longest_ns, known.longest_ns if known else 0),
            )
        return list(sums.values())

    def _exited_names(self) -> dict[int, str]:
        keys, values = self.rows("exited")
        names = zip(np.frombuffer(keys, "<u8").tolist(), np.frombuffer(values, "S16").tolist(), strict=True)
        return {who & 0xFFFFFFFF: clean(comm) for who, comm in names}

    def _waiting(self) -> dict[str, int]:
        own = own_pids()
        keys, values = self.rows("open_calls")
        counts: Counter[str] = Counter()
        for who, row in zip(np.frombuffer(keys, "<u8"), np.frombuffer(values, _OPEN_CALL), strict=True):
            if int(who) >> 32 not in own:
                counts[" ".join(filter(None, _name_call(row)))] += 1
        return dict(counts.most_common())

    def _files(self) -> list[FileSum]:
        own = own_pids()
        keys, values = self.rows("files")
        sums = []
        for key, row in zip(np.frombuffer(keys, _FILE_KEY), np.frombuffer(values, _FILE_IO), strict=True):
            pid = int(key["who"]) >> 32
            if pid in own:
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
        """Return the paths of the files that the target's processes have open now, by (device, inode)."""
        found: dict[tuple[int, int], str] = {}
        for pid in self.pids():
            found |= shared().open_files(pid)
        return found


def _name_call(row: Any) -> tuple[str, str]:
    """Return the name of the call in a row of a table, and the operation of futex."""
    number, operation, abi = (int(row[field]) for field in ("number", "operation", "abi"))
    machine = os.uname().machine
    name = syscall_names(machine, abi).get(number, f"{_ABI_NAMES.get((machine, abi), 'call')} {number}")
    return name, name_futex_operation(operation) if name in ("futex", "futex_time64") else ""
