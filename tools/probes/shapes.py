# SPDX-License-Identifier: Apache-2.0
"""The programs that are carried, each with the definitions that make another text of it: its shapes.

Definitions are made by the code that makes them when tracing, of a kernel that exists on paper only. Its machine need
not be this one: BPF's instructions are the same everywhere, and the programs read no type of a kernel's headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from powerprof.stacks.registers import AARCH64, X86_64, Machine
from powerprof.system.targets import Target
from powerprof.tracing import functions as functions_tracer
from powerprof.tracing import idle_program, statement_definitions
from powerprof.tracing import offcpu as offcpu_tracer
from powerprof.tracing import syscalls as syscalls_tracer
from powerprof.tracing.bpf import carried, features, objects
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import build_path_definitions
from powerprof.tracing.bpf.kernel_memory import KERNEL_DEFINITIONS
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.postgresql_places import POSTGRESQL_LAYOUT

Definitions = dict[str, int | str]
MACHINES = (X86_64, AARCH64)


class PaperBtf(Btf):
    """The types of a kernel that has all that is asked for; the numbers mean nothing."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def field_offset(self, struct_name: str, field: str) -> int:
        return 8

    def has_field(self, struct_name: str, field: str) -> bool:
        return True

    def struct_size(self, struct_name: str) -> int:
        return 168

    def tracepoint_id(self, name: str) -> int | None:
        return 1

    def tracepoint_arguments(self, name: str) -> tuple[str, ...]:
        return ("preempt", "prev", "next", "prev_state") if name == "sched_switch" else ("parent", "child")


@contextmanager
def on(machine: Machine, *, direct: bool) -> Iterator[PaperBtf]:
    """Let the running kernel be one of this machine, and able to do as much."""
    with patch.object(features, "can_read_directly", lambda btf: direct):
        yield PaperBtf(machine)


def idle(btf: PaperBtf) -> Iterator[Definitions]:
    """idle.bpf.c."""
    yield idle_program.build_stack_definitions(btf, btf.machine, Target(pids=(1,), label=""))


def trial(btf: PaperBtf) -> Iterator[Definitions]:
    """trial.bpf.c: features of the kernel."""
    yield {**features.TRIAL_DEFINITIONS}


def kernel(btf: PaperBtf) -> Iterator[Definitions]:
    """kernel.bpf.c: memory and functions of the kernel."""
    yield {**KERNEL_DEFINITIONS}


def oncpu(btf: PaperBtf) -> Iterator[Definitions]:
    """oncpu.bpf.c: samples and page faults."""
    yield build_path_definitions() | build_task_definitions(btf)


def offcpu(btf: PaperBtf) -> Iterator[Definitions]:
    """offcpu.bpf.c."""
    yield offcpu_tracer.build_offcpu_definitions(btf, every_process=True)


def syscalls(btf: PaperBtf) -> Iterator[Definitions]:
    """syscalls.bpf.c."""
    yield syscalls_tracer.build_syscall_definitions(btf, every_process=True, machine=btf.machine.name)


def functions(btf: PaperBtf) -> Iterator[Definitions]:
    """functions.bpf.c."""
    yield functions_tracer.build_function_definitions(btf, 4)


def queries(btf: PaperBtf) -> Iterator[Definitions]:
    """queries.bpf.c: servers of threads, and PostgreSQL."""
    for layout in (0, POSTGRESQL_LAYOUT):
        yield statement_definitions.build_query_definitions(btf, layout, None, 4096, sends=True, stacks=True)


def moments(btf: PaperBtf) -> Iterator[Definitions]:
    """moments.bpf.c."""
    for postgresql in (False, True):
        yield statement_definitions.build_moment_definitions(btf, btf.machine.name, postgresql=postgresql)


@dataclass(frozen=True)
class Shape:
    """One object to be carried; the numbers in `definitions` mean nothing."""

    name: str
    machine: Machine
    definitions: Definitions

    def __str__(self) -> str:
        said = [f"{name}={self.definitions[name]}" for name in _CHOSEN if name in self.definitions]
        return " ".join((self.name, self.machine.name, *said))


_CHOSEN = ("DIRECT", "IS_POSTGRESQL")
_PROGRAMS: Mapping[str, Callable[[PaperBtf], Iterator[Definitions]]] = {
    "idle.bpf.c": idle,
    "trial.bpf.c": trial,
    "kernel.bpf.c": kernel,
    "oncpu.bpf.c": oncpu,
    "offcpu.bpf.c": offcpu,
    "syscalls.bpf.c": syscalls,
    "functions.bpf.c": functions,
    "queries.bpf.c": queries,
    "moments.bpf.c": moments,
}
# What probes functions and samples registers of user space is refused elsewhere.
_X86_64_ALONE = ("oncpu.bpf.c", "functions.bpf.c", "queries.bpf.c")


def shapes(machine: Machine) -> dict[str, Shape]:
    """All of a machine by their file names. An object that machines share has one name."""
    found: dict[str, Shape] = {}
    for name, of_kernel in _PROGRAMS.items():
        if machine is not X86_64 and name in _X86_64_ALONE:
            continue
        for direct in (True, False):
            with on(machine, direct=direct) as btf:
                for definitions in of_kernel(btf):
                    file = carried.object_name(name, objects.read_source(name), definitions)
                    found.setdefault(file, Shape(name, machine, definitions))
    return found


def all_shapes() -> dict[str, Shape]:
    """All of all machines by their file names."""
    return {file: shape for machine in reversed(MACHINES) for file, shape in shapes(machine).items()}
