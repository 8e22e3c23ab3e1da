# SPDX-License-Identifier: Apache-2.0
"""MySQL option files (my.cnf): the groups that say how a client connects, read as the hostile input they are."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from powerprof import files
from powerprof.errors import DataError
from powerprof.untrusted import loader

GROUPS = ("client", "client-server", "client-mariadb", "powerprof")
_KEYS = frozenset(
    {
        "user",
        "password",
        "host",
        "port",
        "socket",
        "database",
        "ssl-ca",
        "ssl-cert",
        "ssl-key",
        "ssl-verify-server-cert",
    }
)
_LIMIT_BYTES = 1 << 20
_LIMIT_FILES = 50
_LIMIT_ENTRIES = 10_000
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}


@dataclass(frozen=True)
class Option:
    """One value and where it was written."""

    value: str
    path: Path
    line: int

    def error(self, reason: str) -> DataError:
        """The complaint about this value."""
        return DataError(self.path, reason, self.line)


@loader
def read(path: Path) -> dict[str, Option]:
    """The client options of a file and of those it includes; the last one counts, as for the server's own clients.

    Raises DataError for what is no option file, and for one that anybody may write to.
    """
    options: dict[str, Option] = {}
    _read(path, options, [_LIMIT_FILES])
    return options


def _read(path: Path, options: dict[str, Option], left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise DataError(path, f"more than {_LIMIT_FILES} files include one another")
    _check_writers(path)
    text = files.read_outside_text(path, _LIMIT_BYTES)
    group: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "!":
            _include(path, number, line, options, left)
        elif line[0] == "[":
            if not line.split("#", 1)[0].rstrip().endswith("]"):
                raise DataError(path, f"a group without ]: {line[:40]!r}", number)
            group = line[1 : line.index("]")].strip()
        elif group is None:
            raise DataError(path, f"an option outside of a group: {line[:40].split('=')[0]!r}", number)
        elif group in GROUPS:
            name, _, value = line.partition("=")
            name = name.strip().lower().replace("_", "-")
            if name in _KEYS:
                options[name] = Option(_value(value, path, number), path, number)


def _include(path: Path, number: int, line: str, options: dict[str, Option], left: list[int]) -> None:
    directive, _, target = line.partition(" ")
    place = Path(target.strip())
    if directive == "!include" and target:
        _read(place, options, left)
    elif directive == "!includedir" and target:
        for file in _folder(place, path, number):
            _read(file, options, left)
    else:
        raise DataError(path, f"not a directive: {line[:40]!r}", number)


def _folder(place: Path, path: Path, number: int) -> list[Path]:
    """The option files of a folder that line `number` of `path` names, in the order of their names."""
    try:
        _check_writers(place)
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in islice(entries, _LIMIT_ENTRIES + 1)]
    except (OSError, ValueError) as error:
        reason = files.reason_of(error) if isinstance(error, OSError) else "no such file"
        raise DataError(path, f"cannot read the directory {str(place)[:80]!r} ({reason})", number) from None
    if len(found) > _LIMIT_ENTRIES:
        raise DataError(path, f"more than {_LIMIT_ENTRIES:,} files in the directory {place}", number)
    return sorted(file for file in found if file.name.endswith(".cnf"))


def _check_writers(path: Path) -> None:
    """That not everybody may write to a file, or put one into a folder; what cannot be opened its reader refuses."""
    with suppress(OSError, ValueError):
        if path.stat().st_mode & stat.S_IWOTH:
            raise DataError(path, "anybody may write to it, so it is not trusted", hint=f"chmod o-w {path}")


def _value(text: str, path: Path, number: int) -> str:
    """Without quotes and a trailing comment, escapes resolved (MariaDB manual, option files)."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        # A backslash is read in one way only: in two, a missing quote at the end takes time without end.
        quoted = re.match(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#.*)?$""", text)
        if not quoted:
            raise DataError(path, "a quoted value without its closing quote", number)
        text = quoted[2]
    else:
        text = re.sub(r"(?<!\s)\s+#.*$", "", text)
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), text)
