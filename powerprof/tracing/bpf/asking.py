# SPDX-License-Identifier: Apache-2.0
"""Small programs that the kernel runs once, when asked: what it calls its functions, and what its tick's timer calls.

The kernel answers whatever it shows in kallsyms (kptr_restrict), in microseconds; its list takes a third of a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack

from powerprof.errors import CapabilityError
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.instructions import instruction

# Numbers of include/uapi/linux/bpf.h.
_LOAD_64, _LOAD_FIELD, _STORE_FIELD, _SHIFT_RIGHT = 0x18, 0x79, 0x7B, 0x7F
_COPY, _PUT, _ADD, _CALL, _EXIT, _SKIP_IF = 0xBF, 0xB7, 0x07, 0x85, 0x95, 0x15
_MAP_VALUE, _VARIABLE = 2, 3
_PER_CPU_POINTER, _PRINT = 153, 165
_READ_ONLY_TO_PROGRAMS = 1 << 7
_FRAME = 10
# KSYM_NAME_LEN, since Linux 6.1, and what stands behind the name.
_TEXT_BYTES = 512 + 128
_FORMAT = b"%pS"


def function_texts(addresses: Iterable[int]) -> dict[int, str] | None:
    """What the kernel writes for each address: `name+0x10/0x20`, and ` [module]`; a number where it knows nothing.

    None where it cannot be asked (before Linux 5.13, or not permitted).
    """
    with ExitStack() as held:
        try:
            pattern = _held(held, syscalls.create_map("format", syscalls.MAP_ARRAY, 4, 8, 1, _READ_ONLY_TO_PROGRAMS))
            text = _held(held, syscalls.create_map("text", syscalls.MAP_ARRAY, 4, _TEXT_BYTES, 1, 0))
            syscalls.update(pattern, bytes(4), _FORMAT.ljust(8, b"\0"))
            syscalls.freeze(pattern)
            program = _held(held, _loaded("function_names", _names_code(pattern, text)))
            found = {}
            for address in addresses:
                syscalls.run_once(program, address)
                found[address] = (
                    syscalls.lookup(text, bytes(4), _TEXT_BYTES).split(b"\0", 1)[0].decode("ascii", "replace")
                )
        except OSError:
            return None
    return found


def tick_function(btf: Btf) -> int:
    """Where the function is that the scheduler tick's timer calls, read from the timer itself.

    0 where that is not known: kernels that have no names of variables (KALLSYMS_ALL), or one that has no such timer.
    """
    variable = btf.variable_id("tick_cpu_sched")
    if variable is None:
        return 0
    try:
        field = btf.field_offset("tick_sched", "sched_timer") + btf.field_offset("hrtimer", "function")
        program = _loaded("tick_function", _tick_code(variable, field))
    except (OSError, CapabilityError):
        return 0
    try:
        return syscalls.run_once(program, 0) | syscalls.run_once(program, 32) << 32
    except OSError:
        return 0
    finally:
        os.close(program)


def _held(held: ExitStack, descriptor: int) -> int:
    held.callback(os.close, descriptor)
    return descriptor


def _loaded(name: str, code: bytes) -> int:
    return syscalls.load_program(name, syscalls.PROGRAM_RAW_TRACEPOINT, code)


def _names_code(pattern: int, text: int) -> bytes:
    """Write the name of the address that is the only argument into the map `text`."""
    return b"".join(
        (
            instruction(_LOAD_FIELD, 6, 1),
            instruction(_STORE_FIELD, _FRAME, 6, -8),
            instruction(_LOAD_64, 1, _MAP_VALUE, value=text),
            instruction(0),
            instruction(_PUT, 2, value=_TEXT_BYTES),
            instruction(_LOAD_64, 3, _MAP_VALUE, value=pattern),
            instruction(0),
            instruction(_COPY, 4, _FRAME),
            instruction(_ADD, 4, value=-8),
            instruction(_PUT, 5, value=8),
            instruction(_CALL, value=_PRINT),
            instruction(_EXIT),
        )
    )


def _tick_code(variable: int, field: int) -> bytes:
    """Return the field of the first CPU's variable, shifted by as many bits as the only argument says."""
    return b"".join(
        (
            instruction(_LOAD_FIELD, 6, 1),
            instruction(_LOAD_64, 1, _VARIABLE, value=variable),
            instruction(0),
            instruction(_PUT, 2, value=0),
            instruction(_CALL, value=_PER_CPU_POINTER),
            instruction(_SKIP_IF, 0, 0, 2),
            instruction(_LOAD_FIELD, 0, 0, field),
            instruction(_SHIFT_RIGHT, 0, 6),
            instruction(_EXIT),
        )
    )
