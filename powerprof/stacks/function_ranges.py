# SPDX-License-Identifier: Apache-2.0
"""Function ranges by the unwind table, and the functions at the bottom of a stack.

An FDE covers one function even if the symbol table was stripped. An FDE with an `undefined` return address
(`_start`, glibc's `clone3`) belongs to a function without a caller: a walk that reaches it is complete.
Format: Linux Standard Base, "Exception Frames"; DWARF 5, section 6.4. Drgn does the unwinding itself.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from powerprof.stacks.dwarf_values import uleb
from powerprof.stacks.registers import X86_64
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader

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


def _read_cie(data: bytes, at: int, end: int, column: int) -> _Cie:
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
    start = _read_numbers(whole, at, shape)
    if base == 0x10:
        # Modulo 2^64, because the section's address can be any number.
        start = start + (at.astype(np.uint64) + np.uint64(vaddr))
    length = _read_numbers(whole, at + size, shape.upper())
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


def _read_numbers(whole: Array, at: Array, shape: str) -> Array:
    """Return the numbers at these offsets as u64 (negative ones wrapped)."""
    import numpy as np

    size = struct.calcsize(shape)
    if not len(at):
        return np.array([], np.uint64)
    raw = np.ascontiguousarray(whole[at[:, None] + np.arange(size)]).view(f"<{_KINDS[shape[1]]}{size}").ravel()
    return raw.astype(np.int64).astype(np.uint64) if raw.dtype.kind == "i" else raw.astype(np.uint64)


def _try_cie(data: bytes, body: int, end: int, column: int) -> _Cie | None:
    try:
        return _read_cie(data, body + 4, end, column)
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
