# SPDX-License-Identifier: Apache-2.0
"""Query the names and addresses of the kernel's functions by small programs that the kernel runs once.

The kernel answers in microseconds, under the rules of kallsyms (kptr_restrict). Reading kallsyms takes a third of a
second.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import ExitStack

from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.syscalls import encode_instruction

# Numbers of include/uapi/linux/bpf.h.
_LOAD_64, _LOAD_FIELD, _STORE_FIELD, _SHIFT_RIGHT = 0x18, 0x79, 0x7B, 0x7F
_COPY, _PUT, _ADD, _CALL, _EXIT = 0xBF, 0xB7, 0x07, 0x85, 0x95
_MAP_VALUE = 2
_PRINT, _LOOK_UP_NAME = 165, 179
_READ_ONLY_TO_PROGRAMS = 1 << 7
_FRAME, _ADDRESS_AT = 10, -8
# KSYM_NAME_LEN since Linux 6.1, and the text after the name.
_TEXT_BYTES = 512 + 128
_FORMAT = b"%pS"


def read_function_texts(addresses: Iterable[int]) -> dict[int, str] | None:
    """Return the kernel's text for each address: `name+0x10/0x20` with ` [module]`, or a number if it is unknown.

    Returns None if the kernel cannot be queried (before Linux 5.13, or not permitted).
    """
    with ExitStack() as held:
        try:
            pattern = _keep_open(
                held, syscalls.create_map("format", syscalls.MAP_ARRAY, 4, 8, 1, _READ_ONLY_TO_PROGRAMS)
            )
            text = _keep_open(held, syscalls.create_map("text", syscalls.MAP_ARRAY, 4, _TEXT_BYTES, 1, 0))
            syscalls.write_entry(pattern, bytes(4), _FORMAT.ljust(8, b"\0"))
            syscalls.freeze_map(pattern)
            program = _keep_open(held, _load_program("function_names", _encode_names_program(pattern, text)))
            found = {}
            for address in addresses:
                syscalls.run_program(program, address)
                found[address] = (
                    syscalls.read_entry(text, bytes(4), _TEXT_BYTES).split(b"\0", 1)[0].decode("ascii", "replace")
                )
        except OSError:
            return None
    return found


def find_function_address(name: str) -> int | None:
    """Return the address of a function of the kernel, 0 if it has none of this name or hides addresses.

    None if the kernel cannot be queried (before Linux 5.16, or not permitted).
    """
    try:
        program = syscalls.load_program(
            "function_address", syscalls.PROGRAM_SYSCALL, _encode_address_program(name), flags=syscalls.SLEEPABLE
        )
    except OSError:
        return None
    try:
        return syscalls.run_program(program, 0) | syscalls.run_program(program, 32) << 32
    except OSError:
        return None
    finally:
        os.close(program)


def _keep_open(held: ExitStack, descriptor: int) -> int:
    held.callback(os.close, descriptor)
    return descriptor


def _load_program(name: str, code: bytes) -> int:
    return syscalls.load_program(name, syscalls.PROGRAM_RAW_TRACEPOINT, code)


def _encode_names_program(pattern: int, text: int) -> bytes:
    """Return a program that writes the name of its address argument into the map `text`."""
    return b"".join(
        (
            encode_instruction(_LOAD_FIELD, 6, 1),
            encode_instruction(_STORE_FIELD, _FRAME, 6, -8),
            encode_instruction(_LOAD_64, 1, _MAP_VALUE, value=text),
            encode_instruction(0),
            encode_instruction(_PUT, 2, value=_TEXT_BYTES),
            encode_instruction(_LOAD_64, 3, _MAP_VALUE, value=pattern),
            encode_instruction(0),
            encode_instruction(_COPY, 4, _FRAME),
            encode_instruction(_ADD, 4, value=-8),
            encode_instruction(_PUT, 5, value=8),
            encode_instruction(_CALL, value=_PRINT),
            encode_instruction(_EXIT),
        )
    )


def _encode_address_program(name: str) -> bytes:
    """Return a program that returns the address of a function, shifted right by its argument."""
    text = name.encode() + b"\0"
    padded = text.ljust(-(-len(text) // 8) * 8, b"\0")
    begin = _ADDRESS_AT - len(padded)
    stored = b"".join(
        encode_instruction(_LOAD_64, 1, value=low)
        + encode_instruction(0, value=high)
        + encode_instruction(_STORE_FIELD, _FRAME, 1, begin + at)
        for at, (low, high) in zip(range(0, len(padded), 8), struct.iter_unpack("=ii", padded), strict=True)
    )
    return (
        encode_instruction(_LOAD_FIELD, 6, 1)
        + stored
        + b"".join(
            (
                encode_instruction(_PUT, 1),
                encode_instruction(_STORE_FIELD, _FRAME, 1, _ADDRESS_AT),
                encode_instruction(_COPY, 1, _FRAME),
                encode_instruction(_ADD, 1, value=begin),
                encode_instruction(_PUT, 2, value=len(text)),
                encode_instruction(_PUT, 3),
                encode_instruction(_COPY, 4, _FRAME),
                encode_instruction(_ADD, 4, value=_ADDRESS_AT),
                encode_instruction(_CALL, value=_LOOK_UP_NAME),
                encode_instruction(_LOAD_FIELD, 0, _FRAME, _ADDRESS_AT),
                encode_instruction(_SHIFT_RIGHT, 0, 6),
                encode_instruction(_EXIT),
            )
        )
    )
