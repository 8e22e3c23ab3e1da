# SPDX-License-Identifier: Apache-2.0
"""Find the BPF features of this kernel by trial: create a map of the kind, or load a program of trial.bpf.c.

Distributions port features to older kernels, so the version is not tested. The numbers of the kernel's interface
(include/uapi/linux/bpf.h) never change. The versions are those of the first Linux with the feature.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.tracing.bpf import syscalls
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.permission import has_map_type

# Messages of verifiers about a missing helper, or one for another kind of program.
_NO_SUCH_HELPER = ("invalid func ", "unknown func ", "program of this type cannot use helper ")

# The numbers of trial.bpf.c. It has a program for each of the first five.
TRIAL_DEFINITIONS = {
    "IS_ATTACHED": 0,
    "HELPER": 0,
    "KPROBE_HELPER": 0,
    "OFFSET_task_struct_pid": 0,
    "PREEMPT_COUNT": 0,
    "OFFSET_preempt_count": 0,
}
_TYPED_READ, _INTERRUPT_READ = "btf_tracepoint__sched_waking", "called__read_preempt_count"
_TRIALS = ("called__helper", "uprobe__helper", _TYPED_READ, _INTERRUPT_READ)


class Feature(msgspec.Struct, frozen=True):
    """A feature: the `number` of a map type or helper, the first Linux with it, and its purpose.

    `program`: the number of trial.bpf.c that the helper has there, because some helpers are only for some programs.
    """

    name: str
    kind: str
    number: int
    since: str
    purpose: str
    program: str = "HELPER"


RING_BUFFER = Feature("BPF ring buffer", "map", syscalls.MAP_RING_BUFFER, "5.8", "tracing")
TASK_REGISTERS = Feature("bpf_task_pt_regs", "helper", 175, "5.15", "user registers by the kernel's own helper")
CURRENT_TASK = Feature("bpf_get_current_task_btf", "helper", 158, "5.11", "profile")
ATTACH_COOKIE = Feature("bpf_get_attach_cookie", "helper", 174, "5.15", "functions", "KPROBE_HELPER")


def _load_trial(numbers: Mapping[str, int], btf: Btf | None = None) -> LoadedProgram:
    """Load the programs of trial.bpf.c with these numbers. Raises PowerprofError if this process may not."""
    definitions = {**TRIAL_DEFINITIONS, **numbers}
    return LoadedProgram("trial.bpf.c", definitions, btf=btf, optional=_TRIALS, is_attached=False)


def _is_accepted(name: str, btf: Btf, **numbers: int) -> bool:
    """Return whether the kernel accepts a program of trial.bpf.c."""
    try:
        with _load_trial(numbers, btf) as program:
            return program.has(name)
    except PowerprofError:
        return False


def _has_helper(feature: Feature) -> bool | None:
    """Load a program that calls the helper without arguments. Only a missing helper is refused for that reason."""
    try:
        with _load_trial({feature.program: feature.number}) as program:
            refusal = next(iter(program.refused.values()), None)
    except PowerprofError:
        return None
    if refusal is None:
        return True
    if refusal.errno == errno.EPERM:
        return None
    return not any(phrase in refusal.log for phrase in _NO_SUCH_HELPER)


@lru_cache(maxsize=64)
def has_feature(feature: Feature) -> bool | None:
    """Return whether this kernel has the feature, or None if this process may not try."""
    return has_map_type(feature.number) if feature.kind == "map" else _has_helper(feature)


def can_read_directly(btf: Btf) -> bool:
    """Return whether a typed program may read a thread's number and its registers (5.15)."""
    return _is_accepted(_TYPED_READ, btf, OFFSET_task_struct_pid=btf.field_offset("task_struct", "pid"))


# The variable and field of the kernel's count of interrupts on x86-64: since 6.15 and before 6.2, and in between.
_PREEMPT_COUNTS: tuple[tuple[str, str | None], ...] = (("__preempt_count", None), ("pcpu_hot", "preempt_count"))


def build_interrupt_definitions(btf: Btf) -> dict[str, int]:
    """Return the definitions for reading whether a CPU is in an interrupt (kernel_memory.bpf.h).

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
        if _is_accepted(_INTERRUPT_READ, btf, PREEMPT_COUNT=variable, OFFSET_preempt_count=offset):
            return {"PREEMPT_COUNT": variable, "OFFSET_preempt_count": offset}
    return {}


def require(feature: Feature, purpose: str = "") -> None:
    """Raise CapabilityError with the kernel and the feature if it is missing. `purpose` replaces its usual purpose."""
    if has_feature(feature) is False:
        raise CapabilityError(
            f"this kernel ({os.uname().release}) has no {feature.name}, which {purpose or feature.purpose} needs",
            f"Linux {feature.since} or newer",
        )
