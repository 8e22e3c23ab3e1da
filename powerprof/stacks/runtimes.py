# SPDX-License-Identifier: Apache-2.0
"""Runtimes that make code while they run, or schedule threads of their own: whose code it is, and where names are had.

A runtime is known by the files that a process has mapped. What it compiles lies in memory without a file: only a perf
map, which it writes only with an option, has the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from powerprof.records import Note
from powerprof.stacks.image import ProcessImage

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


def named_by_runtime(runtime: Runtime | None, name: str) -> tuple[str, str | None]:
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
class Called:
    """One frame, as a hint needs it."""

    function: str | None
    module: str


def hints(stacks: Iterable[tuple[int | None, Iterable[Called]]], images: Mapping[int, ProcessImage]) -> list[Note]:
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


def _hint(runtime: Runtime | None, frames: Sequence[Called]) -> tuple[str | None, bool]:
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
