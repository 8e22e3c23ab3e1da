# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as a private server: finding it, its empty data, its files and its command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from powerprof import programs
from powerprof.database.clients.base import Login
from powerprof.database.isolation import sandbox
from powerprof.database.products.builds import ServerBuild, check_program, on_host, refuse_missing_library
from powerprof.database.products.settings import Setting, reserved_setting
from powerprof.errors import CapabilityError, PowerprofError, UsageError
from powerprof.sources.procfs import children

HBA = "hba.conf"
_PACKAGED = Path("/usr/lib/postgresql")
_USER = "powerprof"
# Its socket is named after the port, also where it listens on no port.
_SOCKET = ".s.PGSQL.5432"
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")


def find_build(binary: Path | None = None, basedir: Path | None = None, root: Path | None = None) -> ServerBuild:
    """The server to start: `binary` (of `root`), or bin/postgres below `basedir`, or the newest of Debian's packages.

    Raises CapabilityError where there is none, PowerprofError where it does not run.
    """
    if binary is None and basedir is not None:
        binary = basedir / "bin/postgres"
    if binary is None:
        places = [place for place in _PACKAGED.glob("*/bin/postgres") if place.parts[-3].isdigit()]
        binary = max(places, key=lambda place: int(place.parts[-3]), default=None) or programs.which("postgres")
    if binary is None:
        raise CapabilityError("postgres is not installed", "apt install postgresql")
    check_program(on_host(binary, root), "postgres that is there, or apt install postgresql")
    asked = ServerBuild(binary, "postgresql", (0, 0, 0), "", basedir, root=root)
    command = [str(binary.absolute()), "--version"]
    done = sandbox.run(command, asked.sandbox(), timeout_s=30)
    version = re.match(r"postgres \(PostgreSQL\) (\d{1,3})(?:\.(\d{1,3}))?", done.stdout)
    if done.returncode != 0 or not version:
        refuse_missing_library(done.stderr, binary)
        raise PowerprofError(
            f"{binary} is not a PostgreSQL server ({done.tail(1) or 'no version'})",
            "such as /usr/lib/postgresql/15/bin/postgres",
        )
    return dataclasses.replace(asked, version=(int(version[1]), int(version[2] or 0), 0), text=done.stdout.strip())


def initialise(build: ServerBuild, datadir: Path) -> list[tuple[list[str], str]]:
    """The commands, each with what it reads, that make empty data with an account of ours that is no superuser.

    What a superuser's statement may do, the server's account may: files, programs (COPY … TO PROGRAM). The one that
    initdb makes can log in nowhere. Raises CapabilityError where initdb is absent.
    """
    initdb = build.binary.with_name("initdb")
    if not on_host(initdb, build.root).is_file():
        raise CapabilityError(f"{initdb} is not there", "apt install postgresql")
    return [
        (
            [
                *(str(initdb), f"--pgdata={datadir}", "--username=postgres", "--auth=reject"),
                *("--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            "",
        ),
        (
            [str(build.binary), "--single", "-D", str(datadir), "-c", "log_min_messages=warning", "postgres"],
            f"CREATE ROLE {_USER} LOGIN CREATEDB IN ROLE pg_monitor\n"
            + (f"GRANT pg_checkpoint TO {_USER}\n" if build.version >= (15, 0, 0) else ""),
        ),
    ]


def login(directory: Path) -> Login:
    """Our account. Its password is the folder of its socket, which nobody but the server's account may enter."""
    socket = directory / _SOCKET
    # The server is ours, and a workload's statements find their tables as in any session.
    return Login(user=_USER, socket=socket, database="postgres", family="postgresql", session_options="")


def files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """What the server reads: who may come, by which way."""
    return {HBA: f"local all {account.user} trust\n"}


def words(build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path) -> list[str]:
    """The command line after the program; ours come last, so that they hold."""
    asked = [f"{name}={value}" for name, value in checked(settings).items()]
    if connections > 90:
        asked.insert(0, f"max_connections={connections + 16}")
    ours = [
        "listen_addresses=",
        f"unix_socket_directories={directory}",
        "unix_socket_permissions=0700",
        f"hba_file={directory / HBA}",
        "log_destination=stderr",
        "logging_collector=off",
        # In its own folder, which goes with it; what lies in /dev/shm stays behind after a kill -9.
        "dynamic_shared_memory_type=mmap",
    ]
    return ["-D", f"{directory}/data", *(word for setting in (*asked, *ours) for word in ("-c", setting))]


def checked(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Settings as the server reads them. Raises UsageError for what is none, or is powerprof's to say."""
    checked_settings = {}
    for name, value in settings.items():
        plain = name.lower()
        if not _NAME.fullmatch(plain):
            raise UsageError(
                f"{name!r} is not the name of a setting of PostgreSQL", "SHOW ALL lists those that there are"
            )
        if reserved_setting(name, "postgresql") is not None:
            raise UsageError(f"the server setting {name} is powerprof's own and cannot be changed", "leave it out")
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        if "\0" in text or "\n" in text:
            raise UsageError(f"the server setting {name} has a line break or NUL in its value", "write it in one line")
        checked_settings[plain] = text
    return checked_settings


def processes(pid: int) -> Sequence[int]:
    """The server and the processes that it works in."""
    return (pid, *children(pid))
