# SPDX-License-Identifier: Apache-2.0
"""MySQL option files (my.cnf), read as hostile input and with the rights of the account that named them.

Two other parsers were tried on 21 files with groups, quotes, comments, includes and damage. PyMySQL's, which is
Python's configparser, agrees on 6 of them: it has no includes, no escapes and no comments after a value. It refuses a
group or an option that is there twice. `my_print_defaults` agrees on 13. It waits for a named pipe without end, skips
a missing file, prints a line break in a value like the end of an option, and names no place of a value for errors. In
the sandbox it could not read a file that only its owner may read, and a host without a client of MariaDB lacks it.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from powerprof.system import errors, outside_files
from powerprof.system.acting import acting_as
from powerprof.system.caller import HostUser
from powerprof.system.errors import DataError
from powerprof.system.foreign_data import loader
from powerprof.system.next_steps import system_command

GROUPS = ("client", "client-server", "client-mariadb", "powerprof")
_KEYS = frozenset(
    {
        *("user", "password", "host", "port", "socket", "database", "ssl-ca", "ssl-cert", "ssl-key"),
        "ssl-verify-server-cert",
    }
)
_LIMIT_BYTES = 1 << 20
_LIMIT_FILES = 50
_LIMIT_ENTRIES = 10_000
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}


class OptionValue(msgspec.Struct, frozen=True):
    """A value of an option file and its place."""

    value: str
    path: Path
    line: int

    def error(self, reason: str) -> DataError:
        """Return the error for this value."""
        return DataError(self.path, reason, self.line)


@loader(0)
def read_option_file(path: Path) -> dict[str, OptionValue]:
    """Return the client options of a file and its included files.

    As for the server's own clients, the last one applies.

    Raises DataError for a malformed file and for one that every user may write.
    """
    options: dict[str, OptionValue] = {}
    _read_into(path, options, [_LIMIT_FILES])
    return options


def _read_into(path: Path, options: dict[str, OptionValue], left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise DataError(path, f"more than {_LIMIT_FILES} files include one another")
    _check_writers(path)
    text = outside_files.read_outside_text(path, _LIMIT_BYTES)
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
                options[name] = OptionValue(_parse_value(value, path, number), path, number)


def _include(path: Path, number: int, line: str, options: dict[str, OptionValue], left: list[int]) -> None:
    directive, _, target = line.partition(" ")
    place = Path(target.strip())
    if directive == "!include" and target:
        _read_into(place, options, left)
    elif directive == "!includedir" and target:
        for file in _list_folder(place, path, number):
            _read_into(file, options, left)
    else:
        raise DataError(path, f"not a directive: {line[:40]!r}", number)


def _list_folder(place: Path, path: Path, number: int) -> list[Path]:
    """Return the option files of a folder, sorted by name. Line `number` of `path` names the folder."""
    try:
        _check_writers(place)
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in islice(entries, _LIMIT_ENTRIES + 1)]
    except (OSError, ValueError) as error:
        reason = errors.reason_of(error) if isinstance(error, OSError) else "no such file"
        raise DataError(path, f"cannot read the directory {str(place)[:80]!r} ({reason})", number) from None
    if len(found) > _LIMIT_ENTRIES:
        raise DataError(path, f"more than {_LIMIT_ENTRIES:,} files in the directory {place}", number)
    return sorted(file for file in found if file.name.endswith(".cnf"))


def _check_writers(path: Path) -> None:
    """Raise DataError if every user may write to a file or folder. Its reader reports a path that cannot be opened."""
    with suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if not mode & stat.S_IWOTH or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return
        # A folder such as /tmp must stay open to all.
        hint = system_command("chmod o-w {}", path) if stat.S_ISREG(mode) else "move its files to a folder of yours"
        raise DataError(path, "anybody may write to it, so it is not trusted", hint=hint)


def _parse_value(text: str, path: Path, number: int) -> str:
    """Return a value without quotes and trailing comment, with escapes resolved (MariaDB manual, option files)."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        # A backslash has one meaning only. Two would take exponential time for a missing quote at the end.
        quoted = re.match(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#.*)?$""", text)
        if not quoted:
            raise DataError(path, "a quoted value without its closing quote", number)
        text = quoted[2]
    else:
        text = re.sub(r"(?<!\s)\s+#.*$", "", text)
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), text)


def read_password(path: Path, account: HostUser | None) -> str:
    """Return the password of an option file, read with that account's rights; empty without one. Raise DataError."""
    found = read_options(path, account).get("password")
    return "" if found is None else found.value


def read_options(path: Path | None, account: HostUser | None) -> dict[str, OptionValue]:
    """Return the client options of a file, read with that account's rights; none without a file. Raise DataError."""
    if path is None:
        return {}
    if account is None:
        return read_option_file(path)
    with acting_as(account):
        try:
            path.open("rb").close()
        except PermissionError as error:
            hint = f"under sudo it is read as {account.name}: name a file of theirs, or run as root itself"
            raise DataError(path, f"{account.name} has no permission to read it", hint=hint) from error
        except OSError:
            pass  # The reader reports it.
        return read_option_file(path)
