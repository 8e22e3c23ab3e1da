# SPDX-License-Identifier: Apache-2.0
"""What a BPF program has to know of the running kernel, as definitions in front of its text.

Struct offsets and the places of tracepoints' arguments come from BTF, never from headers: those of another version give
silently wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from powerprof import paths
from powerprof.files import read_text
from powerprof.stacks.registers import Machine
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.shared_numbers import GROUP_SPAN

STACK_RING_PAGES = 2048


def possible_cpus() -> int:
    """One more than the highest CPU number that this kernel may ever have (from `possible`, such as 0-63)."""
    text = read_text(paths.sysfs() / "devices/system/cpu/possible")
    return int(text.replace(",", "-").split("-")[-1]) + 1


def cpu_definitions(cpus: int) -> dict[str, int]:
    """How many CPUs there may be, and the groups of them that busy.bpf.h looks at."""
    return {"NR_CPUS": cpus, "GROUP_CPUS": min(cpus, GROUP_SPAN), "CPU_GROUPS": -(-cpus // GROUP_SPAN)}


def struct_definitions(btf: Btf, fields: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """`OFFSET_<name>` for each name → (struct, field)."""
    return {f"OFFSET_{name}": btf.field_offset(*where) for name, where in fields.items()}


def argument_definitions(btf: Btf, tracepoint: str, usual: Sequence[str], *optional: str) -> dict[str, int]:
    """`ARG_<tracepoint>_<argument>`: where a raw tracepoint passes its arguments on this kernel.

    `usual` is their order where the kernel does not name them; those of `optional` are defined where it does.
    """
    named = btf.tracepoint_arguments(tracepoint)
    order = named if all(name in named for name in usual) else tuple(usual)
    wanted = [*usual, *(name for name in optional if name in order)]
    return {f"ARG_{tracepoint}_{name}": order.index(name) for name in wanted}


def path_definitions(
    every_process: bool = False, event: str = "cpu-clock", ring_pages: int = STACK_RING_PAGES
) -> dict[str, int | str]:
    """What paths.bpf.h is compiled with."""
    return {
        "EVERY_PROCESS": int(every_process),
        # Faults are many and taken near the leaf; samples are few, and paths that differ deep down are distinguished.
        "HASHED_BYTES": 4096 if event == "cpu-clock" else 2048,
        "STACK_PAGES": ring_pages,
    }


# How to tell that a thread's registers are those it had in user space: x86-64 by its code and stack segments
# (arch/x86/include/asm/segment.h: __USER_CS, __USER32_CS, __USER_DS), arm64 by the exception level in pstate.
_FROM_USER = {
    "x86_64": "(((words)[17] == 0x33 || (words)[17] == 0x23) && (words)[20] == 0x2b)",
    "aarch64": "(((words)[33] & 0xf) == 0)",
}


def register_definitions(btf: Btf, machine: Machine) -> dict[str, int | str]:
    """Where registers lie in what is copied, and how they are found and recognised."""
    return {
        "REGISTER_COUNT": len(machine.names),
        "REGISTER_IP": machine.ip,
        "REGISTER_SP": machine.sp,
        "PT_REGS_BYTES": btf.struct_size("pt_regs"),
        "REGISTERS_ARE_USERS(words)": _FROM_USER[machine.name],
        "CODE_ADDRESS_MASK": f"{machine.address_mask}ULL",
    }
