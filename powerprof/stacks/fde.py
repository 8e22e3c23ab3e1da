"""Where functions start and end by the unwind table, and which of them are the bottom of a stack.

An FDE covers one function even where the symbol table was stripped. An FDE whose return address is `undefined`
(`_start`, glibc's `clone3`) says that nothing called it: a walk that reaches it is complete.
Format: Linux Standard Base, "Exception Frames"; DWARF 5, section 6.4. Drgn does the unwinding itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from powerprof.errors import DataError

MAX_ENTRIES = 4_000_000
_U32 = struct.Struct("<I")
_RETURN_ADDRESS = 16  # DWARF column of rip in the System V ABI for x86-64
_UNDEFINED_RETURN = bytes((0x07, _RETURN_ADDRESS))
_OMIT = 0xFF
_FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
# Operands of the call frame instructions that have any: u = uleb128, a byte count, b = block, e = encoded address.
_OPERANDS = {
    0x01: "e",
    0x02: "1",
    0x03: "2",
    0x04: "4",
    0x05: "uu",
    0x06: "u",
    0x07: "u",
    0x08: "u",
    0x09: "uu",
    0x0C: "uu",
    0x0D: "u",
    0x0E: "u",
    0x0F: "b",
    0x10: "ub",
    0x11: "uu",
    0x12: "uu",
    0x13: "u",
    0x14: "uu",
    0x15: "uu",
    0x16: "ub",
    0x2E: "u",
    0x2F: "uu",
}


@dataclass(frozen=True)
class Fde:
    """One function: link-time addresses [start, end); `bottom` where its caller is undefined."""

    start: int
    end: int
    bottom: bool


@dataclass(frozen=True)
class _Cie:
    encoding: int
    augmented: bool
    bottom: bool


def _uleb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("number too long")


def _encoded(data: bytes, at: int, encoding: int, vaddr: int) -> tuple[int, int]:
    shape = _FORMATS.get(encoding & 0x0F)
    if shape is None or encoding & 0x80:
        raise ValueError(f"pointer encoding {encoding:#x}")
    (value,) = struct.unpack_from(shape, data, at)
    base = encoding & 0x70
    if base == 0x10:
        value += vaddr + at
    elif base:
        raise ValueError(f"pointer encoding {encoding:#x}")
    return value & (1 << 64) - 1, at + struct.calcsize(shape)


def returns_nowhere(code: bytes, encoding: int = 0x1B) -> bool:
    """Whether these call frame instructions make the return address undefined."""
    if _UNDEFINED_RETURN not in code:
        return False
    at = 0
    try:
        while at < len(code):
            opcode = code[at]
            at += 1
            if opcode >= 0x40:
                if opcode >> 6 == 2:
                    _, at = _uleb(code, at)
                continue
            if opcode == 0x07 and code[at] == _RETURN_ADDRESS:
                return True
            for operand in _OPERANDS.get(opcode, ""):
                if operand == "u":
                    _, at = _uleb(code, at)
                elif operand == "b":
                    size, at = _uleb(code, at)
                    at += size
                elif operand == "e":
                    at += struct.calcsize(_FORMATS[encoding & 0x0F])
                else:
                    at += int(operand)
    except (IndexError, KeyError, ValueError):
        return False
    return False


def _cie(data: bytes, at: int, end: int) -> _Cie:
    version = data[at]
    if version not in (1, 3, 4):
        raise ValueError(f"CIE version {version}")
    zero = data.index(0, at + 1, end)
    augmentation = data[at + 1 : zero]
    at = zero + 1
    if version == 4:
        at += 2
    _, at = _uleb(data, at)
    _, at = _uleb(data, at)
    if version == 1:
        at += 1
    else:
        _, at = _uleb(data, at)
    encoding = 0
    if augmentation.startswith(b"z"):
        size, at = _uleb(data, at)
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
    return _Cie(encoding, augmentation.startswith(b"z"), returns_nowhere(data[at:end], encoding))


def functions(data: bytes, vaddr: int, path: str) -> list[Fde]:
    """Every function that an .eh_frame section (loaded at `vaddr`) covers, sorted. A damaged entry is left out.

    Raises DataError where the chain of entries itself is broken, or has more than MAX_ENTRIES.
    """
    found: list[Fde] = []
    cies: dict[int, _Cie | None] = {}
    for start, body, end, pointer in entries(data, path):
        if pointer == 0:
            continue
        cie_at = body - pointer
        if cie_at not in cies:
            cies[cie_at] = _try_cie(data, cie_at)
        cie = cies[cie_at]
        if cie is None:
            continue
        try:
            low, at = _encoded(data, body + 4, cie.encoding, vaddr)
            size, at = _encoded(data, at, cie.encoding & 0x0F, vaddr)
            if cie.augmented:
                skip, at = _uleb(data, at)
                at += skip
        except (ValueError, struct.error, IndexError):
            continue
        if 0 < size < 1 << 40 and at <= end and start < end:
            found.append(Fde(low, low + size, cie.bottom or returns_nowhere(data[at:end], cie.encoding)))
    found.sort(key=lambda fde: (fde.start, fde.end))
    return found


def _try_cie(data: bytes, at: int) -> _Cie | None:
    if not 0 <= at <= len(data) - 9:
        return None
    (size,) = _U32.unpack_from(data, at)
    try:
        return _cie(data, at + 8, min(at + 4 + size, len(data)))
    except (ValueError, IndexError):
        return None


def entries(data: bytes, path: str) -> list[tuple[int, int, int, int]]:
    """(entry, id field, end, id) of each entry of .eh_frame or .debug_frame, in order. Raises DataError."""
    found = []
    at, size = 0, len(data)
    while at + 4 <= size:
        (length,) = _U32.unpack_from(data, at)
        if length == 0:
            # A terminator of one object file; the linker may have put more after it.
            at += 4
            continue
        if length >= 0xFFFFFFF0 or length < 4 or at + 4 + length > size:
            raise DataError(path, f"unwind table broken at byte {at:#x} (an entry of {length:#x} bytes)")
        found.append((at, at + 4, at + 4 + length, _U32.unpack_from(data, at + 4)[0]))
        if len(found) > MAX_ENTRIES:
            raise DataError(path, f"unwind table has more than {MAX_ENTRIES:,} entries")
        at += 4 + length
    return found


def from_debug_frame(data: bytes, path: str) -> bytes:
    """A .debug_frame section as .eh_frame (Go and `-fno-asynchronous-unwind-tables -g` have only the former).

    They differ in the id of a CIE and in how an FDE points to its CIE. Raises DataError.
    """
    out = bytearray(data)
    for _start, body, _end, identity in entries(data, path):
        if identity == 0xFFFFFFFF:
            _U32.pack_into(out, body, 0)
        elif identity < body:
            _U32.pack_into(out, body, body - identity)
        else:
            raise DataError(path, f".debug_frame points forward at byte {body:#x}")
    return bytes(out)
