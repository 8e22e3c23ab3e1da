# SPDX-License-Identifier: Apache-2.0
"""Options that choose processes and servers, shared by the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from powerprof.cli.parameters import EXPERT_HEADING, flag, option, readable_file, time_span

# Options that name an existing server.
OWN_SERVER = ("--server", "--socket", "--defaults-file")


def interval(default: float) -> Any:
    """Return the field of --interval in seconds."""
    return time_span("--interval", "Length of an interval.", default=default, low=0.5, high=3600)


def only() -> Any:
    """Return the field of --only."""
    return flag("--only", "With --pid: leave out the processes that it started.", heading=EXPERT_HEADING)


def server_pid() -> Any:
    """Return the field of --pid, of one server."""
    return option("--pid", "ID|NAME", "Process id or name of the server (default: the only server); also -p.")


class TargetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The processes to trace."""

    HEADING: ClassVar[str] = "Target"

    pid: list[str] | None = option(
        "--pid",
        "ID|NAME",
        "Process ids or names, separated by commas (default: the only server); also -p.",
        is_repeatable=True,
    )
    only: bool = only()
    cgroup: str | None = option("--cgroup", "PATH|UNIT", "All processes of a cgroup or systemd unit.")
    system: bool = flag("--system", "All processes of this host.")


class MonitorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The processes to watch, and the interval."""

    HEADING: ClassVar[str] = "Target and interval"

    pid: list[str] | None = option("--pid", "ID|NAME", "Process ids or names, separated by commas.", is_repeatable=True)
    only: bool = only()
    interval: float = interval(5.0)
    no_ask: bool = flag("--no-ask", "Do not connect to database servers.")
    ask_every: float = time_span(
        "--ask-every",
        "Time between connections to the servers.",
        default=60.0,
        low=0.5,
        high=86_400,
        heading=EXPERT_HEADING,
        excludes=("--no-ask",),
    )
    defaults_file: list[Path] | None = option(
        "--defaults-file",
        "FILE",
        "Option file with an account of a server; repeatable.",
        convert=readable_file,
        is_repeatable=True,
        excludes=("--no-ask",),
    )


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address and the account of an existing server."""

    HEADING: ClassVar[str] = "Server to connect to"

    server: str | None = option(
        "--server",
        "URL|SOCKET",
        "URL of the server, mysql://user@host:port/ (password: --defaults-file or MYSQL_PWD), or [user@]socket.",
    )
    socket: Path | None = option("--socket", "PATH", "Unix socket of the server.", convert=Path)
    defaults_file: Path | None = option(
        "--defaults-file", "FILE", "Option file with user, password and socket.", convert=readable_file
    )

    @property
    def is_given(self) -> bool:
        """Whether the options name a server."""
        return any(part is not None for part in (self.server, self.socket, self.defaults_file))


class OptionalServerOptions(ServerOptions, frozen=True, kw_only=True):
    """The address and the account of an existing server, for commands that otherwise start a private one."""

    HEADING: ClassVar[str] = "Server to connect to (default: start a private server)"
