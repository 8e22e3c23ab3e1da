# SPDX-License-Identifier: Apache-2.0
"""The accounts of this host, and that of the caller: under sudo powerprof is root, but the caller is not."""

from __future__ import annotations

import os
import pwd
import re
from functools import cache
from pathlib import Path

import msgspec

_NOBODY = 65534
_DEFINITIONS = Path("/etc/login.defs")
_UID_MIN = re.compile(r"^UID_MIN\s+([0-9]{1,9})\s*$", re.MULTILINE)
_DEFAULT_UID_MIN = 1000
# The directories of the system's programs, which sudo searches (secure_path in /etc/sudoers of Debian).
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostUser(msgspec.Struct, frozen=True):
    """A user of this host. `name` is None if the host has no account with this number."""

    uid: int
    gid: int
    home: Path
    name: str | None = None

    @property
    def groups(self) -> list[int]:
        """All groups of the account."""
        return os.getgrouplist(self.name, self.gid) if self.name is not None else [self.gid]


def account_of(uid: int) -> HostUser | None:
    """Return the account with this number; None if the host has none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return HostUser(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), entry.pw_name)


def is_system_account(uid: int) -> bool:
    """Return whether an account belongs to root or a service, and not to a person (login.defs(5))."""
    return uid < _read_uid_min()


@cache
def _read_uid_min() -> int:
    try:
        match = _UID_MIN.search(_DEFINITIONS.read_text("utf-8", "replace"))
    except OSError:
        match = None
    return int(match[1]) if match else _DEFAULT_UID_MIN


def caller() -> HostUser:
    """Return the user that typed the command: under sudo the user who called sudo, not root."""
    uid = os.geteuid()
    sudo_uid = os.environ.get("SUDO_UID", "")
    if uid == 0 and sudo_uid.isascii() and sudo_uid.isdigit() and int(sudo_uid) < 1 << 32:
        account = account_of(int(sudo_uid))
        if account is not None:
            return account
    account = account_of(uid)
    home = os.environ.get("HOME") or (str(account.home) if account else "/")
    return HostUser(uid, os.getegid(), Path(home), account.name if account else None)


def is_delegated() -> bool:
    """Return whether this process is root for another account (sudo)."""
    return os.geteuid() == 0 and caller().uid != 0


def unprivileged() -> HostUser | None:
    """Return the account for a child of root that needs no rights: the caller, or nobody.

    None if this process is not root.
    """
    if os.geteuid() != 0:
        return None
    return caller() if is_delegated() else account_of(_NOBODY) or HostUser(_NOBODY, _NOBODY, Path("/"))
