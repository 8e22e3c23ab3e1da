# SPDX-License-Identifier: Apache-2.0
"""Runtimes that make code while they run, or schedule threads of their own: whose code it is, and where names are had.

A runtime is known by the files that a process has mapped. What it compiles lies in memory without a file: only a perf
map, which it writes only with an option, has the names.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from powerprof.model.records import Note
from powerprof.stacks.image import ProcessImage
from powerprof.system.files import printable, try_text
from powerprof.system.paths import procfs
from powerprof.system.reader_process import Opened, shared
from powerprof.system.tasks import process_stat

# What V8 writes before a function: how it came to be compiled. Then one character for the compiler, and the name.
_V8_KINDS = frozenset({"LazyCompile", "JS", "Function", "Eval", "Script"})
_V8_COMPILERS = "~^+*"
# Where a script's name begins, after a function's name that may itself have blanks (`get size`).
_SCRIPT = re.compile(r"(?:^| )(?=/|file:|node:|https?:|evalmachine\.|\[eval\])")
_POSITION = re.compile(r"(.*):([0-9]{1,9}):([0-9]{1,9})", re.DOTALL)
# Threads of Go that wait here run no goroutine. (Before Go 1.19: findrunnable.)
_GO_IDLE = frozenset(f"runtime.{name}" for name in ("findRunnable", "findrunnable", "stopm", "sysmon"))
_NODE_LOOP = frozenset({"uv__io_poll", "uv_run", "node::SpinEventLoopInternal(node::Environment*)"})


@dataclass(frozen=True)
class Runtime:
    """One runtime: `files` are the mapped files that tell it, `interpreter` what names its interpreter's own code."""

    key: str
    name: str
    files: re.Pattern[str]
    interpreter: frozenset[str] = frozenset()

    @property
    def code(self) -> str:
        """The module of its code where that has no name."""
        return f"[{self.name} code]"

    @property
    def interpreting(self) -> str:
        """What its interpreter is called."""
        return f"[{self.name} interpreter]"


def _runtime(key: str, name: str, files: str, *interpreter: str) -> Runtime:
    return Runtime(key, name, re.compile(files), frozenset(interpreter))


# It has a file named libjvm.so, too.
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
    """The runtime whose code a process's anonymous memory holds; None where there is none, or more than one."""
    files = {mapping.module for mapping in image.mappings if mapping.inode}
    found = [runtime for runtime in RUNTIMES if any(runtime.files.fullmatch(file) for file in files)]
    return found[0] if len(found) == 1 or found == [OPENJ9, JAVA] else None


def translate_name(runtime: Runtime | None, name: str) -> tuple[str, str | None]:
    """(function, source) of a name as a runtime's compiler writes it; the source is `file:line`, where it has one."""
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


@dataclass(frozen=True)
class FrameName:
    """One frame, as a hint needs it."""

    function: str | None
    module: str


def runtime_notes(
    stacks: Iterable[tuple[int | None, Iterable[FrameName]]], images: Mapping[int, ProcessImage]
) -> list[Note]:
    """How the names that are missing are had: one note a runtime, for those whose frames are in `stacks` of (pid,
    frames). `images` are the processes looked at."""
    found: dict[str, tuple[str, int | None]] = {}
    runtimes = {pid: runtime_of(image) for pid, image in images.items()}
    for pid, frames in stacks:
        key, missing = _hint(runtimes.get(pid) if pid is not None else None, list(frames))
        if key is not None and (missing or key not in found):
            known = found.get(key)
            found[key] = known if known is not None and known[0] == "code" else ("code" if missing else "waits", pid)
    return [Note(f"runtime_{key}_{what}", _values(images.get(pid or 0))) for key, (what, pid) in sorted(found.items())]


def _hint(runtime: Runtime | None, frames: Sequence[FrameName]) -> tuple[str | None, bool]:
    """(whose hint a stack needs, whether names are missing that can be had)."""
    functions = {frame.function for frame in frames}
    if functions & _GO_IDLE:
        return "go", False
    if any(LUAJIT.files.fullmatch(frame.module) for frame in frames):
        return LUAJIT.key, True
    if runtime is None:
        return None, False
    # No map names what Java interprets.
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
    # Numbers: an account of a container has no name here. Root's rights are no use to what another account answers.
    account = (
        f"setpriv --reuid={image.uid} --regid={image.gid} --clear-groups "
        if image.uid and image.gid is not None
        else ""
    )
    return {"pid": str(image.pid), "as_account": account}


# Perf maps: the names that a just-in-time compiler writes for its code, read as the hostile text they are.
#
# Format (Linux tools/perf/Documentation/jit-interface.txt): `START SIZE name` per line, numbers in
# hexadecimal. The file belongs to the profiled process, which may write anything into it at any time.

# Several times what large JIT programs write. A hostile map of that many overlapping entries costs about 1 s and 60 MB.
MAX_ENTRIES = 150_000
MAX_BYTES = 32 << 20
MAX_SECONDS = 1.0
MAX_LINE_BYTES = 4096
MAX_NAMES_BYTES = 16 << 20
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True)
class PerfMap:
    """Disjoint [start, end) → name, sorted. `notes` say what was left out and why."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    names: tuple[str, ...]
    malformed_count: int
    notes: tuple[str, ...]

    def lookup(self, address: int) -> tuple[str, int] | None:
        """(name, start) of the code that covers an address."""
        at = bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.ends[at]:
            return self.names[at], self.starts[at]
        return None


EMPTY = PerfMap((), (), (), 0, ())


def read_perf_map(image: ProcessImage) -> PerfMap:
    """The perf map of a living process; EMPTY, with a note where there is a file that may not be used."""
    base = procfs() / str(image.pid)
    path = f"/tmp/perf-{image.namespace_pid or image.pid}.map"  # noqa: S108 - the name is the interface
    opened = shared().open_in_root(image.pid, base / "root", path, follow=False)
    if not isinstance(opened, Opened):
        absent = opened == "no such file"
        return EMPTY if absent else PerfMap((), (), (), 0, (f"{path}: not read ({opened})",))
    with opened:
        try:
            # The folder of a process that changed its account is root's.
            owner = base.stat().st_uid if image.uid is None else image.uid
        except OSError:
            return EMPTY
        stat = process_stat(image.pid)
        if stat is None or stat.started_ticks != image.started_ticks:
            return EMPTY  # another process has the number now: the map is that one's
        refusal = owner_refusal(opened.uid, owner) or _refusal(opened, image)
        if refusal:
            return PerfMap((), (), (), 0, (f"{path}: not read ({refusal})",))
        return _parse(opened.fd, path)


def owner_refusal(file_uid: int, process_uid: int) -> str | None:
    """Why a map is not believed: anybody may create the name in /tmp before the process does."""
    return None if file_uid in (0, process_uid) else f"owned by user {file_uid}, the process is of user {process_uid}"


def _refusal(opened: Opened, image: ProcessImage) -> str | None:
    """Why a file that the process's account owns is not believed either."""
    if opened.mode & 0o002:
        return "anybody may write it: chmod o-w"
    booted = next((line.split()[1] for line in (try_text(procfs() / "stat") or "").splitlines() if "btime" in line), "")
    if booted.isdecimal():
        started_s = int(booted) + image.started_ticks / os.sysconf("SC_CLK_TCK")
        # The kernel gives the boot to the second.
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
    return _disjoint(entries[:MAX_ENTRIES], malformed, notes)


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


def _disjoint(entries: list[tuple[int, int, str]], malformed: int, notes: list[str]) -> PerfMap:
    """Later lines win where entries overlap: the compiler reuses memory and appends what it put there."""
    ordered = sorted(range(len(entries)), key=lambda index: entries[index][0])
    if all(entries[a][1] <= entries[b][0] for a, b in pairwise(ordered)):
        kept = [entries[index] for index in ordered]
    else:
        kept = _sweep(entries)
    return PerfMap(
        tuple(entry[0] for entry in kept),
        tuple(entry[1] for entry in kept),
        tuple(entry[2] for entry in kept),
        malformed,
        tuple(notes),
    )


def _sweep(entries: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    # Over all edges in order, the youngest entry that is open owns the stretch to the next edge.
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
