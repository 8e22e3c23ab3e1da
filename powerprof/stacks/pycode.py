# SPDX-License-Identifier: Apache-2.0
"""Names and lines of Python frames: code objects of another process, read as hostile.

Chains of frames come from the kernel or the child that reads memory, as words: code, instruction. What a code object
says is believed where its type is the interpreter's type of code and the instruction lies in it. Format of line tables:
CPython, Objects/locations.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec

from powerprof.stacks.interpreter import Interpreter, Read
from powerprof.untrusted import printable

MOST_FRAMES = 32
CHAIN_BYTES = 16 * (MOST_FRAMES + 1)
MOST_CODES = 4000
MOST_TEXT = 1024
MOST_TABLE_BYTES = 64 << 10
MOST_BYTES = 32 << 20
_ENTRY_SHIFT = 56
_UNITS = 1 << 24
_ADDRESSES = 1 << 47
_PAIR = struct.Struct("<QQ")
_HEAD_BYTES = 40
_NO_LOCATION, _LONG, _NO_COLUMNS, _ONE_LINE = 15, 14, 13, 10

Place = tuple[int, int]


class PythonFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a process's interpreter: `code` and `instruction` are the words of a chain.

    `function` is None where nothing is known of it. A frame that `begins` was called from C; a shim is
    nobody's function and stands for that call.
    """

    pid: int
    code: int
    instruction: int
    function: str | None = None
    file: str = ""
    line: int = 0
    begins: bool = False
    is_shim: bool = False


def places(chain: bytes) -> tuple[list[Place], bool]:
    """The frames of a chain, innermost first, and whether it is whole."""
    words = list(_PAIR.iter_unpack(chain[: len(chain) // 16 * 16]))[: MOST_FRAMES + 1]
    whole = bool(words) and words[-1] == (0, 0)
    return words[:-1] if whole else words, whole


def read_frames(pid: int, read: Read, interpreter: Interpreter, chains: Iterable[bytes]) -> list[PythonFrame]:
    """Every distinct frame of these chains, named where it can be. `read` gives what it can of each place."""
    wanted = list(dict.fromkeys(place for chain in chains for place in places(chain)[0]))
    shape = interpreter.shape
    codes = list(dict.fromkeys(code for code, word in wanted if not _is_shim(interpreter, word)))[:MOST_CODES]
    objects = dict(zip(codes, _read(read, [(code, shape.bytecode) for code in codes]), strict=True))
    sound = {code: data for code, data in objects.items() if _is_code(interpreter, data)}
    parts = _CodeParts(read, interpreter)
    parts.take(word for data in sound.values() for word in (_at(data, shape.filename), _at(data, shape.qualname)))
    parts.take_tables(_at(data, shape.linetable) for data in sound.values())
    frames = []
    for code, word in wanted:
        begins, is_shim = word >> _ENTRY_SHIFT == shape.entry_value, _is_shim(interpreter, word)
        frame = PythonFrame(pid, code, word, begins=begins, is_shim=is_shim)
        frames.append(_named(frame, sound[code], parts) if code in sound and not is_shim else frame)
    return frames


def _is_shim(interpreter: Interpreter, word: int) -> bool:
    return interpreter.shape.has_shim and word >> _ENTRY_SHIFT == interpreter.shape.entry_value


def _at(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _is_code(interpreter: Interpreter, data: bytes) -> bool:
    return len(data) == interpreter.shape.bytecode and _at(data, 8) == interpreter.code_type


def _read(read: Read, wanted: list[tuple[int, int]]) -> list[bytes]:
    return read([(at, size) if 0 < at < _ADDRESSES else (0, 0) for at, size in wanted])


class _CodeParts:
    """Texts and line tables by their addresses, no more than so many bytes of them."""

    def __init__(self, read: Read, interpreter: Interpreter) -> None:
        self.interpreter, self._read, self._left = interpreter, read, MOST_BYTES
        self.texts: dict[int, str] = {}
        self.tables: dict[int, bytes] = {}

    def take(self, addresses: Iterable[int]) -> None:
        """Texts: their heads say how long they are and how wide a letter is."""
        ascii_bytes = self.interpreter.shape.text_bytes
        places, kinds = [], []
        for at, head in self._heads(addresses):
            length, state = _at(head, 16), int.from_bytes(head[32:36], "little")
            width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
            if is_compact and width in (1, 2, 4) and (width == 1 or not is_ascii):
                # UTF-8 and its length lie between head and letters where these are not ASCII.
                places.append((at + ascii_bytes + (0 if is_ascii else 16), width * min(length, MOST_TEXT)))
                kinds.append((at, ("latin-1", "utf-16-le", "utf-32-le")[width // 2]))
        for (at, encoding), data in zip(kinds, self._bodies(places), strict=True):
            self.texts[at] = printable(data.decode(encoding, "replace"))

    def take_tables(self, addresses: Iterable[int]) -> None:
        """Line tables: bytes objects."""
        heads = [(at, _at(head, 16)) for at, head in self._heads(addresses) if 0 < _at(head, 16) <= MOST_TABLE_BYTES]
        bodies = self._bodies([(at + 32, size) for at, size in heads])
        self.tables.update((at, data) for (at, size), data in zip(heads, bodies, strict=True) if len(data) == size)

    def _heads(self, addresses: Iterable[int]) -> list[tuple[int, bytes]]:
        distinct = list(dict.fromkeys(addresses))
        heads = zip(distinct, _read(self._read, [(at, _HEAD_BYTES) for at in distinct]), strict=True)
        return [(at, head) for at, head in heads if len(head) == _HEAD_BYTES]

    def _bodies(self, wanted: list[tuple[int, int]]) -> list[bytes]:
        kept = []
        for at, size in wanted:
            self._left -= size
            kept.append((at, size) if self._left >= 0 else (0, 0))
        return _read(self._read, kept)


def _named(frame: PythonFrame, data: bytes, parts: _CodeParts) -> PythonFrame:
    shape = parts.interpreter.shape
    units, start = _at(data, 16), frame.code + shape.bytecode
    instruction = frame.instruction & (1 << _ENTRY_SHIFT) - 1
    # Before its first instruction a frame of 3.11 and 3.12 stands one unit in front of it.
    if not units < _UNITS or not start - 2 <= instruction < start + 2 * units:
        return frame
    function = parts.texts.get(_at(data, shape.qualname))
    file = parts.texts.get(_at(data, shape.filename))
    if not function or file is None:
        return frame
    first = int.from_bytes(data[shape.first_line : shape.first_line + 4], "little", signed=True)
    table = parts.tables.get(_at(data, shape.linetable), b"")
    line = line_of(table, first, max(0, (instruction - start) // 2))
    return msgspec.structs.replace(frame, function=function, file=file, line=max(0, min(line or 0, 1 << 31)))


def line_of(table: bytes, first: int, unit: int) -> int | None:
    """The line of a code unit; None where the table has none for it."""
    line = first
    at = passed = 0
    while at < len(table):
        head, at = table[at], at + 1
        kind = head >> 3 & 15
        end = at
        while end < len(table) and not table[end] & 0x80:
            end += 1
        if kind in (_LONG, _NO_COLUMNS):
            line += _signed(table[at:end])
        elif _ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _ONE_LINE
        passed += (head & 7) + 1
        if unit < passed:
            return None if kind == _NO_LOCATION else line
        at = end
    return None


def _signed(data: bytes) -> int:
    """A variable-length number, six bits a byte, whose lowest bit is its sign."""
    value = shift = 0
    for byte in _number(data):
        value |= (byte & 63) << shift
        shift += 6
    return -(value >> 1) if value & 1 else value >> 1


def _number(data: bytes) -> Iterator[int]:
    for byte in data[:6]:
        yield byte
        if not byte & 64:
            return
