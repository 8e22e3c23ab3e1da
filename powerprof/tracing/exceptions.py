# SPDX-License-Identifier: Apache-2.0
"""Find the files of a process that can raise exceptions: none may pass a return probe (uretprobe).

Exceptions of C++, Rust and Ada are raised by libgcc's unwinder. It follows return addresses, and a uretprobe replaces
one by a trampoline without a frame description. The search for a handler ends there and the process calls
std::terminate. Forced unwinding (pthread_exit, cancellation) only loses its clean-ups. The functions that an
exception can pass are unknown, so the check is made for the whole process.
"""

from __future__ import annotations

from powerprof.stacks.elf import SHT_DYNSYM, Elf, read_elf, section_bytes
from powerprof.stacks.image import ProcessImage
from powerprof.stacks.store import open_module
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import reading
from powerprof.system.reader_process import Opened

_RAISERS = (b"\0__cxa_throw\0", b"\0__cxa_rethrow\0", b"\0_Unwind_RaiseException\0", b"\0__gnat_raise")
# The unwinder itself: glibc loads it for pthread_cancel into programs that throw no exceptions.
_UNWINDER = "libgcc_s"


def find_throwing_modules(image: ProcessImage) -> list[str]:
    """Return the files of a process that can raise exceptions, and those that cannot be read."""
    modules = []
    seen = set()
    for mapping in image.mappings:
        key = (mapping.device, mapping.inode)
        if not mapping.inode or mapping.bias is None or key in seen or mapping.module.startswith(_UNWINDER):
            continue
        seen.add(key)
        opened = open_module(image, mapping)
        if not isinstance(opened, Opened):
            modules.append(mapping.module)
            continue
        with opened:
            try:
                with reading(mapping.path):
                    throws = can_throw(read_elf(opened.fd, mapping.path))
            except DataError:
                throws = True
        if throws:
            modules.append(mapping.module)
    return sorted(set(modules))


def can_throw(elf: Elf) -> bool:
    """Return whether a file names a function that raises, or a static program has handlers. Raises DataError."""
    dynamic = [
        section for section in elf.sections if section.kind == SHT_DYNSYM and 0 < section.link < len(elf.sections)
    ]
    if not dynamic:
        return elf.section(".gcc_except_table") is not None
    return any(name in section_bytes(elf, elf.sections[entry.link]) for entry in dynamic for name in _RAISERS)
