# SPDX-License-Identifier: Apache-2.0
"""One instruction of a BPF program as bytes: operation, registers, offset, number (kernel: instruction-set.rst)."""

from __future__ import annotations

import struct

# Eight bytes. Of the registers the lower four bits are the one that is written, the upper four the one that is read.
INSTRUCTION = struct.Struct("=BBhi")


def instruction(operation: int, to: int = 0, source: int = 0, offset: int = 0, *, value: int = 0) -> bytes:
    """The bytes of one. Raises struct.error where a number does not fit."""
    return INSTRUCTION.pack(operation, to | source << 4, offset, value)
