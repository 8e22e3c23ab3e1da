# SPDX-License-Identifier: Apache-2.0
"""Where the chosen functions of a mapped file are left: read from the file, for probes that change no stack."""

from __future__ import annotations

import os

from powerprof.processes.reader_process import Opened
from powerprof.stacks.exits import MAX_CODE_BYTES, exits
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.store import open_module
from powerprof.tracing.symbols.patterns import ModuleFunctions


def exits_of(image: ProcessImage, module: ModuleFunctions) -> dict[int, tuple[int, ...] | str]:
    """By link-time address of the function: offsets from its start, or why they are unknown."""
    opened = open_module(image, module.mapping)
    if not isinstance(opened, Opened):
        return {function.vaddr: opened for function in module.functions}
    exits_by_start: dict[int, tuple[int, ...] | str] = {}
    with opened:
        for function in module.functions:
            code = os.pread(opened.fd, min(function.size_bytes, MAX_CODE_BYTES + 1), function.offset)
            exits_by_start[function.vaddr] = exits(code, function.vaddr, module.starts.__contains__)
    return exits_by_start
