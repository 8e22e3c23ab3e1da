# SPDX-License-Identifier: Apache-2.0
"""A server's settings as words of its command line, and the refusal of those that would make it less private.

mariadbd takes any unambiguous beginning of an option's name, `-` and `_` alike, and skip-, disable-, enable-, maximum-
and loose- in front of any, also of each other (mysys/my_getopt.c). So a name is refused for everything that it could
mean, not for how it is spelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from powerprof.errors import UsageError

Setting = str | int | float | bool | None | Sequence[str]

# powerprof sets these: where the server keeps its files, who may reach it, as whom it runs.
_OURS = (
    "admin_address",
    "admin_port",
    "basedir",
    "bind_address",
    "bootstrap",
    "chroot",
    "daemonize",
    "datadir",
    "defaults_extra_file",
    "defaults_file",
    "defaults_group_suffix",
    "extra_port",
    "grant_tables",
    "init_file",
    "initialize",
    "initialize_insecure",
    "language",
    "lc_messages_dir",
    "local_infile",
    "log_error",
    "mysqlx",
    "networking",
    "no_defaults",
    "pid_file",
    "plugin_dir",
    "port",
    "secure_file_priv",
    "set_variable",
    "socket",
    "symbolic_links",
    "tmpdir",
    "user",
)
# Families of which all are: another port, or programs and libraries that the server is to run.
_FAMILIES = ("mysqlx_", "wsrep_", "admin_ssl", "admin_tls")
_BEFORE = ("skip_", "disable_", "enable_", "maximum_", "loose_", "autoset_")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def setting_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """A my.cnf fragment as options: True is ON, None the bare option, a sequence the option repeated.

    Raises UsageError for a name that is none, and for those that keep the server private.
    """
    words = []
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of a server setting", "mariadbd --verbose --help lists those that there are"
            )
        ours = ours_of(name)
        if ours is not None:
            same = name.lower().replace("-", "_") == ours
            raise UsageError(
                f"the server setting {name} is powerprof's own and cannot be changed",
                "leave it out" if same else f"it could mean {ours}; write the setting you mean in full",
            )
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            text = {True: "ON", False: "OFF"}[item] if isinstance(item, bool) else str(item)
            if "\0" in text or "\n" in text:
                raise UsageError(
                    f"the server setting {name} has a line break or NUL in its value", "write it in one line"
                )
            words.append(f"--{name}" if item is None else f"--{name}={text}")
    return words


def ours_of(name: str) -> str | None:
    """The setting of powerprof's own that a server could take `name` for; None where there is none."""
    for meaning in _meanings(name):
        for ours in _OURS:
            if ours.startswith(meaning):
                return ours
        for family in _FAMILIES:
            if meaning.startswith(family) or family.startswith(meaning):
                return family.rstrip("_")
    return None


def _meanings(name: str) -> Iterator[str]:
    """The name, and what is left of it without each of the words that may stand in front."""
    plain = name.lower().replace("-", "_")
    while True:
        yield plain
        before = next((word for word in _BEFORE if plain.startswith(word)), None)
        if before is None:
            return
        plain = plain.removeprefix(before)
