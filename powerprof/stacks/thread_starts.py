# SPDX-License-Identifier: Apache-2.0
"""Names of threads that a server does not report, from the functions in which the threads started.

With performance_schema off (the default of Debian's MariaDB) all threads have the kernel's name of the process. The
outermost frames of a sleeping thread are its start function. If the program is stripped, its tables of
performance_schema have the name: each entry holds the address of a key and a text. The code that starts a thread loads
the key next to the address of the start function, or the start function loads the key of its own thread.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator

import msgspec
import numpy as np

from powerprof.stacks.elf import Elf, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage, snapshot
from powerprof.stacks.registers import X86_64, SavedStack, this_machine
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symbolizer import Frame, Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.reader_process import Opened, shared

# Names in performance_schema by the name in the program's tables (MariaDB 10.5 to 11.8, MySQL 9.7). Threads for
# asynchronous I/O are left out, because several of their keys share one start function.
_CATEGORIES = {
    "innodb": "page_cleaner_thread thread_pool_thread trx_rollback_thread srv_master_thread srv_monitor_thread "
    "srv_error_monitor_thread srv_lock_timeout_thread srv_purge_thread buf_dump_thread dict_stats_thread "
    "fts_optimize_thread page_flush_coordinator_thread buf_resize_thread",
    "sql": "one_connection signal_handler slave_background binlog_background manager slave_io slave_sql "
    "rpl_parallel_thread event_scheduler event_worker delayed_insert",
    "mysys": "statement_timer",
    "aria": "checkpoint_background soft_sync_service",
    "thread_pool": "timer_thread worker_thread",
}
_NAMES = {name: f"thread/{category}/{name}" for category, names in _CATEGORIES.items() for name in names.split()}
_FUNCTIONS = {
    "timer_handler": "statement_timer",
    "buf_flush_page_cleaner": "page_cleaner_thread",
    "tpool::thread_pool_generic::worker_main": "thread_pool_thread",
    "signal_hand": "signal_handler",
    "handle_one_connection": "one_connection",
    "handle_manager": "manager",
    "ma_checkpoint_background": "checkpoint_background",
    "event_scheduler_thread": "event_scheduler",
    "event_worker_thread": "event_worker",
    "handle_slave_io": "slave_io",
    "handle_slave_sql": "slave_sql",
    "handle_rpl_parallel_thread": "rpl_parallel_thread",
    "handle_slave_background": "slave_background",
    "binlog_background_thread": "binlog_background",
}
# Functions between pthread_create and the start function, of the server and of the C++ library.
_GLUE = re.compile(
    r"^(std::|void std::|decltype|pfs_spawn_thread|mysys_thread|execute_native"
    r"|(void )?Runnable|(void )?Detached_thread|.*Runnable::"
    r"|.*_M_(run|invoke)|mysql_thread_|spawn_thread|_start$|main$|mysqld_main)"
)
_LIBRARIES = re.compile(r"^(libc|libpthread|libstdc\+\+|ld-linux.*|libc-[\d.]+)\.so|^\[|^libpthread|^ld-")
# A start function is among the outermost frames: the server and the C++ library add at most these.
_OUTERMOST = 8
_NEAR_BYTES = 64
_RELATIVE = 8  # R_X86_64_RELATIVE
_RELOCATION = np.dtype([("place", "<u8"), ("kind", "<u8"), ("value", "<u8")])
_MAX_BYTES = 256 << 20


class ThreadStart(msgspec.Struct, frozen=True):
    """The start of a thread.

    Attributes:
        name: as in performance_schema, or the start function; None if neither is known.
        function: the start function, or its address in the file of a stripped program.
    """

    name: str | None
    function: str


def read_thread_starts(pid: int) -> dict[int, ThreadStart]:
    """Return the starts of the threads of a process that sleep now; empty if its memory may not be read.

    The first thread runs the program itself and is left out. The process is not stopped.
    """
    try:
        image, machine = snapshot(pid), this_machine()
        stacks = shared().stacks(pid, lambda: None)
    except PowerprofError:
        return {}
    store = TableStore(downloads=False)
    unwinder, symbolizer = Unwinder(store), Symbolizer(image, store, inline=False)
    starts: dict[int, list[Frame]] = {}
    for tid, ip, sp, stack in stacks:
        if tid == pid:
            continue
        registers = machine.pack({"ip": ip, "pc": ip, "sp": sp})
        unwound = unwinder.unwind(image, SavedStack(pid, tid, registers, stack))
        if unwound.complete:
            frames = [frame for frame in symbolizer.stack(unwound)[::-1][:_OUTERMOST] if not frame.inlined]
            starts[tid] = [frame for frame in frames if not _LIBRARIES.match(frame.module)]
    unnamed = {
        frame.function_start
        for frames in starts.values()
        for frame in frames
        if frame.function is None and frame.function_start is not None
    }
    program = next((mapping for mapping in image.mappings if mapping.path == image.executable), None)
    names = _read_start_names(store, image, program, unnamed) if unnamed and program is not None else {}
    return {tid: _describe(_skip_glue(frames, starts), names) for tid, frames in starts.items() if frames}


def name_threads(pid: int) -> dict[int, str]:
    """Return the names of the threads of a process by the functions in which they started."""
    return {tid: start.name for tid, start in read_thread_starts(pid).items() if start.name is not None}


def _skip_glue(frames: list[Frame], starts: dict[int, list[Frame]]) -> list[Frame]:
    """Return the frames from the start function on, outermost first.

    A function without a name is glue if threads with different functions started in it.
    """
    for position, frame in enumerate(frames[:-1]):
        if frame.function is not None:
            is_glue = _GLUE.match(frame.function) is not None
        else:
            place = frame.function_start
            others = [each for each in starts.values() if each and each[0].function_start == place]
            is_glue = position == 0 and len({each[1].function_start for each in others if len(each) > 1}) > 1
        if not is_glue:
            return frames[position:]
    return frames[-1:]


def _describe(frames: list[Frame], names: dict[int, str]) -> ThreadStart:
    first = frames[0]
    function = (first.function or first.label).partition("(")[0]
    name = names.get(first.function_start or 0) or _FUNCTIONS.get(function)
    if name is not None:
        return ThreadStart(_NAMES[name], function)
    return ThreadStart(None if first.function is None else function, function)


def _read_start_names(
    store: TableStore, image: ProcessImage, mapping: Mapping, starts: Collection[int]
) -> dict[int, str]:
    """Return names in the program's tables of performance_schema, by the link-time address of the start function."""
    tables = store.tables(image, mapping)
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        return {}
    with opened, store.budget.metered(image.pid, opened.is_trusted) as meter:
        try:
            elf = read_elf(opened.fd, mapping.path, meter)
            if isinstance(tables, str) or elf.machine is not X86_64:
                return {}
            return find_start_names(elf, np.frombuffer(tables.unwind.starts, "<u8").tolist(), starts)
        except (DataError, CapabilityError, OSError):
            return {}


def find_start_names(elf: Elf, functions: list[int], starts: Collection[int]) -> dict[int, str]:
    """Return the names of start functions of an x86-64 program by their keys of performance_schema.

    A start function with two names has none. `functions`: the sorted starts of all functions. Raise DataError.
    """
    keys = _find_keys(elf)
    code = elf.section(".text")
    if not keys or code is None:
        return {}
    text = section_bytes(elf, code, _MAX_BYTES)
    found: dict[int, set[str]] = {}
    for place, key in _find_references(text, code.vaddr, keys):
        at = bisect_right(functions, place) - 1
        near = {functions[at]} if at >= 0 and functions[at] in starts else set[int]()
        first = max(0, place - code.vaddr - _NEAR_BYTES)
        for offset in range(first, min(len(text) - 4, place - code.vaddr + _NEAR_BYTES)):
            target = code.vaddr + offset + 4 + int.from_bytes(text[offset : offset + 4], "little", signed=True)
            if target in starts:
                near.add(target)
        for start in near:
            found.setdefault(start, set()).add(keys[key])
    return {start: names.pop() for start, names in found.items() if len(names) == 1}


def _find_keys(elf: Elf) -> dict[int, str]:
    """Return the names of keys by the address of the key: an entry is two pointers, which the loader relocates."""
    texts, relocations = elf.section(".rodata"), elf.section(".rela.dyn")
    if texts is None or relocations is None:
        return {}
    data = section_bytes(elf, texts, _MAX_BYTES)
    rows = np.frombuffer(section_bytes(elf, relocations, _MAX_BYTES), _RELOCATION)
    rows = np.sort(rows[rows["kind"] == _RELATIVE], order="place")
    places, values = rows["place"], rows["value"]
    keys: dict[int, str] = {}
    for name in _NAMES:
        # The linker may merge a text with the end of a longer one.
        addresses = [texts.vaddr + at for at in _find_all(data, name.encode() + b"\0")]
        for place in places[np.isin(values, addresses)].tolist():
            at = int(places.searchsorted(place - 8))
            if at < len(places) and int(places[at]) == place - 8:
                keys[int(values[at])] = name
    return keys


def _find_all(data: bytes, word: bytes) -> Iterator[int]:
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + 1)


def _find_references(text: bytes, vaddr: int, keys: Collection[int]) -> list[tuple[int, int]]:
    """Return (address of the operand, key) of all instructions that address a key relative to their end."""
    wanted = np.array(sorted(keys), dtype="<i8")
    references: list[tuple[int, int]] = []
    for shift in range(4):
        words = np.frombuffer(text, "<i4", count=(len(text) - shift) // 4, offset=shift)
        places = vaddr + shift + 4 * np.arange(len(words), dtype="<i8")
        targets = words + places + 4
        candidates = np.flatnonzero((targets >= wanted[0]) & (targets <= wanted[-1]))
        hits = candidates[np.isin(targets[candidates], wanted)]
        references += zip(places[hits].tolist(), targets[hits].tolist(), strict=True)
    return references
