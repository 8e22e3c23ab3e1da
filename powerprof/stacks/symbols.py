# SPDX-License-Identifier: Apache-2.0
"""Runtimes that generate code or schedule threads of their own: recognition, and the names of their code.

A runtime is recognised by the files that a process has mapped. Generated code is in memory without a file. Its names
are only in a perf map, which a runtime writes only with an option.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from powerprof.model.attribution import StackFrame
from powerprof.model.records import Note
from powerprof.stacks.debuginfo import read_debug
from powerprof.stacks.demangle import demangle
from powerprof.stacks.image import Mapping as Mapping_image
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.store import ModuleTables, TableStore
from powerprof.stacks.symtab import SymbolTable
from powerprof.stacks.unwind import Unwound
from powerprof.system.errors import DataError
from powerprof.system.files import try_text
from powerprof.system.foreign_text import printable
from powerprof.system.paths import procfs
from powerprof.system.process_stat import read_process_stat
from powerprof.system.reader_process import Opened, shared
from powerprof.system.tasks import process_folder

# The first word of V8's names is the kind of compilation; a character for the compiler and the name follow.
_V8_KINDS = frozenset({"LazyCompile", "JS", "Function", "Eval", "Script"})
_V8_COMPILERS = "~^+*"
# The start of a script's name after a function's name, which can contain blanks (`get size`).
_SCRIPT = re.compile(r"(?:^| )(?=/|file:|node:|https?:|evalmachine\.|\[eval\])")
_POSITION = re.compile(r"(.*):([0-9]{1,9}):([0-9]{1,9})", re.DOTALL)
# Go threads that wait in these run no goroutine. (findrunnable: before Go 1.19.)
_GO_IDLE = frozenset(f"runtime.{name}" for name in ("findRunnable", "findrunnable", "stopm", "sysmon"))
_NODE_LOOP = frozenset({"uv__io_poll", "uv_run", "node::SpinEventLoopInternal(node::Environment*)"})


class Runtime(msgspec.Struct, frozen=True):
    """One runtime: `files` matches the mapped files that identify it, `interpreter` are its interpreter's symbols."""

    key: str
    name: str
    files: re.Pattern[str]
    interpreter: frozenset[str] = frozenset()

    @property
    def code(self) -> str:
        """The module name of generated code without a name."""
        return f"[{self.name} code]"

    @property
    def interpreting(self) -> str:
        """The function name of the interpreter."""
        return f"[{self.name} interpreter]"


def _runtime(key: str, name: str, files: str, *interpreter: str) -> Runtime:
    return Runtime(key, name, re.compile(files), frozenset(interpreter))


# OpenJ9 also has a file named libjvm.so.
OPENJ9 = _runtime("openj9", "Java", r"libj9vm[0-9]*\.so")
JAVA = _runtime("java", "Java", r"libjvm\.so", "Interpreter")
NODE = _runtime(
    "node",
    "Node",
    r"node|nodejs|libnode\.so.*",
    "Builtins_InterpreterEntryTrampoline",
    "Builtin:InterpreterEntryTrampoline",
)
LUAJIT = _runtime("luajit", "LuaJIT", r"luajit.*|libluajit.*\.so.*")
RUNTIMES = (
    OPENJ9,
    JAVA,
    NODE,
    LUAJIT,
    _runtime("dotnet", ".NET", r"libcoreclr\.so"),
    _runtime("mono", "Mono", r"mono|mono-sgen.*|libmono.*\.so.*"),
    _runtime("ruby", "Ruby", r"ruby[0-9.]*|libruby.*\.so.*"),
    _runtime("php", "PHP", r"php[0-9.]*|php-fpm.*|php-cgi.*|libphp.*\.so"),
    _runtime("erlang", "Erlang", r"beam(\..*)?smp"),
    _runtime("postgres_jit", "PostgreSQL JIT", r"llvmjit\.so"),
)


def runtime_of(image: ProcessImage) -> Runtime | None:
    """Return the runtime that generated a process's anonymous code; None for no runtime or several."""
    files = {mapping.module for mapping in image.mappings if mapping.inode}
    matching = [runtime for runtime in RUNTIMES if any(runtime.files.fullmatch(file) for file in files)]
    return matching[0] if len(matching) == 1 or matching == [OPENJ9, JAVA] else None


def translate_name(runtime: Runtime | None, name: str) -> tuple[str, str | None]:
    """Return (function, source) of a name in a perf map; the source is `file:line`, or None."""
    if runtime is None:
        return name, None
    if name in runtime.interpreter:
        return runtime.interpreting, None
    return _javascript(name) if runtime is NODE else (name, None)


def _javascript(name: str) -> tuple[str, str | None]:
    kind, colon, rest = name.partition(":")
    position = _POSITION.fullmatch(rest)
    if not colon or kind not in _V8_KINDS or position is None:
        return name, None
    named, line = position[1], position[2]
    named = named[1:] if named[:1] in _V8_COMPILERS else named
    begins = _SCRIPT.search(named)
    at = begins.end() if begins else named.rfind(" ") + 1
    function, script = named[:at].strip(), named[at:]
    source = f"{script}:{line}"
    return function or f"(anonymous at {source.rpartition('/')[2]})", source


def runtime_notes(
    stacks: Iterable[tuple[int | None, Iterable[StackFrame]]], images: Mapping[int, ProcessImage]
) -> list[Note]:
    """Return how to get the missing names: one note per runtime with frames in `stacks` of (pid, frames).

    `images` are the images by pid.
    """
    pids: dict[str, tuple[str, int | None]] = {}
    runtimes = {pid: runtime_of(image) for pid, image in images.items()}
    for pid, frames in stacks:
        key, is_missing = _classify(runtimes.get(pid) if pid is not None else None, list(frames))
        if key is not None and (is_missing or key not in pids):
            first = pids.get(key)
            pids[key] = first if first is not None and first[0] == "code" else ("code" if is_missing else "waits", pid)
    return [Note(f"runtime_{key}_{kind}", _values(images.get(pid or 0))) for key, (kind, pid) in sorted(pids.items())]


def _classify(runtime: Runtime | None, frames: Sequence[StackFrame]) -> tuple[str | None, bool]:
    """Return the runtime key of the note for a stack, and whether obtainable names are missing."""
    functions = {frame.function for frame in frames}
    if functions & _GO_IDLE:
        return "go", False
    if any(LUAJIT.files.fullmatch(frame.module) for frame in frames):
        return LUAJIT.key, True
    if runtime is None:
        return None, False
    # A perf map has no names of interpreted Java functions.
    interprets = runtime is not JAVA and runtime.interpreting in functions
    if interprets or any(frame.module == runtime.code for frame in frames):
        return runtime.key, True
    mapped = any(_is_mapped(frame.module) for frame in frames)
    waits = mapped if runtime is JAVA else runtime is NODE and not mapped and bool(functions & _NODE_LOOP)
    return (runtime.key, False) if waits else (None, False)


def _is_mapped(module: str) -> bool:
    return module.startswith("perf-") and module.endswith(".map")


def _values(image: ProcessImage | None) -> dict[str, float | str]:
    if image is None:
        return {"pid": "PID", "as_account": ""}
    # Numeric ids, because a container's account has no name here. Runtimes answer their own account only, not root.
    account = (
        f"setpriv --reuid={image.uid} --regid={image.gid} --clear-groups "
        if image.uid and image.gid is not None
        else ""
    )
    return {"pid": str(image.pid), "as_account": account}


# Perf maps: the names that a just-in-time compiler writes for its code, read as untrusted text.
#
# Format (Linux tools/perf/Documentation/jit-interface.txt): `START SIZE name` per line, with hexadecimal numbers.
# The file belongs to the profiled process, which can change it at any time.

# Several times as many as large JIT programs write. A hostile map of overlapping entries takes about 1 s and 60 MB.
MAX_ENTRIES = 150_000
MAX_BYTES = 32 << 20
MAX_SECONDS = 1.0
MAX_LINE_BYTES = 4096
MAX_NAMES_BYTES = 16 << 20
_CHUNK_BYTES = 256 << 10


class PerfMap(msgspec.Struct, frozen=True):
    """Disjoint [start, end) → name, sorted. `notes` are the reasons for omissions."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]

    def lookup(self, address: int) -> tuple[str, int] | None:
        """Return (name, start) of the code at an address."""
        at = bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.ends[at]:
            return self.names[at], self.starts[at]
        return None


NO_PERF_MAP = PerfMap((), (), (), ())


def read_perf_map(image: ProcessImage) -> PerfMap:
    """Return the perf map of a living process; NO_PERF_MAP if there is none, with a note if it may not be used."""
    base = process_folder(image.pid)
    path = f"/tmp/perf-{image.namespace_pid or image.pid}.map"  # noqa: S108 - the name is the interface
    opened = shared().open_in_root(image.pid, base / "root", path, follow=False)
    if not isinstance(opened, Opened):
        absent = opened == "no such file"
        return NO_PERF_MAP if absent else PerfMap((), (), (), (f"{path}: not read ({opened})",))
    with opened:
        try:
            # The /proc folder of a process that changed its account belongs to root.
            owner = base.stat().st_uid if image.uid is None else image.uid
        except OSError:
            return NO_PERF_MAP
        stat = read_process_stat(image.pid)
        if stat is None or stat.started_ticks != image.started_ticks:
            return NO_PERF_MAP  # The pid was reused, so the map belongs to another process.
        refusal = owner_refusal(opened.uid, owner) or _refusal(opened, image)
        if refusal:
            return PerfMap((), (), (), (f"{path}: not read ({refusal})",))
        return _parse(opened.fd, path)


def owner_refusal(file_uid: int, process_uid: int) -> str | None:
    """Return why a map's owner is refused: any account can create the name in /tmp before the process does."""
    return None if file_uid in (0, process_uid) else f"owned by user {file_uid}, the process is of user {process_uid}"


def _refusal(opened: Opened, image: ProcessImage) -> str | None:
    """Return why a file of the right owner is refused."""
    if opened.mode & 0o002:
        return "anybody may write it: chmod o-w"
    booted = next((line.split()[1] for line in (try_text(procfs() / "stat") or "").splitlines() if "btime" in line), "")
    if booted.isdecimal():
        started_s = int(booted) + image.started_ticks / os.sysconf("SC_CLK_TCK")
        # The kernel reports the boot time in whole seconds.
        if opened.mtime_ns / 1e9 < started_s - 2:
            return "older than the process: an earlier one of the same number wrote it"
    return None


def _parse(fd: int, path: str) -> PerfMap:
    entries: list[tuple[int, int, str]] = []
    malformed = total = names = 0
    notes: list[str] = []
    rest = b""
    skipping = False
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except OSError as error:
            notes.append(f"{path}: cannot be read further ({error.strerror})")
            break
        if not chunk:
            break
        total += len(chunk)
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if skipping:
                skipping = False
                continue
            entry = _entry(line)
            if entry is None:
                malformed += bool(line.strip())
                continue
            names += len(entry[2])
            entries.append(entry)
        if len(rest) > MAX_LINE_BYTES:
            malformed += not skipping
            rest, skipping = b"", True
        over = (
            f"{MAX_BYTES >> 20} MiB"
            if total >= MAX_BYTES
            else f"{MAX_ENTRIES:,} entries"
            if len(entries) >= MAX_ENTRIES
            else f"{MAX_NAMES_BYTES >> 20} MiB of names"
            if names >= MAX_NAMES_BYTES
            else f"{MAX_SECONDS:g} s"
            if time.monotonic() > deadline
            else None
        )
        if over:
            notes.append(f"{path}: read only the first {over}; later code has no names")
            rest = b""
            break
    last = None if skipping else _entry(rest)
    if last is not None:
        entries.append(last)
    if malformed:
        notes.append(f"{path}: {malformed:,} malformed lines were skipped")
    return _disjoint(entries[:MAX_ENTRIES], notes)


def _entry(line: bytes) -> tuple[int, int, str] | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    parts = line.split(None, 2)
    if len(parts) != 3 or len(parts[0]) > 18 or len(parts[1]) > 18:
        return None
    try:
        start, size = int(parts[0], 16), int(parts[1], 16)
    except ValueError:
        return None
    if not 0 < size <= 1 << 32 or not 0 <= start < 1 << 63:
        return None
    name = printable(parts[2].strip().decode("utf-8", "replace"))
    return (start, start + size, name) if name else None


def _disjoint(entries: list[tuple[int, int, str]], notes: list[str]) -> PerfMap:
    """Return disjoint entries; later lines win, because a compiler reuses memory and appends the new entry."""
    ordered = sorted(range(len(entries)), key=lambda index: entries[index][0])
    if all(entries[a][1] <= entries[b][0] for a, b in pairwise(ordered)):
        kept = [entries[index] for index in ordered]
    else:
        kept = _sweep(entries)
    return PerfMap(
        tuple(entry[0] for entry in kept),
        tuple(entry[1] for entry in kept),
        tuple(entry[2] for entry in kept),
        tuple(notes),
    )


def _sweep(entries: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    # Over all edges in order, the youngest open entry owns the range up to the next edge.
    import heapq

    edges = sorted({edge for start, end, _ in entries for edge in (start, end)})
    by_start = sorted(range(len(entries)), key=lambda index: entries[index][0])
    kept: list[tuple[int, int, str]] = []
    live: list[int] = []
    coming = 0
    owner = -1
    for low, high in pairwise(edges):
        while coming < len(by_start) and entries[by_start[coming]][0] <= low:
            heapq.heappush(live, -by_start[coming])
            coming += 1
        while live and entries[-live[0]][1] <= low:
            heapq.heappop(live)
        if not live:
            owner = -1
            continue
        if -live[0] == owner and kept and kept[-1][1] == low:
            kept[-1] = (kept[-1][0], high, kept[-1][2])
        else:
            owner = -live[0]
            kept.append((low, high, entries[owner][2]))
    return kept


# From addresses to frames: the function that covers an address, never the nearest.

# The kernel's frame between a signal handler and the interrupted function.
SIGNAL = "[signal]"


class Frame(msgspec.Struct, frozen=True):
    """One function of a stack.

    `address` is the pc in the process, `vaddr` its link-time address in the file. `function_start` is the link-time
    start of the function by its symbol or the unwind table; `offset` is the distance of the pc from it. `function` is
    None if no symbol covers the pc.
    """

    function: str | None
    module: str
    address: int
    offset: int | None
    function_start: int | None
    inlined: bool = False
    source: str | None = None
    vaddr: int | None = None

    @property
    def label(self) -> str:
        """The function's name, else `module+0x…` with the function's start, else with the pc."""
        if self.function is not None:
            return self.function
        place = self.function_start if self.function_start is not None else self.vaddr
        return f"{self.module}+{place:#x}" if place is not None else f"{self.module} {self.address:#x}"


class _NamedModule(msgspec.Struct, frozen=True):
    bias: int
    tables: ModuleTables
    debug: SymbolTable | None
    inline: InlineReader | None
    starts: Any
    ends: Any

    def fde_start(self, vaddr: int) -> int | None:
        at = int(self.starts.searchsorted(vaddr, "right")) - 1
        return int(self.starts[at]) if at >= 0 and vaddr < int(self.ends[at]) else None


class Symbolizer:
    """Names the addresses of one process, each once. A file is opened when an address first falls into it.

    `inline` False leaves out inlined calls and source lines.
    """

    def __init__(self, image: ProcessImage, store: TableStore | None = None, *, inline: bool = True) -> None:
        self.image = image
        self.store = store or TableStore()
        self._inline = inline
        self._perf_map: PerfMap | None = None
        self._runtime = runtime_of(image)
        self._modules: dict[int, _NamedModule | str] = {}
        self._frames: dict[tuple[int, bool], tuple[Frame, ...]] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Files that could not be read as `module: reason`, each once."""
        return tuple(self._notes)

    def frames(self, pc: int, exact: bool = True) -> tuple[Frame, ...]:
        """Return the frames of one address, innermost inlined call first; at least one.

        With `exact` False the address is a return address, and the call is before it.
        """
        key = (pc, exact)
        if key not in self._frames:
            self._frames[key] = self._resolve(pc, pc if exact else pc - 1)
        return self._frames[key]

    def stack(self, unwound: Unwound) -> tuple[Frame, ...]:
        """Return all frames of a stack, innermost first."""
        # The frame below an exact pc is the kernel's signal frame, whose own pc has no function.
        signals = (*unwound.exact, False)[1:]
        return tuple(
            frame
            for pc, exact, signal in zip(unwound.pcs, unwound.exact, signals, strict=True)
            for frame in ((self._signal(pc),) if signal else self.frames(pc, exact))
        )

    def _signal(self, pc: int) -> Frame:
        mapping = self.image.mapping_at(pc)
        return Frame(SIGNAL, mapping.module if mapping is not None else "[unmapped]", pc, None, None)

    def _resolve(self, pc: int, at: int) -> tuple[Frame, ...]:
        mapping = self.image.mapping_at(at)
        if mapping is None:
            return (Frame(None, "[unmapped]", pc, None, None),)
        module = self._module(mapping)
        if isinstance(module, str):
            return (self._without_file(mapping, pc, at),)
        vaddr = at - module.bias
        hit = module.tables.symbols.lookup(vaddr)
        if module.debug is not None:
            # The debug file's full table has local functions; .dynsym has only exported ones.
            hit = module.debug.lookup(vaddr) or hit
        name, start = (self._name(hit[0]), hit[1]) if hit else (None, module.fde_start(vaddr))
        own = pc - module.bias
        offset = own - start if start is not None else None
        levels = module.inline.levels(vaddr) if module.inline else ()
        if module.inline is not None and module.inline.note is not None:
            self._notes[f"{mapping.module}: {module.inline.note}"] = None
        source = levels[-1].source if levels else None
        named = self.image.module_of(mapping)
        inner = tuple(
            Frame(level.name, named, pc, None, None, True, level.source, own) for level in levels[:-1] if level.inlined
        )
        return (*inner, Frame(name, named, pc, offset, start, False, source, own))

    def _name(self, symbol: str) -> str:
        runtime = self._runtime
        return runtime.interpreting if runtime and symbol in runtime.interpreter else demangle(symbol)

    def _without_file(self, mapping: Mapping_image, pc: int, at: int) -> Frame:
        vaddr = pc - mapping.bias if mapping.bias is not None else None
        if not mapping.is_file:
            if self._perf_map is None:
                self._perf_map = self._read_perf_map()
                self._notes.update(dict.fromkeys(self._perf_map.notes))
            hit = self._perf_map.lookup(at)
            if hit is not None:
                name, source = translate_name(self._runtime, hit[0])
                return Frame(name, f"perf-{self.image.pid}.map", pc, pc - hit[1], hit[1], source=source, vaddr=pc)
            if self._runtime is not None and not mapping.path.startswith("["):
                return Frame(None, self._runtime.code, pc, None, None, vaddr=pc)
        if vaddr is None:
            vaddr = pc - mapping.start + mapping.offset
        return Frame(None, self.image.module_of(mapping), pc, None, None, vaddr=vaddr)

    def _read_perf_map(self) -> PerfMap:
        with self.store.budget.meter(self.image.pid) as meter:
            try:
                meter.take(0, "perf map")
            except DataError as error:
                self._notes[f"perf map: {error.reason}"] = None
                return NO_PERF_MAP
            return read_perf_map(self.image)

    def _module(self, mapping: Mapping_image) -> _NamedModule | str:
        module = self._modules.get(mapping.start)
        if module is None:
            module = self._modules[mapping.start] = self._load(mapping)
            if isinstance(module, str) and mapping.inode:
                self._notes[f"{self.image.module_of(mapping)}: {module}"] = None
        return module

    def _load(self, mapping: Mapping_image) -> _NamedModule | str:
        import numpy as np

        tables = self.store.tables(self.image, mapping)
        if isinstance(tables, str):
            return tables
        if mapping.bias is None:
            return mapping.note or "its place in memory is not known"
        table = tables.unwind
        debug, inline = tables.debug, None
        if mapping.inode:
            info = read_debug(self.store, self.image, mapping, inline=self._inline)
            debug, inline = info.symbols or debug, info.inline
            self._notes.update(dict.fromkeys(f"{self.image.module_of(mapping)}: {note}" for note in info.notes))
        return _NamedModule(
            mapping.bias, tables, debug, inline, np.frombuffer(table.starts, "<u8"), np.frombuffer(table.ends, "<u8")
        )
