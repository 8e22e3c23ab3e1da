# SPDX-License-Identifier: Apache-2.0
"""What a statement waits for: by the system call in which it waits, and where the server says so, by that.

MariaDB and MySQL call thd_wait_begin(THD *, int) before they wait for a lock, or for others to commit with them, and
thd_wait_end behind it. The functions are exported, since plugins call them. They are reached for each wait for a client
as well, by a jump from another function. What is probed are the calls: a statement that waits for nothing pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from powerprof.stacks.elf import Elf
from powerprof.tracing.bpf.shared_numbers import StatementWait as Wait
from powerprof.tracing.statements.calls import CALL_BYTES, ProgramFunctions, returns_of
from powerprof.tracing.symbols.patterns import file_offset

_BEGIN = ("thd_wait_begin", "_Z14thd_wait_beginP3THDi")
_END = ("thd_wait_end", "_Z12thd_wait_endP3THD")
AT_WAIT, AT_WAITED = "uprobe__wait", "uprobe__waited"
_MOST_SITES = 64
_READS = ("esi", "2")  # THD_WAIT_DISKIO: its system call tells as well, and there are many

OF_TYPE = {
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
"""enum thd_wait_type of include/mysql/service_thd_wait.h, the same in MariaDB and MySQL."""

_CALLS = {
    Wait.LATCH: (202, 449, 455, 64, 65, 220),  # futex, futex_waitv, futex_wait, semget's
    Wait.SYNC: (74, 75, 26, 162, 277, 306),  # fsync, fdatasync, msync, sync, sync_file_range, syncfs
    Wait.DISK: (
        17,
        18,
        295,
        296,
        327,
        328,
        208,
        333,
        426,
        285,
        76,
        77,
        2,
        257,
        87,
        263,
        82,
        264,
        316,
        4,
        5,
        6,
        262,
        332,
    ),
    Wait.CLIENT: (0, 1, 19, 20, 7, 271, 23, 270, 232, 281, 441, 42, 43, 288, 44, 45, 46, 47),
    Wait.SLEEP: (35, 230),  # nanosleep, clock_nanosleep
}
OF_CALL = {number: wait for wait, numbers in _CALLS.items() for number in numbers}
"""System calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl); what is not here is OTHER. Reads and writes of files
are uninterruptible, so that read and write stand for sockets and pipes."""


def wait_sites(elf: Elf, symbols: Iterable[tuple[int, str]]) -> tuple[tuple[str, int], ...]:
    """(program of queries.bpf.c, offset in the file) of each call that says what is waited for; none where one of them
    is not known, for a wait that does not end would name all that follow."""
    functions = {name: vaddr for vaddr, name in symbols if name in (*_BEGIN, *_END)}
    begin = next((functions[name] for name in _BEGIN if name in functions), None)
    end = next((functions[name] for name in _END if name in functions), None)
    if begin is None or end is None:
        return ()
    known = ProgramFunctions(elf)
    sites: list[tuple[str, int]] = []
    for after, function in islice(returns_of(elf, (begin, end)), _MOST_SITES):
        before = known.before(after - CALL_BYTES)
        offset = file_offset(elf, after - CALL_BYTES)
        if before is None or offset is None:
            return ()
        if function == end:
            sites.append((AT_WAITED, offset))
        elif not any(word == "mov" and tuple(operands.split(", ")) == _READS for word, operands in before[-4:]):
            sites.append((AT_WAIT, offset))
    return tuple(sites)


def packed(waits: Mapping[int, Wait]) -> dict[int, bytes]:
    """Of the program's tables."""
    return {number: int(wait).to_bytes(4, "little") for number, wait in waits.items()}
