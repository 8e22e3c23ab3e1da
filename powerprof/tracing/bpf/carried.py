# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that powerprof carries: a host that they fit needs no compiler, no headers and no bcc.

An object is compiled when powerprof is built (`make probes`). What depends on the kernel that it runs on is of three
kinds. Numbers (offsets of fields, places of arguments, sizes of tables) are filled into the instructions. Tracepoints
that a kernel lacks take their functions with them. All else, what a kernel can do and what a command wants, makes
another text, and with it another object: the *shape*. Where no object has the shape, bcc compiles as ever.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from powerprof import paths
from powerprof.tracing.bpf.compiled import Compiled, MapPlan, ProgramPlan
from powerprof.tracing.bpf.instructions import INSTRUCTION

Definitions = Mapping[str, int | str]

_FORMAT = "1"
_MOST_BYTES = 4 << 20
_NUMBERS = re.compile(
    r"OFFSET_\w+|ARG_\w+|ARGUMENT_\d|NR_CPUS|GROUP_CPUS|CPU_GROUPS|CAUSE_SLOTS|(EXIT|STACK)_PAGES"
    r"|PT_REGS_BYTES|PREEMPT_COUNT|COARSE_CLOCK|THREADS|ENDED_KEPT|STATE_FASTPATH|PORTAL_TEXT"
)
# Tracepoints that some kernels lack, each with functions of its own and nothing else (`#ifdef HAVE_…` around them).
TRACEPOINTS = (
    "local_timer_entry",
    "reschedule_entry",
    "call_function_entry",
    "call_function_single_entry",
    "irq_work_entry",
    "x86_platform_ipi_entry",
    "thermal_apic_entry",
    "threshold_apic_entry",
    "deferred_error_apic_entry",
    "ipi_entry",
    "sched_wake_idle_without_ipi",
    "workqueue_execute_start",
    "cpuhp_enter",
)
_SWITCHES = {f"HAVE_{name}": name for name in TRACEPOINTS}
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# Two fields that one load reads where they adjoin, as they do but in kernels whose structs are shuffled.
_PID, _TGID = "OFFSET_task_struct_pid", "OFFSET_task_struct_tgid"


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    """A number to be filled in: `base` and so many times each definition.

    `program`: its place among the programs, and `at` the instruction's; −1: the entries of the map `at`.
    `is_offset`: the instruction's offset of 16 bits, not its number of 32.
    """

    program: int
    at: int
    is_offset: bool
    base: int
    terms: dict[str, int]


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """An object as it is carried: `compiled` has any numbers in the `places`."""

    name: str
    shape: dict[str, int | str]
    numbers: list[str]
    compiled: Compiled
    places: list[Placeholder]


def numbers_of(definitions: Definitions) -> dict[str, int]:
    """The definitions that are filled in."""
    return {name: value for name, value in definitions.items() if isinstance(value, int) and _NUMBERS.fullmatch(name)}


def shape_of(definitions: Definitions) -> dict[str, int | str]:
    """The definitions that make another object."""
    numbers = numbers_of(definitions)
    return {name: value for name, value in definitions.items() if name not in numbers and name not in _SWITCHES}


def adjoin(definitions: Definitions) -> bool:
    """Whether a thread's number and its process's lie side by side: only such kernels have carried objects."""
    pid, tgid = definitions.get(_PID), definitions.get(_TGID)
    return tgid is None or (isinstance(pid, int) and tgid == pid + 4)


def object_name(name: str, source: str, definitions: Definitions) -> str:
    """The file of the object of this shape and source. Comments and empty lines are not part of a source."""
    bare = "\n".join(line.rstrip() for line in _COMMENT.sub("", source).splitlines() if line.strip())
    parts: tuple[object, ...] = (_FORMAT, bare, sorted(shape_of(definitions).items()), sorted(numbers_of(definitions)))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"{name.partition('.')[0]}-{digest[:16]}"


def folder(machine: str | None = None) -> Path:
    """Where a machine's objects lie; this one's, where none is named."""
    return paths.data_dir("probes") / "compiled" / (machine or os.uname().machine)


def pack(carried: Carried) -> bytes:
    """What a file holds."""
    data = zlib.compress(msgspec.msgpack.encode(carried), 9)
    return hashlib.sha256(data).digest() + data


def unpack(packed: bytes) -> Carried | None:
    """None for anything but what `pack` made."""
    digest, data = packed[:32], packed[32:]
    if hashlib.sha256(data).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(data, _MOST_BYTES), type=Carried)
    except (msgspec.MsgspecError, zlib.error):
        return None


def read(file: str, where: Path | None = None) -> Carried | None:
    """The object of that file; None where there is none, or a damaged one."""
    try:
        return unpack(((where or folder()) / file).read_bytes())
    except OSError:
        return None


def find(name: str, source: str, definitions: Definitions) -> Compiled | None:
    """The carried program, filled for these definitions; None where none fits."""
    if not adjoin(definitions):
        return None
    carried = read(object_name(name, source, definitions))
    return None if carried is None else filled(carried, definitions)


def _lacking(definitions: Definitions) -> Collection[str]:
    """Tracepoints that this kernel lacks. The end of one comes with its beginning."""
    names = {name for switch, name in _SWITCHES.items() if switch not in definitions}
    return names | {f"{name.removesuffix('_entry')}_exit" for name in names}


def filled(carried: Carried, definitions: Definitions) -> Compiled | None:
    """The program for these definitions; None where a number does not fit into its instruction."""
    numbers = numbers_of(definitions)
    codes = [bytearray(program.code) for program in carried.compiled.programs]
    entries = [plan.entries for plan in carried.compiled.maps]
    for place in carried.places:
        value = place.base + sum(factor * numbers[name] for name, factor in place.terms.items())
        if place.program < 0:
            entries[place.at] = value
            continue
        operation, registers, offset, number = INSTRUCTION.unpack_from(
            codes[place.program], place.at * INSTRUCTION.size
        )
        if place.is_offset:
            offset = value
        else:
            number = value
        try:
            INSTRUCTION.pack_into(
                codes[place.program], place.at * INSTRUCTION.size, operation, registers, offset, number
            )
        except struct.error:
            return None
    lacking = _lacking(definitions)
    return Compiled(
        maps=[with_entries(plan, count) for plan, count in zip(carried.compiled.maps, entries, strict=True)],
        programs=[
            ProgramPlan(name=plan.name, code=bytes(code))
            for plan, code in zip(carried.compiled.programs, codes, strict=True)
            if plan.name.partition("__")[2] not in lacking
        ],
    )


def with_entries(plan: MapPlan, entries: int) -> MapPlan:
    """The map with another number of entries."""
    return msgspec.structs.replace(plan, entries=entries)
