# SPDX-License-Identifier: Apache-2.0
"""Create uprobes: links of many places (Linux ≥ 6.6), or events of the uprobe PMU; and the prelude to a change.

Before each change the kernel waits for RCU, 15 ms and more, and then for the locks of the memory maps. After a change
the next ones need not wait for RCU, for one more grace period (rcu_sync). So a uprobe on a file of our own, which no
process maps, comes first: then the locks are looked at, and the change follows in microseconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any

from powerprof.measure.perf_events import open_event
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import read_int
from powerprof.system.paths import sysfs
from powerprof.tracing.bpf import syscalls

MULTI = syscalls.ATTACH_UPROBE_MULTI
MULTI_RETURN = 1
EVERY_PROCESS = -1
_PERF_ATTR_BYTES = 128
# r0 = 0; exit
_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")
# A process that sees the prelude, because its forks waited, has locked its map by then.
_PAUSE_S, _AFTER_S = 0.002, 0.003


@lru_cache(maxsize=1)
def has_multi() -> bool:
    """Return whether the kernel has uprobe_multi links.

    A kernel without them may still load such a program (6.1 ignores the type). A link to a folder is refused with EBADF
    if links exist, and otherwise as invalid.
    """
    try:
        program = _load_trial()
    except OSError:
        return False
    try:
        os.close(create_multi_link(program, ctypes.create_string_buffer(b"/"), [(0, 0)], 0, 0))
    except OSError as error:
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    return True


def _load_trial() -> int:
    return syscalls.load_program("trial", syscalls.PROGRAM_KPROBE, _RETURN_0, attach_type=MULTI)


def create_multi_link(program: int, path: Any, places: list[tuple[int, int]], flags: int, pid: int) -> int:
    """Return a uprobe_multi link to [(offset, cookie)] of a file. Raises OSError."""
    offsets = (ctypes.c_uint64 * len(places))(*(offset for offset, _ in places))
    cookies = (ctypes.c_uint64 * len(places))(*(cookie for _, cookie in places))
    addresses = (ctypes.addressof(target) for target in (path, offsets))
    whose = 0 if pid == EVERY_PROCESS else pid
    attributes = struct.pack("=4Q3I", *addresses, 0, ctypes.addressof(cookies), len(places), flags, whose)
    return syscalls.create_link(program, 0, MULTI, attributes)


def read_event_type() -> int:
    """Return the number of the uprobe PMU. Raises CapabilityError if the kernel has none."""
    try:
        return read_int(sysfs() / "bus/event_source/devices/uprobe/type")
    except PowerprofError as error:
        raise CapabilityError("this kernel has no uprobes", "a kernel with CONFIG_UPROBE_EVENTS=y") from error


def open_uprobe_event(path: Any, offset: int, pid: int, *, is_return: bool) -> int:
    """Return an event of the uprobe PMU at a place of a file. Raises OSError, CapabilityError."""
    # type, size, config at 0; config1 (the path) and config2 (the offset) at 56 and 64.
    attributes = bytearray(_PERF_ATTR_BYTES)
    struct.pack_into("=IIQ", attributes, 0, read_event_type(), _PERF_ATTR_BYTES, int(is_return))
    struct.pack_into("=QQ", attributes, 56, ctypes.addressof(path), offset)
    return open_event(bytes(attributes), pid=pid, cpu=0 if pid == EVERY_PROCESS else -1)


class Prelude:
    """Uprobes on an empty file of our own. `take` returns their descriptors, to be closed with the other ones."""

    def __init__(self, *, multi: bool) -> None:
        self._multi = multi
        self._descriptors: list[int] = []
        self._changed_s = 0.0

    def run(self) -> None:
        """Place one, so that a change within the next milliseconds does not wait for RCU.

        Does nothing directly after a change.
        """
        if time.monotonic() - self._changed_s < _AFTER_S:
            return
        file = os.memfd_create("powerprof-prelude", os.MFD_CLOEXEC)
        try:
            path = ctypes.create_string_buffer(f"/proc/self/fd/{file}".encode())
            # Without it the change takes longer, and nothing else.
            with suppress(OSError, CapabilityError):
                self._descriptors.append(self._place(path))
        finally:
            os.close(file)
        time.sleep(_PAUSE_S)

    def note_change(self) -> None:
        """Note that a uprobe was placed now."""
        self._changed_s = time.monotonic()

    def _place(self, path: Any) -> int:
        if not self._multi:
            return open_uprobe_event(path, 0, os.getpid(), is_return=False)
        program = _load_trial()
        try:
            return create_multi_link(program, path, [(0, 0)], 0, os.getpid())
        finally:
            os.close(program)

    def take(self) -> list[int]:
        """Return the descriptors and forget them."""
        taken, self._descriptors = self._descriptors, []
        return taken
