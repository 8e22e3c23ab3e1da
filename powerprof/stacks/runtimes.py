# SPDX-License-Identifier: Apache-2.0
"""Runtimes that generate code or schedule threads of their own: recognition, and the names of their code.

A runtime is recognised by the files that a process has mapped. Generated code is in memory without a file. Its names
are only in a perf map, which a runtime writes only with an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from powerprof.model.records import Note
from powerprof.stacks.image import ProcessImage

# The first word of V8's names is the kind of compilation; a character for the compiler and the name follow.
_V8_KINDS = frozenset({"LazyCompile", "JS", "Function", "Eval", "Script"})
_V8_COMPILERS = "~^+*"
# The start of a script's name after a function's name, which can contain blanks (`get size`).
_SCRIPT = re.compile(r"(?:^| )(?=/|file:|node:|https?:|evalmachine\.|\[eval\])")
_POSITION = re.compile(r"(.*):([0-9]{1,9}):([0-9]{1,9})", re.DOTALL)
# Go threads that wait in these run no goroutine. (findrunnable: before Go 1.19.)
_GO_IDLE = frozenset(f"runtime.{name}" for name in ("findRunnable", "findrunnable", "stopm", "sysmon"))
_NODE_LOOP = frozenset({"uv__io_poll", "uv_run", "node::SpinEventLoopInternal(node::Environment*)"})


class NamedFrame(Protocol):
    """A frame of any record."""

    @property
    def function(self) -> str | None:
        """The name, or None."""

    @property
    def module(self) -> str:
        """The name of the file."""


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


def _define_runtime(key: str, name: str, files: str, *interpreter: str) -> Runtime:
    return Runtime(key, name, re.compile(files), frozenset(interpreter))


# OpenJ9 also has a file named libjvm.so.
OPENJ9 = _define_runtime("openj9", "Java", r"libj9vm[0-9]*\.so")
JAVA = _define_runtime("java", "Java", r"libjvm\.so", "Interpreter")
NODE = _define_runtime(
    "node",
    "Node",
    r"node|nodejs|libnode\.so.*",
    "Builtins_InterpreterEntryTrampoline",
    "Builtin:InterpreterEntryTrampoline",
)
LUAJIT = _define_runtime("luajit", "LuaJIT", r"luajit.*|libluajit.*\.so.*")
RUNTIMES = (
    OPENJ9,
    JAVA,
    NODE,
    LUAJIT,
    _define_runtime("dotnet", ".NET", r"libcoreclr\.so"),
    _define_runtime("mono", "Mono", r"mono|mono-sgen.*|libmono.*\.so.*"),
    _define_runtime("ruby", "Ruby", r"ruby[0-9.]*|libruby.*\.so.*"),
    _define_runtime("php", "PHP", r"php[0-9.]*|php-fpm.*|php-cgi.*|libphp.*\.so"),
    _define_runtime("erlang", "Erlang", r"beam(\..*)?smp"),
    _define_runtime("postgres_jit", "PostgreSQL JIT", r"llvmjit\.so"),
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
    return _translate_javascript(name) if runtime is NODE else (name, None)


def _translate_javascript(name: str) -> tuple[str, str | None]:
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
    stacks: Iterable[tuple[int | None, Iterable[NamedFrame]]], images: Mapping[int, ProcessImage]
) -> list[Note]:
    """Return how to get the missing names: one note per runtime with frames in `stacks` of (pid, frames).

    `images` are the images by pid.
    """
    pids: dict[str, tuple[str, int | None]] = {}
    # A monitor has the images of all programs that it has seen, and stacks of few.
    runtimes: dict[int, Runtime | None] = {}
    for pid, frames in stacks:
        if pid is not None and pid not in runtimes:
            runtimes[pid] = runtime_of(images[pid]) if pid in images else None
        key, is_missing = _classify(runtimes[pid] if pid is not None else None, list(frames))
        if key is not None and (is_missing or key not in pids):
            first = pids.get(key)
            pids[key] = first if first is not None and first[0] == "code" else ("code" if is_missing else "waits", pid)
    return [
        Note(f"runtime_{key}_{kind}", _collect_values(images.get(pid or 0)))
        for key, (kind, pid) in sorted(pids.items())
    ]


def _classify(runtime: Runtime | None, frames: Sequence[NamedFrame]) -> tuple[str | None, bool]:
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


def _collect_values(image: ProcessImage | None) -> dict[str, float | str]:
    if image is None:
        return {"pid": "PID", "as_account": ""}
    # Numeric ids, because a container's account has no name here. Runtimes answer their own account only, not root.
    account = (
        f"setpriv --reuid={image.uid} --regid={image.gid} --clear-groups "
        if image.uid and image.gid is not None
        else ""
    )
    return {"pid": str(image.pid), "as_account": account}
