# SPDX-License-Identifier: Apache-2.0
"""What this kernel's BPF can do, by trial: a map of the kind is made, a program that calls the helper is loaded.

Distributions carry features back to older kernels, so no version is asked. Numbers are of the kernel's interface
(include/uapi/linux/bpf.h), which never change; the versions are those of the first Linux that had the feature.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from powerprof.system.errors import CapabilityError
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.syscalls import INSTRUCTION, encode_instruction
from powerprof.tracing.bpf.types import Btf

# What verifiers say of a helper that they do not have, or not for this kind of program.
_NO_SUCH_HELPER = ("invalid func ", "unknown func ", "program of this type cannot use helper ")


@dataclass(frozen=True)
class Feature:
    """One feature: `number` of a map type or helper, the first Linux that had it, and what it is needed for.

    `program` is the type of program that a helper is tried in: some are for some types only.
    """

    name: str
    kind: str
    number: int
    since: str
    purpose: str
    program: int = syscalls.PROGRAM_RAW_TRACEPOINT


RING_BUFFER = Feature("BPF ring buffer", "map", 27, "5.8", "tracing")
TASK_REGISTERS = Feature("bpf_task_pt_regs", "helper", 175, "5.15", "user registers by the kernel's own helper")
CURRENT_TASK = Feature("bpf_get_current_task_btf", "helper", 158, "5.11", "powerprof profile")
ATTACH_COOKIE = Feature("bpf_get_attach_cookie", "helper", 174, "5.15", "powerprof functions", syscalls.PROGRAM_KPROBE)
COARSE_CLOCK = Feature("bpf_ktime_get_coarse_ns", "helper", 160, "5.11", "the time of the last tick")


_EXACT_CLOCK = 5  # bpf_ktime_get_ns, in every kernel


def choose_coarse_clock() -> int:
    """The helper that tells the time of the last tick, or the exact time where there is none."""
    return _EXACT_CLOCK if has_feature(COARSE_CLOCK) is False else COARSE_CLOCK.number


def not_permitted_error() -> CapabilityError:
    """The error of who may not load programs."""
    hint = "run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep on the interpreter"
    if os.geteuid() == 0:
        hint = (
            "in a container: capabilities BPF, PERFMON and SYS_PTRACE, and a seccomp profile that allows bpf and "
            "perf_event_open; else see /sys/kernel/security/lockdown"
        )
    return CapabilityError("cannot load BPF programs: not permitted", hint)


def may_load_programs() -> bool:
    """Whether this process may load programs: else none of what the kernel can do is known."""
    return has_feature(RING_BUFFER) is not None


class NotPermittedError(Exception):
    """This process may not try."""


def _has_map(number: int) -> bool:
    try:
        # A ring buffer of one page has neither keys nor values.
        os.close(syscalls.create_map("trial", number, 0, 0, os.sysconf("SC_PAGESIZE"), 0))
    except PermissionError as error:
        raise NotPermittedError from error
    except OSError:
        return False
    return True


def _has_helper(number: int, kind: int) -> bool:
    """A program that calls it without arguments: refused in any case, but only a missing helper for that reason."""
    program = encode_instruction(0x85, value=number) + encode_instruction(0x95)
    try:
        os.close(syscalls.load_program("trial", kind, program))
    except syscalls.RefusedError as error:
        if error.errno == errno.EPERM:
            raise NotPermittedError from error
        return not any(phrase in error.log for phrase in _NO_SUCH_HELPER)
    return True


@lru_cache(maxsize=64)
def has_feature(feature: Feature) -> bool | None:
    """Whether this kernel has it; None where this process may not try."""
    try:
        return _has_map(feature.number) if feature.kind == "map" else _has_helper(feature.number, feature.program)
    except NotPermittedError:
        return None


def _is_taken(
    words: Sequence[tuple[int, int, int, int]], kind: int, *, attach_type: int = 0, attach_to: int = 0
) -> bool:
    """Whether the kernel loads a program of these instructions."""
    code = b"".join(INSTRUCTION.pack(*word) for word in words)
    try:
        os.close(syscalls.load_program("trial", kind, code, attach_type=attach_type, attach_to=attach_to))
    except OSError:
        return False
    return True


def can_read_directly(btf: Btf) -> bool:
    """Whether a program that knows its arguments' types may read a thread's number and its registers (5.15).

    Tried with what the programs do: the number by a load, the registers by their helper and a load.
    """
    waking, number = btf.tracepoint_id("sched_waking"), btf.field_offset("task_struct", "pid")
    words = (
        (0x79, 0x16, 0, 0),  # r6 = the thread, by the first argument
        (0x61, 0x67, number, 0),  # r7 = its number
        (0xBF, 0x61, 0, 0),  # r1 = r6
        (0x85, 0, 0, TASK_REGISTERS.number),
        (0x79, 0x00, 0, 0),  # r0 = the first of its registers
        (0xB7, 0, 0, 0),
        (0x95, 0, 0, 0),
    )
    how = syscalls.ATTACH_TYPED_TRACEPOINT
    return _is_taken(words, syscalls.PROGRAM_TRACING, attach_type=how, attach_to=waking or 0)


# What holds the kernel's count of interrupts on x86-64, and the field in it: since 6.15 and before 6.2, and in between.
_PREEMPT_COUNTS: tuple[tuple[str, str | None], ...] = (("__preempt_count", None), ("pcpu_hot", "preempt_count"))
_THIS_CPU_POINTER = 154


def build_interrupt_definitions(btf: Btf) -> dict[str, int | str]:
    """How programs ask whether their CPU is in an interrupt (reading.bpf.h); nothing where they cannot.

    arm64 keeps the count with the running thread; x86-64 for each CPU, readable since 5.10: tried as programs do.
    """
    in_thread = "thread_info.preempt_count"
    if btf.has_field("task_struct", in_thread):
        return {"OFFSET_task_struct_preempt_count": btf.field_offset("task_struct", in_thread)}
    for name, field in _PREEMPT_COUNTS:
        variable = btf.variable_id(name)
        if variable is None or (field is not None and not btf.has_field(name, field)):
            continue
        offset = 0 if field is None else btf.field_offset(name, field)
        words = (
            (0x18, 0x31, 0, variable),  # r1 = the variable, by its type
            (0x00, 0x00, 0, 0),
            (0x85, 0, 0, _THIS_CPU_POINTER),
            (0x61, 0x00, offset, 0),  # r0 = this CPU's
            (0xB7, 0, 0, 0),
            (0x95, 0, 0, 0),
        )
        if _is_taken(words, syscalls.PROGRAM_RAW_TRACEPOINT):
            return {"PREEMPT_COUNT": variable, "OFFSET_preempt_count": offset}
    return {}


def require(feature: Feature, purpose: str = "") -> None:
    """Raises CapabilityError, which names the kernel and the feature, where it is not there.

    `purpose`: what needs it here, where that is not its usual purpose.
    """
    if has_feature(feature) is False:
        raise CapabilityError(
            f"this kernel ({os.uname().release}) has no {feature.name}, which {purpose or feature.purpose} needs",
            f"Linux {feature.since} or newer",
        )


# Small programs that the kernel runs once, when asked: what it calls its functions, and what its tick's timer calls.
#
# The kernel answers whatever it shows in kallsyms (kptr_restrict), in microseconds; its list takes a third of a second.

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


def read_function_texts(addresses: Iterable[int]) -> dict[int, str] | None:
    """What the kernel writes for each address: `name+0x10/0x20`, and ` [module]`; a number where it knows nothing.

    None where it cannot be asked (before Linux 5.13, or not permitted).
    """
    with ExitStack() as held:
        try:
            pattern = _held(held, syscalls.create_map("format", syscalls.MAP_ARRAY, 4, 8, 1, _READ_ONLY_TO_PROGRAMS))
            text = _held(held, syscalls.create_map("text", syscalls.MAP_ARRAY, 4, _TEXT_BYTES, 1, 0))
            syscalls.write_entry(pattern, bytes(4), _FORMAT.ljust(8, b"\0"))
            syscalls.freeze_map(pattern)
            program = _held(held, _loaded("function_names", _names_code(pattern, text)))
            found = {}
            for address in addresses:
                syscalls.run_program(program, address)
                found[address] = (
                    syscalls.read_entry(text, bytes(4), _TEXT_BYTES).split(b"\0", 1)[0].decode("ascii", "replace")
                )
        except OSError:
            return None
    return found


def read_tick_function(btf: Btf) -> int:
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
        return syscalls.run_program(program, 0) | syscalls.run_program(program, 32) << 32
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


def _tick_code(variable: int, field: int) -> bytes:
    """Return the field of the first CPU's variable, shifted by as many bits as the only argument says."""
    return b"".join(
        (
            encode_instruction(_LOAD_FIELD, 6, 1),
            encode_instruction(_LOAD_64, 1, _VARIABLE, value=variable),
            encode_instruction(0),
            encode_instruction(_PUT, 2, value=0),
            encode_instruction(_CALL, value=_PER_CPU_POINTER),
            encode_instruction(_SKIP_IF, 0, 0, 2),
            encode_instruction(_LOAD_FIELD, 0, 0, field),
            encode_instruction(_SHIFT_RIGHT, 0, 6),
            encode_instruction(_EXIT),
        )
    )
