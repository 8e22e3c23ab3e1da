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
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from powerprof.stacks.elf import ET_DYN, PF_X, PT_LOAD, Elf, section_bytes, uleb
from powerprof.stacks.registers import BY_ELF, X86_64
from powerprof.stacks.symtab import SymbolTable, read_symbols
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

# Function ranges by the unwind table, and the functions at the bottom of a stack.
#
# An FDE covers one function even if the symbol table was stripped. An FDE with an `undefined` return address
# (`_start`, glibc's `clone3`) belongs to a function without a caller: a walk that reaches it is complete.
# Format: Linux Standard Base, "Exception Frames"; DWARF 5, section 6.4. Drgn does the unwinding itself.

Array = Any  # A numpy array; numpy is imported by the functions that use it.
# LLVM and clang have 100,000 entries, the longest of them 10 KB. Libraries of Debian have at most 16 CIEs of at most
# 44 bytes.
MAX_ENTRIES = 1_000_000
MAX_ENTRY_BYTES = 64 << 10
MAX_CIES = 10_000
MAX_KINDS = 64
MAX_CIE_BYTES = 1024
MAX_BOTTOMS = 1000
_U32 = struct.Struct("<I")
_TWO = struct.Struct("<II")
_KINDS = {"Q": "u", "H": "u", "I": "u", "h": "i", "i": "i", "q": "i"}
_UNDEFINED = 0x07  # DW_CFA_undefined
_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
# Operands of call frame instructions: u = uleb128, a digit = number of bytes, b = block, e = encoded address.
_OPERANDS = {
    **{0x01: "e", 0x02: "1", 0x03: "2", 0x04: "4", 0x0F: "b", 0x10: "ub", 0x16: "ub"},
    **dict.fromkeys((0x06, 0x07, 0x08, 0x0D, 0x0E, 0x13, 0x2E), "u"),
    **dict.fromkeys((0x05, 0x09, 0x0C, 0x11, 0x12, 0x14, 0x15, 0x2F), "uu"),
}


class FunctionRanges(msgspec.Struct, frozen=True):
    """Link-time ranges [start, end) of functions in order, as u64 arrays; `bottoms` have no caller."""

    starts: Array
    ends: Array
    bottoms: tuple[tuple[int, int], ...]


class _Cie(msgspec.Struct, frozen=True):
    encoding: int
    augmented: bool
    bottom: bool


def returns_nowhere(code: bytes, encoding: int, column: int) -> bool:
    """Return whether call frame instructions make the return address (that DWARF column) undefined."""
    if bytes((_UNDEFINED, column)) not in code:
        return False
    at = 0
    try:
        while at < len(code):
            opcode = code[at]
            at += 1
            if opcode >= 0x40:
                if opcode >> 6 == 2:
                    _, at = uleb(code, at)
                continue
            if opcode == _UNDEFINED and code[at] == column:
                return True
            for operand in _OPERANDS.get(opcode, ""):
                if operand == "u":
                    _, at = uleb(code, at)
                elif operand == "b":
                    size, at = uleb(code, at)
                    at += size
                elif operand == "e":
                    at += struct.calcsize(_FORMATS[encoding & 0x0F])
                else:
                    at += int(operand)
    except (IndexError, KeyError, ValueError):
        return False
    return False


def _cie(data: bytes, at: int, end: int, column: int) -> _Cie:
    version = data[at]
    if version not in (1, 3, 4):
        raise ValueError(f"CIE version {version}")
    zero = data.index(0, at + 1, end)
    augmentation = data[at + 1 : zero]
    at = zero + 1
    if version == 4:
        at += 2
    _, at = uleb(data, at)
    _, at = uleb(data, at)
    if version == 1:
        at += 1
    else:
        _, at = uleb(data, at)
    encoding = 0
    if augmentation.startswith(b"z"):
        size, at = uleb(data, at)
        code_at = at + size
        for letter in augmentation[1:]:
            if letter == ord("R"):
                encoding = data[at]
                at += 1
            elif letter == ord("P"):
                personality = data[at] & 0x0F
                at += 1 + struct.calcsize(_FORMATS.get(personality, "<Q"))
            elif letter == ord("L"):
                at += 1
            elif letter not in b"SB":
                break
        at = code_at
    return _Cie(encoding, augmentation.startswith(b"z"), returns_nowhere(data[at:end], encoding, column))


@loader(2)
def read_fde_functions(data: bytes, vaddr: int, path: str, column: int = X86_64.return_column) -> FunctionRanges:
    """Return every function that an .eh_frame section at `vaddr` covers, sorted; damaged entries are left out.

    `column` is the return address's. The time is linear in the size of the section: each FDE refers to a CIE, each CIE
    is read once, and entries longer than those of compilers are refused. Raises DataError for other tables, which
    drgn would read slowly, and for more than MAX_ENTRIES.
    """
    import numpy as np

    cies: dict[int, int] = {}
    kinds: dict[_Cie | None, int] = {}
    bodies, ends, owners = array("I"), array("I"), array("H")
    for start, body, end, pointer in iterate_entries(data, path):
        if end - start > MAX_ENTRY_BYTES:
            raise DataError(path, f"unwind table with an entry of {end - start:,} bytes at {start:#x}")
        if pointer == 0:
            if end - start > MAX_CIE_BYTES or len(cies) >= MAX_CIES or len(kinds) >= MAX_KINDS:
                raise DataError(path, f"unwind table with impossible common entries at byte {start:#x}")
            kind = _try_cie(data, body, end, column)
            cies[start] = kinds.setdefault(kind, len(kinds))
            continue
        owner = cies.get(body - pointer)
        if owner is None:
            raise DataError(path, f"unwind table with an entry that belongs to none at byte {start:#x}")
        bodies.append(body)
        ends.append(end)
        owners.append(owner)
    whole = np.frombuffer(data, np.uint8)
    body_at, end_at, of = (np.array(values, np.int64) for values in (bodies, ends, owners))
    parts = []
    for kind, number in kinds.items():
        is_of_kind = of == number
        if kind is not None and is_of_kind.any():
            decoded = _decode_fdes(whole, vaddr, kind, body_at[is_of_kind], end_at[is_of_kind])
            parts.append((*decoded, np.full(len(decoded[0]), number)))
    if not parts:
        return FunctionRanges(np.array([], "<u8"), np.array([], "<u8"), ())
    low, high, code_at, code_end, of = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    bottom = _find_bottoms(data, whole, list(kinds), code_at, code_end, of, column)
    order = np.lexsort((high, low))
    low, high, bottom = low[order], high[order], bottom[order]
    return FunctionRanges(low, high, tuple(zip(low[bottom].tolist(), high[bottom].tolist(), strict=True)))


def _decode_fdes(whole: Array, vaddr: int, cie: _Cie, body: Array, end: Array) -> tuple[Array, ...]:
    """Return start and end of the function, and start and end of the instructions, of valid FDEs of one kind."""
    import numpy as np

    shape, base = _FORMATS.get(cie.encoding & 0x0F, ""), cie.encoding & 0x70
    if not shape or cie.encoding & 0x80 or base not in (0, 0x10):
        body, end, shape = body[:0], end[:0], "<Q"
    size = struct.calcsize(shape)
    fits = body + 4 + 2 * size + cie.augmented <= end
    body, end = body[fits], end[fits]
    at = body + 4
    start = _numbers(whole, at, shape)
    if base == 0x10:
        # Modulo 2^64, because the section's address can be any number.
        start = start + (at.astype(np.uint64) + np.uint64(vaddr))
    length = _numbers(whole, at + size, shape.upper())
    at = at + 2 * size
    if cie.augmented:
        # The length takes one byte in every table that a compiler writes.
        skip = whole[at].astype(np.int64)
        at = np.where(skip < 0x80, at + 1 + skip, end + 1)
    sound = (length > 0) & (length < 1 << 40) & (at <= end) & (start < 1 << 62)
    start, length, at, end = start[sound], length[sound], at[sound], end[sound]
    return start, start + length, at, end


def _find_bottoms(
    data: bytes, whole: Array, kinds: list[_Cie | None], at: Array, end: Array, of: Array, column: int
) -> Array:
    """Return which FDEs, or their CIEs, make the return address undefined."""
    import numpy as np

    are_bottoms = np.array([kind is not None and kind.bottom for kind in kinds])[of]
    hits = np.nonzero((whole[:-1] == _UNDEFINED) & (whole[1:] == column))[0]
    order = np.argsort(at)
    index: Array = np.searchsorted(at[order], hits, "right") - 1
    inside = index >= 0
    index, hits = order[index[inside]], hits[inside]
    for entry in sorted(set(index[hits < end[index]].tolist()))[:MAX_BOTTOMS]:
        kind = kinds[of[entry]]
        are_bottoms[entry] |= kind is not None and returns_nowhere(data[at[entry] : end[entry]], kind.encoding, column)
    return are_bottoms


def _numbers(whole: Array, at: Array, shape: str) -> Array:
    """Return the numbers at these offsets as u64 (negative ones wrapped)."""
    import numpy as np

    size = struct.calcsize(shape)
    if not len(at):
        return np.array([], np.uint64)
    raw = np.ascontiguousarray(whole[at[:, None] + np.arange(size)]).view(f"<{_KINDS[shape[1]]}{size}").ravel()
    return raw.astype(np.int64).astype(np.uint64) if raw.dtype.kind == "i" else raw.astype(np.uint64)


def _try_cie(data: bytes, body: int, end: int, column: int) -> _Cie | None:
    try:
        return _cie(data, body + 4, end, column)
    except (ValueError, IndexError):
        return None


def iterate_entries(data: bytes, path: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (entry, id field, end, id) of each entry of .eh_frame or .debug_frame, in order. Raises DataError."""
    at, size, count = 0, len(data), 0
    two = _TWO.unpack_from
    while at + 8 <= size:
        length, identity = two(data, at)
        if length == 0:
            # The terminator of one object file; the linker may have appended others.
            at += 4
            continue
        if length >= 0xFFFFFFF0 or length < 4 or at + 4 + length > size:
            raise DataError(path, f"unwind table broken at byte {at:#x} (an entry of {length:#x} bytes)")
        count += 1
        if count > MAX_ENTRIES:
            raise DataError(path, f"unwind table has more than {MAX_ENTRIES:,} entries")
        yield at, at + 4, at + 4 + length, identity
        at += 4 + length
    if at + 4 <= size and _U32.unpack_from(data, at)[0]:
        raise DataError(path, f"unwind table broken at byte {at:#x}")


@loader(1)
def convert_debug_frame(data: bytes, path: str) -> bytes:
    """Return a .debug_frame section as .eh_frame.

    Go and `-fno-asynchronous-unwind-tables -g` write only .debug_frame. The formats differ in the id of a CIE and in
    an FDE's reference to its CIE. Raises DataError.
    """
    out = bytearray(data)
    for _start, body, _end, identity in iterate_entries(data, path):
        if identity == 0xFFFFFFFF:
            _U32.pack_into(out, body, 0)
        elif identity < body:
            _U32.pack_into(out, body, body - identity)
        else:
            raise DataError(path, f".debug_frame points forward at byte {body:#x}")
    return bytes(out)


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
_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
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
    frame_at = _EHDR.size + _PHDR.size
    # A terminator ends the table for readers that do not stop at the end of the section.
    frame = table.eh_frame + b"\0\0\0\0"
    note_at = (frame_at + len(frame) + 7) & ~7
    names_at = note_at + len(note)
    sections_at = (names_at + len(names) + 7) & ~7
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _EHDR.pack(
        ident, ET_DYN, table.elf_machine, 1, 0, _EHDR.size, sections_at, 0, _EHDR.size, _PHDR.size, 1, _SHDR.size, 5, 3
    )
    segment = _PHDR.pack(PT_LOAD, PF_X | 4, 0, table.low, table.low, 0, table.high - table.low, 0x1000)
    sections = b"".join(
        (
            bytes(_SHDR.size),
            # Drgn takes a file as loadable only if an allocated section has bytes: .eh_frame below.
            _SHDR.pack(1, 8, 6, table.low, frame_at, table.high - table.low, 0, 0, 16, 0),
            _SHDR.pack(7, 1, 2, table.eh_frame_vaddr, frame_at, len(frame), 0, 0, 8, 0),
            _SHDR.pack(17, 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
            _SHDR.pack(27, 7, 0, 0, note_at, len(note), 0, 0, 4, 0),
        )
    )
    out = bytearray(sections_at + len(sections))
    out[: _EHDR.size] = header
    out[_EHDR.size : frame_at] = segment
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
