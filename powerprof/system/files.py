# SPDX-License-Identifier: Apache-2.0
"""Readers of the kernel's small pseudo files in sysfs and procfs."""

from __future__ import annotations

import errno
from pathlib import Path

from powerprof.system.errors import PowerprofError, reason_of


def not_understood(path: object, reason: str) -> PowerprofError:
    """Return an error for a pseudo file in a format that the kernel does not write."""
    return PowerprofError(
        f"cannot read {path} ({reason})", "a kernel never writes that: is POWERPROF_SYSFS or POWERPROF_PROCFS set?"
    )


def read_text(path: Path) -> str:
    """Return the stripped text of a small pseudo file. Raise PowerprofError with file, reason and remedy."""
    try:
        # The text is read as bytes: a name in it may contain any byte that the kernel does not escape, such as \r. Text
        # mode would convert \r to a line end.
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        remedy = "run as root" if error.errno in (errno.EACCES, errno.EPERM) else None
        raise PowerprofError(f"cannot read {path} ({reason_of(error)})", remedy) from error


def read_fields(path: Path) -> dict[str, str]:
    r"""Return the `Key: value` lines of a pseudo file such as /proc/PID/status; empty if it cannot be read.

    Only \n ends a line, because a process may have \r or U+2028 in its name. The first line of a key counts.
    """
    fields: dict[str, str] = {}
    for line in (try_text(path) or "").split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key, value.strip())
    return fields


def read_int(path: Path) -> int:
    """Return the number in a pseudo file. Raise PowerprofError for other text."""
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        raise not_understood(path, f"not a number: {text[:40]!r}") from None


def try_text(path: Path) -> str | None:
    """Return the text as `read_text` does; None if it cannot be read."""
    try:
        return read_text(path)
    except PowerprofError:
        return None


def try_int(path: Path) -> int | None:
    """Return the number as `read_int` does; None if it cannot be read or is not a number."""
    try:
        return read_int(path)
    except PowerprofError:
        return None
