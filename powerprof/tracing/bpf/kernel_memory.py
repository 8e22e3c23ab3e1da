# SPDX-License-Identifier: Apache-2.0
"""Read structures of the kernel by address, with two small programs that the kernel runs once per read.

A read takes about 10 µs and no lock. The structures may change meanwhile: an address that is no longer valid raises
MovedError, and callers check what they read.
"""

from __future__ import annotations

import struct

from powerprof.system.closeable import Closeable
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.permission import not_permitted_error

_READ, _FIND_TASK = "called__read_memory", "called__find_task"
# The functions of kernel.bpf.c; kernels before 5.16 lack one or two of them.
_FUNCTIONS = (_READ, _FIND_TASK, "called__name_function", "sleepable__find_function")
KERNEL_DEFINITIONS = {"READS_MEMORY": 0, "NAMES_FUNCTIONS": 0, "FINDS_FUNCTIONS": 0}
_WORD = struct.Struct("=Q")


def load_kernel_program(part: str) -> LoadedProgram:
    """Load a part of kernel.bpf.c, by the name of its definition. Raises PowerprofError if this process may not."""
    return LoadedProgram(
        "kernel.bpf.c", {**KERNEL_DEFINITIONS, part: 1}, optional=_FUNCTIONS, constants={"format": b"%pS"}
    )


class MovedError(Exception):
    """An address that holds no structure any more."""


class KernelMemory(Closeable):
    """A reader of the kernel's memory (Linux 5.10). A context manager.

    `btf`: the running kernel's types, from which `offset` takes the places of fields.
    """

    def __init__(self, btf: Btf) -> None:
        """Load the programs. Raise CapabilityError if this process may not."""
        self._btf = btf
        self._program = load_kernel_program("READS_MEMORY")
        if self._program.refused:
            self._program.close()
            raise not_permitted_error()

    def close(self) -> None:
        self._program.close()
        self._btf.keep_answers()

    def offset(self, struct_name: str, field: str) -> int:
        """Return the offset of a field. Raise CapabilityError if this kernel lacks it."""
        return self._btf.field_offset(struct_name, field)

    def has(self, struct_name: str, field: str) -> bool:
        """Return whether this kernel has the field."""
        return self._btf.has_field(struct_name, field)

    def read(self, address: int, size: int) -> bytes:
        """Return at most 511 bytes. Raise MovedError."""
        try:
            if self._program.run(_READ, address & 0xFFFFFFFFFFFFFFFF, size):
                raise MovedError
            return self._program.get("answer", 0)[:size]
        except OSError as error:
            raise MovedError from error

    def word(self, address: int) -> int:
        """Return the word of 8 bytes. Raise MovedError."""
        return int(_WORD.unpack(self.read(address, 8))[0])

    def current_task(self) -> int:
        """Return the address of this thread's task_struct. Raise MovedError."""
        try:
            self._program.run(_FIND_TASK, 0)
            return int(_WORD.unpack_from(self._program.get("answer", 0))[0])
        except OSError as error:
            raise MovedError from error
