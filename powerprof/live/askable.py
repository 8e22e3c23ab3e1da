# SPDX-License-Identifier: Apache-2.0
"""Which processes called a database server are asked unbidden: those that no ordinary account can have put there.

Any account may run a program called mariadbd, which answers what it likes: a finding of it would be an alert by whoever
wants one. Asked are servers whose process, program and socket are root's, a system account's or our own.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.caller import account_of
from powerprof.database.products.local import listening_sockets
from powerprof.files import read_fields, try_text
from powerprof.untrusted import printable, whole

_DEFINITIONS = Path("/etc/login.defs")
_FIRST_USER = re.compile(r"^UID_MIN\s+([0-9]{1,9})\s*$", re.MULTILINE)
_USUAL_FIRST_USER = 1000
_MOST_NAME = 120


@dataclass(frozen=True)
class Whose:
    """The account and the program of a process, as they are shown; `strange` is why it is not asked unbidden."""

    account: str
    program: str
    strange: str | None


def whose(pid: int) -> Whose:
    """Whose a process is. What cannot be found out is nobody's whom we trust."""
    base = paths.procfs() / str(pid)
    # Of /proc/PID itself root is the owner where a program cannot be read.
    uids = {uid for word in read_fields(base / "status").get("Uid", "").split() if (uid := whole(word)) is not None}
    program, owner, group, mode = "unknown", None, 0, 0
    with suppress(OSError):
        program = printable(os.readlink(base / "exe").removesuffix(" (deleted)"))[:_MOST_NAME]
        info = (base / "exe").stat()
        owner, group, mode = info.st_uid, info.st_gid, info.st_mode
    highest = max(uids, default=None)
    return Whose(_name(highest), program, _strange(pid, uids, owner, group, mode))


def _strange(pid: int, uids: set[int], owner: int | None, group: int, mode: int) -> str | None:
    trusted = _is_trusted
    if not uids or not all(map(trusted, uids)):
        return f"runs as {_name(max(uids, default=None))}"
    if owner is None or not trusted(owner):
        return f"its program belongs to {_name(owner)}"
    if mode & stat.S_IWOTH:
        return "anybody may write to its program"
    if mode & stat.S_IWGRP and group:
        return f"group {group} may write to its program"
    for place in listening_sockets(pid):
        try:
            info = place.lstat()
        except OSError:
            continue
        if not stat.S_ISSOCK(info.st_mode) or not trusted(info.st_uid):
            return f"its socket belongs to {_name(info.st_uid)}"
    return None


def _is_trusted(uid: int) -> bool:
    return uid < _first_user() or uid == os.geteuid()


def _first_user() -> int:
    """From here on accounts are people's (login.defs(5))."""
    match = _FIRST_USER.search(try_text(_DEFINITIONS) or "")
    return int(match[1]) if match else _USUAL_FIRST_USER


def _name(uid: int | None) -> str:
    if uid is None:
        return "an unknown account"
    known = account_of(uid)
    return printable(known.name)[:_MOST_NAME] if known is not None and known.name else str(uid)
