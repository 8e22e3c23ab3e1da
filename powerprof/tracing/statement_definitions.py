# SPDX-License-Identifier: Apache-2.0
"""The numbers that the loader fills into queries.bpf.c and moments.bpf.c."""

from __future__ import annotations

from powerprof.model.identities import STATES
from powerprof.tracing import postgresql_places
from powerprof.tracing.bpf import features
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.definitions import (
    NO_PATHS,
    build_argument_definitions,
    build_path_definitions,
    build_struct_definitions,
    build_switch_definitions,
)
from powerprof.tracing.bpf.task_definitions import build_task_definitions
from powerprof.tracing.postgresql_places import POSTGRESQL_LAYOUT
from powerprof.tracing.statement_tables import TEXT_BYTES

Definitions = dict[str, int | str]

_TOTALS, _TEXTS, _PIECES, _PREPARED, _MOMENTS = 131_072, 16_384, 8_192, 65_536, 65_536
_MOST_MEMBERS = 65_536
# The field with the base of a thread's own variables: fs's base, and tpidr_el0, the first word of `uw`
# (arch/arm64/include/asm/processor.h). The kernel saves it at a switch; clone(2) sets it for new threads.
POINTERS = {"x86_64": "fsbase", "aarch64": "uw"}
# The place of the number of a system call in struct pt_regs, and the number of sendto.
CALLS = {"x86_64": (8 * 15, 44), "aarch64": (8 * 35, 206)}


def has_run_queue(btf: Btf) -> bool:
    """Return whether the kernel sums the time that a thread waits for a CPU."""
    return btf.has_field("sched_info", "run_delay")


def build_query_definitions(
    btf: Btf, layout: int, version: str | None, threads: int, *, sends: bool, stacks: bool
) -> Definitions:
    """Return the definitions of queries.bpf.c.

    `layout`, `version`: of the server (`Dispatch`). `threads`: the size of its tables of threads. `sends`: the kernel
    shows data sent by sockets. `stacks`: samples are counted by statement as well.
    """
    fields = {
        "task_struct_se": ("task_struct", "se"),
        "task_struct_min_flt": ("task_struct", "min_flt"),
        "sched_entity_sum_exec_runtime": ("sched_entity", "sum_exec_runtime"),
    }
    found: Definitions = {
        "TEXT": TEXT_BYTES,
        "STATES": STATES,
        "THREADS": threads,
        "ENDED_KEPT": threads // 2,
        "TOTALS": _TOTALS,
        "TEXTS": _TEXTS,
        "PREPARED": _PREPARED,
        "PIECES": _PIECES,
        "IS_POSTGRESQL": int(layout == POSTGRESQL_LAYOUT),
        "HAS_SEND": int(sends),
        "HAS_REGISTERS": int(_has_registers()),
        **build_task_definitions(btf),
        **build_switch_definitions(btf),
        **build_struct_definitions(btf, fields),
        **_build_pointer_definitions(btf, "x86_64"),
        **_build_run_queue_definitions(btf),
        **(build_path_definitions() if stacks else NO_PATHS),
    }
    if layout == POSTGRESQL_LAYOUT:
        return found | _of_postgresql(btf, version)
    clock = {"task_struct_signal": ("task_struct", "signal")}
    clock["signal_struct_sum_sched_runtime"] = ("signal_struct", "sum_sched_runtime")
    return {**found, "LAYOUT": layout, **build_struct_definitions(btf, clock)}


def _has_registers() -> bool:
    """Return whether programs can read the user registers of the current thread."""
    return all(features.has_feature(one) for one in (features.CURRENT_TASK, features.TASK_REGISTERS))


def _build_pointer_definitions(btf: Btf, machine: str) -> dict[str, int]:
    """Return the places of the base of a thread's own variables."""
    return build_struct_definitions(
        btf,
        {
            "task_struct_thread": ("task_struct", "thread"),
            "thread_struct_pointer": ("thread_struct", POINTERS[machine]),
        },
    )


def _build_run_queue_definitions(btf: Btf) -> dict[str, int]:
    fields = {
        "task_struct_sched_info": ("task_struct", "sched_info"),
        "sched_info_run_delay": ("sched_info", "run_delay"),
    }
    if not has_run_queue(btf):
        return {"HAS_RUN_DELAY": 0, **{f"OFFSET_{name}": 0 for name in fields}}
    return {"HAS_RUN_DELAY": 1, **build_struct_definitions(btf, fields)}


def _of_postgresql(btf: Btf, version: str | None) -> Definitions:
    major = postgresql_places.major_of(version)
    return {
        **build_argument_definitions(btf, "sched_process_fork", ("parent", "child")),
        "FAMILY": _MOST_MEMBERS,
        "STATE_FASTPATH": postgresql_places.RUNNING[major >= 18] + 2,
        # PortalData: createLevel was inserted in PostgreSQL 14. With an unknown version nothing is read.
        "PORTAL_TEXT": 56 if major >= 14 else 48 if major else 0,
    }


def build_moment_definitions(btf: Btf, machine: str, *, postgresql: bool) -> Definitions:
    """Return the definitions of moments.bpf.c, on a machine of POINTERS."""
    fields = {"task_struct_real_parent": ("task_struct", "real_parent")}
    call_offset, sendto = CALLS[machine]
    return {
        "TEXT": TEXT_BYTES,
        "STATES": STATES,
        "TEXTS": _TEXTS,
        "PIECES": _PIECES,
        "MOMENTS": _MOMENTS,
        "IS_POSTGRESQL": int(postgresql),
        "HAS_REGISTERS": int(_has_registers()),
        "CALL_OFFSET": call_offset,
        "CALL_SENDTO": sendto,
        **build_task_definitions(btf),
        **build_struct_definitions(btf, fields),
        **_build_pointer_definitions(btf, machine),
    }
