# SPDX-License-Identifier: Apache-2.0
"""Which language run-time a process is of, whose own timers hang on a few of its threads."""

from __future__ import annotations

import os
import re
from pathlib import Path

from powerprof import files, paths

# What a run-time maps or is called; Go has no library of its own, but a note at the head of each program.
_MAPPED = {"libjvm.so": "Java", "libnode.so": "Node", "libcoreclr.so": ".NET"}
_CALLED = {"java": "Java", "node": "Node", "nodejs": "Node", "dotnet": ".NET", "beam.smp": "Erlang"}
_GO_NOTE = re.compile(rb"\x04\0\0\0.{4}\x04\0\0\0Go\0\0", re.DOTALL)
_HEAD_BYTES, _MAPS_BYTES = 1 << 16, 16 << 20


def language_of(pid: int) -> str | None:
    """The language run-time whose own timers hang on the threads of a process; None where none was found."""
    base = paths.procfs() / str(pid)
    try:
        program = Path(os.readlink(base / "exe")).name
    except OSError:
        program = ""
    if program in _CALLED:
        return _CALLED[program]
    try:
        with (base / "maps").open("rb") as file:
            maps = file.read(_MAPS_BYTES)
        for library, name in _MAPPED.items():
            if b"/" + library.encode() in maps:
                return name
        handle = files.open_regular(base / "exe")
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        return "Go" if _GO_NOTE.search(file.read(_HEAD_BYTES)) else None
