# SPDX-License-Identifier: Apache-2.0
"""The one place where the idle-exit program is loaded and its parts are put together: alone, with stacks, on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from powerprof.errors import CapabilityError
from powerprof.paths import is_this_host
from powerprof.processes.namespaces import check_process_ids
from powerprof.processes.targets import Target
from powerprof.stacks.registers import X86_64, Machine, this_machine
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, kernel_btf
from powerprof.tracing.bpf.carried import TRACEPOINTS
from powerprof.tracing.bpf.definitions import (
    argument_definitions,
    cpu_definitions,
    possible_cpus,
    register_definitions,
    struct_definitions,
)
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Shared
from powerprof.tracing.idle import running
from powerprof.tracing.idle.demand import DemandLooks
from powerprof.tracing.idle.joining import Joining
from powerprof.tracing.idle.looks import WindowLooks
from powerprof.tracing.idle.members import Remember, TargetMembers, every_program, latest_program
from powerprof.tracing.idle.sample import Sample
from powerprof.tracing.idle.shared import share
from powerprof.tracing.idle.stacks import Stacks
from powerprof.tracing.idle.sums import IdleSums
from powerprof.tracing.idle.tracer import IdleTracer
from powerprof.tracing.symbols.kernel import kernel_functions, tick_handler

Definitions = dict[str, int | str]
_FIELDS = {
    "task_struct_pid": ("task_struct", "pid"),
    "task_struct_tgid": ("task_struct", "tgid"),
    "task_struct_comm": ("task_struct", "comm"),
    "task_struct_stack": ("task_struct", "stack"),
    "task_struct_nvcsw": ("task_struct", "nvcsw"),
    "task_struct_nivcsw": ("task_struct", "nivcsw"),
    "task_struct_flags": ("task_struct", "flags"),
    "task_struct_start_time": ("task_struct", "start_time"),
    "hrtimer_function": ("hrtimer", "function"),
    "timer_list_function": ("timer_list", "function"),
    "work_struct_func": ("work_struct", "func"),
}
# Of periods, 2 MiB are 7,000: the reader is called when a quarter of that waits. One page where none is sent.
EXIT_PAGES, _NO_EXIT_PAGES = 512, 1
# Of stacks, 4 MiB: the reader is called when 64 of the largest wait, and there is room for 190 more until it comes.
# What finds none is sent at the thread's next sleep.
_STACK_PAGES = 1024
# On demand 2 MiB, 128 of the largest: those of a second in which all programs of a host are new. What does not fit is
# sent again.
ON_DEMAND: Definitions = {"STACK_PAGES": 512, "ON_DEMAND": 1, "EXIT_PAGES": _NO_EXIT_PAGES}
# Distinct causes in one window: some 300 on an idle server, some thousand with stacks under load.
CAUSES, _CAUSES_WITH_STACKS = 8192, 32768
# Up to 20,000 switch-outs and wakings a second and CPU all are looked at, or 8,000 where it idles less than a tenth of
# the time; above that one in SAMPLE_1_IN.
LOADED_PER_100MS = 2000
SAMPLE_1_IN = 64
# What one thread may send in a window: 256 sites.
THREAD_STACKS = 256


def idle_definitions(btf: Btf) -> Definitions:
    """What the program needs to know of the running kernel. Without stacks."""
    values: Definitions = {
        **cpu_definitions(possible_cpus()),
        "EXIT_PAGES": EXIT_PAGES,
        "STACKS": 0,
        "CAUSE_SLOTS": CAUSES,
    }
    values["DIRECT"] = int(features.reads_directly(btf))
    values.update(struct_definitions(btf, _FIELDS))
    values.update(running.definitions(btf))
    if btf.has_field("task_struct", "on_cpu"):
        values["OFFSET_task_struct_on_cpu"] = btf.field_offset("task_struct", "on_cpu")
    values.update(features.interrupt_definitions(btf))
    values["COARSE_CLOCK"] = features.coarse_clock()
    values.update(argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"))
    values.update({f"HAVE_{name}": 1 for name in TRACEPOINTS if btf.has_tracepoint(name)})
    return values


def stack_definitions(btf: Btf, machine: Machine, joining: Joining, *, system: bool) -> Definitions:
    """The same where stacks are copied: of a window, every sleep's."""
    return {
        **idle_definitions(btf),
        **joining.definitions(btf),
        **register_definitions(btf, machine),
        **_thread_pointer(btf, machine),
        "STACKS": 1,
        "CAUSE_SLOTS": _CAUSES_WITH_STACKS,
        "LOADED_PER_100MS": LOADED_PER_100MS,
        "SATURATED_PER_100MS": LOADED_PER_100MS * 2 // 5,
        "SAMPLE_1_IN": SAMPLE_1_IN,
        "THREAD_STACKS": THREAD_STACKS,
        "TARGET_ALL": int(system),
        "ON_DEMAND": 0,
        "STACK_PAGES": _STACK_PAGES,
    }


def _thread_pointer(btf: Btf, machine: Machine) -> Definitions:
    """By which an interpreter knows the thread (pthread_self): on x86-64 alone that is the thread pointer itself."""
    if machine is not X86_64:
        return {}
    offset = btf.field_offset("task_struct", "thread") + btf.field_offset("thread_struct", "fsbase")
    return {"OFFSET_task_struct_thread_pointer": offset}


def load(btf: Btf, definitions: Mapping[str, int | str]) -> LoadedProgram:
    """The program, loaded and running. Raises CapabilityError where this host or user may not."""
    cpus = int(definitions["NR_CPUS"])
    # Beside the kernel's verifier, which takes as long: the kernel makes its list of names while it is read.
    with ThreadPoolExecutor(1) as beside:
        handler = beside.submit(tick_handler, btf)
        program = LoadedProgram("idle.bpf.c", {**definitions, **cpu_definitions(cpus)}, btf=btf)
    try:
        # Not a definition: the kernel lies elsewhere after each boot.
        share(program, Shared.TICK_HANDLER, handler.result())
    except BaseException:
        program.close()
        raise
    return program


def _tracing_btf() -> Btf:
    """Of the running kernel. A recorded host cannot be traced."""
    if not is_this_host():
        raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    features.need(features.RING_BUFFER)
    check_process_ids()
    return kernel_btf()


@contextmanager
def trace_exits(more: Mapping[str, int | str] | None = None) -> Iterator[IdleTracer]:
    """Idle exits alone. `more`: definitions beside the kernel's. Raises CapabilityError, PowerprofError."""
    btf = _tracing_btf()
    with load(btf, {**idle_definitions(btf), **(more or {})}) as program:
        yield IdleTracer(program, IdleSums(program), Sample(program), kernel_functions)


@contextmanager
def trace_stacks(target: Target, stack_pages: int = _STACK_PAGES) -> Iterator[tuple[IdleTracer, WindowLooks]]:
    """Idle exits, and every sleep of a target's threads; its processes are looked at. For windows.

    Raises CapabilityError, PowerprofError.
    """
    with _with_stacks(target, every_program, {"STACK_PAGES": stack_pages}) as (program, sums, stacks, members):
        looks = WindowLooks(program, stacks, members)
        members.add_all()
        yield IdleTracer(program, sums, Sample(program), kernel_functions, looks), looks


@contextmanager
def trace_on_demand(target: Target) -> Iterator[tuple[IdleTracer, DemandLooks]]:
    """Idle exits without single periods, and the sleeps that idle exits are blamed on. For `TraceMonitor`.

    Raises CapabilityError, PowerprofError.
    """
    with _with_stacks(target, latest_program, ON_DEMAND) as (program, sums, stacks, members):
        looks = DemandLooks(program, sums, stacks, members)
        if not target.system:
            members.add_all()
        yield IdleTracer(program, sums, Sample(program, wanted=False), kernel_functions, looks), looks


@contextmanager
def _with_stacks(
    target: Target, remember: Remember, more: Mapping[str, int | str]
) -> Iterator[tuple[LoadedProgram, IdleSums, Stacks, TargetMembers]]:
    """The program with stacks, and the parts that keep what it gives. No process is looked at yet."""
    btf, machine, joining = _tracing_btf(), this_machine(), Joining(target)
    definitions = {**stack_definitions(btf, machine, joining, system=target.system), **more}
    with load(btf, definitions) as program, closing(TargetMembers(program, target, joining, remember)) as members:
        sums = IdleSums(program, members)
        stacks = Stacks(program, sums, members, machine, direct=bool(definitions["DIRECT"]))
        yield program, sums, stacks, members
