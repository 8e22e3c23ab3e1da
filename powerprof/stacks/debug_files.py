# SPDX-License-Identifier: Apache-2.0
"""Separate debug files: found by build id, by .gnu_debuglink with its checksum, or from debuginfod."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from powerprof.stacks.debuginfod import fetch, find_cached
from powerprof.stacks.elf import Elf, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.time_budget import Budget
from powerprof.system.errors import DataError
from powerprof.system.reader_process import Opened, shared
from powerprof.system.tasks import process_folder

# The checksum covers the whole file, and the untrusted process chooses the file.
MAX_LINKED_BYTES = 256 << 20
_DEBUG_ROOT = "/usr/lib/debug"


class DebugFile(msgspec.Struct, frozen=True):
    """An open debug file, which the caller closes, and how it was found."""

    opened: Opened
    source: Literal["build_id", "debuglink", "debuginfod"]


def find_debug_file(
    image: ProcessImage, mapping: Mapping, elf: Elf | None, budget: Budget, *, download: bool = True
) -> DebugFile | None:
    """Return the verified separate debug file of a module; None if there is none.

    The process's own root is searched before this system's, because a container has its own debug files. `elf` is the
    module's file, needed for .gnu_debuglink only. Without `download` no server is queried.
    """
    roots = [process_folder(image.pid) / "root", Path("/")]
    build_id = mapping.build_id
    if build_id and len(build_id) > 2:
        name = f"{_DEBUG_ROOT}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for root in roots:
            candidate = _open(image.pid, root, name)
            if candidate is not None and _has_build_id(candidate, build_id):
                return DebugFile(candidate, "build_id")
            _close(candidate)
    link = _read_debuglink(elf) if elf is not None else None
    if link is not None:
        name, checksum = link
        folder = str(PurePosixPath(mapping.path).parent)
        for root in roots:
            for place in (f"{folder}/{name}", f"{folder}/.debug/{name}", f"{_DEBUG_ROOT}{folder}/{name}"):
                candidate = _open(image.pid, root, place) if place != mapping.path else None
                if candidate is not None and _compute_checksum(candidate, image.pid, budget) == checksum:
                    return DebugFile(candidate, "debuglink")
                _close(candidate)
    if build_id:
        path = fetch(build_id) if download else find_cached(build_id)
        candidate = _open(image.pid, Path("/"), str(path)) if path is not None else None
        if candidate is not None and _has_build_id(candidate, build_id):
            return DebugFile(candidate, "debuginfod")
        _close(candidate)
    return None


def _open(pid: int, root: Path, name: str) -> Opened | None:
    opened = shared().open_in_root(pid, root, name)
    return opened if isinstance(opened, Opened) else None


def _close(opened: Opened | None) -> None:
    if opened is not None:
        os.close(opened.fd)


def _has_build_id(opened: Opened, build_id: str) -> bool:
    try:
        return read_elf(opened.fd, "debug file").build_id == build_id
    except DataError:
        return False


def _read_debuglink(elf: Elf) -> tuple[str, int] | None:
    """Return file name and CRC-32 of .gnu_debuglink; None if it is missing or names a path."""
    section = elf.section(".gnu_debuglink")
    if section is None:
        return None
    try:
        data = section_bytes(elf, section, 4096)
    except DataError:
        return None
    end = data.find(b"\0")
    at = (end + 4) & ~3
    if end <= 0 or at + 4 > len(data) or b"/" in data[:end] or data[:end] in (b".", b".."):
        return None
    return data[:end].decode("utf-8", "replace"), struct.unpack_from("<I", data, at)[0]


def _compute_checksum(opened: Opened, pid: int, budget: Budget) -> int | None:
    # Linkers do not write sparse files, and a sparse file can have any length.
    if opened.size_bytes > MAX_LINKED_BYTES or 2 * opened.stored_bytes < opened.size_bytes:
        return None
    crc, at = 0, 0
    with budget.meter(pid) as meter:
        while at < opened.size_bytes:
            try:
                meter.take(0, "its debug file")
            except DataError:
                return None
            chunk = os.pread(opened.fd, 4 << 20, at)
            if not chunk:
                return None
            crc = zlib.crc32(chunk, crc)
            at += len(chunk)
    return crc
