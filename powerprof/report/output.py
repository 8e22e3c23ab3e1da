"""Writes a report where it was asked for: whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from powerprof import paths
from powerprof.errors import PowerprofError
from powerprof.files import reason_of


def write_output(target: str, data: bytes) -> None:
    """To stdout for `-`, else to a file that is replaced at once. Raises PowerprofError where it cannot be written.

    A pipe or a device is written to as it is. The file belongs to the caller, with the permissions that its umask
    gives to any new file.
    """
    if target == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.realpath(target))
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".powerprof-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        paths.give_to_caller(Path(temporary))
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise PowerprofError(f"cannot write {target} ({reason_of(error)})") from error
