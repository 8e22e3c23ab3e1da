# SPDX-License-Identifier: Apache-2.0
"""The unwind table of one ELF file, which can be saved, moved and given to drgn without the file.

Drgn is native code, so it never reads a file of an untrusted process. It gets an ELF image that is written here around
the bytes of .eh_frame, in a sealed memory file that no process can truncate.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from bisect import bisect_right
from functools import cached_property

import msgspec

from powerprof.stacks.elf import EHDR, ET_DYN, PF_X, PHDR, PT_LOAD, SHDR, Elf, section_bytes
from powerprof.stacks.function_ranges import convert_debug_frame, read_fde_functions
from powerprof.stacks.registers import BY_ELF, X86_64
from powerprof.stacks.symtab import SymbolTable, read_symbols
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

UNWIND_LIMIT_BYTES = 256 << 20
# Functions at the bottom of a stack by name, if no unwind table covers them (assembler without CFI, as in musl).
_PLAIN_BOTTOMS = frozenset({"_start", "_start_c", "__clone", "clone", "start_thread", "_dl_start_user"})
# Go's unwind table does not mark these: a goroutine returns to goexit, a thread's own stack begins in mstart, and
# mcall and rt0_go switch to that stack.
_GO_BOTTOMS = frozenset(
    f"runtime.{name}{abi}"
    for name in ("goexit", "mcall", "mstart", "rt0_go", "systemstack_switch")
    for abi in ("", ".abi0")
)
_SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0008  # F_SEAL_SEAL, _SHRINK, _GROW, _WRITE
_F_ADD_SEALS = 1033


class UnwindTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The unwind table of one file. Addresses are link-time; `starts` and `ends` are little-endian u64 arrays.

    `bottoms` are the ranges [start, end) of functions without a caller. `missing` is why `eh_frame` is empty.
    """

    build_id: str | None
    low: int
    high: int
    eh_frame: bytes
    eh_frame_vaddr: int
    starts: bytes
    ends: bytes
    bottoms: tuple[tuple[int, int], ...]
    missing: str | None = None
    elf_machine: int = X86_64.elf_machine

    def covers(self, vaddr: int) -> bool:
        """Return whether an entry covers a link-time address."""
        starts, ends = self._edges
        at = bisect_right(starts, vaddr) - 1
        return at >= 0 and vaddr < ends[at]

    def range_at(self, vaddr: int) -> tuple[int, int] | None:
        """Return the range [start, end) of the entry that covers a link-time address; None if there is none."""
        starts, ends = self._edges
        at = bisect_right(starts, vaddr) - 1
        return (starts[at], ends[at]) if at >= 0 and vaddr < ends[at] else None

    def all_starts(self) -> frozenset[int]:
        """Return the start addresses of all entries."""
        return frozenset(self._edges[0])

    @cached_property
    def _edges(self) -> tuple[memoryview, memoryview]:
        return memoryview(self.starts).cast("Q"), memoryview(self.ends).cast("Q")


@loader(0)
def extract_table(elf: Elf, symbols: SymbolTable | None = None) -> UnwindTable:
    """Return the unwind table of a validated file. Raises DataError if the file is damaged."""
    loads = [load for load in elf.loads() if load.memory_bytes]
    if not loads:
        raise DataError(elf.path, "nothing in it is loaded")
    low = min(load.vaddr for load in loads) & ~0xFFF
    high = max(load.vaddr + load.memory_bytes for load in loads)
    data, vaddr, missing = b"", 0, None
    section = elf.section(".eh_frame")
    debug = elf.section(".debug_frame")
    functions = read_fde_functions(b"", 0, elf.path)
    if section is not None:
        if section.vaddr >= 1 << 63:
            raise DataError(elf.path, f"an unwind table at the impossible address {section.vaddr:#x}")
        data, vaddr = section_bytes(elf, section, UNWIND_LIMIT_BYTES), section.vaddr
        functions = read_fde_functions(data, vaddr, elf.path, elf.machine.return_column)
    if not len(functions.starts) and debug is not None:
        data = convert_debug_frame(section_bytes(elf, debug, UNWIND_LIMIT_BYTES), elf.path)
        # Its addresses are absolute, so any load address is right; this one is after all loaded segments.
        vaddr = (high + 0xFFF) & ~0xFFF
        functions = read_fde_functions(data, vaddr, elf.path, elf.machine.return_column)
    if not len(functions.starts):
        data, missing = b"", "no .eh_frame"
    starts, ends = functions.starts, functions.ends
    bottoms = set(functions.bottoms)
    if elf.entry:
        covering = ((starts <= elf.entry) & (elf.entry < ends)).nonzero()[0]
        last = int(covering[-1]) if len(covering) else None
        bottoms.add((elf.entry, elf.entry + 64) if last is None else (int(starts[last]), int(ends[last])))
    names = symbols if symbols is not None else read_symbols(elf)
    bottoms |= names.ranges_of(_GO_BOTTOMS)
    for begin, end in names.ranges_of(_PLAIN_BOTTOMS):
        at = int(starts.searchsorted(begin, "right")) - 1
        if at < 0 or begin >= int(ends[at]):
            bottoms.add((begin, end))
    return UnwindTable(
        build_id=elf.build_id,
        low=low,
        high=high,
        eh_frame=data,
        eh_frame_vaddr=vaddr,
        starts=starts.astype("<u8").tobytes(),
        ends=ends.astype("<u8").tobytes(),
        bottoms=tuple(sorted(bottoms)),
        missing=missing,
        elf_machine=elf.machine.elf_machine,
    )


def check_table(table: UnwindTable, path: object, *, own: bool = False) -> UnwindTable:
    """Return a table from a file. Raises DataError if it contradicts itself.

    `own`: no other account can have written the file, and `extract_table` checked each entry.
    """
    sizes = len(table.starts) == len(table.ends) and len(table.starts) % 8 == 0
    if not sizes or not 0 <= table.low <= table.high < 1 << 63 or not 0 <= table.eh_frame_vaddr < 1 << 63:
        raise DataError(path, "damaged unwind table")
    if table.build_id is not None and not re.fullmatch(r"([0-9a-f]{2}){1,64}", table.build_id):
        raise DataError(path, "damaged build id")
    if table.elf_machine not in BY_ELF:
        raise DataError(path, f"an unwind table of another machine (e_machine {table.elf_machine})")
    # Drgn reads the bytes and not the ranges, so they are checked as those of a file are.
    if not own:
        read_fde_functions(table.eh_frame, table.eh_frame_vaddr, str(path), BY_ELF[table.elf_machine].return_column)
    return table


def build_elf_image(table: UnwindTable) -> bytes:
    """Return a minimal ELF file with the table: one loadable segment, .text without bytes, .eh_frame, build id."""
    names = b"\0.text\0.eh_frame\0.shstrtab\0.note.gnu.build-id\0"
    note = b""
    if table.build_id:
        raw = bytes.fromhex(table.build_id)
        note = struct.pack("<III", 4, len(raw), 3) + b"GNU\0" + raw + bytes(-len(raw) % 4)
    frame_at = EHDR.size + PHDR.size
    # A terminator ends the table for readers that do not stop at the end of the section.
    frame = table.eh_frame + b"\0\0\0\0"
    note_at = (frame_at + len(frame) + 7) & ~7
    names_at = note_at + len(note)
    sections_at = (names_at + len(names) + 7) & ~7
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = EHDR.pack(
        ident, ET_DYN, table.elf_machine, 1, 0, EHDR.size, sections_at, 0, EHDR.size, PHDR.size, 1, SHDR.size, 5, 3
    )
    segment = PHDR.pack(PT_LOAD, PF_X | 4, 0, table.low, table.low, 0, table.high - table.low, 0x1000)
    sections = b"".join(
        (
            bytes(SHDR.size),
            # Drgn takes a file as loadable only if an allocated section has bytes: .eh_frame below.
            SHDR.pack(1, 8, 6, table.low, frame_at, table.high - table.low, 0, 0, 16, 0),
            SHDR.pack(7, 1, 2, table.eh_frame_vaddr, frame_at, len(frame), 0, 0, 8, 0),
            SHDR.pack(17, 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
            SHDR.pack(27, 7, 0, 0, note_at, len(note), 0, 0, 4, 0),
        )
    )
    out = bytearray(sections_at + len(sections))
    out[: EHDR.size] = header
    out[EHDR.size : frame_at] = segment
    out[frame_at : frame_at + len(frame)] = frame
    out[note_at : note_at + len(note)] = note
    out[names_at : names_at + len(names)] = names
    out[sections_at:] = sections
    return bytes(out)


def create_sealed_file(data: bytes, name: str) -> int:
    """Return the descriptor of a memory file with `data` that can no longer change. The caller closes it."""
    fd = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd
