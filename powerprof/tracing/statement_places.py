# SPDX-License-Identifier: Apache-2.0
"""Find the places to probe in MariaDB and MySQL, and read the tables that the programs count statements in.

Every packet of every client goes through one function. It has had one name since MySQL 4.1 and three lists of
parameters, which its mangled name shows. Plugins need its neighbours, so servers export their functions: a stripped
server has it in .dynsym.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Mapping_abc
from collections.abc import Mapping as Table
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import msgspec

from powerprof.model.identities import Family
from powerprof.stacks.effects import decode_instructions
from powerprof.stacks.elf import Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.stacks.store import open_module
from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.files import reading
from powerprof.system.reader_process import Opened
from powerprof.tracing import statement_code
from powerprof.tracing.bpf.shared_numbers import (
    COM_PART,
    COM_STMT_EXECUTE,
    COM_STMT_PREPARE,
    MOST_WALKS,
    PREPARING,
    SQUARED_NS_LOG,
    WALKED_AT_ONCE,
    StatementWait,
)
from powerprof.tracing.bpf.shared_numbers import StatementWait as Wait
from powerprof.tracing.captures import RecordedText, StatementUse, ThreadUse, find_latency_class
from powerprof.tracing.statement_code import CALL_BYTES, MOST_SEGMENT_BYTES, ProgramFunctions, find_call_returns
from powerprof.tracing.symbols import (
    find_file_offset,
    find_thread_offset,
    find_variable_address,
    is_stepped,
    read_function_symbols,
)

# Waits of statements are named by the system call, or by the server's own report.
#
# MariaDB and MySQL call thd_wait_begin(THD *, int) before they wait for a lock or for a group commit, and thd_wait_end
# after it. The functions are exported, because plugins call them. A jump from another function reaches them for each
# wait for a client as well. Therefore the calls are probed: a statement without waits pays nothing.

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


def pack_waits(waits: Mapping_abc[int, Wait]) -> dict[int, bytes]:
    """Return the entries of a table of the program."""
    return {number: int(wait).to_bytes(4, "little") for number, wait in waits.items()}


_DISPATCH = "_Z16dispatch_command"
_WAITS = "_Z10do_commandP3THD"
# CALL and events execute a procedure. An event has no packet before it.
_PROCEDURE, AT_PROCEDURE = "_ZN7sp_head17execute_procedureEP3THD", "uprobe__procedure"
# The parameters by mangled name, and the LAYOUT of queries.bpf.c.
LAYOUTS = {"19enum_server_commandP3THDPc": 0, "P3THDPK8COM_DATA19enum_server_command": 1}
_ENDBR64 = bytes.fromhex("f30f1efa")
EXPORTING = "a build that exports its functions"


class Dispatch(msgspec.Struct, frozen=True):
    """The places to probe in a server. Offsets are in the file of `mapping`.

    `waits_offset`: the function that waits for the next packet, None if unknown. `stepped`: a probe needs a second
    trap. `sites`: the meaning of calls by return address, if a server's processes have one function for all
    (statement_activity). `is_sure`: each of a client's messages is recognised. `text_address`: the pointer to the text
    that a process executes. `within`: further probes, offsets by function of queries.bpf.c. `waits`: the calls that
    report a wait. `event_address`: the pointer to the wait of a PostgreSQL process.
    """

    mapping: Mapping
    symbol: str
    offset: int
    layout: int
    waits_offset: int | None
    stepped: bool
    sites: Table[int, int] = msgspec.field(default_factory=dict)
    is_sure: bool = True
    version: str | None = None
    text_address: int | None = None
    within: Table[str, int] = msgspec.field(default_factory=dict)
    waits: tuple[tuple[str, int], ...] = ()
    event_address: int | None = None


@contextmanager
def open_program(image: ProcessImage, remedy: str) -> Iterator[tuple[Elf, Mapping]]:
    """Open a process's own program and yield it with its mapping, which has a bias.

    Raises CapabilityError if it cannot be read, with `remedy` if its content is damaged.
    """
    mapping = next((one for one in image.mappings if one.path == image.executable and one.bias is not None), None)
    if mapping is None:
        raise CapabilityError(f"the program of process {image.pid} cannot be read", "run as root")
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        raise CapabilityError(f"{mapping.module} cannot be read ({opened})", "restart the server after an upgrade")
    with opened:
        try:
            # Users of the open file are covered too, because its addresses and sizes are untrusted.
            with reading(mapping.path):
                yield read_elf(opened.fd, mapping.path), mapping
        except DataError as error:
            raise CapabilityError(f"{mapping.module} cannot be read ({error.reason})", remedy) from error


def find_dispatch(image: ProcessImage) -> Dispatch:
    """Return the places to probe in MariaDB or MySQL. Raises CapabilityError if the function is missing or unknown."""
    with open_program(image, EXPORTING) as (elf, mapping):
        return _in(elf, mapping)


def _in(elf: Elf, mapping: Mapping) -> Dispatch:
    symbols, _ = read_function_symbols(elf)
    waits = next((vaddr for vaddr, name in symbols if name.startswith(_WAITS) and "." not in name), None)
    others = []
    for vaddr, name in symbols:
        if not name.startswith(_DISPATCH):
            continue
        layout = next(
            (number for mangled, number in LAYOUTS.items() if name[len(_DISPATCH) :].startswith(mangled)), None
        )
        offset = find_file_offset(elf, vaddr)
        # The parameters of a clone (.constprop, .isra, .part) differ from its name.
        if layout is None or offset is None or "." in name:
            others.append(name)
            continue
        offset = skip_landing_mark(elf, offset)
        waits_offset = None if waits is None else find_file_offset(elf, waits)
        return Dispatch(
            mapping=mapping,
            symbol=name,
            offset=offset,
            layout=layout,
            waits_offset=None if waits_offset is None else skip_landing_mark(elf, waits_offset),
            stepped=is_stepped(elf.read(offset, 2)),
            waits=find_wait_sites(elf, symbols),
            within=find_probe_offsets(
                elf, {AT_PROCEDURE: next((at for at, name in symbols if name.startswith(_PROCEDURE)), None)}
            ),
        )
    if others:
        raise CapabilityError(f"{mapping.module} passes its commands in an unknown way ({others[0][:80]})", EXPORTING)
    raise CapabilityError(f"{mapping.module} has no symbol of dispatch_command, where statements begin", EXPORTING)


def find_probe_offsets(elf: Elf, functions: Table[str, int | None]) -> dict[str, int]:
    """Return the file offsets to probe by program, for the functions that the server has."""
    offsets = {name: find_file_offset(elf, vaddr) for name, vaddr in functions.items() if vaddr is not None}
    return {name: skip_landing_mark(elf, offset) for name, offset in offsets.items() if offset is not None}


def skip_landing_mark(elf: Elf, offset: int) -> int:
    """Return the offset after the landing mark of indirect branches, which would need a second trap."""
    if elf.read(offset, 4) == _ENDBR64 and not is_stepped(elf.read(offset + 4, 2)):
        return offset + 4
    return offset


Entries = Iterable[tuple[bytes, bytes]]

TEXT_BYTES = 1024
MOST_TEXT_BYTES = MOST_WALKS * WALKED_AT_ONCE * (TEXT_BYTES - 1)  # whole.bpf.h hashes and keeps so many
_THREAD = struct.Struct("<12Q72s5QI4x160x5I8xI4B2xB")  # without `own` and its count, and what it prepares
_PAST = struct.Struct("<5Q")
_HELPERS = 2  # of `pasts`
_TEXT = struct.Struct("<4I2Q")
_TOTAL = struct.Struct("<4Qq72sQ")
_WAITS_FORMAT = "<9Q"  # by enum wait
_PAIR = struct.Struct("<2Q")  # struct total_key, struct latency_key
_TEXT_BIT = 256  # of identities: those below are commands, which have no text


class ThreadCounters(NamedTuple):
    """The fields of `struct thread` of queries.bpf.c, in that order. CPU times are the scheduler's counts."""

    first_ns: int
    last_ns: int
    in_at: int
    past_ns: int
    id: int
    began_at: int
    began_ns: int
    ended_at: int
    ended_ns: int
    sent_at: int
    began_faults: int
    before_ns: int
    waits: bytes
    out_at: int
    out_delay: int
    began_delay: int
    ended_delay: int
    slept: int
    why: int
    wakeups: int
    began_wakeups: int
    ended_wakeups: int
    command: int
    length: int
    statements: int
    first_seen_running: int
    dead: int
    is_known: int
    is_over: int
    is_helper: int

    def ran_until(self, at_ns: int) -> int:
        """Return the CPU time at a moment: until the last switch, plus the time since the thread was switched in."""
        return self.last_ns + (max(at_ns - self.in_at, 0) if self.in_at else 0)

    def waited_until(self, at_ns: int) -> list[int]:
        """Return the waits of the open statement by `StatementWait` in ns, including the present wait."""
        waits = list(struct.unpack(_WAITS_FORMAT, self.waits))
        if self.ended_at:
            waits[StatementWait.RUN_QUEUE] = max(self.ended_delay - self.began_delay, 0)
            return waits
        if self.why < len(waits):
            waits[self.why] += self.slept + (max(at_ns - self.out_at, 0) if self.out_at else 0)
        # The remaining time: the scheduler counts a wait for a CPU when it is over, and this one may not be.
        ran = self.ran_until(at_ns) - self.began_ns
        waits[StatementWait.RUN_QUEUE] = max(at_ns - self.began_at - ran - sum(waits), 0)
        return waits


class StatementSums(msgspec.Struct, frozen=True):
    """The sums of statements by (identity, thread), their texts, and identity → class of time → calls."""

    uses: dict[tuple[int, int], StatementUse]
    texts: dict[int, RecordedText]
    latencies: dict[int, dict[int, int]]


def read_sums(totals: Entries, texts: Entries, latencies: Entries, pieces: Entries = ()) -> StatementSums:
    """Return the sums of ended statements. `add_open_statement` adds the threads' last statements."""
    uses = {}
    for key, value in totals:
        calls, wakeups, faults, wall, cpu, waits, squares = _TOTAL.unpack(value)
        id, tid = _PAIR.unpack(key)
        uses[id, tid] = StatementUse(
            id, tid, calls, cpu, wall, wakeups, faults, 0, struct.unpack(_WAITS_FORMAT, waits), squares
        )
    classes: dict[int, dict[int, int]] = {}
    for key, value in latencies:
        id, bucket = _PAIR.unpack(key)
        classes.setdefault(id, {})[bucket] = int.from_bytes(value, "little")
    return StatementSums(uses, {text.id: text for text in read_texts(texts, pieces)}, classes)


def read_texts(texts: Entries, pieces: Entries) -> Iterator[RecordedText]:
    """Yield the texts (texts.bpf.h), with the pieces of long ones (whole.bpf.h)."""
    parts = {_PAIR.unpack(key): value for key, value in pieces}
    for key, data in texts:
        id = int.from_bytes(key, "little")
        command, length, hashed, kept, number, tid = _TEXT.unpack_from(data)
        text = b"" if number else _cut(data[_TEXT.size :], kept)
        if kept >= TEXT_BYTES:
            whole = id ^ PREPARING if command == COM_STMT_PREPARE else id
            found = [parts.get((whole, piece), b"") for piece in range(-(-kept // TEXT_BYTES))]
            if all(found):
                text = b"".join(found)[:kept]
        yield RecordedText(id, command, length, text, number, tid, hashed)


def _cut(text: bytes, length: int) -> bytes:
    return text[: min(length, TEXT_BYTES - 1)]


def read_threads(entries: Entries) -> Iterator[tuple[int, ThreadCounters, bytes]]:
    """Yield each thread's number, its counters, and the text of its last statement."""
    for key, value in entries:
        thread = ThreadCounters(*_THREAD.unpack_from(value))
        yield int.from_bytes(key, "little"), thread, _cut(value[_THREAD.size :], thread.length)


def compute_thread_use(tid: int, comm: str, thread: ThreadCounters, base_ns: int | None, ended_at: int) -> ThreadUse:
    """Return the resources that a thread used in a window.

    `base_ns`: its CPU time at the beginning, if it was there.
    """
    begin = thread.first_ns
    if thread.first_seen_running and base_ns is not None:
        begin = min(base_ns, begin)
    used = thread.past_ns + max(thread.ran_until(ended_at) - begin, 0)
    before = max(thread.before_ns - begin, 0) if thread.statements else 0
    return ThreadUse(tid, comm, used, thread.wakeups, thread.statements, before, is_helper=bool(thread.is_helper))


def read_ended_threads(values: bytes) -> Iterator[ThreadUse]:
    """Yield the sums of ended threads (ended.bpf.h): those without a statement, those with some, and helpers."""
    for kind, (threads, cpu, wakeups, statements, before) in enumerate(_PAST.iter_unpack(values)):
        if threads:
            yield ThreadUse(0, "ended threads", cpu, wakeups, statements, before, threads, kind == _HELPERS)


def add_open_statement(sums: StatementSums, tid: int, thread: ThreadCounters, text: bytes, ended_at: int) -> None:
    """Add the last statement of a thread: it has ended, or continues beyond the window."""
    id, counts = thread.id, thread.command != COM_PART
    if not id:
        return
    if thread.ended_at:
        cpu, wakeups, until = thread.ended_ns, thread.ended_wakeups, thread.sent_at or thread.ended_at
    else:
        cpu, wakeups, until = thread.ran_until(ended_at), thread.wakeups, ended_at
    if thread.ended_at and counts:
        classes = sums.latencies.setdefault(id, {})
        bucket = find_latency_class(until - thread.began_at)
        classes[bucket] = classes.get(bucket, 0) + 1
    old = sums.uses.get((id, tid), StatementUse(id, tid, 0, 0, 0, 0, 0))
    sums.uses[id, tid] = StatementUse(
        id,
        tid,
        old.calls + counts,
        old.cpu_ns + cpu - thread.began_ns,
        old.wall_ns + max(until - thread.began_at, 0),
        old.wakeups + wakeups - thread.began_wakeups,
        old.faults,
        old.open_count + (counts and not thread.ended_at),
        tuple(was + now for was, now in zip(old.waits_ns, thread.waited_until(ended_at), strict=True)),
        old.squares + (max(cpu - thread.began_ns, 0) >> SQUARED_NS_LOG) ** 2 * (counts and bool(thread.ended_at)),
    )
    if id >= _TEXT_BIT and id not in sums.texts and thread.command != COM_STMT_EXECUTE:
        sums.texts[id] = RecordedText(id, thread.command, thread.length, text)


# The text of the statement that a thread executes is found through the program, without a login.
#
# PostgreSQL exports debug_query_string. MariaDB and MySQL keep the text in an object of each connection (THD). Plugins
# need both: a function or thread-local variable has the thread's connection, and a function returns the text of a
# connection. Both functions have a few instructions, from which the offsets are read, on x86-64 and arm64.

POSTGRESQL_TEXT, POSTGRESQL_CLIENT = "debug_query_string", "MyProcPort"
# MariaDB's function since 5.1 and MySQL's until 5.6, and MySQL's variable since 5.7.
_CONNECTIONS, _CONNECTION = ("_current_thd", "_Z12_current_thdv", "_Z11current_thdv"), "current_thd"
_TEXTS = ("thd_query_string", "thd_query_unsafe", "_Z16thd_query_unsafeP3THD")
# Tests two bits of a connection's sql_mode, whose place is known thereby.
_STRICT = ("thd_is_strict_mode", "_Z18thd_is_strict_modePK3THD", "_Z18thd_is_strict_modeP3THD")
_STRICT_BITS = (("qword", "0x600000", 0), ("dword", "0x600000", 0), ("byte", "0x60", 2))
_MOST_BYTES, _MOST_INSTRUCTIONS = 64, 16
_FRAME = frozenset(("endbr64", "push", "pop", "nop"))
_OFFSET = r"(?: ([+-]) (0x[0-9a-f]+|\d+))?\]"

Code = Sequence[tuple[str, str]]
"""Words and operands of instructions."""


class TextPlace(msgspec.Struct, frozen=True):
    """The addresses of struct place in place.bpf.h. Negative numbers count backwards.

    `version`: of the program of PostgreSQL; None if it does not show it, and for MariaDB and MySQL.
    """

    text: int
    client: int
    mode: int = 0
    version: str | None = None


_PLACE = struct.Struct("<3Q")


def pack_text_place(place: TextPlace) -> bytes:
    """Return struct place."""
    return _PLACE.pack(place.text % (1 << 64), place.client % (1 << 64), place.mode)


def find_text(image: ProcessImage, family: Family) -> TextPlace:
    """Return the place of statement texts. Raises CapabilityError if the program does not show it."""
    with open_program(image, EXPORTING) as (elf, mapping):
        return _postgresql(elf, mapping) if family == "postgresql" else _mysql(elf, mapping)


def _postgresql(elf: Elf, mapping: Mapping) -> TextPlace:
    text, client = (find_variable_address(elf, name) for name in (POSTGRESQL_TEXT, POSTGRESQL_CLIENT))
    if text is None:
        raise CapabilityError(
            f"{mapping.module} has no symbol of {POSTGRESQL_TEXT}, where statements are",
            "a build that exports its variables, as PostgreSQL's own makefiles do",
        )
    at_client = 0 if client is None else mapping.in_memory(client)
    return TextPlace(mapping.in_memory(text), at_client, version=find_version(elf))


_VERSION = re.compile(rb"PostgreSQL (\d{1,3}[.a-z0-9]{1,10})[^\0]{0,100} on [^\0]+, compiled by ")


def find_version(elf: Elf) -> str | None:
    """Return the version in a program of PostgreSQL: the beginning of the text that version() returns."""
    for segment in elf.loads():
        if segment.file_bytes > MOST_SEGMENT_BYTES:
            continue
        found = _VERSION.search(elf.read(segment.offset, segment.file_bytes))
        if found:
            return found[1].decode()
    return None


def _mysql(elf: Elf, mapping: Mapping) -> TextPlace:
    symbols = {name: vaddr for vaddr, name in read_function_symbols(elf)[0]}
    text = next(
        (at for code in _code_of(elf, symbols, _TEXTS) if (at := find_text_offset(code, elf.machine)) is not None), None
    )
    client = find_thread_offset(elf, _CONNECTION)
    if client is None:
        found = (find_connection_offset(code, elf.machine) for code in _code_of(elf, symbols, _CONNECTIONS))
        client = next((at for at in found if at is not None), None)
    if text is None or client is None:
        what = "a connection has its text" if text is None else "a thread has its connection"
        raise CapabilityError(f"{mapping.module} does not show where {what}", EXPORTING)
    modes = (find_mode_offset(code) for code in _code_of(elf, symbols, _STRICT))
    return TextPlace(text, client, next((at for at in modes if at is not None), 0))


def _code_of(elf: Elf, symbols: dict[str, int], names: Sequence[str]) -> Iterator[Code]:
    """Yield the instructions of the present functions, up to their return."""
    for name in names:
        offset = find_file_offset(elf, symbols[name]) if name in symbols else None
        if offset is None:
            continue
        code = elf.read(offset, min(_MOST_BYTES, elf.size - offset))
        found = []
        for _, _, words, operands in decode_instructions(code, symbols[name], _MOST_INSTRUCTIONS, elf.machine):
            found.append((words[-1], operands))
            if words[-1] == "ret":
                yield found
                break


def find_text_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Return the offset of the text in the argument: `lea rax, [rdi + N]`, or text and length are returned."""
    if machine is AARCH64:
        return statement_code.find_text_offset(code)
    body = _body(code)
    if len(body) == 1:
        return _offset(body[0], "lea", "rax", r"\[rdi")
    if len(body) == 2:
        text, length = (
            _offset(one, "mov", into, r"qword ptr \[rdi") for one, into in zip(body, ("rax", "rdx"), strict=True)
        )
        return text if text is not None and length == text + 8 else None
    return None


def find_connection_offset(code: Code, machine: Machine = X86_64) -> int | None:
    """Return the connection's offset from the thread pointer: `mov rax, fs:[0]; mov rax, [rax - N]`, or in one step."""
    if machine is AARCH64:
        return statement_code.find_connection_offset(code)
    body = _body(code)
    if len(body) == 1:
        found = re.fullmatch(r"rax, qword ptr fs:\[(0x[0-9a-f]+|\d+)\]", body[0][1]) if body[0][0] == "mov" else None
        return None if found is None else _signed(int(found[1], 0))
    if len(body) == 2 and body[0] == ("mov", "rax, qword ptr fs:[0]"):
        return _offset(body[1], "mov", "rax", r"qword ptr \[rax")
    return None


def find_mode_offset(code: Code) -> int | None:
    """Return the offset of sql_mode in a connection: `test qword ptr [rdi + N], 0x600000`, or the byte of these bits.

    Other code, such as that of arm64, shows none.
    """
    for word, operands in _body(code)[:1]:
        for size, bits, shift in _STRICT_BITS:
            found = re.fullmatch(rf"{size} ptr \[rdi{_OFFSET}, {bits}", operands) if word == "test" else None
            if found is not None and found[1] == "+":
                return int(found[2], 0) - shift
    return None


def _body(code: Code) -> Code:
    """Return the code without instructions that make and remove a frame."""
    return [
        (word, operands)
        for word, operands in code
        if word not in _FRAME and word != "ret" and (word, operands) != ("mov", "rbp, rsp")
    ]


def _offset(instruction: tuple[str, str], word: str, into: str, source: str) -> int | None:
    found = re.fullmatch(rf"{into}, {source}{_OFFSET}", instruction[1]) if instruction[0] == word else None
    if found is None:
        return None
    return int(found[2] or "0", 0) * (-1 if found[1] == "-" else 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
