# SPDX-License-Identifier: Apache-2.0
"""Find the waits of statements, by system calls and by the reports of MariaDB and MySQL.

MariaDB and MySQL call thd_wait_begin(THD *, int) before they wait for a lock or for a group commit, and thd_wait_end
after it. The functions are exported, because plugins call them. A jump from another function reaches them for each
wait for a client as well. Therefore the calls are probed: a statement without waits pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from powerprof.stacks.elf import Elf
from powerprof.tracing.bpf.shared_numbers import StatementWait as Wait
from powerprof.tracing.function_calls import CALL_BYTES, ProgramFunctions, find_call_returns
from powerprof.tracing.symbols import find_file_offset

_BEGIN = ("thd_wait_begin", "_Z14thd_wait_beginP3THDi")
_END = ("thd_wait_end", "_Z12thd_wait_endP3THD")
AT_WAIT, AT_WAITED = "uprobe__wait", "uprobe__waited"
_MOST_SITES = 64
_READS = ("esi", "2")  # THD_WAIT_DISKIO: its system call tells as well, and there are many

WAIT_OF_TYPE = {
    1: Wait.SLEEP,
    2: Wait.DISK,
    3: Wait.ROW_LOCK,
    4: Wait.LOCK,  # global
    5: Wait.LOCK,  # metadata
    6: Wait.LOCK,  # table
    7: Wait.LOCK,  # GET_LOCK()
    8: Wait.OTHER,  # for more in the binary log
    9: Wait.SYNC,  # for the group that commits
    10: Wait.SYNC,
    11: Wait.CLIENT,
}
"""The waits of enum thd_wait_type (include/mysql/service_thd_wait.h), the same in MariaDB and MySQL."""

_CALLS = {
    Wait.LATCH: (202, 449, 455, 64, 65, 220),  # futex, futex_waitv, futex_wait, semget's
    Wait.SYNC: (74, 75, 26, 162, 277, 306),  # fsync, fdatasync, msync, sync, sync_file_range, syncfs
    # pread64, pwrite64, preadv, pwritev, preadv2, pwritev2, io_getevents, io_pgetevents, io_uring_enter, fallocate,
    # truncate, ftruncate, and opening, removing, renaming and looking up files
    Wait.DISK: (
        *(17, 18, 295, 296, 327, 328, 208, 333, 426, 285, 76, 77),
        *(2, 257, 87, 263, 82, 264, 316, 4, 5, 6, 262, 332),
    ),
    Wait.CLIENT: (0, 1, 19, 20, 7, 271, 23, 270, 232, 281, 441, 42, 43, 288, 44, 45, 46, 47),
    Wait.SLEEP: (35, 230),  # nanosleep, clock_nanosleep
}
WAIT_OF_SYSCALL = {number: wait for wait, numbers in _CALLS.items() for number in numbers}
"""The waits in system calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl); all others are OTHER.

Reads and writes of files are uninterruptible, so read and write stand for sockets and pipes.
"""


def find_wait_sites(elf: Elf, symbols: Iterable[tuple[int, str]]) -> tuple[tuple[str, int], ...]:
    """Return (program of queries.bpf.c, file offset) of each call that reports a wait.

    The result is empty if one of them is unknown, because a wait without an end would name all later waits.
    """
    functions = {name: vaddr for vaddr, name in symbols if name in (*_BEGIN, *_END)}
    begin = next((functions[name] for name in _BEGIN if name in functions), None)
    end = next((functions[name] for name in _END if name in functions), None)
    if begin is None or end is None:
        return ()
    known = ProgramFunctions(elf)
    sites: list[tuple[str, int]] = []
    for after, function in islice(find_call_returns(elf, (begin, end)), _MOST_SITES):
        before = known.before(after - CALL_BYTES)
        offset = find_file_offset(elf, after - CALL_BYTES)
        if before is None or offset is None:
            return ()
        if function == end:
            sites.append((AT_WAITED, offset))
        elif not any(word == "mov" and tuple(operands.split(", ")) == _READS for word, operands in before[-4:]):
            sites.append((AT_WAIT, offset))
    return tuple(sites)


def pack_waits(waits: Mapping[int, Wait]) -> dict[int, bytes]:
    """Return the entries of a table of the program."""
    return {number: int(wait).to_bytes(4, "little") for number, wait in waits.items()}
