# SPDX-License-Identifier: Apache-2.0
"""Threads and frames of a process's Python interpreter: CPython 3.11 to 3.13.

CPython 3.13 publishes its structure offsets (`_Py_DebugOffsets`, Include/internal/pycore_runtime.h). Those of 3.11 and
3.12 are tables, compiled from the headers of 3.11.2, 3.11.7 and 3.12.1. The process's memory is untrusted: a layout is
accepted only if its threads point back to their interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import msgspec

from powerprof.stacks.elf import SHT_DYNSYM, Elf, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.time_budget import Budget
from powerprof.system.errors import DataError
from powerprof.system.files import printable
from powerprof.system.reader_process import Opened, ReaderProcess, Unreadable

NO_INNER = (1 << 32) - 1
KNOWN = "3.11 to 3.13"
MemoryReader = Callable[[Sequence[tuple[int, int]]], list[bytes]]
_WORD = struct.Struct("<Q")
_COOKIE = b"xdebugpy"
_PUBLISHED = struct.Struct("<8s70Q")
_NAMES = ("_PyRuntime", "Py_Version", "PyCode_Type")
_MOST_INTERPRETERS = 16
_MOST_SYMBOLS_BYTES = 4 << 20
_ADDRESSES = 1 << 47
_SYMBOL = struct.Struct("<IBBHQQ")


class StructOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets in the structures of one version.

    `inner` is the offset of the frame in the structure at a thread's `current`, if that is not a frame itself. `entry`
    is the offset of a byte in a frame, which is `entry_value` if C code called the frame. With `has_shim` such a frame
    belongs to no function.
    """

    interpreters: int
    interpreter_next: int
    threads: int
    next: int
    interpreter: int
    thread_id: int
    native_thread_id: int
    current: int
    inner: int = NO_INNER
    code: int
    previous: int
    instruction: int
    entry: int
    entry_value: int = 3
    has_shim: bool = True
    filename: int
    qualname: int
    linetable: int
    first_line: int
    bytecode: int
    text_bytes: int


# The fields of StructOffsets that are offsets in 3.11, 3.12 and, in the words of _Py_DebugOffsets, in 3.13.
_FIELDS = (
    *("interpreters", "interpreter_next", "threads", "next", "interpreter", "thread_id", "native_thread_id", "current"),
    *("code", "previous", "instruction", "entry", "filename", "qualname", "linetable", "first_line", "bytecode"),
    "text_bytes",
)
_OFFSETS_3_11 = (40, 0, 16, 8, 16, 152, 160, 56, 32, 48, 56, 68, 112, 128, 136, 72, 184, 48)
_OFFSETS_3_12 = (40, 0, 72, 8, 16, 136, 144, 56, 0, 8, 56, 70, 112, 128, 136, 68, 192, 40)
_WORDS_3_13 = (5, 8, 9, 21, 22, 24, 25, 23, 30, 29, 31, 33, 35, 37, 38, 39, 43, 70)


def _struct_offsets(offsets: Iterable[int]) -> StructOffsets:
    return msgspec.convert(dict(zip(_FIELDS, offsets, strict=True)), StructOffsets)


_SHAPES = {
    0x030B: msgspec.structs.replace(_struct_offsets(_OFFSETS_3_11), inner=8, entry_value=1, has_shim=False),
    0x030C: msgspec.structs.replace(_struct_offsets(_OFFSETS_3_12), inner=0),
}


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of one process: its offsets, the address of its first thread's pointer, and its code type."""

    shape: StructOffsets
    threads: int
    code_type: int

    def packed(self) -> tuple[int, ...]:
        """Return the words of struct interpreter in interpreter.bpf.h."""
        shape = self.shape
        return (
            *(self.threads, shape.next, shape.thread_id, shape.current, shape.inner),
            *(shape.code, shape.previous, shape.instruction, shape.entry),
        )

    def chain_words(self) -> tuple[int, ...]:
        """Return the words for the child that reads memory: those of `packed` with the kernel's thread id."""
        packed = self.packed()
        return (*packed[:2], self.shape.native_thread_id, *packed[3:])


def parse_debug_offsets(data: bytes) -> StructOffsets:
    """Return the offsets that CPython 3.13 publishes. Raises DataError if they are impossible."""
    if len(data) < _PUBLISHED.size:
        raise DataError("_Py_DebugOffsets", "cut short")
    cookie, *words = _PUBLISHED.unpack_from(data)
    words.insert(0, 0)
    if cookie != _COOKIE or words[1] >> 16 != 0x030D:
        raise DataError("_Py_DebugOffsets", "of another version")
    if words[2]:
        raise DataError("_Py_DebugOffsets", "of an interpreter without its global lock")
    shape = _struct_offsets(words[index] for index in _WORDS_3_13)
    in_frame = (shape.previous, shape.code, shape.instruction)
    in_code = (shape.filename, shape.qualname, shape.linetable, shape.first_line, shape.bytecode, shape.text_bytes)
    others = (shape.next, shape.interpreter, shape.current, shape.thread_id, shape.native_thread_id)
    if (
        any(offset > 72 or offset % 8 for offset in in_frame)
        or shape.entry >= 80
        or any(offset > 1024 for offset in in_code)
        or any(offset > 1 << 16 for offset in (*others, shape.interpreters, shape.interpreter_next))
        or shape.threads > 1 << 20
    ):
        raise DataError("_Py_DebugOffsets", "impossible offsets")
    return shape


def read_exported(elf: Elf) -> dict[str, int]:
    """Return the link-time addresses of the needed symbols that a CPython exports. Raises DataError."""
    section = next((section for section in elf.sections if section.kind == SHT_DYNSYM and section.size), None)
    if section is None or section.link >= len(elf.sections):
        return {}
    symbols = section_bytes(elf, section, _MOST_SYMBOLS_BYTES)
    strings = section_bytes(elf, elf.sections[section.link], _MOST_SYMBOLS_BYTES)
    wanted = {}
    for name in _NAMES:
        at = strings.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            wanted[at + 1] = name
    addresses = {}
    for at in range(0, len(symbols) - _SYMBOL.size + 1, _SYMBOL.size):
        place, _info, _other, index, value, _size = _SYMBOL.unpack_from(symbols, at)
        if place in wanted and index:
            addresses[wanted[place]] = value
    return addresses


class InterpreterFinder:
    """Finds interpreters; each file is read once. `unknown` are the reasons for unreadable ones by process."""

    def __init__(self) -> None:
        self._exported: dict[str, dict[str, int]] = {}
        self.unknown: dict[int, str] = {}

    def find(self, image: ProcessImage, aside: ReaderProcess, budget: Budget) -> Interpreter | None:
        """Return the interpreter of a process; None if there is none or its version is unknown."""
        self.unknown.pop(image.pid, None)
        for mapping in image.mappings:
            if mapping.inode and mapping.bias is not None and "python" in mapping.module:
                try:
                    names = self._names(image.pid, mapping, aside, budget)
                    if len(names) >= len(_NAMES) - 1 and "_PyRuntime" in names:
                        addresses = {name: mapping.in_memory(at) for name, at in names.items()}
                        return self._locate(image.pid, addresses, aside)
                except (DataError, Unreadable) as error:
                    self.unknown[image.pid] = error.reason if isinstance(error, DataError) else error.message
        return None

    def notes(self) -> list[str]:
        """Return notes on processes with unnamed Python functions, with the reasons."""
        pids_by_reason: dict[str, list[int]] = {}
        for pid, reason in self.unknown.items():
            pids_by_reason.setdefault(reason, []).append(pid)
        return [
            f"Python functions of process {', '.join(map(str, pids[:5]))}{' …' * (len(pids) > 5)} are unknown: {reason}"
            for reason, pids in pids_by_reason.items()
        ]

    def _names(self, pid: int, mapping: Mapping, aside: ReaderProcess, budget: Budget) -> dict[str, int]:
        place = (mapping.start, mapping.end, mapping.inode, mapping.path)
        opened = aside.open_mapped(pid, place)
        if not isinstance(opened, Opened):
            raise DataError(mapping.path, f"{mapping.module} cannot be read ({opened})")
        with opened:
            if opened.key not in self._exported:
                with budget.metered(pid, opened.is_trusted) as meter:
                    self._exported[opened.key] = read_exported(read_elf(opened.fd, mapping.path, meter))
            return self._exported[opened.key]

    def _locate(self, pid: int, at: dict[str, int], aside: ReaderProcess) -> Interpreter | None:
        def read(places: Sequence[tuple[int, int]]) -> list[bytes]:
            return aside.memory(pid, places)

        if "Py_Version" not in at or "PyCode_Type" not in at:
            raise DataError("Python", f"it is older than 3.11 ({KNOWN} are known)")
        version = _word(read, at["Py_Version"]) >> 16
        if version not in (*_SHAPES, 0x030D):
            raise DataError("Python", f"it is Python {version >> 8}.{version & 255} ({KNOWN} are known)")
        shape = _SHAPES.get(version) or parse_debug_offsets(read([(at["_PyRuntime"], _PUBLISHED.size)])[0])
        return locate_interpreter(read, shape, at["_PyRuntime"], at["PyCode_Type"])


def locate_interpreter(read: MemoryReader, shape: StructOffsets, runtime: int, code_type: int) -> Interpreter | None:
    """Return the main interpreter, which is the first and so the last of the list; None before it has threads.

    Raises DataError if its thread does not point back to it.
    """
    interpreter = _word(read, runtime + shape.interpreters)
    for _ in range(_MOST_INTERPRETERS):
        next_interpreter = _word(read, interpreter + shape.interpreter_next) if interpreter else 0
        if not next_interpreter:
            break
        interpreter = next_interpreter
    thread = _word(read, interpreter + shape.threads) if interpreter else 0
    if not thread:
        return None
    if _word(read, thread + shape.interpreter) != interpreter:
        raise DataError("Python", "its structures are not those of its version")
    return Interpreter(shape=shape, threads=interpreter + shape.threads, code_type=code_type)


def _word(read: MemoryReader, address: int) -> int:
    data = read([(address, 8)])[0] if 0 < address < _ADDRESSES else b""
    if len(data) != 8:
        raise DataError("Python", "its structures are not where they should be")
    value: int = _WORD.unpack(data)[0]
    return value


# Names and lines of Python frames, from untrusted code objects in another process.
#
# Chains of frames come from the kernel or the child that reads memory, as words: code, instruction. A code object is
# accepted if its type is the interpreter's code type and the instruction is inside it. Format of line tables: CPython,
# Objects/locations.md.

MOST_FRAMES = 32
CHAIN_BYTES = 16 * (MOST_FRAMES + 1)
MOST_CODES = 4000
MOST_TEXT = 1024
MOST_TABLE_BYTES = 64 << 10
MOST_BYTES = 32 << 20
_ENTRY_SHIFT = 56
_UNITS = 1 << 24
_PAIR = struct.Struct("<QQ")
_HEAD_BYTES = 40
_NO_LOCATION, _LONG, _NO_COLUMNS, _ONE_LINE = 15, 14, 13, 10

Place = tuple[int, int]


class PythonFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of a process's interpreter: `code` and `instruction` are the words of a chain.

    `function` is None if it is unknown. A frame that `begins` was called from C. A shim belongs to no function and
    stands for such a call.
    """

    pid: int
    code: int
    instruction: int
    function: str | None = None
    file: str = ""
    line: int = 0
    begins: bool = False
    is_shim: bool = False


def split_chain(chain: bytes) -> tuple[list[Place], bool]:
    """Return the frames of a chain, innermost first, and whether the chain is complete."""
    words = list(_PAIR.iter_unpack(chain[: len(chain) // 16 * 16]))[: MOST_FRAMES + 1]
    whole = bool(words) and words[-1] == (0, 0)
    return words[:-1] if whole else words, whole


def read_frames(pid: int, read: MemoryReader, interpreter: Interpreter, chains: Iterable[bytes]) -> list[PythonFrame]:
    """Return every distinct frame of these chains, named if possible. `read` returns the readable bytes of places."""
    wanted = list(dict.fromkeys(place for chain in chains for place in split_chain(chain)[0]))
    shape = interpreter.shape
    codes = list(dict.fromkeys(code for code, word in wanted if not _is_shim(interpreter, word)))[:MOST_CODES]
    objects = dict(zip(codes, _read(read, [(code, shape.bytecode) for code in codes]), strict=True))
    valid = {code: data for code, data in objects.items() if _is_code(interpreter, data)}
    parts = _CodeParts(read, interpreter)
    parts.read_texts(word for data in valid.values() for word in (_at(data, shape.filename), _at(data, shape.qualname)))
    parts.read_tables(_at(data, shape.linetable) for data in valid.values())
    frames = []
    for code, word in wanted:
        begins, is_shim = word >> _ENTRY_SHIFT == shape.entry_value, _is_shim(interpreter, word)
        frame = PythonFrame(pid, code, word, begins=begins, is_shim=is_shim)
        frames.append(_named(frame, valid[code], parts) if code in valid and not is_shim else frame)
    return frames


def _is_shim(interpreter: Interpreter, word: int) -> bool:
    return interpreter.shape.has_shim and word >> _ENTRY_SHIFT == interpreter.shape.entry_value


def _at(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _is_code(interpreter: Interpreter, data: bytes) -> bool:
    return len(data) == interpreter.shape.bytecode and _at(data, 8) == interpreter.code_type


def _read(read: MemoryReader, wanted: list[tuple[int, int]]) -> list[bytes]:
    return read([(at, size) if 0 < at < _ADDRESSES else (0, 0) for at, size in wanted])


class _CodeParts:
    """Texts and line tables of code objects by their addresses, with a limit of bytes."""

    def __init__(self, read: MemoryReader, interpreter: Interpreter) -> None:
        self.interpreter, self._read, self._left = interpreter, read, MOST_BYTES
        self.texts: dict[int, str] = {}
        self.tables: dict[int, bytes] = {}

    def read_texts(self, addresses: Iterable[int]) -> None:
        """Read strings. Their headers have the length and the width of a character."""
        ascii_bytes = self.interpreter.shape.text_bytes
        places, kinds = [], []
        for at, head in self._heads(addresses):
            length, state = _at(head, 16), int.from_bytes(head[32:36], "little")
            width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
            if is_compact and width in (1, 2, 4) and (width == 1 or not is_ascii):
                # For other than ASCII text, UTF-8 pointers and lengths are between header and characters.
                places.append((at + ascii_bytes + (0 if is_ascii else 16), width * min(length, MOST_TEXT)))
                kinds.append((at, ("latin-1", "utf-16-le", "utf-32-le")[width // 2]))
        for (at, encoding), data in zip(kinds, self._bodies(places), strict=True):
            self.texts[at] = printable(data.decode(encoding, "replace"))

    def read_tables(self, addresses: Iterable[int]) -> None:
        """Read line tables, which are bytes objects."""
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
    # Before its first instruction, a frame of 3.11 and 3.12 is one unit before the bytecode.
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
    """Return the line of a code unit; None if the table has no line for it."""
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
    """Return a variable-length number: six bits per byte, up to six bytes, with the sign in the lowest bit."""
    value = shift = 0
    for byte in data[:6]:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1
