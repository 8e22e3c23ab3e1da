# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as a private server: program, empty data, account, command line and processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.database import sandbox
from powerprof.database.base import Login, Sql
from powerprof.database.builds import USER, ServerBuild, Steps, check_program, on_host, raise_missing_library
from powerprof.database.settings import Setting, find_reserved_setting, format_value
from powerprof.measure.procfs import list_children
from powerprof.system import program_search
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.server_roles import read_roles

TITLE = "PostgreSQL"
HAS_TCP = False
END_SIGNAL = signal.SIGQUIT
"""The signal that ends all processes at once, without writing. SIGKILL would leave busy ones behind."""
TEMPORARY_FILES: tuple[str, ...] = ()
"""The files to remove when the server answers."""
_HBA_FILE = "hba.conf"
_DEBIAN_FOLDER = Path("/usr/lib/postgresql")
# The socket is named after the port even without TCP.
_SOCKET = ".s.PGSQL.5432"
_SETTING_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")


def find_build(binary: Path | None = None, root: Path | None = None) -> ServerBuild:
    """Return the PostgreSQL server to start.

    It is `binary` (of `root`), or the newest of Debian's packages. Raises CapabilityError if there is none,
    PowerprofError if it does not run.
    """
    if binary is None:
        places = [place for place in _DEBIAN_FOLDER.glob("*/bin/postgres") if place.parts[-3].isdigit()]
        binary = max(places, key=lambda place: int(place.parts[-3]), default=None) or program_search.which("postgres")
    if binary is None:
        raise CapabilityError("postgres is not installed", "apt install postgresql")
    check_program(on_host(binary, root), "postgres that is there, or apt install postgresql")
    build = ServerBuild(binary, "postgresql", (0, 0, 0), "", root=root)
    command = [str(binary.absolute()), "--version"]
    done = sandbox.run(command, build.sandbox(), timeout_s=30)
    version = re.match(r"postgres \(PostgreSQL\) (\d{1,3})(?:\.(\d{1,3}))?", done.stdout)
    if done.returncode != 0 or not version:
        raise_missing_library(done.stderr, binary)
        raise PowerprofError(
            f"{binary} is not a PostgreSQL server ({done.tail(1) or 'no version'})",
            "such as /usr/lib/postgresql/15/bin/postgres",
        )
    return msgspec.structs.replace(build, version=(int(version[1]), int(version[2] or 0), 0), text=done.stdout.strip())


def build_initialise_steps(build: ServerBuild, datadir: Path) -> Steps:
    """Return the commands, each with its input, that create empty data with an account without superuser rights.

    A superuser's statements could do to files and programs whatever the server's account may (COPY … TO PROGRAM). The
    superuser of initdb cannot log in. Raises CapabilityError if initdb is absent.
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
            f"CREATE ROLE {USER} LOGIN CREATEDB IN ROLE pg_monitor\n"
            + (f"GRANT pg_checkpoint TO {USER}\n" if build.version >= (15, 0, 0) else ""),
        ),
    ]


def build_login(directory: Path) -> Login:
    """Return powerprof's account.

    Only the server's account may enter the folder of the socket, which replaces a password.
    """
    socket = directory / _SOCKET
    # The server is trusted: a workload's statements find their tables as in any session.
    return Login(user=USER, socket=socket, database="postgres", family="postgresql", session_options="")


def build_files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """Return the file that admits powerprof's account."""
    return {_HBA_FILE: f"local all {account.user} trust\n"}


def build_command_line(
    build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path
) -> list[str]:
    """Return the command line after the program.

    The settings that make the server private are last and take precedence.
    """
    asked = format_settings(settings)
    if connections > 90:
        asked.insert(0, f"max_connections={connections + 16}")
    ours = [
        "listen_addresses=",
        f"unix_socket_directories={directory}",
        "unix_socket_permissions=0700",
        f"hba_file={directory / _HBA_FILE}",
        "log_destination=stderr",
        "logging_collector=off",
        # Files in its own folder are removed with it. Segments in /dev/shm would remain after a kill -9.
        "dynamic_shared_memory_type=mmap",
    ]
    return ["-D", f"{directory}/data", *(word for setting in (*asked, *ours) for word in ("-c", setting))]


def format_settings(settings: Mapping[str, Setting]) -> list[str]:
    """Return settings as `name=value`. Raise UsageError for an invalid or reserved one."""
    words = {}
    for name, value in settings.items():
        plain = name.lower()
        if not _SETTING_NAME.fullmatch(plain):
            raise UsageError(
                f"{name!r} is not the name of a setting of PostgreSQL", "SHOW ALL lists those that there are"
            )
        if find_reserved_setting(name, "postgresql") is not None:
            raise UsageError(f"the server setting {name} is powerprof's own and cannot be changed", "leave it out")
        text = format_value(name, value)
        words[plain] = f"{plain}={text.lower() if isinstance(value, bool) else text}"
    return list(words.values())


def build_network_options(port: int | None, address: str) -> list[str]:
    """Return no option: the server listens on its socket alone."""
    return []


def list_processes(pid: int) -> Sequence[int]:
    """Return the server and its processes."""
    return (pid, *list_children(pid))


def read_thread_names(connect: Callable[[], Sql], pid: int) -> dict[int, str]:
    """Return the roles of the server's processes, which need no connection."""
    return read_roles(list_processes(pid))
