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


def default_meter() -> tuple[str, str] | None:
    """Return the default of --meter and its place: POWERPROF_METER, the caller's file, or that of the host."""
    if text := os.environ.get("POWERPROF_METER"):
        return text, "POWERPROF_METER"
    for path in (paths.config_dir() / _FILE, _SYSTEM_FILE):
        if path.is_file() and (text := _read(path).get("meter")):
            return text, str(path)
    return None


def _read(path: Path) -> dict[str, str]:
    """Return the settings of a file. Raise DataError, and PowerprofError if other accounts can change it."""
    import tomllib

    from powerprof.system.caller import caller
    from powerprof.system.files import read_outside_text

    info = path.stat()
    if info.st_uid not in (0, caller().uid) or info.st_mode & 0o022:
        raise PowerprofError(f"{path} can be changed by other users", f"make it yours alone: chmod go-w {path}")
    try:
        settings = tomllib.loads(read_outside_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(path, str(error)) from None
    for key, value in settings.items():
        if key not in _KEYS or not isinstance(value, str):
            raise UsageError(f"{path}: {key} is not a setting", 'such as meter = "rapl"')
    return settings
