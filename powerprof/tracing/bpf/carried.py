# SPDX-License-Identifier: Apache-2.0
"""Find the objects that powerprof carries. A host that they fit needs no compiler, headers or bcc.

They are compiled when powerprof is built (`make probes`). What depends on the running kernel and on the command are
numbers (field offsets, sizes of tables, switches), filled into the instructions (load_time.bpf.h). The kernel's
verifier removes the code of a switch that is off; its tables are not created and its functions not loaded. The few
other definitions change the text and therefore the object: its *shape*. If no object has the shape, bcc compiles.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from pathlib import Path

import msgspec

from powerprof.system import paths
from powerprof.tracing.bpf.objects import Compiled, Definitions, ProgramPlan, read_source
from powerprof.tracing.bpf.syscalls import INSTRUCTION

_FORMAT = "2"
_MOST_BYTES = 4 << 20
# bcc on x86-64 makes them; a machine of another byte order would read other instructions.
_MACHINES = ("x86_64", "aarch64")
_NUMBERS = re.compile(
    r"OFFSET_\w+|ARG_\w+|ARGUMENT_\d|HAS_\w+|HAVE_\w+|NR_CPUS|GROUP_CPUS|CPU_GROUPS|CAUSE_SLOTS|(EXIT|STACK)_PAGES"
    r"|PT_REGS_BYTES|PREEMPT_COUNT|VECTORS_IN_PAIRS|ARE_IDS_ADJACENT|STACKS|TARGET_ALL|ON_DEMAND"
    r"|GROWS|GROWS_BY_NAME|THREADS|ENDED_KEPT|STATE_FASTPATH|PORTAL_TEXT|LAYOUT|FUNCTIONS|EVERY_PROCESS|SAMPLES"
    r"|PID_LEVEL|PID_NAMESPACE|HASHED_CHUNKS|COMPAT_MASK|IS_ATTACHED|HELPER|KPROBE_HELPER|READS_MEMORY"
    r"|NAMES_FUNCTIONS|FINDS_FUNCTIONS|CALL_OFFSET|CALL_SENDTO"
)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ENTRIES, _VALUE_BYTES = -1, -2


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    """A number to fill in: `base` plus multiples of definitions (`terms`).

    `program`: the index of the program, and `at` that of its instruction; −1: the entries of the map `at`; −2: the
    bytes of its values. `is_offset`: the instruction's offset of 16 bits, not its number of 32.
    """

    program: int
    at: int
    is_offset: bool
    base: int
    terms: dict[str, int]


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """A carried object. `compiled` has arbitrary numbers in the `places`."""

    name: str
    shape: dict[str, int | str]
    numbers: list[str]
    compiled: Compiled
    places: list[Placeholder]


def select_numbers(definitions: Definitions) -> dict[str, int]:
    """Return the definitions that are filled in."""
    return {name: value for name, value in definitions.items() if isinstance(value, int) and _NUMBERS.fullmatch(name)}


def select_shape(definitions: Definitions) -> dict[str, int | str]:
    """Return the definitions that select an object."""
    numbers = select_numbers(definitions)
    return {name: value for name, value in definitions.items() if name not in numbers}


def object_name(name: str, source: str, definitions: Definitions) -> str:
    """Return the file name of the object of this shape and source. Comments and empty lines do not count."""
    bare = "\n".join(line.rstrip() for line in _COMMENT.sub("", source).splitlines() if line.strip())
    parts: tuple[object, ...] = (
        _FORMAT,
        bare,
        sorted(select_shape(definitions).items()),
        sorted(select_numbers(definitions)),
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"{name.partition('.')[0]}-{digest[:16]}"


def objects_folder() -> Path:
    """Return the folder of the carried objects. Most serve every machine that they are carried for."""
    return paths.data_dir("probes") / "compiled"


def pack_carried(carried: Carried) -> bytes:
    """Return the bytes of a file."""
    data = zlib.compress(msgspec.msgpack.encode(carried), 9)
    return hashlib.sha256(data).digest() + data


def unpack_carried(packed: bytes) -> Carried | None:
    """Return the object of a file, or None unless `pack_carried` made it."""
    digest, data = packed[:32], packed[32:]
    if hashlib.sha256(data).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(data, _MOST_BYTES), type=Carried)
    except (msgspec.MsgspecError, zlib.error):
        return None


def read_carried(file: str, where: Path | None = None) -> Carried | None:
    """Return the object of a file, or None if it is missing or damaged."""
    try:
        return unpack_carried(((where or objects_folder()) / file).read_bytes())
    except OSError:
        return None


def fill_carried(carried: Carried, definitions: Definitions) -> Compiled | None:
    """Return the program for these definitions, or None if a number does not fit into its instruction."""
    numbers = select_numbers(definitions)
    codes = [bytearray(program.code) for program in carried.compiled.programs]
    maps = list(carried.compiled.maps)
    for place in carried.places:
        value = place.base + sum(factor * numbers[name] for name, factor in place.terms.items())
        if place.program == _ENTRIES:
            maps[place.at] = msgspec.structs.replace(maps[place.at], entries=value)
            continue
        if place.program == _VALUE_BYTES:
            maps[place.at] = msgspec.structs.replace(maps[place.at], value_bytes=value)
            continue
        code, at = codes[place.program], place.at * INSTRUCTION.size
        operation, registers, offset, number = INSTRUCTION.unpack_from(code, at)
        if place.is_offset:
            offset = value
        else:
            number = value
        try:
            INSTRUCTION.pack_into(code, at, operation, registers, offset, number)
        except struct.error:
            return None
    return Compiled(
        maps=maps,
        programs=[
            ProgramPlan(name=plan.name, code=bytes(code))
            for plan, code in zip(carried.compiled.programs, codes, strict=True)
        ],
    )


def uses_carried_programs() -> bool:
    """Return whether carried programs are used. POWERPROF_CARRIED=0 compiles all of them on this host."""
    return os.environ.get("POWERPROF_CARRIED") != "0"


def find_carried(name: str, definitions: Definitions) -> Compiled | None:
    """Return the carried program of `probes/bpf/<name>`, or None if none fits or none is wanted."""
    if not uses_carried_programs() or os.uname().machine not in _MACHINES:
        return None
    carried = read_carried(object_name(name, read_source(name), definitions))
    return None if carried is None else fill_carried(carried, definitions)
