# SPDX-License-Identifier: Apache-2.0
"""Where a process's Python interpreter keeps its threads and frames: CPython 3.11 to 3.13.

From 3.13 on CPython publishes the offsets (`_Py_DebugOffsets`, Include/internal/pycore_runtime.h); those of 3.11 and
3.12 are tables, compiled from the headers of 3.11.2, 3.11.7 and 3.12.1. All of it is the process's own word: a layout
counts where its threads point back to their interpreter, and is refused elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from powerprof.errors import DataError
from powerprof.processes.reader_process import Opened, ReaderProcess, Unreadable
from powerprof.stacks.elf import SHT_DYNSYM, Elf, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.time_budget import Budget

NO_INNER = (1 << 32) - 1
KNOWN = "3.11 to 3.13"
Read = Callable[[Sequence[tuple[int, int]]], list[bytes]]
_WORD = struct.Struct("<Q")
_COOKIE = b"xdebugpy"
_PUBLISHED = struct.Struct("<8s70Q")
_NAMES = ("_PyRuntime", "Py_Version", "PyCode_Type")
_MOST_INTERPRETERS = 16
_MOST_SYMBOLS_BYTES = 4 << 20
_ADDRESSES = 1 << 47
_SYMBOL = struct.Struct("<IBBHQQ")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets in one version's structures. `inner`: in what a thread's `current` points to, where that is no frame.

    `entry` is a byte of a frame, `entry_value` what it holds where a call from C begins; there `has_shim` says that the
    frame is nobody's function.
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


_SHAPES = {
    0x030B: Shape(
        interpreters=40,
        interpreter_next=0,
        threads=16,
        next=8,
        interpreter=16,
        thread_id=152,
        native_thread_id=160,
        current=56,
        inner=8,
        code=32,
        previous=48,
        instruction=56,
        entry=68,
        entry_value=1,
        has_shim=False,
        filename=112,
        qualname=128,
        linetable=136,
        first_line=72,
        bytecode=184,
        text_bytes=48,
    ),
    0x030C: Shape(
        interpreters=40,
        interpreter_next=0,
        threads=72,
        next=8,
        interpreter=16,
        thread_id=136,
        native_thread_id=144,
        current=56,
        inner=0,
        code=0,
        previous=8,
        instruction=56,
        entry=70,
        filename=112,
        qualname=128,
        linetable=136,
        first_line=68,
        bytecode=192,
        text_bytes=40,
    ),
}


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """One process's interpreter: its shape, where the pointer to its first thread is, and where its type of code is."""

    shape: Shape
    threads: int
    code_type: int

    def packed(self) -> tuple[int, ...]:
        """As struct interpreter of interpreter.bpf.h has it."""
        shape = self.shape
        return (
            *(self.threads, shape.next, shape.thread_id, shape.current, shape.inner),
            *(shape.code, shape.previous, shape.instruction, shape.entry),
        )

    def chain_words(self) -> tuple[int, ...]:
        """What the child that reads memory has to know: as `packed`, with the kernel's number of a thread."""
        packed = self.packed()
        return (*packed[:2], self.shape.native_thread_id, *packed[3:])


def published(data: bytes) -> Shape:
    """The offsets that CPython 3.13 says of itself. Raises DataError where they are impossible."""
    if len(data) < _PUBLISHED.size:
        raise DataError("_Py_DebugOffsets", "cut short")
    cookie, *words = _PUBLISHED.unpack_from(data)
    words.insert(0, 0)
    if cookie != _COOKIE or words[1] >> 16 != 0x030D:
        raise DataError("_Py_DebugOffsets", "of another version")
    if words[2]:
        raise DataError("_Py_DebugOffsets", "of an interpreter without its global lock")
    shape = Shape(
        interpreters=words[5],
        interpreter_next=words[8],
        threads=words[9],
        next=words[21],
        interpreter=words[22],
        current=words[23],
        thread_id=words[24],
        native_thread_id=words[25],
        previous=words[29],
        code=words[30],
        instruction=words[31],
        entry=words[33],
        filename=words[35],
        qualname=words[37],
        linetable=words[38],
        first_line=words[39],
        bytecode=words[43],
        text_bytes=words[70],
    )
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


def exported(elf: Elf) -> dict[str, int]:
    """Link-time addresses of what a CPython exports and is needed here. Raises DataError."""
    section = next((one for one in elf.sections if one.kind == SHT_DYNSYM and one.size), None)
    if section is None or section.link >= len(elf.sections):
        return {}
    symbols = section_bytes(elf, section, _MOST_SYMBOLS_BYTES)
    strings = section_bytes(elf, elf.sections[section.link], _MOST_SYMBOLS_BYTES)
    wanted = {}
    for name in _NAMES:
        at = strings.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            wanted[at + 1] = name
    found = {}
    for at in range(0, len(symbols) - _SYMBOL.size + 1, _SYMBOL.size):
        place, _info, _other, index, value, _size = _SYMBOL.unpack_from(symbols, at)
        if place in wanted and index:
            found[wanted[place]] = value
    return found


class Interpreters:
    """Finds the interpreters of processes; a file is read once. `unknown` are versions without a shape, by process."""

    def __init__(self) -> None:
        self._exported: dict[str, dict[str, int]] = {}
        self.unknown: dict[int, str] = {}

    def find(self, image: ProcessImage, aside: ReaderProcess, budget: Budget) -> Interpreter | None:
        """The interpreter of a process; None where it has none, or none that is known."""
        self.unknown.pop(image.pid, None)
        for mapping in image.mappings:
            if mapping.inode and mapping.bias is not None and "python" in mapping.module:
                try:
                    names = self._names(image.pid, mapping, aside, budget)
                    if len(names) >= len(_NAMES) - 1 and "_PyRuntime" in names:
                        return self._located(
                            image.pid, {name: mapping.in_memory(at) for name, at in names.items()}, aside
                        )
                except (DataError, Unreadable) as error:
                    self.unknown[image.pid] = error.reason if isinstance(error, DataError) else error.message
        return None

    def notes(self) -> list[str]:
        """Whose functions have no names, and why."""
        whys: dict[str, list[int]] = {}
        for pid, why in self.unknown.items():
            whys.setdefault(why, []).append(pid)
        return [
            f"Python functions of process {', '.join(map(str, pids[:5]))}{' …' * (len(pids) > 5)} are unknown: {why}"
            for why, pids in whys.items()
        ]

    def _names(self, pid: int, mapping: Mapping, aside: ReaderProcess, budget: Budget) -> dict[str, int]:
        place = (mapping.start, mapping.end, mapping.inode, mapping.path)
        opened = aside.open_mapped(pid, place)
        if not isinstance(opened, Opened):
            raise DataError(mapping.path, f"{mapping.module} cannot be read ({opened})")
        with opened:
            if opened.key not in self._exported:
                with budget.metered(pid, opened.is_trusted) as meter:
                    self._exported[opened.key] = exported(read_elf(opened.fd, mapping.path, meter))
            return self._exported[opened.key]

    def _located(self, pid: int, at: dict[str, int], aside: ReaderProcess) -> Interpreter | None:
        def read(places: Sequence[tuple[int, int]]) -> list[bytes]:
            return aside.memory(pid, places)

        if "Py_Version" not in at or "PyCode_Type" not in at:
            raise DataError("Python", f"it is older than 3.11 ({KNOWN} are known)")
        version = _word(read, at["Py_Version"]) >> 16
        if version not in (*_SHAPES, 0x030D):
            raise DataError("Python", f"it is Python {version >> 8}.{version & 255} ({KNOWN} are known)")
        shape = _SHAPES.get(version) or published(read([(at["_PyRuntime"], _PUBLISHED.size)])[0])
        return located(read, shape, at["_PyRuntime"], at["PyCode_Type"])


def located(read: Read, shape: Shape, runtime: int, code_type: int) -> Interpreter | None:
    """The main interpreter, which was the first: the last of its list. None before it has threads.

    Raises DataError where its thread does not point back to it.
    """
    interpreter = _word(read, runtime + shape.interpreters)
    for _ in range(_MOST_INTERPRETERS):
        following = _word(read, interpreter + shape.interpreter_next) if interpreter else 0
        if not following:
            break
        interpreter = following
    thread = _word(read, interpreter + shape.threads) if interpreter else 0
    if not thread:
        return None
    if _word(read, thread + shape.interpreter) != interpreter:
        raise DataError("Python", "its structures are not those of its version")
    return Interpreter(shape=shape, threads=interpreter + shape.threads, code_type=code_type)


def _word(read: Read, address: int) -> int:
    data = read([(address, 8)])[0] if 0 < address < _ADDRESSES else b""
    if len(data) != 8:
        raise DataError("Python", "its structures are not where they should be")
    value: int = _WORD.unpack(data)[0]
    return value
