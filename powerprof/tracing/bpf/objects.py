# SPDX-License-Identifier: Apache-2.0
"""Find compiled programs: the one that powerprof carries if it fits, else one that this host compiles and keeps.

A kept program is named by all its inputs: source and definitions, the kernel and its BTF, and the compiler. It is
loaded into the kernel, so its folder is writable only by root (or the acting user).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError
from powerprof.system.folders import Folder
from powerprof.system.next_steps import command_line
from powerprof.tracing.bpf.features import not_permitted_error
from powerprof.tracing.bpf.syscalls import INSTRUCTION

_LOAD_IMMEDIATE = 0x18  # BPF_LD | BPF_IMM | BPF_DW: two slots of eight bytes
_MAP, _VARIABLE = 1, 3  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_BTF_ID


class MapPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A map to create."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class ProgramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A program to load. In `code` a map is its index in Compiled.maps."""

    name: str
    code: bytes


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled program as data: maps and instructions that any process may load without a compiler."""

    maps: list[MapPlan]
    programs: list[ProgramPlan]


def replace_map_numbers(code: bytes, numbers: Mapping[int, int]) -> bytes:
    """Return the instructions with each map's descriptor replaced by its index."""
    patched = bytearray(code)
    for at, kind, number in _find_references(code):
        if kind == _MAP:
            if number not in numbers:
                raise DataError("compiled program", f"refers to a map {number} that it does not have")
            _write_reference(patched, at, kind, numbers[number])
    return bytes(patched)


def link_maps(code: bytes, descriptors: Mapping[int, int]) -> bytes:
    """Return the instructions with each map's index replaced by its descriptor.

    References to other maps and to the variable 0 become numbers. Only code of a switch that is off has them. The
    verifier never reaches it, but the kernel looks up all references.
    """
    patched = bytearray(code)
    for at, kind, number in _find_references(code):
        if kind == _MAP and number in descriptors:
            _write_reference(patched, at, kind, descriptors[number])
        elif kind == _MAP or (kind == _VARIABLE and not number):
            _write_reference(patched, at, 0, 0)
    return bytes(patched)


def _find_references(code: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (place, kind, number) of the instructions that load an address."""
    operations = code[:: INSTRUCTION.size]
    slot = operations.find(_LOAD_IMMEDIATE)
    while slot >= 0:
        at = slot * INSTRUCTION.size
        _, registers, _, number = INSTRUCTION.unpack_from(code, at)
        yield at, registers >> 4, number
        slot = operations.find(_LOAD_IMMEDIATE, slot + 2)


def _write_reference(code: bytearray, at: int, kind: int, number: int) -> None:
    operation, registers, offset, _ = INSTRUCTION.unpack_from(code, at)
    INSTRUCTION.pack_into(code, at, operation, registers & 15 | kind << 4, offset, number)


def pack_compiled(compiled: Compiled) -> bytes:
    """Return the bytes that `unpack_compiled` reads."""
    return msgspec.msgpack.encode(compiled)


def unpack_compiled(packed: bytes) -> Compiled | None:
    """Return the program, or None for a truncated file."""
    try:
        return msgspec.msgpack.decode(packed, type=Compiled)
    except msgspec.MsgspecError:
        return None


# Carried objects are compiled when powerprof is built (`make probes`). A host that they fit needs no compiler, headers
# or bcc.
#
# What depends on the running kernel and on the command are numbers (field offsets, sizes of tables, switches), filled
# into the instructions (load_time.bpf.h). The kernel's verifier removes the code of a switch that is off; its tables
# are not created and its functions not loaded. The few other definitions change the text and therefore the object: its
# *shape*. If no object has the shape, bcc compiles.

Definitions = Mapping[str, int | str]

_CARRIED_FORMAT = "2"
_CARRIED_MOST_BYTES = 4 << 20
# bcc on x86-64 makes them; a machine of another byte order would read other instructions.
_CARRIED_FOR = ("x86_64", "aarch64")
_NUMBERS = re.compile(
    r"OFFSET_\w+|ARG_\w+|ARGUMENT_\d|HAS_\w+|HAVE_\w+|NR_CPUS|GROUP_CPUS|CPU_GROUPS|CAUSE_SLOTS|(EXIT|STACK)_PAGES"
    r"|PT_REGS_BYTES|PREEMPT_COUNT|COARSE_CLOCK|VECTORS_IN_PAIRS|ARE_IDS_ADJACENT|STACKS|TARGET_ALL|ON_DEMAND"
    r"|GROWS|GROWS_BY_NAME|THREADS|ENDED_KEPT|STATE_FASTPATH|PORTAL_TEXT|LAYOUT|FUNCTIONS|EVERY_PROCESS|SAMPLES"
    r"|HASHED_CHUNKS|COMPAT_MASK"
)
_CONDITION = "__if_"  # FUNCTION_IF of load_time.bpf.h
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
        _CARRIED_FORMAT,
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
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(data, _CARRIED_MOST_BYTES), type=Carried)
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


def select_programs(compiled: Compiled, definitions: Definitions) -> list[ProgramPlan]:
    """Return the programs whose conditions are met by the definitions, under their names without conditions."""
    found = []
    for plan in compiled.programs:
        name, *conditions = plan.name.split(_CONDITION)
        if all(definitions.get(condition) for condition in conditions):
            found.append(ProgramPlan(name=name, code=plan.code))
    return found


_FORMAT = "2"
_BTF = Path("/sys/kernel/btf/vmlinux")
_MOST_BYTES = 16 << 20
_KEPT = 32
# clang needs 4 s of CPU time; an emulated or overloaded host takes minutes, which is not a failure.
_COMPILE_AT_MOST_S = 600.0
_NO_BCC = 3


def read_source(name: str) -> str:
    """Return a shipped program with its own headers inserted: bcc translates table operations only in the main text."""
    text = (paths.data_dir("probes") / "bpf" / name).read_text()
    return re.sub(r'^#include "([\w.]+)"$', lambda match: read_source(match[1]), text, flags=re.MULTILINE)


def build_source_text(name: str, definitions: Mapping[str, int | str]) -> str:
    """Return the whole text to compile."""
    return "".join(f"#define {key} {value}\n" for key, value in definitions.items()) + read_source(name)


def _compiler() -> str:
    """Return the identity of bcc without loading it, because it maps clang into this process."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or not spec.origin:
        return "none"
    info = Path(spec.origin).stat()
    return f"{spec.origin} {info.st_size} {info.st_mtime_ns}"


def _key(text: str) -> str:
    digest = hashlib.sha256()
    system = os.uname()
    for part in (_FORMAT, system.machine, system.release, system.version, _compiler(), text):
        digest.update(part.encode() + b"\0")
    with suppress(OSError):
        digest.update(_BTF.read_bytes())
    return digest.hexdigest()


def _compile(text: str) -> Compiled:
    from powerprof.tracing.bpf.headers import find_kernel_headers

    headers = find_kernel_headers()
    words = programs.python_command("-m", "powerprof.tracing.bpf.compiler", *([headers] if headers is not None else []))
    try:
        done = programs.run(words, stdin=text, timeout_s=_COMPILE_AT_MOST_S, check=False)
    except PowerprofError as error:
        raise PowerprofError(f"cannot compile BPF programs: {error.message}", error.hint) from error
    if done.returncode == _NO_BCC:
        raise CapabilityError("bcc is not installed", "apt install python3-bpfcc")
    result = None
    if done.returncode == 0:
        result = unpack_compiled(base64.b64decode(done.stdout))
    if result is None:
        raise _explained(done.stderr)
    return result


def _explained(output: str) -> PowerprofError:
    """Return the error for a failed compilation. `output`: of bcc and clang, with bcc's own message last."""
    text = output.lower()
    if os.geteuid() != 0 or "permitted" in text or "permission" in text:
        return not_permitted_error()
    if "kernel headers" in text or "file not found" in text:
        from powerprof.tracing.bpf.headers import install_command

        return CapabilityError("cannot compile BPF programs: kernel headers do not fit", install_command())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if "error:" in line), lines[-1] if lines else "no reason given")
    return PowerprofError(
        f"cannot compile BPF programs: {reason[:300]}", f"for what works here: {command_line('doctor')}"
    )


def uses_carried_programs() -> bool:
    """Return whether carried programs are used. POWERPROF_CARRIED=0 compiles all of them on this host."""
    return os.environ.get("POWERPROF_CARRIED") != "0"


def find_carried(name: str, definitions: Mapping[str, int | str]) -> Compiled | None:
    """Return the carried program of `probes/bpf/<name>`, or None if none fits or none is wanted."""
    if not uses_carried_programs() or os.uname().machine not in _CARRIED_FOR:
        return None
    carried = read_carried(object_name(name, read_source(name), definitions))
    return None if carried is None else fill_carried(carried, definitions)


def find_compiled(name: str, definitions: Mapping[str, int | str], *, cached: bool = True) -> Compiled:
    """Return `probes/bpf/<name>` compiled by this host's bcc, from the cache unless `cached` is False.

    Raises CapabilityError if this host cannot compile (no bcc, no headers, not permitted), PowerprofError.
    """
    text = build_source_text(name, definitions)
    if not cached:
        return _compile(text)
    key = f"{name.partition('.')[0]}-{_key(text)[:40]}"
    try:
        with Folder.open(paths.cache_folder("bpf")) as objects_folder:
            return _kept(objects_folder, key) or _keep(objects_folder, key, _compile(text))
    except (OSError, PowerprofError) as error:
        if isinstance(error, PowerprofError) and not str(error).startswith(("cannot create", "cannot keep")):
            raise
    return _compile(text)


def _kept(objects_folder: Folder, key: str) -> Compiled | None:
    try:
        return unpack_compiled(objects_folder.read(key, _MOST_BYTES))
    except OSError:
        return None


def _keep(objects_folder: Folder, key: str, made: Compiled) -> Compiled:
    """Save a program and delete all but the latest others: every kernel and every setting makes one."""
    with suppress(OSError):  # nothing is kept then: the next run compiles again
        objects_folder.write(key, pack_compiled(made))
        names = sorted(objects_folder.names(), key=lambda entry: objects_folder.stat(entry).st_mtime_ns)
        for name in names[:-_KEPT]:
            objects_folder.remove(name)
    return made
