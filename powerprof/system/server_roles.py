# SPDX-License-Identifier: Apache-2.0
"""Roles of PostgreSQL's processes, which write them over their command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

from powerprof.system.foreign_text import printable
from powerprof.system.reader_process import shared

ENDED_THREADS, ENDED_PROCESSES = "ended threads", "ended processes"
"""The roles of threads, and of PostgreSQL's processes, that ended before their names were read."""
_LIMIT_BYTES = 4096
_MAX_NAME = 128
# "postgres: 15/main: checkpointer", "postgres: app shop 10.0.0.7(5541) SELECT". The cluster's name is optional and
# distinguishes several servers (cluster_name, which Debian sets to VERSION/NAME).
_TITLE = re.compile(r"^postgres: (?:[^ :]+: )?(.*)$")
# A client's host has its port or is [local]. Extensions choose titles of any words: "pglogical apply 16384:2342".
_CLIENT = re.compile(r"^(\S+) (\S+) (?:\[local\]|(\S+?)\(\d+\))(?: (.*))?$")
_BACKEND, _FOR = "backend of ", " for "
_HELPERS = re.compile(
    r"^(logger|startup|checkpointer|background writer|walwriter|autovacuum|archiver|stats collector|logical replication"
    r"|walreceiver|walsender|parallel worker|io worker|slotsync worker|walsummarizer|bgworker|postmaster)"
)


def read_roles(pids: Iterable[int]) -> dict[int, str]:
    """Return the role by process id: `checkpointer`, `backend of shop for app`. Those without a title are left out."""
    return {pid: name for pid, title in read_titles(pids).items() if (name := parse_role(title))}


def read_titles(pids: Iterable[int]) -> dict[int, str]:
    """Return the titles of processes by id. Unreadable ones are left out."""
    titles = {pid: _read_command_line(pid) for pid in pids}
    return {pid: title for pid, title in titles.items() if title}


def parse_client(title: str) -> tuple[str, str | None] | None:
    """Return the account and host of a client's process from its title.

    None if it is not a client's process. The host is None for local connections.
    """
    client = _match_client(_read_part(title))
    if client is None:
        return None
    host = client[3]
    return printable(client[1])[:_MAX_NAME], printable(host)[:_MAX_NAME] if host else None


def parse_account(title: str) -> str | None:
    """Return `user@host` of a client's process from its title; None if it is not a client's process."""
    client = parse_client(title)
    return None if client is None else f"{client[0]}@{client[1] or 'localhost'}"


def parse_state(title: str) -> str:
    """Return the last part of the title of a client's process: `SELECT`, `idle in transaction`; empty for others."""
    client = _match_client(_read_part(title))
    return "" if client is None else client[4] or ""


def parse_database(name: str) -> str | None:
    """Return the database in the role of a client's process; None for other names."""
    return name.removeprefix(_BACKEND).partition(_FOR)[0] if name.startswith(_BACKEND) else None


def parse_role(title: str) -> str | None:
    """Return the role in a title; for a client's process the database and the account, without the statement."""
    part, client = parse_part(title), parse_client(title)
    return part if client is None else f"{part}{_FOR}{client[0]}"


def parse_part(title: str) -> str | None:
    """Return the role in a title; for a client's process the database, without account and statement."""
    part = _read_part(title)
    client = _match_client(part)
    name = f"{_BACKEND}{client[2]}" if client else re.sub(r" (for PID|waiting|recovering|streaming) .*$", "", part)
    return printable(name)[:_MAX_NAME] or None


def _read_part(title: str) -> str:
    """Return a title without the product and the cluster; empty for the command lines of other programs."""
    match = _TITLE.match(" ".join(title.split()))
    return "" if match is None else match[1]


def _match_client(part: str) -> re.Match[str] | None:
    return None if _HELPERS.match(part) else _CLIENT.match(part)


def _read_command_line(pid: int) -> str | None:
    """Return the command line as text; None if the process blocks its reader.

    The text is in the memory of the process.
    """
    line = shared().proc_file(pid, "cmdline", _LIMIT_BYTES)
    return None if line is None else line.replace(b"\0", b" ").decode("utf-8", "replace")
