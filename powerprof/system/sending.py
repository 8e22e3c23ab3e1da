# SPDX-License-Identifier: Apache-2.0
"""Sending of profiles to a collector: one POST with one deadline, by a child process without rights.

As with downloads (`fetching`), a child makes the transfer and is killed at the deadline. The child is this file run as
a script with the standard library only. Under root it becomes the caller, or nobody. It uses no proxy and follows no
redirect, so the profile reaches only the given host. Messages contain the host, and no other part of the address.
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
_MAX_BYTES = 1 << 16
_MAX_CHARS = 2000
_HOST_AND_PORT = re.compile(r"(?:[^/]*@)?[\w.-]+:\d+(/.*)?", re.ASCII | re.DOTALL)
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def is_address(target: str) -> bool:
    """Return whether a target is a collector's address and not a file. Raise UsageError for an unusable address."""
    from powerprof.system.errors import UsageError

    if _HOST_AND_PORT.fullmatch(target):
        raise UsageError("--otlp: the address lacks http://", "put http:// before a host, or ./ before a file name")
    if "://" not in target:
        if "/" not in target and "." not in target and target != "-":
            raise UsageError(
                f"--otlp {target}: neither an address nor a file with a suffix",
                "such as http://localhost:4318, or profile.pb for a file",
            )
        return False
    scheme = target.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        raise UsageError("--otlp sends by http or https only", "such as http://localhost:4318")
    try:
        parts = urlsplit(target)
        is_valid = parts.hostname and parts.port != 0 and "#" not in target
    except ValueError:
        is_valid = False
    if not is_valid or len(target) > _MAX_CHARS or not target.isascii() or not target.isprintable() or " " in target:
        raise UsageError("--otlp: not an address of a collector", "such as http://localhost:4318")
    if "@" in parts.netloc:
        raise UsageError(
            "--otlp: an address with a user or password is refused",
            "the process list would show the password: send to a local collector that knows it",
        )
    return True


def origin_of(address: str) -> str:
    """Return the part of the address that messages may show: scheme, host and port."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def send(address: str, data: bytes) -> None:
    """POST a profile. Raise PowerprofError with one line if the collector is unreachable or refuses it."""
    from powerprof.system.errors import PowerprofError
    from powerprof.system.files import printable

    try:
        answer = _post_by_child(address, data)
        rejected, message = _parse_rejection(answer)
        if rejected:
            raise OSError(f"it rejected {rejected} of the profiles{': ' if message else ''}{message}")
    except OSError as error:
        reason = printable(str(error))[:200] or "no reason was given"
        raise PowerprofError(
            f"cannot send the profile to {origin_of(address)} ({reason})",
            "does a collector with a pipeline for profiles listen there?",
        ) from error


def _post_by_child(address: str, data: bytes) -> bytes:
    """Return the collector's answer. Raise OSError."""
    from powerprof.system.caller import is_delegated
    from powerprof.system.fetching import run_without_rights

    passed = {name: os.environ[name] for name in _CERTIFICATES if name in os.environ and not is_delegated()}
    handle, answer = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("otlp", "answer"))
    with os.fdopen(handle, "w+b") as body, os.fdopen(answer, "w+b") as out:
        # The address is sent through the body too, because every user can read a command line.
        body.write(address.encode() + b"\n" + data)
        body.seek(0)
        try:
            code, reason = run_without_rights(
                Path(__file__), (), passed, stdin=body.fileno(), stdout=out.fileno(), total_s=TOTAL_S
            )
        except TimeoutError:
            raise TimeoutError(f"no answer after {TOTAL_S:g} s") from None
        if code != 0:
            raise OSError((reason.splitlines() or [f"the sender exited with code {code}"])[-1])
        out.seek(0)
        return out.read(_MAX_BYTES)


def _parse_rejection(answer: bytes) -> tuple[int, str]:
    """Return the number of rejected profiles and the reason.

    ExportProfilesServiceResponse.partial_success has them in fields 1 and 2. Other answers count as no rejection.
    """
    try:
        partial = dict(_parse_fields(answer)).get(1, b"")
        fields = dict(_parse_fields(partial)) if isinstance(partial, bytes) else {}
    except (IndexError, ValueError):
        return 0, ""
    count, message = fields.get(1, 0), fields.get(2, b"")
    return (count if isinstance(count, int) else 0), (
        message.decode("utf-8", "replace") if isinstance(message, bytes) else ""
    )


def _parse_fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Return the fields of a message that are numbers or bytes. Raise IndexError or ValueError for other data."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _parse_varint(data, at)
        value, at = _parse_varint(data, at)
        if key & 7 == 2:
            if at + value > len(data):
                raise IndexError("cut short")
            fields.append((key >> 3, data[at : at + value]))
            at += value
        elif key & 7 == 0:
            fields.append((key >> 3, value))
        else:
            raise ValueError("another type of field")
    return fields


def _parse_varint(data: bytes, at: int) -> tuple[int, int]:
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
    """Send, and copy the answer to descriptor 1. Return the exit status; its reason is on stderr."""
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
        sys.stdout.buffer.write(answer.read(_MAX_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        print(reason.replace("\n", " "), file=sys.stderr)
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_post(sys.stdin.buffer.readline().decode().rstrip("\n"), sys.stdin.buffer.read()))
