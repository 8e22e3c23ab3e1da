# SPDX-License-Identifier: Apache-2.0
"""Language run-times, whose own timers run on a few of their threads.

Timer slack of such a thread delays the timers of the whole application.
"""

from __future__ import annotations

import re

from powerprof.system.reader_process import Unreadable, link_of, shared
from powerprof.system.tasks import process_folder

# Libraries and program names of run-times. Go has no library, but a note at the start of each program.
_LIBRARIES = {"libjvm.so": "Java", "libnode.so": "Node", "libcoreclr.so": ".NET"}
_PROGRAM_NAMES = {"java": "Java", "node": "Node", "nodejs": "Node", "dotnet": ".NET", "beam.smp": "Erlang"}
_GO_NOTE = re.compile(rb"\x04\0\0\0.{4}\x04\0\0\0Go\0\0", re.DOTALL)
_HEAD_BYTES = 1 << 16


def language_of(pid: int) -> str | None:
    """Return the language run-time whose timers run on the threads of a process; None if there is none."""
    exe = process_folder(pid) / "exe"
    program = (link_of(exe) or "").rpartition("/")[2]
    if program in _PROGRAM_NAMES:
        return _PROGRAM_NAMES[program]
    try:
        maps, _ = shared().maps(pid)
    except Unreadable:
        return None
    for library, name in _LIBRARIES.items():
        if b"/" + library.encode() in maps:
            return name
    return "Go" if _GO_NOTE.search(shared().read(pid, exe, _HEAD_BYTES) or b"") else None
