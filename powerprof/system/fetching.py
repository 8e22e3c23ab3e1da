# SPDX-License-Identifier: Apache-2.0
"""Downloads by a child process without rights, with one deadline for the whole transfer.

A socket time-out applies to each wait. A server that sends a byte now and then could keep a transfer going without end,
and so could a name server. A child therefore makes the transfer, and is killed at the deadline. The child is this file
run as a script with the standard library only. Under root it becomes the caller, or nobody. It writes the content to a
file that its parent has opened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16
_WAIT_S = 60.0
_MISSING, _REFUSED, _TOO_LARGE = 4, 5, 6
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")


def fetch(address: str, handle: int, *, limit_bytes: int, total_s: float, elsewhere: bool = True) -> None:
    """Download an http(s) address into an open file. If `elsewhere` is False, redirects to other hosts are refused.

    Raise FileNotFoundError if the server does not have it (404). Raise OSError with one line for all other failures:
    the server is unreachable, refuses, redirects away, sends more than `limit_bytes`, or needs more than `total_s`
    seconds.
    """
    words = (address, str(limit_bytes), "anywhere" if elsewhere else "there")
    passed = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    code, reason = _run_without_rights(words, passed, handle, total_s)
    if code == _MISSING:
        raise FileNotFoundError(reason)
    if code != 0:
        raise OSError((reason.splitlines() or [f"the download exited with code {code}"])[-1][:300])


def _run_without_rights(words: Iterable[str], env: Mapping[str, str], handle: int, total_s: float) -> tuple[int, str]:
    """Run this file as the caller, or as nobody under root. Return its exit status and its stderr.

    Kill it and raise TimeoutError if it has not ended after `total_s` seconds.
    """
    from powerprof.system import programs
    from powerprof.system.caller import unprivileged

    account = unprivileged()
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as stream:
        try:
            # The text is passed because the child's account may not be able to read our files.
            child = programs.start(
                programs.python_command("-c", Path(__file__).read_text(encoding="utf-8"), *words, site=False),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=theirs,
                env=env,
                user=(account.uid, account.gid) if account else None,
            )
        finally:
            os.close(theirs)
        try:
            code = child.wait(max(total_s, 0.01))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not finished after {total_s:g} s") from None
        finally:
            programs.stop(child, kind=signal.SIGKILL)
        return code, stream.read(4096).decode("utf-8", "replace").strip()


def _get(address: str, limit_bytes: int, elsewhere: bool) -> int:
    """Copy the content to descriptor 1. Return the exit status; its reason is on stderr."""
    # Only the child imports these.
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    class _WebOnly(urllib.request.HTTPRedirectHandler):
        """Refuse redirects to file: and ftp:, and to hosts other than `host` if it is given."""

        def __init__(self, host: str | None) -> None:
            self._host = host

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if self._host is not None and urllib.parse.urlsplit(newurl).hostname != self._host:
                raise urllib.error.HTTPError(newurl, code, "redirected to another host", headers, fp)
            if not newurl.startswith(("http://", "https://")):
                raise urllib.error.HTTPError(newurl, code, "redirected away from http", headers, fp)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    request = urllib.request.Request(address, headers={"User-Agent": "powerprof"})  # noqa: S310 - checked below
    if not address.startswith(("http://", "https://")):
        print("not an http(s) address", file=sys.stderr)
        return _REFUSED
    remaining = limit_bytes
    try:
        host = None if elsewhere else urllib.parse.urlsplit(address).hostname or ""
        with urllib.request.build_opener(_WebOnly(host)).open(request, timeout=_WAIT_S) as answer:
            while chunk := answer.read(_CHUNK):
                remaining -= len(chunk)
                if remaining < 0:
                    print(f"more than {limit_bytes:,} bytes", file=sys.stderr)
                    return _TOO_LARGE
                while chunk:
                    chunk = chunk[os.write(1, chunk) :]
    except urllib.error.HTTPError as error:
        print(f"HTTP {error.code} {error.reason}", file=sys.stderr)
        return _MISSING if error.code == 404 else _REFUSED
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(str(getattr(error, "reason", None) or error), file=sys.stderr)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_get(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "anywhere"))
