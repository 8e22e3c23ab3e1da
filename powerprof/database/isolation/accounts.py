# SPDX-License-Identifier: Apache-2.0
"""Whom private servers run as."""

from __future__ import annotations

import os
import pwd

from powerprof.caller import HostUser, account_of, unprivileged


def server_account() -> tuple[int, int] | None:
    """User and group of servers when powerprof is root: mysql where the host has it, else the caller, else nobody.

    None where powerprof is not root: then servers are as powerprof is. A server is never root: what a workload's
    statements may do to files, the server's account may.
    """
    owner = server_owner()
    return (owner.uid, owner.gid) if owner is not None else None


def server_owner() -> HostUser | None:
    """As `server_account`, with all that the host knows of it."""
    if os.geteuid() != 0:
        return None
    try:
        return account_of(pwd.getpwnam("mysql").pw_uid)
    except KeyError:
        return unprivileged()


def name_of(owner: tuple[int, int]) -> str:
    """The account's name, or its number."""
    known = account_of(owner[0])
    return str(known.name if known else owner[0])
