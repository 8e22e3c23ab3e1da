# SPDX-License-Identifier: Apache-2.0
"""Compiles the ground-truth programs, each at most once per session."""

from __future__ import annotations

import json
import os
import subprocess
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.system.programs import start, stop
from tests.programs.built import build_once

HERE = Path(__file__).resolve().parent
_LOG_ENTRIES = 1 << 18  # as sleepers.c has it


@dataclass(frozen=True)
class Recipe:
    """How one variant of a program is made; `package` is what apt calls the compiler."""

    source: str
    compiler: str
    package: str
    flags: tuple[str, ...]
    # Sections to take out afterwards.
    remove: tuple[str, ...] = ()


_C = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
_NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
_KERNEL_HEADERS = ("-idirafter", "/usr/include", "-idirafter", f"/usr/include/{os.uname().machine}-linux-gnu")
RECIPES: Mapping[str, Recipe] = {
    "sleepers": Recipe("sleepers.c", "gcc", "gcc", (*_C, "-fomit-frame-pointer")),
    "sleepers-stripped": Recipe("sleepers.c", "gcc", "gcc", (*_C, "-fomit-frame-pointer", "-s")),
    "sleepers-fp-no-eh": Recipe(
        "sleepers.c", "gcc", "gcc", (*_C, "-fno-omit-frame-pointer", *_NO_TABLES), (".eh_frame", ".eh_frame_hdr")
    ),
    "sleepers-no-eh": Recipe(
        "sleepers.c", "gcc", "gcc", (*_C, "-fomit-frame-pointer", *_NO_TABLES), (".eh_frame", ".eh_frame_hdr")
    ),
    "sleepers-debug-frame": Recipe(
        "sleepers.c",
        "gcc",
        "gcc",
        (*_C, "-g", "-gz", "-fomit-frame-pointer", *_NO_TABLES),
        (".eh_frame", ".eh_frame_hdr"),
    ),
    "sleepers-static": Recipe("sleepers.c", "gcc", "gcc", (*_C, "-fomit-frame-pointer", "-static")),
    **{
        f"sleepers-musl{name}": Recipe(
            "sleepers.c",
            "musl-gcc",
            "musl-tools",
            # musl has no headers of the kernel of its own; its -pthread is empty.
            (*_C, *_KERNEL_HEADERS, "-fomit-frame-pointer", *flags),
        )
        for name, flags in (("", ()), ("-static", ("-static",)), ("-O0", ("-O0",)), ("-no-eh", _NO_TABLES))
    },
    "sleepers-cpp": Recipe("sleepers.cpp", "g++", "g++", (*_C, "-g", "-fomit-frame-pointer")),
    "sleepers-cpp-fp": Recipe("sleepers.cpp", "g++", "g++", (*_C, "-fno-omit-frame-pointer")),
    "sleepers-rust": Recipe("sleepers.rs", "rustc", "rustc", ("-O", "--edition=2021")),
    "sleepers-rust-v0": Recipe(
        "sleepers.rs", "rustc", "rustc", ("-O", "--edition=2021", "-C", "symbol-mangling-version=v0")
    ),
    "sleepers-go": Recipe("sleepers.go", "go", "golang-go", ("build",)),
    "goroutines": Recipe("goroutines.go", "go", "golang-go", ("build",)),
    "goroutines-stripped": Recipe("goroutines.go", "go", "golang-go", ("build", "-ldflags=-s -w")),
    "goroutines-pie": Recipe("goroutines.go", "go", "golang-go", ("build", "-buildmode=pie", "-ldflags=-s -w")),
    "signals": Recipe("signals.c", "gcc", "gcc", (*_C, "-fomit-frame-pointer")),
    "signals-musl": Recipe("signals.c", "musl-gcc", "musl-tools", (*_C, "-fomit-frame-pointer")),
}


def build(name: str, directory: Path) -> Path:
    """The compiled program in `directory`, compiled now where it is not there yet.

    Raises CapabilityError naming the apt package of a compiler that is absent.
    """
    recipe = RECIPES[name]
    target = directory / name
    if target.exists():
        return target
    compiler = need(recipe.compiler, recipe.package)
    # Tests move XDG_CACHE_HOME, where Go would build its library anew each time.
    go_cache = os.environ.get("GOCACHE") or str(Path.home() / ".cache/go-build")
    environment = {**os.environ, "GOCACHE": go_cache, "GO111MODULE": "off"}
    source = HERE / recipe.source

    def make(program: Path) -> None:
        subprocess.run([compiler, *recipe.flags, "-o", program, source], check=True, env=environment)
        for section in recipe.remove:
            subprocess.run([need("objcopy", "binutils"), "--remove-section", section, program], check=True)

    return build_once(target, [compiler, *recipe.flags, *recipe.remove], [source], make)


@contextmanager
def running(program: Path, duration_s: float = 60.0, *rates: str) -> Iterator[dict[str, object]]:
    """The program while it runs: what it printed about itself (pid; threads: name → tid, rate_hz)."""
    process = start([program, f"{duration_s:g}", *rates], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


def sleeps(log: Path, thread: int, from_ns: int, to_ns: int) -> int:
    """How many sleeps of a thread of `sleepers log=FILE` ended in that time, by the program's own count.

    `thread` is its place in what the program printed.
    """
    noted = array("Q")
    with log.open("rb") as file:
        file.seek(thread * _LOG_ENTRIES * noted.itemsize)
        noted.frombytes(file.read(_LOG_ENTRIES * noted.itemsize))
    return sum(from_ns <= at_ns <= to_ns for at_ns in noted[1 : noted[0] + 1])
