# SPDX-License-Identifier: Apache-2.0
"""Symbol names as the programmer wrote them: C++ by libstdc++, Rust by our own reader.

Names come from untrusted files. Back references can expand a short name without bound, so a name with many of them is
demangled in a child process with limits. A name that cannot be demangled stays unchanged.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache

import msgspec

from powerprof.stacks import libstdcxx
from powerprof.stacks.rust_names import demangle_legacy, demangle_v0
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import printable
from powerprof.system.programs import python_command, run

MAX_MANGLED = 4096
MAX_SHOWN = 1024
# k references double the output at most every second one: 24 of them expand a name 2^12 times, to a few MB.
_HARMLESS_REFERENCES = 24
_MOST_SECONDS = 2.0
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
# GCC marks parts and copies of functions: `name.part.0`, `name.cold`, `name.constprop.1`; LLVM: `.llvm.123`.
_SUFFIX = re.compile(r"(\.(?:part|cold|constprop|isra|lto_priv|llvm|localalias)(?:\.[0-9]+)*)+$")


@lru_cache(maxsize=65_536)
def demangle(name: str) -> str:
    """Return the readable form of a C++ or Rust name without its hash; any other name unchanged."""
    if len(name) > MAX_MANGLED:
        return name[:MAX_SHOWN]
    suffix_match = _SUFFIX.search(name)
    bare, suffix = (name[: suffix_match.start()], suffix_match.group()) if suffix_match else (name, "")
    readable: str | None = None
    if bare.startswith("_R"):
        readable = demangle_v0(bare)
    elif bare.startswith("_ZN"):
        readable = demangle_legacy(bare)
    if readable is None and bare.startswith("_Z"):
        readable = _demangle_cpp(bare)
    if not readable:
        return name[:MAX_SHOWN]
    mark = f" [{suffix[1:]}]" if suffix else ""
    return printable(readable[:MAX_SHOWN]) + ("…" if len(readable) > MAX_SHOWN else "") + mark


class _ChildTime(msgspec.Struct):
    """The time that child processes took. A process can have as many costly names as functions."""

    seconds: float = 0.0


_child_time = _ChildTime()


def _demangle_cpp(name: str) -> str | None:
    if len(_REFERENCE.findall(name)) <= _HARMLESS_REFERENCES:
        return libstdcxx.demangle(name)
    if _child_time.seconds > _MOST_SECONDS:
        return None
    began_s = time.monotonic()
    try:
        done = run(python_command(libstdcxx.__file__, site=False), stdin=name, timeout_s=5.0)
    except PowerprofError:
        return None
    finally:
        _child_time.seconds += time.monotonic() - began_s
    return done.stdout.strip() or None
