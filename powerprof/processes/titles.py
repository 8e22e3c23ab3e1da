# SPDX-License-Identifier: Apache-2.0
"""What the processes of a server say that they are: PostgreSQL's write it over their command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

from powerprof.paths import procfs
from powerprof.processes.reader_process import shared
from powerprof.untrusted import printable

_LIMIT_BYTES = 4096
_MOST_NAME = 128
# "postgres: 15/main: checkpointer", "postgres: app shop 10.0.0.7(5541) SELECT"; the cluster's name is optional, and
# says which of several servers a process is of (cluster_name, which Debian sets to VERSION/NAME).
_TITLE = re.compile(r"^postgres: (?:[^ :]+: )?(.*)$")
_CLIENT = re.compile(r"^(\S+) (\S+) (?:\[local\]|(\S+?)(?:\(\d+\))?)(?: .*)?$")
_BACKEND = "backend of "
_HELPERS = re.compile(
    r"^(logger|startup|checkpointer|background writer|walwriter|autovacuum|archiver|stats collector|logical replication"
    r"|walreceiver|walsender|parallel worker|io worker|slotsync worker|walsummarizer|bgworker|postmaster)"
)


def server_names(pids: Iterable[int]) -> dict[int, str]:
    """Process id → what it does: `checkpointer`, `backend of shop`; a process that does not say is absent."""
    return {pid: name for pid, title in server_titles(pids).items() if (name := part_of(title))}


def server_titles(pids: Iterable[int]) -> dict[int, str]:
    """Process id → its title as it is; one that cannot be read is absent."""
    titles = {pid: _command_line(pid) for pid in pids}
    return {pid: title for pid, title in titles.items() if title}


def client_of(title: str) -> tuple[str, str | None] | None:
    """The account of a client's process, and from which host; None where it is no client's, or the host its own."""
    match = _TITLE.match(" ".join(title.split()))
    client = None if match is None or _HELPERS.match(match[1]) else _CLIENT.match(match[1])
    if client is None:
        return None
    host = client[3]
    return printable(client[1])[:_MOST_NAME], printable(host)[:_MOST_NAME] if host else None


def database_of(name: str) -> str | None:
    """The database of a process that `server_names` calls a client's; None for any other."""
    return name.removeprefix(_BACKEND) if name.startswith(_BACKEND) else None


def part_of(title: str) -> str | None:
    """The part that a title tells of; of a client's process the database, and neither account nor statement."""
    match = _TITLE.match(" ".join(title.split()))
    if not match:
        return None
    part = match[1]
    helper = _HELPERS.match(part)
    client = None if helper else _CLIENT.match(part)
    name = f"{_BACKEND}{client[2]}" if client else re.sub(r" (for PID|waiting|recovering|streaming) .*$", "", part)
    return printable(name)[:_MOST_NAME] or None


def _command_line(pid: int) -> str | None:
    """As text; None if the process keeps its reader waiting: the text is in the memory of the process."""
    line = shared().read(pid, procfs() / str(pid) / "cmdline", _LIMIT_BYTES)
    return None if line is None else line.replace(b"\0", b" ").decode("utf-8", "replace")
