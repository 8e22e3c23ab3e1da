# SPDX-License-Identifier: Apache-2.0
"""Debug files from debuginfod servers, only where the user named some in DEBUGINFOD_URLS.

Protocol: elfutils debuginfod(8), `GET URL/buildid/BUILDID/debuginfo`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from powerprof import fetching
from powerprof.errors import DataError, PowerprofError
from powerprof.folders import Folder
from powerprof.paths import cache_dir, cache_folder
from powerprof.stacks.elf import read_elf

MAX_BYTES = 1 << 30
TOTAL_S = 120.0
ALL_S = 300.0
# A server that does not have it is not asked again for a day.
MISSING_S = 86_400.0
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")


def servers() -> list[str]:
    """The servers of DEBUGINFOD_URLS; anything but http and https is left out."""
    words = os.environ.get("DEBUGINFOD_URLS", "").split()
    return [address.rstrip("/") for address in words if address.startswith(("http://", "https://"))]


def cached(build_id: str) -> Path | None:
    """The debug file of a build id that was fetched before."""
    if not _BUILD_ID.fullmatch(build_id):
        return None
    path = cache_dir() / "debuginfod" / f"{build_id}.debug"
    try:
        return path if path.is_file() and cache_folder("debuginfod") == path.parent else None
    except (PowerprofError, OSError):
        return None


@dataclass
class Request:
    """A download that a person asked for: servers are asked also where they did not have a file today, large files have
    time until `until_s` (monotonic), and `problems` gets what went wrong, each once.
    """

    until_s: float
    problems: dict[str, None] = field(default_factory=dict)


def fetch(build_id: str, request: Request | None = None) -> Path | None:
    """The debug file of a build id in the cache, fetched where it is not there; None where no server has it."""
    if (path := cached(build_id)) is not None or not _BUILD_ID.fullmatch(build_id) or not servers():
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


def _from_servers(build_id: str, folder: Folder, names: tuple[str, str], request: Request | None) -> bool:
    answered, (name, missing) = True, names
    until_s = min(time.monotonic() + TOTAL_S, _end_of_all_s()) if request is None else request.until_s
    for server in servers():
        try:
            _download(server, build_id, folder, name, until_s)
            return True
        except FileNotFoundError:
            continue
        except (OSError, PowerprofError) as error:
            answered = False
            if request is not None:
                reason = error.reason if isinstance(error, DataError) else str(error)
                request.problems[f"{server}: {reason}"] = None
    if answered:
        with suppress(OSError):
            folder.write(missing, b"")
    return False


def _download(server: str, build_id: str, folder: Folder, name: str, until_s: float) -> None:
    """Raises FileNotFoundError where the server does not have it, OSError and DataError where it cannot be had."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time for downloads is over")
    with folder.replacing(name) as handle:
        fetching.fetch(f"{server}/buildid/{build_id}/debuginfo", handle, limit_bytes=MAX_BYTES, total_s=left_s)
        # A server's mistake must not stay in the cache.
        if read_elf(handle, "debug file").build_id != build_id:
            raise DataError(server, "sent the debug file of another build")


@cache
def _end_of_all_s() -> float:
    """When this process fetches no more, counted from its first download: a slow server is asked for many files."""
    return time.monotonic() + ALL_S
