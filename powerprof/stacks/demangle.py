# SPDX-License-Identifier: Apache-2.0
"""Symbol names as the programmer wrote them: C++ by libstdc++, Rust by our own reader.

A name comes from a file that nobody vouches for. Back references make a short name expand without bound, so a name
with many of them is demangled in a child with limits; one that fails stays as it is.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache

from powerprof.errors import PowerprofError
from powerprof.programs import python, run
from powerprof.stacks import libstdcxx
from powerprof.stacks.rustnames import legacy, v0
from powerprof.untrusted import printable

MAX_MANGLED = 4096
MAX_SHOWN = 1024
# k references at most double the output every second one: 24 of them expand a name 2^12 times, a few MB.
_HARMLESS_REFERENCES = 24
_MOST_SECONDS = 2.0
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
# GCC marks parts of functions and copies: `name.part.0`, `name.cold`, `name.constprop.1`, LLVM `.llvm.123`.
_SUFFIX = re.compile(r"(\.(?:part|cold|constprop|isra|lto_priv|llvm|localalias)(?:\.[0-9]+)*)+$")


@lru_cache(maxsize=65_536)
def demangle(name: str) -> str:
    """The readable form of a C++ or Rust name without its hash; any other name as it is."""
    if len(name) > MAX_MANGLED:
        return name[:MAX_SHOWN]
    suffix_match = _SUFFIX.search(name)
    bare, suffix = (name[: suffix_match.start()], suffix_match.group()) if suffix_match else (name, "")
    readable: str | None = None
    if bare.startswith("_R"):
        readable = v0(bare)
    elif bare.startswith("_ZN"):
        readable = legacy(bare)
    if readable is None and bare.startswith("_Z"):
        readable = _bounded(bare)
    if not readable:
        return name[:MAX_SHOWN]
    mark = f" [{suffix[1:]}]" if suffix else ""
    return printable(readable[:MAX_SHOWN]) + ("…" if len(readable) > MAX_SHOWN else "") + mark


@dataclass
class _Spent:
    """What such children have taken: a process may have as many such names as functions."""

    seconds: float = 0.0


_spent = _Spent()


def _bounded(name: str) -> str | None:
    if len(_REFERENCE.findall(name)) <= _HARMLESS_REFERENCES:
        return libstdcxx.demangle(name)
    if _spent.seconds > _MOST_SECONDS:
        return None
    began_s = time.monotonic()
    try:
        done = run(python(libstdcxx.__file__, site=False), stdin=name, timeout_s=5.0)
    except PowerprofError:
        return None
    finally:
        _spent.seconds += time.monotonic() - began_s
    return done.stdout.strip() or None
