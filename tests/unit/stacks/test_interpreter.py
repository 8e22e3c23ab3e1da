# SPDX-License-Identifier: Apache-2.0
"""Frames of Python interpreters in other processes' memory: named, and harmless whatever the memory says."""

from __future__ import annotations

import dis
import inspect
import os
import random
import struct
import types
from collections.abc import Iterator

import pytest

from powerprof.stacks import interpreter
from powerprof.stacks.interpreter import StructOffsets, locate_interpreter, parse_debug_offsets
from powerprof.system import reader_child
from powerprof.system.errors import DataError
from tests.unit.stacks.pythons import BASE, CODE_TYPE, FRAMES, INTERPRETER, RUNTIME, THREAD, Memory, as_file, memory
from tests.unit.stacks.pythons import interpreter as made_interpreter

# What 3.13.0 says of itself, by `_Py_DebugOffsets` of its own header compiled: 71 words.
PUBLISHED = {
    **{5: 632, 8: 7264, 9: 7344, 21: 8, 22: 16, 23: 72, 24: 152, 25: 160, 29: 8, 30: 0, 31: 56, 33: 70},
    **{35: 112, 37: 128, 38: 136, 39: 68, 43: 200, 70: 40},
}


def offsets(**changed: int) -> bytes:
    words = [0] * 71
    for at, value in {**PUBLISHED, 1: 0x030D00F0, **{int(name[1:]): value for name, value in changed.items()}}.items():
        words[at] = value
    return b"xdebugpy" + struct.pack("<70Q", *words[1:])


SHAPES = {
    "3.11": interpreter._SHAPES[0x030B],
    "3.12": interpreter._SHAPES[0x030C],
    "3.13": parse_debug_offsets(offsets()),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def chain_of(made: Memory, shape: StructOffsets, tid: int = 77) -> bytes:
    """As the child reads it."""
    fd = as_file(made)
    try:
        words = made_interpreter(shape).chain_words()
        state = reader_child.states(fd, words).get(tid, 0)
        return reader_child.chain(fd, words, state) if state else b""
    finally:
        os.close(fd)


@shapes
def test_frames_have_function_file_and_line(shape: StructOffsets) -> None:
    made = memory(shape, functions=("inner", "Outer.größe", "<module>", "naïve Ω"))
    found = locate_interpreter(made.read, shape, RUNTIME, CODE_TYPE)
    assert found == made_interpreter(shape)
    frames = interpreter.read_frames(1, made.read, found, [chain_of(made, shape)])
    named = [(frame.function, frame.file, frame.line) for frame in frames if not frame.is_shim]
    assert named == [
        ("inner", "/srv/inner.py", 101),
        ("Outer.größe", "/srv/Outer.größe.py", 201),
        ("<module>", "/srv/<module>.py", 301),
        ("naïve Ω", "/srv/naïve Ω.py", 401),
    ]
    assert [frame.begins for frame in frames] == [False] * (len(frames) - 1) + [True]


@shapes
def test_chain_is_bounded(shape: StructOffsets) -> None:
    made = memory(shape)
    made.word(FRAMES + shape.previous, FRAMES)
    chain = chain_of(made, shape)
    assert len(chain) == 16 * interpreter.MOST_FRAMES
    assert interpreter.split_chain(chain)[1] is False
    made.word(THREAD + shape.next, THREAD)
    assert chain_of(made, shape, tid=78) == b""


@shapes
def test_inconsistent_structures_are_refused(shape: StructOffsets) -> None:
    made = memory(shape)
    made.word(THREAD + shape.interpreter, INTERPRETER + 8)
    with pytest.raises(DataError, match="not those of its version"):
        locate_interpreter(made.read, shape, RUNTIME, CODE_TYPE)
    made.word(RUNTIME + shape.interpreters, 1 << 60)
    with pytest.raises(DataError, match="not where they should be"):
        locate_interpreter(made.read, shape, RUNTIME, CODE_TYPE)


@shapes
def test_invalid_code_object_has_no_name(shape: StructOffsets) -> None:
    made = memory(shape)
    chain = chain_of(made, shape)
    code, word = interpreter.split_chain(chain)[0][0]
    instruction = shape.bytecode + code
    for changed in (
        struct.pack("<QQ", code + 8, word),  # no code object
        struct.pack("<QQ", code, instruction + 4000),  # behind its instructions
        struct.pack("<QQ", code, code),  # before them
        struct.pack("<QQ", 1 << 63, word),
        struct.pack("<QQ", 0, word),
    ):
        frames = interpreter.read_frames(1, made.read, made_interpreter(shape), [changed])
        assert [frame.function for frame in frames] == [None]


def test_impossible_offsets_are_refused() -> None:
    for bad in (
        offsets(w1=0x030E00F0),
        offsets(w2=1),
        offsets(w31=80),
        offsets(w30=4),
        offsets(w33=80),
        offsets(w43=1 << 40),
        offsets(w21=1 << 63),
        offsets()[:-1],
        b"x" * 568,
    ):
        with pytest.raises(DataError):
            parse_debug_offsets(bad)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@pytest.mark.parametrize("module", [dis, interpreter])
def test_lines_match_co_lines(module: types.ModuleType) -> None:
    for code in _codes(compile(inspect.getsource(module), "module.py", "exec")):
        known = {unit: line for start, end, line in code.co_lines() for unit in range(start // 2, end // 2)}
        for unit in range(len(code.co_code) // 2):
            assert interpreter.line_of(code.co_linetable, code.co_firstlineno, unit) == known[unit]


def bent(made: Memory, chance: random.Random) -> Memory:
    """Some words are others: addresses, lengths, anything."""
    data = bytearray(made.data)
    used = [at for at in range(0, len(data), 8) if any(data[at : at + 8])]
    for _ in range(chance.randint(1, 40)):
        at = chance.choice(used) if chance.random() < 0.8 else 8 * chance.randrange(len(data) // 8)
        known = BASE + 8 * chance.randrange(len(data) // 8)
        value = chance.choice((known, chance.getrandbits(64), chance.getrandbits(24), (1 << 64) - 1, 0, 1 << 47))
        struct.pack_into("<Q", data, at, value)
    return Memory(data)


def read_bent(number: int) -> int:
    """One memory that lies, read to the end; returns how many frames were named."""
    chance = random.Random(number)
    shape = chance.choice(list(SHAPES.values()))
    made = bent(memory(shape, functions=("inner", "Outer.größe", "a", "b")), chance)
    try:
        found = locate_interpreter(made.read, shape, RUNTIME, CODE_TYPE)
    except DataError:
        found = None
    chain = chain_of(made, shape)
    assert len(chain) <= interpreter.CHAIN_BYTES
    frames = interpreter.read_frames(1, made.read, found or made_interpreter(shape), [chain])
    assert len(frames) <= interpreter.MOST_FRAMES
    assert all(
        len(frame.function or "") <= interpreter.MOST_TEXT and len(frame.file) <= interpreter.MOST_TEXT
        for frame in frames
    )
    return sum(frame.function is not None for frame in frames)


def test_random_memory_raises_no_unexpected_error() -> None:
    named = sum(read_bent(number) for number in range(300))
    # Most lies do not touch the names: the readers were in the middle of it, and not at its door.
    assert named > 100
