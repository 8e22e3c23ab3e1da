# SPDX-License-Identifier: Apache-2.0
"""Where a MariaDB or MySQL server begins a command: the function that every packet of every client goes through.

It has had one name since MySQL 4.1 and three lists of parameters, which its mangled name tells. Plugins need its
neighbours, so servers export their functions: a stripped one has it in .dynsym.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Table
from contextlib import contextmanager
from dataclasses import dataclass, field

from powerprof.errors import CapabilityError, DataError
from powerprof.processes.reader_process import Opened
from powerprof.stacks.elf import Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.store import open_module
from powerprof.tracing.statements.waitplaces import wait_sites
from powerprof.tracing.symbols.file_functions import own_symbols
from powerprof.tracing.symbols.patterns import file_offset, is_stepped
from powerprof.untrusted import reading

_DISPATCH = "_Z16dispatch_command"
_WAITS = "_Z10do_commandP3THD"
# CALL and events execute a procedure; an event's has no packet before it.
_PROCEDURE, AT_PROCEDURE = "_ZN7sp_head17execute_procedureEP3THD", "uprobe__procedure"
# What is passed → the LAYOUT of queries.bpf.c.
LAYOUTS = {"19enum_server_commandP3THDPc": 0, "P3THDPK8COM_DATA19enum_server_command": 1}
_ENDBR64 = bytes.fromhex("f30f1efa")
EXPORTING = "a build that exports its functions"


@dataclass(frozen=True)
class Dispatch:
    """The place to probe. Offsets are in the file of `mapping`.

    `waits_offset`: where the function that waits for the next packet begins, None where it is not known. `stepped`: the
    kernel needs a second trap for a probe there. `sites`: what a call means by the address that it returns to, where a
    server's processes have one function for all (`activity`); `is_sure`: each of a client's messages is recognised;
    `text_address`: where each process has the address of the text that it executes. `within`: function of queries.bpf.c
    → where else it is to run: what is executed without a packet, or is another's. `waits`: where the server says what
    it waits for (`waitplaces`), `event_address`: where PostgreSQL's processes have the address of what they wait for.
    """

    mapping: Mapping
    symbol: str
    offset: int
    layout: int
    waits_offset: int | None
    stepped: bool
    sites: Table[int, int] = field(default_factory=dict)
    is_sure: bool = True
    version: str | None = None
    text_address: int | None = None
    within: Table[str, int] = field(default_factory=dict)
    waits: tuple[tuple[str, int], ...] = ()
    event_address: int | None = None


@contextmanager
def own_program(image: ProcessImage, remedy: str) -> Iterator[tuple[Elf, Mapping]]:
    """A process's own program and its mapping, which has a bias. Raises CapabilityError where it cannot be read, with
    `remedy` where what it holds is damaged."""
    mapping = next((one for one in image.mappings if one.path == image.executable and one.bias is not None), None)
    if mapping is None:
        raise CapabilityError(f"the program of process {image.pid} cannot be read", "run as root")
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        raise CapabilityError(f"{mapping.module} cannot be read ({opened})", "restart the server after an upgrade")
    with opened:
        try:
            # What is made of the file while it is open as well: addresses and sizes are whatever it says.
            with reading(mapping.path):
                yield read_elf(opened.fd, mapping.path), mapping
        except DataError as error:
            raise CapabilityError(f"{mapping.module} cannot be read ({error.reason})", remedy) from error


def find_dispatch(image: ProcessImage) -> Dispatch:
    """Raises CapabilityError where the process has no such function, or one that is not known."""
    with own_program(image, EXPORTING) as (elf, mapping):
        return _in(elf, mapping)


def _in(elf: Elf, mapping: Mapping) -> Dispatch:
    symbols, _ = own_symbols(elf)
    waits = next((vaddr for vaddr, name in symbols if name.startswith(_WAITS) and "." not in name), None)
    others = []
    for vaddr, name in symbols:
        if not name.startswith(_DISPATCH):
            continue
        layout = next(
            (number for mangled, number in LAYOUTS.items() if name[len(_DISPATCH) :].startswith(mangled)), None
        )
        offset = file_offset(elf, vaddr)
        # A clone (.constprop, .isra, .part) is passed other things than its name says.
        if layout is None or offset is None or "." in name:
            others.append(name)
            continue
        offset = probed(elf, offset)
        waits_offset = None if waits is None else file_offset(elf, waits)
        return Dispatch(
            mapping=mapping,
            symbol=name,
            offset=offset,
            layout=layout,
            waits_offset=None if waits_offset is None else probed(elf, waits_offset),
            stepped=is_stepped(elf.read(offset, 2)),
            waits=wait_sites(elf, symbols),
            within=within(elf, {AT_PROCEDURE: next((at for at, name in symbols if name.startswith(_PROCEDURE)), None)}),
        )
    if others:
        raise CapabilityError(f"{mapping.module} passes its commands in an unknown way ({others[0][:80]})", EXPORTING)
    raise CapabilityError(f"{mapping.module} has no symbol of dispatch_command, where statements begin", EXPORTING)


def within(elf: Elf, functions: Table[str, int | None]) -> dict[str, int]:
    """Program → where in the file its function is probed; those that the server does not have are left out."""
    offsets = {name: file_offset(elf, vaddr) for name, vaddr in functions.items() if vaddr is not None}
    return {name: probed(elf, offset) for name, offset in offsets.items() if offset is not None}


def probed(elf: Elf, offset: int) -> int:
    """Behind the landing mark of indirect branches, which the kernel would have to step over by a second trap."""
    if elf.read(offset, 4) == _ENDBR64 and not is_stepped(elf.read(offset + 4, 2)):
        return offset + 4
    return offset
