# SPDX-License-Identifier: Apache-2.0
"""Defaults of options: environment variables, and the file powerprof.toml."""

from __future__ import annotations

import os
from pathlib import Path

from powerprof.system import paths
from powerprof.system.errors import DataError, PowerprofError, UsageError

_FILE = "powerprof.toml"
_SYSTEM_FILE = Path("/etc/powerprof.toml")
_KEYS = ("meter",)


# No setting needs more; a longer file is not one of ours.
_MOST_BYTES = 1 << 16


def default_meter() -> tuple[str, str] | None:
    """Return the default of --meter and its place: POWERPROF_METER, the caller's file, or that of the host."""
    if text := os.environ.get("POWERPROF_METER"):
        return text, "POWERPROF_METER"
    for path in (paths.config_dir() / _FILE, _SYSTEM_FILE):
        if text := _read(path).get("meter"):
            return text, str(path)
    return None


def _read(path: Path) -> dict[str, str]:
    """Return the settings of a file; none if there is no file that this account can open.

    Raises DataError, and PowerprofError if other accounts can change the file.
    """
    from powerprof.system.caller import caller
    from powerprof.system.outside_files import open_regular

    try:
        handle = open_regular(path)
    except OSError:
        return {}
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        if info.st_uid not in (0, caller().uid) or info.st_mode & 0o022:
            raise PowerprofError(f"{path} can be changed by other users", f"make it yours alone: chmod go-w {path}")
        data = file.read(_MOST_BYTES)
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> dict[str, str]:
    """Return the settings in the text of a file. Raises DataError, and UsageError for an unknown one."""
    import tomllib

    try:
        settings = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(path, str(error)) from None
    for key, value in settings.items():
        if key not in _KEYS or not isinstance(value, str):
            raise UsageError(f"{path}: {key} is not a setting", 'such as meter = "rapl"')
    return settings
