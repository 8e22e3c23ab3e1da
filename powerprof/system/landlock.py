# SPDX-License-Identifier: Apache-2.0
"""Limits for the files, TCP ports, abstract sockets and signals of a process, for any account (landlock(7)).

A server's account often owns the host's databases too, and SQL can name files in many ways: logs, table folders,
exports. The kernel refuses all of them.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

# The same numbers on every architecture (include/uapi/asm-generic/unistd.h).
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
# include/uapi/linux/landlock.h: execute, write, read a file, read a folder, remove directory and file, make character
# device, directory, file, socket, pipe, block device and link; since version 2 move between folders, since 3 truncate.
_EXECUTE, _WRITE, _READ_FILE, _READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_CHANGE = _WRITE | sum(1 << bit for bit in range(4, 13))
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
# Version 1 refuses every move between folders, also RENAME TABLE.
_LEAST = 2
_WITH_TRUNCATE, _WITH_PORTS, _WITH_SCOPES = 3, 4, 6
_PR_SET_NO_NEW_PRIVS = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed_access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def read_landlock_version() -> int:
    """Return the Landlock version of this kernel; 0 without Landlock and for version 1, which refuses too much."""
    answer = int(
        ctypes.CDLL(None).syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    )
    return answer if answer >= _LEAST else 0


def restrict(
    reads: Sequence[int],
    writes: Sequence[int],
    devices: Sequence[int],
    connects: Sequence[int] | None,
    binds: Sequence[int] | None,
) -> None:
    """Limit this process and its children for good. For use between fork and exec.

    `reads`, `writes` and `devices` are descriptors: the files and folders that they may read and execute, the folders
    that they may change as well, and the devices that they may also write to. `connects` and `binds` are the TCP ports
    that they may connect to and listen on; None sets no limit. Signals and abstract sockets of other processes are out
    of reach. Sets only the limits that the kernel's version knows. Raises OSError.
    """
    landlock_version = read_landlock_version()
    if not landlock_version:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    truncate = _TRUNCATE if landlock_version >= _WITH_TRUNCATE else 0
    file_access = _READ | _CHANGE | _MOVE | truncate
    ports = ((_CONNECT_TCP, connects), (_BIND_TCP, binds))
    net = sum(access for access, allowed in ports if allowed is not None) if landlock_version >= _WITH_PORTS else 0
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if landlock_version >= _WITH_SCOPES else 0
    # An older kernel accepts a longer structure if the rest of it is 0.
    ruleset = libc.syscall(
        ctypes.c_long(_CREATE),
        ctypes.byref(_Ruleset(file_access, net, scoped)),
        ctypes.c_size_t(ctypes.sizeof(_Ruleset)),
        ctypes.c_uint32(0),
    )
    check(ruleset)
    try:
        for handles, access in ((reads, _READ), (devices, _READ_FILE | _WRITE | truncate), (writes, file_access)):
            for handle in handles:
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                allowed = access if is_folder else access & (_EXECUTE | _WRITE | _READ_FILE | truncate)
                _add(libc, ruleset, _PATH_BENEATH, _Beneath(allowed, handle))
        if net:
            for access, numbers in ports:
                for number in numbers or ():
                    _add(libc, ruleset, _NET_PORT, _Port(access, number))
        refuse_new_privileges(libc)
        check(libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _add(libc: ctypes.CDLL, ruleset: int, kind: int, rule: ctypes.Structure) -> None:
    check(
        libc.syscall(
            ctypes.c_long(_ADD), ctypes.c_int(ruleset), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    )


def check(result: int) -> None:
    """Raise the OSError of a failed system call of a libc with `use_errno`."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def refuse_new_privileges(libc: ctypes.CDLL) -> None:
    """Prevent this process and its children from gaining privileges through set-user-id programs. Raises OSError."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
