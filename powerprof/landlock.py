# SPDX-License-Identifier: Apache-2.0
"""A child that may change files in some folders only, whatever its account may (Landlock, landlock(7)).

A server's account is often that of the host's own databases, and SQL has many ways to name a file: logs, table
folders, exports. The kernel refuses them all alike.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

# The same numbers on every architecture (include/uapi/asm-generic/unistd.h).
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
# include/uapi/linux/landlock.h: write, remove directory and file, make character device, directory, file, socket, pipe,
# block device and link; since version 2 move between folders, since 3 truncate.
_WRITE = 1 << 1
_CHANGE = _WRITE | sum(1 << bit for bit in range(4, 13))
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
# Of version 1 every move between folders is refused, RENAME TABLE too.
_LEAST = 2


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """Which Landlock this kernel has; 0 where it has none, or one that refuses too much."""
    answer = int(
        ctypes.CDLL(None).syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    )
    return answer if answer >= _LEAST else 0


def only_writes(folders: Sequence[Path]) -> None:
    """From now on this process and what it starts change files in these folders only, and devices and /proc as before.

    Does nothing where the kernel has no Landlock. Raises OSError. For use between fork and exec.
    """
    known = version()
    if not known:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    handled = _CHANGE | _MOVE | (_TRUNCATE if known >= 3 else 0)
    ruleset = libc.syscall(
        ctypes.c_long(_CREATE),
        ctypes.byref(_Ruleset(handled)),
        ctypes.c_size_t(ctypes.sizeof(_Ruleset)),
        ctypes.c_uint32(0),
    )
    _must(ruleset)
    try:
        rules = [(folder, handled) for folder in folders]
        rules += [(Path("/dev"), _WRITE | handled & _TRUNCATE), (Path("/proc"), _WRITE)]
        for folder, allowed in rules:
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _Beneath(allowed, place)
                _must(
                    libc.syscall(
                        ctypes.c_long(_ADD),
                        ctypes.c_int(ruleset),
                        ctypes.c_int(_PATH_BENEATH),
                        ctypes.byref(rule),
                        ctypes.c_uint32(0),
                    )
                )
            finally:
                os.close(place)
        _must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _must(libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _must(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
