# SPDX-License-Identifier: Apache-2.0
"""Load the idle-exit program: its definitions for this kernel and target, and a load next to other work.

This module does without numpy. A command starts the load first and imports the rest while the kernel verifies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from powerprof.stacks.registers import MACHINES, X86_64, Machine, this_machine
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError
from powerprof.system.paths import is_this_host
from powerprof.system.pid_namespaces import check_process_ids
from powerprof.system.targets import Target
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf, read_kernel_btf
from powerprof.tracing.bpf.definitions import (
    build_argument_definitions,
    build_cpu_definitions,
    build_register_definitions,
    build_struct_definitions,
    build_switch_definitions,
    count_possible_cpus,
)
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Shared
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.kernel_symbols import find_tick_handler

Definitions = dict[str, int | str]
_FIELDS = {
    "task_struct_comm": ("task_struct", "comm"),
    "task_struct_stack": ("task_struct", "stack"),
    "task_struct_nvcsw": ("task_struct", "nvcsw"),
    "task_struct_nivcsw": ("task_struct", "nivcsw"),
    "task_struct_flags": ("task_struct", "flags"),
    "task_struct_start_time": ("task_struct", "start_time"),
    "hrtimer_function": ("hrtimer", "function"),
    "timer_list_function": ("timer_list", "function"),
    "work_struct_func": ("work_struct", "func"),
    "task_struct_se": ("task_struct", "se"),
    "sched_entity_sum_exec_runtime": ("sched_entity", "sum_exec_runtime"),
}
_JOIN_FIELDS = {
    "task_struct_real_parent": ("task_struct", "real_parent"),
    "task_struct_signal": ("task_struct", "signal"),
    "signal_struct_live": ("signal_struct", "live"),
}
# Tracepoints that some kernels lack: a function at one is loaded if HAVE_ and its name is 1.
TRACEPOINTS = (
    *("local_timer_entry", "reschedule_entry", "call_function_entry", "call_function_single_entry"),
    *("irq_work_entry", "x86_platform_ipi_entry", "thermal_apic_entry", "threshold_apic_entry"),
    *("deferred_error_apic_entry", "ipi_entry", "sched_wake_idle_without_ipi", "workqueue_execute_start"),
    *("cpuhp_enter",),
)
_STACK_FIELDS = {"task_struct_mm": ("task_struct", "mm"), "mm_struct_start_stack": ("mm_struct", "start_stack")}
# 2 MiB hold 7,000 periods. The reader is woken when a quarter of the buffer is full.
EXIT_PAGES, _NO_EXIT_PAGES = 512, 1
# 4 MiB of stacks: the reader is woken when 64 of the largest stacks are waiting, and 190 more fit until it reads them.
# A stack that does not fit is sent at the thread's next sleep.
STACK_PAGES = 1024
# 2 MiB on demand: 128 of the largest stacks, as many as in a second in which all programs of a host are new. A stack
# that does not fit is sent again.
ON_DEMAND: Definitions = {"STACK_PAGES": 512, "ON_DEMAND": 1, "EXIT_PAGES": _NO_EXIT_PAGES}
# Distinct causes of one window: about 300 on an idle server, some thousand with stacks under load.
CAUSES, _CAUSES_WITH_STACKS = 8192, 32768
# Every switch-out and waking is examined up to 20,000 per second and CPU, or 8,000 if the CPU idles less than a tenth
# of the time. Above that rate, one in SAMPLE_1_IN is examined.
LOADED_PER_100MS = 2000
SAMPLE_1_IN = 64
# Sites that one thread may send in a window.
THREAD_STACKS = 256


def build_idle_definitions(btf: Btf) -> Definitions:
    """Return the definitions of the idle-exit program for this kernel, without stacks."""
    # Nothing of a stack is read: on a machine whose stacks cannot be unwound, any layout of registers serves.
    machine = MACHINES.get(os.uname().machine, X86_64)
    return {
        **_build_kernel_definitions(btf, machine),
        "CAUSE_SLOTS": CAUSES,
        "EXIT_PAGES": EXIT_PAGES,
        "STACK_PAGES": 0,
        **dict.fromkeys(("STACKS", "TARGET_ALL", "ON_DEMAND", "GROWS", "GROWS_BY_NAME"), 0),
    }


def build_stack_definitions(btf: Btf, machine: Machine, target: Target) -> Definitions:
    """Return the definitions of the idle-exit program with stacks: of a window, at every sleep."""
    return {
        **_build_kernel_definitions(btf, machine),
        "CAUSE_SLOTS": _CAUSES_WITH_STACKS,
        "EXIT_PAGES": EXIT_PAGES,
        "STACK_PAGES": STACK_PAGES,
        "STACKS": 1,
        "TARGET_ALL": int(target.system),
        "ON_DEMAND": 0,
        "GROWS": int(grows(target)),
        "GROWS_BY_NAME": int(grows(target) and target.cgroup is None),
    }


def grows(target: Target) -> bool:
    """Return whether new processes join the target while it is traced (targets.bpf.h)."""
    return not target.system and (target.cgroup is not None or bool(target.roots))


def _build_kernel_definitions(btf: Btf, machine: Machine) -> Definitions:
    """Return the definitions that depend on the kernel and the machine only, and those that never change."""
    on_rq = btf.field_offset("task_struct", "on_rq")
    has_on_cpu = btf.has_field("task_struct", "on_cpu")
    return {
        **build_cpu_definitions(count_possible_cpus()),
        "DIRECT": int(features.can_read_directly(btf)),
        **build_task_definitions(btf),
        **build_switch_definitions(btf),
        **build_argument_definitions(btf, "sched_process_fork", ("parent", "child")),
        **build_struct_definitions(btf, {**_FIELDS, **_JOIN_FIELDS, **_STACK_FIELDS}),
        "OFFSET_task_struct_on_rq": on_rq,
        # Before 6.12 no sleeper stays in a run queue: the highest byte of `on_rq` is always 0.
        "OFFSET_task_struct_sched_delayed": (
            btf.field_offset("task_struct", "se") + btf.field_offset("sched_entity", "sched_delayed")
            if btf.has_field("sched_entity", "sched_delayed")
            else on_rq + 3
        ),
        "HAS_ON_CPU": int(has_on_cpu),
        "OFFSET_task_struct_on_cpu": btf.field_offset("task_struct", "on_cpu") if has_on_cpu else 0,
        **features.build_interrupt_definitions(btf),
        **{f"HAVE_{name}": int(btf.has_tracepoint(name)) for name in TRACEPOINTS},
        **build_register_definitions(btf, machine),
        "LOADED_PER_100MS": LOADED_PER_100MS,
        "SATURATED_PER_100MS": LOADED_PER_100MS * 2 // 5,
        "SAMPLE_1_IN": SAMPLE_1_IN,
        "THREAD_STACKS": THREAD_STACKS,
    }


def load_idle_program(btf: Btf, definitions: Mapping[str, int | str], *, may_compile: bool = True) -> LoadedProgram:
    """Load and attach the idle-exit program. Raises CapabilityError if this host or user may not."""
    filled = {**definitions, **build_cpu_definitions(int(definitions["NR_CPUS"]))}
    # Next to the kernel's verifier: old kernels make their list of names while it is read, which takes as long.
    with ThreadPoolExecutor(1) as executor:
        handler = executor.submit(find_tick_handler)
        program = LoadedProgram("idle.bpf.c", filled, btf=btf, may_compile=may_compile)
    try:
        # Not a definition, because the kernel's addresses change with each boot.
        write_shared(program, Shared.TICK_HANDLER, handler.result())
    except BaseException:
        program.close()
        raise
    return program


def read_tracing_btf() -> Btf:
    """Return the types of the running kernel. Raises CapabilityError if it cannot be traced."""
    if not is_this_host():
        raise CapabilityError("cannot trace a recorded host", "unset POWERPROF_SYSFS and POWERPROF_PROCFS")
    features.require(features.RING_BUFFER)
    check_process_ids()
    return read_kernel_btf()


def write_shared(program: LoadedProgram, which: Shared, value: int) -> None:
    """Set a number that the program reads while it runs."""
    program.put("shared", which, value.to_bytes(8, "little"))


def read_shared(program: LoadedProgram, which: Shared) -> int:
    """Return the number that the program or powerprof wrote last."""
    return int.from_bytes(program.get("shared", which), "little")


class StackProgram(msgspec.Struct, frozen=True):
    """The loaded program with stacks. `is_direct`: typed programs read registers (`features.can_read_directly`)."""

    program: LoadedProgram
    machine: Machine
    is_direct: bool


def load_stack_program(target: Target, more: Mapping[str, int | str], *, may_compile: bool = True) -> StackProgram:
    """Load and attach the program with stacks. Raises CapabilityError, PowerprofError."""
    btf, machine = read_tracing_btf(), this_machine()
    definitions = {**build_stack_definitions(btf, machine, target), **more}
    program = load_idle_program(btf, definitions, may_compile=may_compile)
    return StackProgram(program, machine, bool(definitions["DIRECT"]))


# Seconds after which a thread of Python has to let the other one run. Each of some 60 system calls of the load would
# wait for the default of 5 ms while the other thread imports.
_SWITCH_S = 0.0005


class EarlyLoad(Closeable):
    """A load of the program with stacks that runs in a thread until `take`. A context manager.

    The thread starts no child process and reports no error: the kernel kills the children of a thread that ends, and
    Ctrl-C has to end a compiler. After a failure the caller loads again, and that load reports the error.
    """

    def __init__(self, target: Target, stack_pages: int) -> None:
        self.more: Definitions = {"STACK_PAGES": stack_pages}
        self._interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._pool = ThreadPoolExecutor(1)
        self._load = self._pool.submit(load_stack_program, target, self.more, may_compile=False)
        self._is_taken = False

    def take(self) -> StackProgram | None:
        """Wait for the load and return the program, which then belongs to the caller; None if the load failed."""
        self._wait()
        self._is_taken = True
        return None if self._load.exception() else self._load.result()

    def close(self) -> None:
        """Wait for the load and free a program that was not taken."""
        self._wait()
        if not self._is_taken and not self._load.exception():
            self._load.result().program.close()

    def _wait(self) -> None:
        self._pool.shutdown()
        sys.setswitchinterval(self._interval_s)
