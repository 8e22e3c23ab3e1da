# SPDX-License-Identifier: Apache-2.0
"""Profiles to a collector: one POST with one deadline for all of it, by a process of its own that has no rights.

As with downloads (`fetching`) a child does the talking and is ended at the deadline, whatever it waits for. It is this
file as a script, standard library only; under root it becomes the caller, or nobody. It asks no proxy and follows no
redirect: what was measured goes to the host that was named. A message names that host, never the rest of the address.
"""

from __future__ import annotations

import http.client
import os
import re
import sys
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

TOTAL_S = 10.0
_PATH = "/v1development/profiles"
_REFUSED = 5
_MOST_BYTES = 1 << 16
_MOST_CHARS = 2000
_HOST_AND_PORT = re.compile(r"(?:[^/]*@)?[\w.-]+:\d+(/.*)?", re.ASCII | re.DOTALL)
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def is_address(target: str) -> bool:
    """Whether it is the address of a collector, not a file. Raises UsageError for one that nothing can be sent to."""
    from powerprof.system.errors import UsageError

    if _HOST_AND_PORT.fullmatch(target):
        raise UsageError("--otlp: a host and port are no address", "put http:// before it, or ./ before a file's name")
    if "://" not in target:
        return False
    scheme = target.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        raise UsageError("--otlp sends by http or https only", "such as http://localhost:4318")
    try:
        parts = urlsplit(target)
        sound = parts.hostname and parts.port != 0 and "#" not in target
    except ValueError:
        sound = False
    if not sound or len(target) > _MOST_CHARS or not target.isascii() or not target.isprintable() or " " in target:
        raise UsageError("--otlp: not an address of a collector", "such as http://localhost:4318")
    if "@" in parts.netloc:
        raise UsageError(
            "--otlp: an address with a user or password is refused",
            "the process list would show it: send to a collector on this host, which knows the password",
        )
    return True


def place_of(address: str) -> str:
    """The address as far as it is fit for messages: the scheme, the host and the port."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def send(address: str, data: bytes) -> None:
    """POST a profile. Raises PowerprofError with one line where the collector cannot be reached or does not take it."""
    from powerprof.system.errors import PowerprofError
    from powerprof.system.files import printable

    try:
        answer = _answer_of(address, data)
        rejected, message = _rejected(answer)
        if rejected:
            raise OSError(f"it rejected {rejected} of the profiles{': ' if message else ''}{message}")
    except OSError as error:
        reason = printable(str(error))[:200] or "no reason was given"
        raise PowerprofError(
            f"cannot send the profile to {place_of(address)} ({reason})",
            "does a collector listen there that has a pipeline for profiles?",
        ) from error


def _answer_of(address: str, data: bytes) -> bytes:
    """What the collector answered. Raises OSError."""
    from powerprof.system.caller import is_delegated
    from powerprof.system.fetching import without_rights

    passed = {name: os.environ[name] for name in _CERTIFICATES if name in os.environ and not is_delegated()}
    handle, answer = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("otlp", "answer"))
    with os.fdopen(handle, "w+b") as body, os.fdopen(answer, "w+b") as out:
        # The address as well: a command line is everybody's to read.
        body.write(address.encode() + b"\n" + data)
        body.seek(0)
        try:
            code, reason = without_rights(
                Path(__file__), (), passed, stdin=body.fileno(), stdout=out.fileno(), total_s=TOTAL_S
            )
        except TimeoutError:
            raise TimeoutError(f"no answer after {TOTAL_S:g} s") from None
        if code != 0:
            raise OSError((reason.splitlines() or [f"the sender ended with {code}"])[-1])
        out.seek(0)
        return out.read(_MOST_BYTES)


def _rejected(answer: bytes) -> tuple[int, str]:
    """How many profiles were rejected and why: ExportProfilesServiceResponse.partial_success, fields 1 and 2.

    An answer of another form says nothing of it.
    """
    try:
        partial = dict(_fields(answer)).get(1, b"")
        found = dict(_fields(partial)) if isinstance(partial, bytes) else {}
    except (IndexError, ValueError):
        return 0, ""
    count, message = found.get(1, 0), found.get(2, b"")
    return (count if isinstance(count, int) else 0), (
        message.decode("utf-8", "replace") if isinstance(message, bytes) else ""
    )


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message that are numbers or bytes. Raises IndexError and ValueError for what is none."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 2:
            if at + value > len(data):
                raise IndexError("cut short")
            found.append((key >> 3, data[at : at + value]))
            at += value
        elif key & 7 == 0:
            found.append((key >> 3, value))
        else:
            raise ValueError("another type of field")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("too long a number")


def _post(address: str, data: bytes) -> int:
    """Send, and copy the answer to descriptor 1; the exit status, with its reason on stderr."""
    parts: SplitResult = urlsplit(address)
    path = (parts.path if parts.path not in ("", "/") else _PATH) + (f"?{parts.query}" if parts.query else "")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/x-protobuf", "User-Agent": "powerprof", "Connection": "close"}
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=TOTAL_S)
        connection.request("POST", path, body=data, headers=headers)
        answer = connection.getresponse()
        if 300 <= answer.status < 400:
            print(f"HTTP {answer.status}: redirects are not followed", file=sys.stderr)
            return _REFUSED
        if not 200 <= answer.status < 300:
            print(f"HTTP {answer.status} {answer.reason}", file=sys.stderr)
            return _REFUSED
        sys.stdout.buffer.write(answer.read(_MOST_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        print(reason.replace("\n", " "), file=sys.stderr)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_post(sys.stdin.buffer.readline().decode().rstrip("\n"), sys.stdin.buffer.read()))
