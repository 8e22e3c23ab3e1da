# SPDX-License-Identifier: Apache-2.0
"""Debug files from debuginfod servers, only where the user named some in DEBUGINFOD_URLS.

Protocol: elfutils debuginfod(8), `GET URL/buildid/BUILDID/debuginfo`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from powerprof import fetching
from powerprof.errors import PowerprofError
from powerprof.folders import Folder
from powerprof.paths import cache_folder

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


def fetch(build_id: str) -> Path | None:
    """The debug file of a build id in the cache, fetched where it is not there; None where no server has it."""
    if not _BUILD_ID.fullmatch(build_id) or not servers():
        return None
    name, missing = f"{build_id}.debug", f"{build_id}.missing"
    try:
        directory = cache_folder("debuginfod")
        with Folder.open(directory) as folder:
            if (directory / name).is_file():
                return directory / name
            with suppress(OSError):
                if time.time() - folder.stat(missing).st_mtime < MISSING_S:
                    return None
            return directory / name if _from_servers(build_id, folder, name, missing) else None
    except (PowerprofError, OSError):
        return None


def _from_servers(build_id: str, folder: Folder, name: str, missing: str) -> bool:
    answered = True
    for server in servers():
        try:
            _download(f"{server}/buildid/{build_id}/debuginfo", folder, name)
            return True
        except FileNotFoundError:
            continue
        except (OSError, PowerprofError):
            answered = False
    if answered:
        with suppress(OSError):
            folder.write(missing, b"")
    return False


def _download(url: str, folder: Folder, name: str) -> None:
    """Raises FileNotFoundError where the server does not have it, OSError where it cannot be had."""
    left_s = min(TOTAL_S, _end_of_all_s() - time.monotonic())
    if left_s <= 0:
        raise TimeoutError("the time for downloads is over")
    with folder.replacing(name) as handle:
        fetching.fetch(url, handle, limit_bytes=MAX_BYTES, total_s=left_s)


@cache
def _end_of_all_s() -> float:
    """When this process fetches no more, counted from its first download: a slow server is asked for many files."""
    return time.monotonic() + ALL_S
