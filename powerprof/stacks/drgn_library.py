# SPDX-License-Identifier: Apache-2.0
"""Import drgn without the network libraries of its wheel.

The wheel of PyPI contains libdebuginfod, which needs libcurl with OpenSSL 1.1.1k, LDAP, Kerberos and SSH: 17 libraries
of 2021 in a process of root. powerprof gives drgn all files itself, so drgn never calls libdebuginfod. A copy of that
library without its need for libcurl is loaded first, and the dynamic linker takes it by its name (ld.so(8)). A drgn
that was built on this host has no such folder.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from powerprof.stacks.elf import EHDR, PHDR, PT_LOAD

_PT_DYNAMIC = 2
_DT_NEEDED, _DT_STRTAB, _DT_INIT_ARRAYSZ, _DT_FINI_ARRAYSZ = 1, 5, 27, 28
# A tag of the range for the operating system that no linker knows.
_DT_IGNORED = 0x6FFFFD0D
_ENTRY = struct.Struct("<QQ")


def load_drgn() -> None:
    """Import drgn. Before a fork, so that the child need not."""
    if "drgn" in sys.modules:
        return
    spec = find_spec("drgn")
    if spec is not None and spec.origin is not None:
        # Under LD_BIND_NOW, or if memory files may not be executed, drgn is loaded with all its libraries.
        with suppress(OSError, StopIteration, ValueError, LookupError, struct.error):
            _load_without_network(Path(spec.origin).parent.parent / "drgn.libs")
    import drgn  # noqa: F401


def _load_without_network(folder: Path) -> None:
    """Load the other libraries that libdebuginfod needs, and then its copy."""
    library = next(folder.glob("libdebuginfod-*.so*"))
    for pattern in ("libelf-*.so*", "libjson-c-*.so*"):
        ctypes.CDLL(str(next(folder.glob(pattern))))
    fd = os.memfd_create("libdebuginfod", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(remove_needed(library.read_bytes(), b"libcurl"))
        # Lazy, because the functions of libcurl are not found.
        ctypes.CDLL(f"/proc/self/fd/{fd}", mode=os.RTLD_LAZY)
    finally:
        os.close(fd)


def remove_needed(data: bytes, name: bytes) -> bytes:
    """Return a shared library without the needed libraries of this name, and without constructors and destructors.

    Raises ValueError, LookupError or struct.error if it is damaged.
    """
    changed = bytearray(data)
    header = EHDR.unpack_from(data)
    segments = [PHDR.unpack_from(data, header[5] + PHDR.size * number) for number in range(header[10])]
    loads = [(vaddr, offset, size) for kind, _, offset, vaddr, _, size, _, _ in segments if kind == PT_LOAD]
    (dynamic,) = (range(part[2], part[2] + part[5], _ENTRY.size) for part in segments if part[0] == _PT_DYNAMIC)
    entries = {at: _ENTRY.unpack_from(data, at) for at in dynamic}
    strings_vaddr = dict(entries.values())[_DT_STRTAB]
    (strings,) = (offset + strings_vaddr - vaddr for vaddr, offset, size in loads if 0 <= strings_vaddr - vaddr < size)
    for at, (tag, value) in entries.items():
        if tag == _DT_NEEDED and data.startswith(name, strings + value):
            _ENTRY.pack_into(changed, at, _DT_IGNORED, 0)
        elif tag in (_DT_INIT_ARRAYSZ, _DT_FINI_ARRAYSZ):
            _ENTRY.pack_into(changed, at, tag, 0)
    return bytes(changed)
