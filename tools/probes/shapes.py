# SPDX-License-Identifier: Apache-2.0
"""The shapes of programs that are carried: what kernels from 5.10 on can do, times what commands want.

Definitions are made by the code that makes them when tracing, of a kernel that exists on paper only. Its machine need
not be this one: BPF's instructions are the same everywhere, and the programs read no type of a kernel's headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.system.targets import Target
from powerprof.tracing import functions as functions_tracer
from powerprof.tracing import idle_program as build
from powerprof.tracing import offcpu as offcpu_tracer
from powerprof.tracing import statements
from powerprof.tracing import syscalls as syscalls_tracer
from powerprof.tracing.bpf import features, objects
from powerprof.tracing.bpf.shared_numbers import POSTGRESQL
from powerprof.tracing.bpf.types import Btf, build_path_definitions
from powerprof.tracing.mysql_places import LAYOUTS

Definitions = dict[str, int | str]


@dataclass(frozen=True)
class Kernel:
    """What a kernel can do that makes another program."""

    direct: bool
    preempt_count: bool
    prev_state: bool
    machine: Machine = X86_64

    def __str__(self) -> str:
        said = [name for name in ("direct", "preempt_count", "prev_state") if getattr(self, name)]
        return f"{self.machine.name}: {' '.join(said) or 'plain'}"


# In the order of their age: 5.10; 5.10 with names of variables (Debian's); 5.15; from 5.18 on. Without
# CONFIG_KALLSYMS_ALL a kernel of x86-64 does not say where it counts interrupts; on arm64 the thread has the count.
KERNELS = (
    Kernel(direct=False, preempt_count=False, prev_state=False),
    Kernel(direct=False, preempt_count=True, prev_state=False),
    Kernel(direct=True, preempt_count=True, prev_state=False),
    Kernel(direct=True, preempt_count=False, prev_state=True),
    Kernel(direct=True, preempt_count=True, prev_state=True),
    Kernel(direct=False, preempt_count=True, prev_state=False, machine=AARCH64),
    Kernel(direct=True, preempt_count=True, prev_state=False, machine=AARCH64),
    Kernel(direct=True, preempt_count=True, prev_state=True, machine=AARCH64),
)


class PaperBtf(Btf):
    """The types of a kernel that has all that is asked for; the numbers mean nothing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.machine = kernel.machine

    def field_offset(self, struct_name: str, field: str) -> int:
        return {"pid": 1000, "tgid": 1004}.get(field, 8)

    def has_field(self, struct_name: str, field: str) -> bool:
        return True

    def struct_size(self, struct_name: str) -> int:
        return 168

    def variable_id(self, name: str) -> int | None:
        return 1

    def tracepoint_id(self, name: str) -> int | None:
        return 1

    def tracepoint_arguments(self, name: str) -> tuple[str, ...]:
        if name == "sched_switch":
            return ("preempt", "prev", "next", *(("prev_state",) if self._kernel.prev_state else ()))
        return ("parent", "child")


@contextmanager
def on(kernel: Kernel) -> Iterator[PaperBtf]:
    """Let the running kernel be able to do as much as this one."""
    counts: Definitions = {"PREEMPT_COUNT": 1, "OFFSET_preempt_count": 0} if kernel.preempt_count else {}
    if kernel.machine is AARCH64:
        counts = {"OFFSET_task_struct_preempt_count": 8}
    told: dict[str, Any] = {
        "can_read_directly": lambda btf: kernel.direct,
        "build_interrupt_definitions": lambda btf: counts,
        # bpf_task_pt_regs() is as old as what makes reading direct.
        "has_feature": lambda feature: kernel.direct or feature is not features.TASK_REGISTERS,
    }
    with patch.multiple(features, **told):
        yield PaperBtf(kernel)


# The whole host; processes that stay as they are; those that their children join; a control group.
TARGETS = (
    Target(pids=(), label="", system=True),
    Target(pids=(1,), label=""),
    Target(pids=(1,), label="", roots=(1,)),
    Target(pids=(1,), label="", cgroup=Path("/")),
)


def idle(btf: PaperBtf) -> Iterator[Definitions]:
    """idle.bpf.c: without stacks; with stacks, for a window or on demand."""
    yield build.build_idle_definitions(btf)
    for target in TARGETS:
        definitions = build.build_stack_definitions(btf, btf.machine, target)
        yield definitions
        yield {**definitions, **build.ON_DEMAND}


def trial(btf: PaperBtf) -> Iterator[Definitions]:
    """trial.bpf.c, by which `doctor` tries whether any program is taken."""
    yield {}


def oncpu(btf: PaperBtf) -> Iterator[Definitions]:
    """oncpu.bpf.c: samples and page faults, of some processes and of all."""
    for every_process in (False, True):
        for event in ("cpu-clock", "page-faults"):
            yield build_path_definitions(every_process, event)


def offcpu(btf: PaperBtf) -> Iterator[Definitions]:
    """offcpu.bpf.c."""
    for every_process in (False, True):
        yield offcpu_tracer.build_offcpu_definitions(btf, every_process=every_process)


def syscalls(btf: PaperBtf) -> Iterator[Definitions]:
    """syscalls.bpf.c: with requests of io_uring and without."""
    for every_process in (False, True):
        definitions = syscalls_tracer.build_syscall_definitions(
            btf, every_process=every_process, machine=btf.machine.name
        )
        yield definitions
        without = {f"OFFSET_{name}" for name in syscalls_tracer.URING} | {"HAVE_URING"}
        yield {name: value for name, value in definitions.items() if name not in without}


def functions(btf: PaperBtf) -> Iterator[Definitions]:
    """functions.bpf.c: by how many functions are counted."""
    for bits in range(2, 11):
        yield functions_tracer.build_function_definitions(btf, 1 << bits)


def queries(btf: PaperBtf) -> Iterator[Definitions]:
    """queries.bpf.c: each way in which servers are told what to do, with samples beside and without."""
    newest = "prev_state" in btf.tracepoint_arguments("sched_switch")  # sock_send_length came later
    for layout in (*LAYOUTS.values(), POSTGRESQL):
        for stacks in (False, True):
            for sends in (False, True) if newest else (False,):
                yield statements.build_query_definitions(btf, layout, None, 4096, sends=sends, stacks=stacks)


def moments(btf: PaperBtf) -> Iterator[Definitions]:
    """moments.bpf.c."""
    for postgresql in (False, True):
        yield statements.build_moment_definitions(btf, btf.machine.name, postgresql=postgresql)


@dataclass(frozen=True)
class Shape:
    """One object to be carried; the numbers in `definitions` mean nothing."""

    name: str
    kernel: Kernel
    definitions: Definitions

    def __str__(self) -> str:
        chosen = {name: value for name, value in self.definitions.items() if name in _CHOSEN}
        return f"{self.name} ({self.kernel}) {' '.join(f'{name}={value}' for name, value in chosen.items())}"


_CHOSEN = (
    "STACKS",
    "TARGET_ALL",
    "GROWS",
    "ON_DEMAND",
    "EVERY_PROCESS",
    "HASHED_BYTES",
    "HAVE_URING",
    "FUNCTIONS",
    "LAYOUT",
    "HAS_SEND",
)
_PROGRAMS: Mapping[str, Callable[[PaperBtf], Iterator[Definitions]]] = {
    "idle.bpf.c": idle,
    "trial.bpf.c": trial,
    "oncpu.bpf.c": oncpu,
    "offcpu.bpf.c": offcpu,
    "syscalls.bpf.c": syscalls,
    "functions.bpf.c": functions,
    "queries.bpf.c": queries,
    "moments.bpf.c": moments,
}
# What probes functions and samples registers of user space is refused elsewhere.
_X86_64_ALONE = ("oncpu.bpf.c", "functions.bpf.c", "queries.bpf.c")
MACHINES = (X86_64, AARCH64)


def file_of(shape: Shape) -> str:
    """The name of its file: the same on two machines where the object is the same."""
    return objects.object_name(shape.name, objects.read_source(shape.name), shape.definitions)


def shapes(machine: Machine) -> list[Shape]:
    """All of a machine, without two that are the same; those of the latest kernels first."""
    found: dict[str, Shape] = {}
    for name, of_kernel in _PROGRAMS.items():
        for kernel in reversed([one for one in KERNELS if one.machine is machine]):
            if machine is not X86_64 and name in _X86_64_ALONE:
                continue
            with on(kernel) as btf:
                for definitions in of_kernel(btf):
                    parts = objects.select_shape(definitions), sorted(objects.select_numbers(definitions))
                    found.setdefault(repr((name, *parts)), Shape(name, kernel, definitions))
    return list(found.values())
