# SPDX-License-Identifier: Apache-2.0
"""The numbers that the idle-exit program and its reader tell each other while it runs."""

from __future__ import annotations

from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.shared_numbers import Shared


def share(program: LoadedProgram, which: Shared, value: int) -> None:
    """Tell the program."""
    program.put("shared", which, value.to_bytes(8, "little"))


def shared(program: LoadedProgram, which: Shared) -> int:
    """The value that the program or we wrote last."""
    return int.from_bytes(program.get("shared", which), "little")
