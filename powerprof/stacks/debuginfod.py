# SPDX-License-Identifier: Apache-2.0
"""Debug files from debuginfod servers. Servers are queried only if the user set DEBUGINFOD_URLS.

Protocol: elfutils debuginfod(8), `GET URL/buildid/BUILDID/debuginfo`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.stacks.elf import read_elf
from powerprof.system import fetching
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.folders import Folder
from powerprof.system.paths import cache_dir, cache_folder

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
            return directory / name if _download_from_any(build_id, folder, (name, missing), request) else None
    except (PowerprofError, OSError) as error:
        if request is not None:
            request.problems[str(error)] = None
        return None


class _Unasked(msgspec.Struct):
    """What is left of the time for downloads that no user requested. A server may be slow each time."""

    seconds_left: float = ALL_S


_unasked = _Unasked()


def _download_from_any(build_id: str, folder: Folder, names: tuple[str, str], request: FetchRequest | None) -> bool:
    began_s = time.monotonic()
    until_s = began_s + min(TOTAL_S, _unasked.seconds_left) if request is None else request.until_s
    try:
        return _ask_each_server(build_id, folder, names, request, until_s)
    finally:
        if request is None:
            _unasked.seconds_left -= time.monotonic() - began_s


def _ask_each_server(
    build_id: str, folder: Folder, names: tuple[str, str], request: FetchRequest | None, until_s: float
) -> bool:
    has_answer, (name, missing) = True, names
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
