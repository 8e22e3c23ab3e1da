# SPDX-License-Identifier: Apache-2.0
"""How many BPF programs and links this kernel holds, asked by the bpf system call itself."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_GET_NEXT_ID, _LINK_GET_NEXT_ID = 11, 31  # include/uapi/linux/bpf.h


def _ids(command: int) -> list[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    found: list[int] = []
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("<III", found[-1] if found else 0, 0, 0), 12)
        if libc.syscall(_SYS_BPF[os.uname().machine], command, attributes, 12) < 0:
            if ctypes.get_errno() == errno.ENOENT:
                return found
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "bpf")
        found.append(struct.unpack_from("<I", attributes.raw, 4)[0])


def loaded() -> set[tuple[str, int]]:
    """Every program and link by its id."""
    return {("program", one) for one in _ids(_PROG_GET_NEXT_ID)} | {("link", one) for one in _ids(_LINK_GET_NEXT_ID)}
