# SPDX-License-Identifier: Apache-2.0
"""What was seen of threads where they sleep: the records that a trace fills and a capture keeps."""

from __future__ import annotations

import msgspec
import numpy as np

from powerprof.stacks.pycode import CHAIN_BYTES
from powerprof.tracing.idle.layout import FRAMES_BYTES, STACK_HEADER


class SavedSite(msgspec.Struct, frozen=True, array_like=True):
    """Where a thread slept or woke another; `kind`: a StackKind. `stack` is empty if only registers are known.

    `chain` are the frames of its interpreter, as interpreter.bpf.h has them.
    """

    at_ns: int
    pid: int
    tid: int
    kind: int
    ip: int
    sp: int
    code: int
    registers: bytes
    stack: bytes
    chain: bytes = b""


def decode(data: bytes, register_bytes: int) -> SavedSite:
    """A record of the ring buffer of stacks: the header, so many bytes of registers, and the stack."""
    header = np.frombuffer(data, dtype=STACK_HEADER, count=1)[0]
    frames_at = STACK_HEADER.itemsize + register_bytes
    stack_at = frames_at + FRAMES_BYTES
    words = int.from_bytes(data[frames_at : frames_at + 8], "little")
    stack = data[stack_at : stack_at + int(header["bytes"])]
    return SavedSite(
        int(header["at_ns"]),
        int(header["tgid"]),
        int(header["tid"]),
        int(header["kind"]),
        int(header["ip"]),
        int(header["sp"]),
        int(header["code"]),
        data[STACK_HEADER.itemsize : frames_at],
        stack,
        data[frames_at + 8 : frames_at + 8 + min(8 * words, CHAIN_BYTES)],
    )


class SiteWakings(msgspec.Struct, frozen=True, array_like=True):
    """How often sleeps of one thread at one site were ended by one thing; the fields are those of struct woken_key."""

    tid: int
    pid: int
    ip: int
    sp: int
    code: int
    context: int
    timer_function: int
    irq: int
    waker_tid: int
    waker_pid: int
    count: int


class SleepingStack(msgspec.Struct, frozen=True, array_like=True):
    """Stack bytes of a blocked thread from `sp` up; its registers are not known yet."""

    pid: int
    tid: int
    ip: int
    sp: int
    stack: bytes
    chain: bytes = b""
