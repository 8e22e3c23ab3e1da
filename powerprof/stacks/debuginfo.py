# SPDX-License-Identifier: Apache-2.0
"""Debug information of a module: the full symbol table, inlined calls and source lines."""

from __future__ import annotations

import os
import re
import struct
import time
import zlib
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from powerprof.stacks.elf import Elf, read_elf, section_bytes
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.inline import InlineReader
from powerprof.stacks.store import TableStore, open_module
from powerprof.stacks.symtab import SymbolTable
from powerprof.stacks.time_budget import Budget
from powerprof.system import fetching
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.folders import Folder
from powerprof.system.paths import cache_dir, cache_folder
from powerprof.system.reader_process import Opened, link_of, shared
from powerprof.system.tasks import process_folder

# Debug files from debuginfod servers. Servers are queried only if the user set DEBUGINFOD_URLS.
#
# Protocol: elfutils debuginfod(8), `GET URL/buildid/BUILDID/debuginfo`.

MAX_BYTES = 1 << 30
TOTAL_S = 120.0
ALL_S = 300.0
# After a server reported a file as missing, it is not queried for it for a day.
MISSING_S = 86_400.0
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")


def configured_servers() -> list[str]:
    """Return the http and https servers of DEBUGINFOD_URLS."""
    words = os.environ.get("DEBUGINFOD_URLS", "").split()
    return [address.rstrip("/") for address in words if address.startswith(("http://", "https://"))]


def find_cached(build_id: str) -> Path | None:
    """Return the cached debug file of a build id, or None."""
    if not _BUILD_ID.fullmatch(build_id):
        return None
    path = cache_dir() / "debuginfod" / f"{build_id}.debug"
    try:
        return path if path.is_file() and cache_folder("debuginfod") == path.parent else None
    except (PowerprofError, OSError):
        return None


class FetchRequest(msgspec.Struct):
    """A download that the user requested.

    Servers are queried even if they reported the file as missing today. Large files have time until `until_s`
    (monotonic). `problems` collects each failure once.
    """

    until_s: float
    problems: dict[str, None] = msgspec.field(default_factory=dict)


def fetch(build_id: str, request: FetchRequest | None = None) -> Path | None:
    """Return the debug file of a build id in the cache, after a download if needed; None if no server has it."""
    if (path := find_cached(build_id)) is not None or not _BUILD_ID.fullmatch(build_id) or not configured_servers():
        return path
    name, missing = f"{build_id}.debug", f"{build_id}.missing"
    try:
        directory = cache_folder("debuginfod")
        with Folder.open(directory) as folder:
            with suppress(OSError):
                if request is None and time.time() - folder.stat(missing).st_mtime < MISSING_S:
                    return None
            return directory / name if _from_servers(build_id, folder, (name, missing), request) else None
    except (PowerprofError, OSError) as error:
        if request is not None:
            request.problems[str(error)] = None
        return None


def _from_servers(build_id: str, folder: Folder, names: tuple[str, str], request: FetchRequest | None) -> bool:
    has_answer, (name, missing) = True, names
    until_s = min(time.monotonic() + TOTAL_S, _end_of_all_s()) if request is None else request.until_s
    for server in configured_servers():
        try:
            _download(server, build_id, folder, name, until_s)
            return True
        except FileNotFoundError:
            continue
        except (OSError, PowerprofError) as error:
            has_answer = False
            if request is not None:
                reason = error.reason if isinstance(error, DataError) else str(error)
                request.problems[f"{server}: {reason}"] = None
    if has_answer:
        with suppress(OSError):
            folder.write(missing, b"")
    return False


def _download(server: str, build_id: str, folder: Folder, name: str, until_s: float) -> None:
    """Download a debug file. Raises FileNotFoundError if the server lacks it, OSError and DataError on failure."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time for downloads is over")
    with folder.replacing(name) as handle:
        fetching.fetch(f"{server}/buildid/{build_id}/debuginfo", handle, limit_bytes=MAX_BYTES, total_s=left_s)
        # A wrong file of a server must not stay in the cache.
        if read_elf(handle, "debug file").build_id != build_id:
            raise DataError(server, "sent the debug file of another build")


@cache
def _end_of_all_s() -> float:
    """Return the end of all downloads of this process, counted from its first one: a server may be slow each time."""
    return time.monotonic() + ALL_S


# Separate debug files: found by build id, by .gnu_debuglink with its checksum, or from debuginfod.

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
    link = _debuglink(elf) if elf is not None else None
    if link is not None:
        name, checksum = link
        folder = str(PurePosixPath(mapping.path).parent)
        for root in roots:
            for place in (f"{folder}/{name}", f"{folder}/.debug/{name}", f"{_DEBUG_ROOT}{folder}/{name}"):
                candidate = _open(image.pid, root, place) if place != mapping.path else None
                if candidate is not None and _checksum(candidate, image.pid, budget) == checksum:
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


def _debuglink(elf: Elf) -> tuple[str, int] | None:
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


def _checksum(opened: Opened, pid: int, budget: Budget) -> int | None:
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


class DebugInfo(msgspec.Struct, frozen=True):
    """The debug information of a module. `notes` give the reasons for omissions.

    `source` is how the separate debug file was found (`DebugFile`).
    """

    symbols: SymbolTable | None
    inline: InlineReader | None
    notes: tuple[str, ...] = ()
    source: str | None = None


def read_debug(store: TableStore, image: ProcessImage, mapping: Mapping, *, inline: bool) -> DebugInfo:
    """Return a module's debug information: DWARF from its own file or its debug file, symbols from the debug file.

    Each file is read once per file system root. A process that has ended has no root: it shares what was read for the
    same file of another process, because a server may start hundreds of workers.
    """
    key, root = (store.file_key(mapping), inline), _root_of(image.pid)
    known: dict[object, DebugInfo] = store.debug_info.setdefault(key, {})
    shared_info = known.get(root) if root is not None or not known else next(reversed(known.values()))
    if shared_info is None:
        shared_info = known[root] = _read_debug(store, image, mapping, inline=inline)
    return shared_info


def _root_of(pid: int) -> tuple[str, str] | None:
    """Return the mount namespace and root folder of a process; None if it has ended."""
    folder = process_folder(pid)
    namespace, root = link_of(folder / "ns/mnt"), link_of(folder / "root")
    return None if namespace is None or root is None else (namespace, root)


def _read_debug(store: TableStore, image: ProcessImage, mapping: Mapping, *, inline: bool) -> DebugInfo:
    symbols: SymbolTable | None = None
    reader: InlineReader | None = None
    notes: list[str] = []
    with ExitStack() as stack:
        own = open_module(image, mapping)
        own_elf = _enter(stack, store, image, own, mapping, notes)
        debug_file = find_debug_file(image, mapping, own_elf, store.budget, download=store.downloads)
        separate = debug_file.opened if debug_file is not None else None
        separate_elf = _enter(stack, store, image, separate, mapping, notes)
        if isinstance(separate, Opened) and separate_elf is not None:
            try:
                symbols = store.debug_symbols(separate, separate_elf)
            except DataError as error:
                notes.append(error.reason)
        for opened, elf in ((own, own_elf), (separate, separate_elf)):
            if not inline or reader is not None or not isinstance(opened, Opened) or elf is None:
                continue
            if elf.section(".debug_info") is not None and not opened.is_trusted:
                notes.append("inlined calls not shown (other users may write its debug information)")
            reader = store.inline(opened, elf)
    source = debug_file.source if debug_file is not None and symbols is not None else None
    return DebugInfo(symbols, reader, tuple(notes), source)


def _enter(
    stack: ExitStack,
    store: TableStore,
    image: ProcessImage,
    opened: Opened | str | None,
    mapping: Mapping,
    notes: list[str],
) -> Elf | None:
    if not isinstance(opened, Opened):
        return None
    stack.enter_context(opened)
    try:
        meter = stack.enter_context(store.budget.metered(image.pid, opened.is_trusted))
        return read_elf(opened.fd, mapping.path, meter)
    except DataError as error:
        notes.append(error.reason)
        return None
