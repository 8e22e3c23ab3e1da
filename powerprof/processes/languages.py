# SPDX-License-Identifier: Apache-2.0
"""Which language run-time a process is of, whose own timers hang on a few of its threads."""

from __future__ import annotations

import re

from powerprof import paths
from powerprof.processes.reader_process import Unreadable, link_of, shared

# What a run-time maps or is called; Go has no library of its own, but a note at the head of each program.
_MAPPED = {"libjvm.so": "Java", "libnode.so": "Node", "libcoreclr.so": ".NET"}
_CALLED = {"java": "Java", "node": "Node", "nodejs": "Node", "dotnet": ".NET", "beam.smp": "Erlang"}
_GO_NOTE = re.compile(rb"\x04\0\0\0.{4}\x04\0\0\0Go\0\0", re.DOTALL)
_HEAD_BYTES = 1 << 16


def language_of(pid: int) -> str | None:
    """Return the language run-time whose own timers hang on the threads of a process; None if none was found."""
    exe = paths.procfs() / str(pid) / "exe"
    program = (link_of(exe) or "").rpartition("/")[2]
    if program in _CALLED:
        return _CALLED[program]
    try:
        maps, _ = shared().maps(pid)
    except Unreadable:
        return None
    for library, name in _MAPPED.items():
        if b"/" + library.encode() in maps:
            return name
    return "Go" if _GO_NOTE.search(shared().read(pid, exe, _HEAD_BYTES) or b"") else None
