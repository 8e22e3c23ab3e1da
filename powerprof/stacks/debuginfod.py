"""Debug files from debuginfod servers, only where the user named some in DEBUGINFOD_URLS.

Protocol: elfutils debuginfod(8), `GET URL/buildid/BUILDID/debuginfo`.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from powerprof.errors import PowerprofError
from powerprof.paths import cache_dir, give_to_caller, private_directory

MAX_BYTES = 1 << 30
TIMEOUT_S = 20.0
TOTAL_S = 120.0
# A server that does not have it is not asked again for a day.
MISSING_S = 86_400.0
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")


def servers() -> list[str]:
    """The servers of DEBUGINFOD_URLS; anything but http and https is left out."""
    found = os.environ.get("DEBUGINFOD_URLS", "").split()
    return [one.rstrip("/") for one in found if one.startswith(("http://", "https://"))]


class _WebOnly(urllib.request.HTTPRedirectHandler):
    # A server must not lead to file: or ftp:.
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(newurl, code, "redirected away from http", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(build_id: str) -> Path | None:
    """The debug file of a build id in the cache, fetched where it is not there; None where no server has it."""
    if not _BUILD_ID.fullmatch(build_id) or not servers():
        return None
    try:
        directory = private_directory(cache_dir() / "debuginfod")
    except PowerprofError:
        return None
    path = directory / f"{build_id}.debug"
    missing = directory / f"{build_id}.missing"
    if path.is_file():
        return path
    with suppress(OSError):
        if time.time() - missing.lstat().st_mtime < MISSING_S:
            return None
    answered = True
    for server in servers():
        try:
            if _download(f"{server}/buildid/{build_id}/debuginfo", path):
                return path
        except urllib.error.HTTPError as error:
            answered &= error.code == 404
        except (OSError, ValueError):
            answered = False
    if answered:
        with suppress(OSError):
            missing.touch(mode=0o600)
    return None


def _download(url: str, path: Path) -> bool:
    """Raises OSError where the server cannot be reached or answers with an error."""
    opener = urllib.request.build_opener(_WebOnly)
    deadline = time.monotonic() + TOTAL_S
    handle, name = tempfile.mkstemp(prefix=".fetch-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, opener.open(url, timeout=TIMEOUT_S) as answer:
            total = 0
            while chunk := answer.read(1 << 20):
                total += len(chunk)
                if total > MAX_BYTES or time.monotonic() > deadline:
                    return False
                file.write(chunk)
        give_to_caller(temporary)
        temporary.replace(path)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink()
