# SPDX-License-Identifier: Apache-2.0
"""Describe the places in a server's program that show its statements, for MariaDB, MySQL and PostgreSQL."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from collections.abc import Mapping as Table
from contextlib import contextmanager

import msgspec

from powerprof.stacks.elf import Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.store import open_module
from powerprof.system.errors import CapabilityError, DataError
from powerprof.system.foreign_data import reading
from powerprof.system.reader_process import Opened
from powerprof.tracing.symbols import find_file_offset, is_stepped

_ENDBR64 = bytes.fromhex("f30f1efa")


class Dispatch(msgspec.Struct, frozen=True):
    """The places to probe in a server. Offsets are in the file of `mapping`.

    `waits_offset`: the function that waits for the next packet, None if unknown. `stepped`: a probe needs a second
    trap. `sites`: the meaning of calls by return address, if a server's processes have one function for all
    (postgresql_places). `is_sure`: each of a client's messages is recognised. `text_address`: the pointer to the text
    that a process executes. `within`: further probes, offsets by function of queries.bpf.c. `waits`: the calls that
    report a wait. `event_address`: the pointer to the wait of a PostgreSQL process.
    """

    mapping: Mapping
    symbol: str
    offset: int
    layout: int
    waits_offset: int | None
    stepped: bool
    sites: Table[int, int] = msgspec.field(default_factory=dict)
    is_sure: bool = True
    version: str | None = None
    text_address: int | None = None
    within: Table[str, int] = msgspec.field(default_factory=dict)
    waits: tuple[tuple[str, int], ...] = ()
    event_address: int | None = None


def is_dispatch_copied(image: ProcessImage, dispatch: Dispatch) -> bool:
    """Return whether the server executes a copy of the probed function, in memory without a file."""
    mapping = dispatch.mapping
    place = image.mapping_at(mapping.start + dispatch.offset - mapping.offset)
    return place is not None and place.is_copy


@contextmanager
def open_program(image: ProcessImage, remedy: str) -> Iterator[tuple[Elf, Mapping]]:
    """Open a process's own program and yield it with its mapping, which has a bias.

    Raises CapabilityError if it cannot be read, with `remedy` if its content is damaged.
    """
    mapping = next((one for one in image.mappings if one.path == image.executable and one.bias is not None), None)
    if mapping is None:
        raise CapabilityError(f"the program of process {image.pid} cannot be read", "run as root")
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        raise CapabilityError(f"{mapping.module} cannot be read ({opened})", "restart the server after an upgrade")
    with opened:
        try:
            # Users of the open file are covered too, because its addresses and sizes are untrusted.
            with reading(mapping.path):
                yield read_elf(opened.fd, mapping.path), mapping
        except DataError as error:
            raise CapabilityError(f"{mapping.module} cannot be read ({error.reason})", remedy) from error


class TextPlace(msgspec.Struct, frozen=True):
    """The addresses of struct place in text_places.bpf.h. Negative numbers count backwards.

    `version`: of the program of PostgreSQL; None if it does not show it, and for MariaDB and MySQL.
    """

    text: int
    client: int
    mode: int = 0
    entry: int = 0
    activity: int = 0
    limit: int = 0
    running: int = 0
    version: str | None = None


_PLACE = struct.Struct("<7Q")


def pack_text_place(place: TextPlace) -> bytes:
    """Return struct place."""
    signed = place.text % (1 << 64), place.client % (1 << 64)
    return _PLACE.pack(*signed, place.mode, place.entry, place.activity, place.limit, place.running)


def find_probe_offsets(elf: Elf, functions: Table[str, int | None]) -> dict[str, int]:
    """Return the file offsets to probe by program, for the functions that the server has."""
    offsets = {name: find_file_offset(elf, vaddr) for name, vaddr in functions.items() if vaddr is not None}
    return {name: skip_landing_mark(elf, offset) for name, offset in offsets.items() if offset is not None}


def skip_landing_mark(elf: Elf, offset: int) -> int:
    """Return the offset after the landing mark of indirect branches, which would need a second trap."""
    if elf.read(offset, 4) == _ENDBR64 and not is_stepped(elf.read(offset + 4, 2)):
        return offset + 4
    return offset
