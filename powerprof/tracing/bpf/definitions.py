# SPDX-License-Identifier: Apache-2.0
"""Build the definitions that precede the text of a BPF program.

Struct offsets and places of arguments come from BTF, because headers of another version give silently wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from powerprof.stacks.registers import Machine
from powerprof.system import paths
from powerprof.system.files import read_text
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.shared_numbers import GROUP_SPAN

STACK_RING_PAGES = 2048


def count_possible_cpus() -> int:
    """Return the highest possible CPU number of this kernel plus one (from `possible`, such as 0-63)."""
    text = read_text(paths.sysfs() / "devices/system/cpu/possible")
    return int(text.replace(",", "-").split("-")[-1]) + 1


def build_cpu_definitions(cpus: int) -> dict[str, int]:
    """Return the definitions of the number of CPUs and of the groups that busy_cpus.bpf.h checks."""
    return {"NR_CPUS": cpus, "GROUP_CPUS": min(cpus, GROUP_SPAN), "CPU_GROUPS": -(-cpus // GROUP_SPAN)}


def build_struct_definitions(btf: Btf, fields: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Return `OFFSET_<name>` for each name → (struct, field)."""
    return {f"OFFSET_{name}": btf.field_offset(*where) for name, where in fields.items()}


def build_argument_definitions(btf: Btf, tracepoint: str, usual: Sequence[str]) -> dict[str, int]:
    """Return `ARG_<tracepoint>_<argument>`: the places of a raw tracepoint's arguments on this kernel.

    `usual`: their order if the kernel does not name them.
    """
    named = btf.tracepoint_arguments(tracepoint)
    order = named if all(name in named for name in usual) else tuple(usual)
    return {f"ARG_{tracepoint}_{name}": order.index(name) for name in usual}


def build_switch_definitions(btf: Btf) -> dict[str, int]:
    """Return the places of sched_switch's arguments, and of a thread's state. Since 5.18 the state is an argument."""
    usual, state = ("preempt", "prev", "next"), "prev_state"
    has_state = state in btf.tracepoint_arguments("sched_switch")
    places = build_argument_definitions(btf, "sched_switch", (*usual, state) if has_state else usual)
    field = "__state" if btf.has_field("task_struct", "__state") else "state"  # renamed by 2f064a59a11f
    return {
        f"ARG_sched_switch_{state}": 0,
        **places,
        "HAS_PREV_STATE": int(has_state),
        "OFFSET_task_struct_state": btf.field_offset("task_struct", field),
    }


def build_path_definitions(
    every_process: bool = False, event: str = "cpu-clock", ring_pages: int = STACK_RING_PAGES
) -> dict[str, int | str]:
    """Return the definitions of sampled_stacks.bpf.h."""
    return {
        "SAMPLES": 1,
        "EVERY_PROCESS": int(every_process),
        # Of 256 bytes. Faults are frequent and near the leaf. Samples are rare, and their paths may differ further up.
        "HASHED_CHUNKS": 16 if event == "cpu-clock" else 8,
        "STACK_PAGES": ring_pages,
    }


# A program with sampled_stacks.bpf.h whose paths are not wanted.
NO_PATHS = {"SAMPLES": 0, "EVERY_PROCESS": 0, "HASHED_CHUNKS": 0, "STACK_PAGES": 0}


# Registers of user space are recognised on x86-64 by their code and stack segments (arch/x86/include/asm/segment.h:
# __USER_CS, __USER32_CS, __USER_DS), on arm64 by the exception level in pstate.
_FROM_USER = {
    "x86_64": "(((words)[17] == 0x33 || (words)[17] == 0x23) && (words)[20] == 0x2b)",
    "aarch64": "(((words)[33] & 0xf) == 0)",
}


def build_register_definitions(btf: Btf, machine: Machine) -> dict[str, int | str]:
    """Return the definitions of register places, and of the search for saved registers."""
    return {
        "REGISTER_COUNT": len(machine.names),
        "REGISTER_IP": machine.ip,
        "REGISTER_SP": machine.sp,
        "PT_REGS_BYTES": btf.struct_size("pt_regs"),
        "REGISTERS_ARE_USERS(words)": _FROM_USER[machine.name],
        "CODE_ADDRESS_MASK": f"{machine.address_mask}ULL",
    }
