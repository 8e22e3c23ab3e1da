# SPDX-License-Identifier: Apache-2.0
"""What queries.bpf.c and moments.bpf.c have to know of the running kernel and of the server."""

from __future__ import annotations

import re

from powerprof.statements.identity import STATES
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import argument_definitions, path_definitions, struct_definitions
from powerprof.tracing.bpf.shared_numbers import POSTGRESQL
from powerprof.tracing.statements.tables import TEXT_BYTES

Definitions = dict[str, int | str]

_TOTALS, _TEXTS, _PIECES, _PREPARED, _MOMENTS = 131_072, 16_384, 8_192, 65_536, 65_536
_MOST_MEMBERS = 65_536
_FASTPATH_FROM_18, _FASTPATH_TO_17 = 5, 4  # BackendState: one came before it in PostgreSQL 18
# Where the kernel keeps what a thread finds its own variables by: fs's base, and tpidr_el0, the first word of `uw`
# (arch/arm64/include/asm/processor.h). It saves them as it switches; threads have theirs from clone(2) on.
POINTERS = {"x86_64": "fsbase", "aarch64": "uw"}


def sees_run_queue(btf: Btf) -> bool:
    """Whether the kernel sums how long a thread waits for a CPU."""
    return btf.has_field("sched_info", "run_delay")


def definitions(btf: Btf, layout: int, version: str | None, threads: int, *, sends: bool, stacks: bool) -> Definitions:
    """Of queries.bpf.c.

    `layout`, `version`: of the server (`Dispatch`). `threads`: the size of its tables of threads. `sends`: the kernel
    shows what sockets send. `stacks`: samples are counted by statement as well.
    """
    fields = {
        "task_struct_pid": ("task_struct", "pid"),
        "task_struct_tgid": ("task_struct", "tgid"),
        "task_struct_se": ("task_struct", "se"),
        "task_struct_min_flt": ("task_struct", "min_flt"),
        "sched_entity_sum_exec_runtime": ("sched_entity", "sum_exec_runtime"),
    }
    state = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
    found: Definitions = {
        "TEXT": TEXT_BYTES,
        "STATES": STATES,
        "THREADS": threads,
        "ENDED_KEPT": threads // 2,
        "TOTALS": _TOTALS,
        "TEXTS": _TEXTS,
        "PREPARED": _PREPARED,
        "PIECES": _PIECES,
        "LAYOUT": layout,
        **struct_definitions(btf, {**fields, "task_struct_state": ("task_struct", state)}),
        **argument_definitions(btf, "sched_switch", ("preempt", "prev", "next"), "prev_state"),
    }
    if layout == POSTGRESQL:
        found |= _of_postgresql(btf, version)
    else:
        clock = {"task_struct_signal": ("task_struct", "signal")}
        clock["signal_struct_sum_sched_runtime"] = ("signal_struct", "sum_sched_runtime")
        found |= struct_definitions(btf, clock)
    if sees_run_queue(btf):
        queue = {"task_struct_sched_info": ("task_struct", "sched_info")}
        queue["sched_info_run_delay"] = ("sched_info", "run_delay")
        found |= struct_definitions(btf, queue)
    if all(features.has(feature) for feature in (features.CURRENT_TASK, features.TASK_REGISTERS)):
        found["HAS_REGISTERS"] = 1
    if stacks:
        found |= path_definitions()
    return {**found, "HAS_SEND": 1} if sends else found


def _of_postgresql(btf: Btf, version: str | None) -> Definitions:
    number = re.match(r"\d+", version or "")
    major = int(number[0]) if number else 0
    return {
        **argument_definitions(btf, "sched_process_fork", ("parent", "child")),
        "FAMILY": _MOST_MEMBERS,
        "STATE_FASTPATH": _FASTPATH_FROM_18 if major >= 18 else _FASTPATH_TO_17,
        # PortalData: createLevel came before it in PostgreSQL 14. Of an unknown version nothing is read.
        "PORTAL_TEXT": 56 if major >= 14 else 48 if major else 0,
    }


def moment_definitions(btf: Btf, machine: str, *, postgresql: bool) -> Definitions:
    """Of moments.bpf.c, on a machine of POINTERS."""
    fields = {
        "task_struct_pid": ("task_struct", "pid"),
        "task_struct_tgid": ("task_struct", "tgid"),
        "task_struct_real_parent": ("task_struct", "real_parent"),
        "task_struct_thread": ("task_struct", "thread"),
        "thread_struct_pointer": ("thread_struct", POINTERS[machine]),
    }
    return {
        "TEXT": TEXT_BYTES,
        "STATES": STATES,
        "TEXTS": _TEXTS,
        "PIECES": _PIECES,
        "MOMENTS": _MOMENTS,
        "LAYOUT": POSTGRESQL if postgresql else 0,
        **struct_definitions(btf, fields),
    }
