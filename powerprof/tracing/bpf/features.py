# SPDX-License-Identifier: Apache-2.0
"""Find the BPF features of this kernel by trial: create a map of the kind, or load a program that calls the helper.

Distributions port features to older kernels, so the version is not tested. The numbers of the kernel's interface
(include/uapi/linux/bpf.h) never change. The versions are those of the first Linux with the feature.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from powerprof.system.errors import CapabilityError
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.syscalls import INSTRUCTION, encode_instruction

# Messages of verifiers about a missing helper, or one for another kind of program.
_NO_SUCH_HELPER = ("invalid func ", "unknown func ", "program of this type cannot use helper ")


class Feature(msgspec.Struct, frozen=True):
    """A feature: the `number` of a map type or helper, the first Linux with it, and its purpose.

    `program`: the type of program in which a helper is tried, because some helpers are only for some types.
    """

    name: str
    kind: str
    number: int
    since: str
    purpose: str
    program: int = syscalls.PROGRAM_RAW_TRACEPOINT


RING_BUFFER = Feature("BPF ring buffer", "map", 27, "5.8", "tracing")
TASK_REGISTERS = Feature("bpf_task_pt_regs", "helper", 175, "5.15", "user registers by the kernel's own helper")
CURRENT_TASK = Feature("bpf_get_current_task_btf", "helper", 158, "5.11", "profile")
ATTACH_COOKIE = Feature("bpf_get_attach_cookie", "helper", 174, "5.15", "functions", syscalls.PROGRAM_KPROBE)
COARSE_CLOCK = Feature("bpf_ktime_get_coarse_ns", "helper", 160, "5.11", "the time of the last tick")


_EXACT_CLOCK = 5  # bpf_ktime_get_ns, in every kernel


def choose_coarse_clock() -> int:
    """Return the number of the helper for the time of the last tick, or for the exact time if there is none."""
    return _EXACT_CLOCK if has_feature(COARSE_CLOCK) is False else COARSE_CLOCK.number


def not_permitted_error() -> CapabilityError:
    """Return the error for a user who may not load programs."""
    hint = "run as root"
    if os.geteuid() == 0:
        hint = (
            "in a container: capabilities BPF, PERFMON and SYS_PTRACE, and a seccomp profile that allows bpf and "
            "perf_event_open; else see /sys/kernel/security/lockdown"
        )
    return CapabilityError("cannot load BPF programs: not permitted", hint)


def may_load_programs() -> bool:
    """Return whether this process may load programs. Otherwise nothing is known about the kernel's features."""
    return has_feature(RING_BUFFER) is not None


class NotPermittedError(Exception):
    """This process may not load programs."""


def _has_map(number: int) -> bool:
    try:
        # A ring buffer of one page, without keys and values.
        os.close(syscalls.create_map("trial", number, 0, 0, os.sysconf("SC_PAGESIZE"), 0))
    except PermissionError as error:
        raise NotPermittedError from error
    except OSError:
        return False
    return True


def _has_helper(number: int, kind: int) -> bool:
    """Load a program that calls the helper without arguments. Only a missing helper is refused for that reason."""
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
    """Return whether this kernel has the feature, or None if this process may not try."""
    try:
        return _has_map(feature.number) if feature.kind == "map" else _has_helper(feature.number, feature.program)
    except NotPermittedError:
        return None


def _is_taken(
    words: Sequence[tuple[int, int, int, int]], kind: int, *, attach_type: int = 0, attach_to: int = 0
) -> bool:
    """Return whether the kernel loads a program of these instructions."""
    code = b"".join(INSTRUCTION.pack(*word) for word in words)
    try:
        os.close(syscalls.load_program("trial", kind, code, attach_type=attach_type, attach_to=attach_to))
    except OSError:
        return False
    return True


def can_read_directly(btf: Btf) -> bool:
    """Return whether a typed program may read a thread's number and its registers (5.15).

    The trial does the same as the programs: it loads the number, and reads the registers by their helper.
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


# The variable and field of the kernel's count of interrupts on x86-64: since 6.15 and before 6.2, and in between.
_PREEMPT_COUNTS: tuple[tuple[str, str | None], ...] = (("__preempt_count", None), ("pcpu_hot", "preempt_count"))
_THIS_CPU_POINTER = 154


def build_interrupt_definitions(btf: Btf) -> dict[str, int]:
    """Return the definitions for reading whether a CPU is in an interrupt (reading.bpf.h).

    If it cannot be read, VECTORS_IN_PAIRS is 1. arm64 keeps the count with the running thread; x86-64 for each CPU,
    readable since 5.10 and tried here.
    """
    found = _find_interrupt_count(btf)
    names = ("PREEMPT_COUNT", "OFFSET_preempt_count", "HAS_TASK_PREEMPT_COUNT", "OFFSET_task_struct_preempt_count")
    return {**dict.fromkeys(names, 0), **found, "VECTORS_IN_PAIRS": int(not found)}


def _find_interrupt_count(btf: Btf) -> dict[str, int]:
    in_thread = "thread_info.preempt_count"
    if btf.has_field("task_struct", in_thread):
        offset = btf.field_offset("task_struct", in_thread)
        return {"HAS_TASK_PREEMPT_COUNT": 1, "OFFSET_task_struct_preempt_count": offset}
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
    """Raise CapabilityError with the kernel and the feature if it is missing. `purpose` replaces its usual purpose."""
    if has_feature(feature) is False:
        raise CapabilityError(
            f"this kernel ({os.uname().release}) has no {feature.name}, which {purpose or feature.purpose} needs",
            f"Linux {feature.since} or newer",
        )
