# SPDX-License-Identifier: Apache-2.0
"""Read structures of the kernel by address, with two small programs that the kernel runs once per read.

A read takes about 10 µs and no lock. The structures may change meanwhile: an address that is no longer valid raises
MovedError, and callers check what they read.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack

from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.features import not_permitted_error
from powerprof.tracing.bpf.syscalls import encode_instruction

# The largest read, a power of two: the program masks the size, so that the verifier knows its bound.
MOST_BYTES = 512
_LOAD_64, _LOAD_FIELD, _STORE_FIELD, _COPY, _PUT, _AND, _CALL, _EXIT = 0x18, 0x79, 0x7B, 0xBF, 0xB7, 0x57, 0x85, 0x95
_MAP_VALUE = 2
# Numbers of include/uapi/linux/bpf.h.
_CURRENT_TASK, _READ_KERNEL = 35, 113
_WORD = struct.Struct("=Q")


class MovedError(Exception):
    """An address that holds no structure any more."""


class KernelMemory(Closeable):
    """A reader of the kernel's memory (Linux 5.10). A context manager.

    `btf`: the running kernel's types, from which `offset` takes the places of fields.
    """

    def __init__(self, btf: Btf) -> None:
        """Load the programs. Raise CapabilityError if this process may not."""
        self._btf = btf
        self._stack = ExitStack()
        try:
            self._bytes = self._keep(syscalls.create_map("kernel_memory", syscalls.MAP_ARRAY, 4, MOST_BYTES, 1, 0))
            self._reader = self._keep(_load("read_kernel", _reading(self._bytes)))
            self._finder = self._keep(_load("current_task", _finding(self._bytes)))
        except OSError as error:
            self._stack.close()
            raise not_permitted_error() from error

    def _keep(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor

    def close(self) -> None:
        self._stack.close()
        self._btf.keep_answers()

    def offset(self, struct_name: str, field: str) -> int:
        """Return the offset of a field. Raise CapabilityError if this kernel lacks it."""
        return self._btf.field_offset(struct_name, field)

    def has(self, struct_name: str, field: str) -> bool:
        """Return whether this kernel has the field."""
        return self._btf.has_field(struct_name, field)

    def read(self, address: int, size: int) -> bytes:
        """Return at most MOST_BYTES - 1 bytes. Raise MovedError."""
        try:
            if syscalls.run_program(self._reader, address & 0xFFFFFFFFFFFFFFFF, size):
                raise MovedError
            return syscalls.read_entry(self._bytes, bytes(4), MOST_BYTES)[:size]
        except OSError as error:
            raise MovedError from error

    def word(self, address: int) -> int:
        """Return the word of 8 bytes. Raise MovedError."""
        return int(_WORD.unpack(self.read(address, 8))[0])

    def current_task(self) -> int:
        """Return the address of this thread's task_struct. Raise MovedError."""
        try:
            syscalls.run_program(self._finder, 0)
            return int(_WORD.unpack_from(syscalls.read_entry(self._bytes, bytes(4), MOST_BYTES))[0])
        except OSError as error:
            raise MovedError from error


def _load(name: str, code: bytes) -> int:
    return syscalls.load_program(name, syscalls.PROGRAM_RAW_TRACEPOINT, code)


def _reading(target: int) -> bytes:
    """Return a program that copies (address, size) of its arguments into the map; its result is the helper's."""
    return b"".join(
        (
            encode_instruction(_LOAD_FIELD, 3, 1),
            encode_instruction(_LOAD_FIELD, 2, 1, 8),
            encode_instruction(_AND, 2, value=MOST_BYTES - 1),
            encode_instruction(_LOAD_64, 1, _MAP_VALUE, value=target),
            encode_instruction(0),
            encode_instruction(_CALL, value=_READ_KERNEL),
            encode_instruction(_EXIT),
        )
    )


def _finding(target: int) -> bytes:
    """Return a program that writes the address of the current task into the map."""
    return b"".join(
        (
            encode_instruction(_CALL, value=_CURRENT_TASK),
            encode_instruction(_LOAD_64, 1, _MAP_VALUE, value=target),
            encode_instruction(0),
            encode_instruction(_STORE_FIELD, 1, 0),
            encode_instruction(_PUT, 0),
            encode_instruction(_EXIT),
        )
    )
