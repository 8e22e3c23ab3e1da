# SPDX-License-Identifier: Apache-2.0
"""What a BPF program has to be told of the running kernel, as definitions in front of its text.

Struct offsets and the places of tracepoints' arguments come from BTF, never from headers: those of another version give
silently wrong ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from powerprof import paths
from powerprof.files import read_text
from powerprof.tracing.bpf.btf import Btf

STACK_RING_PAGES = 2048


def possible_cpus() -> int:
    """One more than the highest CPU number that this kernel may ever have (from `possible`, such as 0-63)."""
    text = read_text(paths.sysfs() / "devices/system/cpu/possible")
    return int(text.replace(",", "-").split("-")[-1]) + 1


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
        # Faults are many and taken near the leaf; samples are few, and paths that differ deep down are told apart.
        "HASHED_BYTES": 4096 if event == "cpu-clock" else 2048,
        "STACK_PAGES": ring_pages,
    }
