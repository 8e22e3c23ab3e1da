# SPDX-License-Identifier: Apache-2.0
"""MariaDB and MySQL as private servers: program, empty data, account, command line and threads."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from powerprof.database import sandbox, sql
from powerprof.database.base import Login, Sql
from powerprof.database.builds import USER, Family, ServerBuild, Steps, check_program, on_host, raise_missing_library
from powerprof.database.connections import SPARE_FILES
from powerprof.database.sandbox import account_name, find_server_account
from powerprof.database.settings import Setting, find_reserved_setting, format_value
from powerprof.system import program_search
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.next_steps import command_line

TITLE = "MariaDB or MySQL"
HAS_TCP = True
END_SIGNAL = signal.SIGKILL
"""The signal that ends all processes at once."""
_INIT_SQL = "init.sql"
TEMPORARY_FILES: tuple[str, ...] = (_INIT_SQL,)
"""The files to remove when the server answers."""
_SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_MYSQL_SOCKET = "mysqld.sock"
_SPARE_CONNECTIONS = 24


def find_build(
    binary: Path | None = None, basedir: Path | None = None, template: Path | None = None, root: Path | None = None
) -> ServerBuild:
    """Return the server to start: `binary` (of `root`), or this host's mariadbd or mysqld.

    `basedir` is its base directory (default: that of its folder, if it has messages of a server and is not /usr).
    Raises CapabilityError if there is none or a library is missing, PowerprofError if it does not run.
    """
    if binary is None:
        binary = program_search.which("mariadbd") or program_search.which("mysqld")
    if binary is None:
        raise CapabilityError("neither mariadbd nor mysqld is installed", "apt install mariadb-server")
    check_program(on_host(binary, root))
    if basedir is None and root is None:
        basedir = _find_basedir(binary)
    return _identify(ServerBuild(binary, "mysql", (0, 0, 0), "", basedir, template, root))


def _find_basedir(binary: Path) -> Path | None:
    """Return the base directory of an unpacked server: the parent of bin, sbin or libexec with a server's messages."""
    folder = binary.absolute().parent
    base = folder.parent
    if folder.name not in ("bin", "sbin", "libexec") or base == Path("/usr"):
        return None
    places = (base / "share", base / "share/mysql", base / "share/mariadb")
    return base if any((place / "english/errmsg.sys").is_file() for place in places) else None


def _identify(build: ServerBuild) -> ServerBuild:
    # Run it as the server's account, and from its own folder: the account may be unable to use the whole path.
    owner, binary = find_server_account(), build.binary
    program = [f"./{binary.name}" if build.root is None else str(binary), "--no-defaults", "--version"]
    near = binary.absolute().parent if build.root is None else None
    try:
        done = sandbox.run(program, build.sandbox(), timeout_s=30, place=near)
    except PowerprofError as error:
        reason = error.message.replace(program[0], str(binary))
        hint = f"servers run as {account_name(owner)}: may that user run it?" if owner is not None else error.hint
        raise PowerprofError(reason, hint) from error
    text = done.stdout.strip()
    numbers = re.search(r"Ver (\d{1,4})\.(\d{1,4})\.(\d{1,4})(\S*)", text)
    if done.returncode != 0 or not numbers:
        raise_missing_library(done.stderr, binary)
        raise PowerprofError(
            f"{binary} is not a MariaDB or MySQL server ({done.tail(1) or 'no version'})",
            "--server-binary takes mariadbd or mysqld; postgres by its own name",
        )
    version = (int(numbers[1]), int(numbers[2]), int(numbers[3]))
    family: Family = "mariadb" if "mariadb" in text.lower() else "mysql"
    if build.template is None and family == "mysql" and version < (5, 7, 6):
        raise CapabilityError(
            f"{binary} is MySQL {'.'.join(map(str, version))}: its empty data directory must come with it",
            f"fetch it: {command_line('servers fetch mysql-5.5.9')}",
        )
    return msgspec.structs.replace(build, family=family, version=version, text=text)


def format_settings(settings: Mapping[str, Setting]) -> list[str]:
    """Return a my.cnf fragment as options: True becomes ON, None the bare option, and a sequence repeats the option.

    Raises UsageError for an invalid name or value, and for a reserved setting.
    """
    words = []
    for name, value in settings.items():
        if not _SETTING_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of a server setting", "mariadbd --verbose --help lists those that there are"
            )
        reserved = find_reserved_setting(name, "mysql")
        if reserved is not None:
            same = name.lower().replace("-", "_") == reserved
            raise UsageError(
                f"the server setting {name} is powerprof's own and cannot be changed",
                "leave it out" if same else f"it could mean {reserved}; write the setting you mean in full",
            )
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            text = format_value(name, item)
            words.append(f"--{name}" if item is None else f"--{name}={text}")
    return words


def build_initialise_steps(build: ServerBuild, datadir: Path) -> Steps:
    """Return the command, with its input, that creates empty data. Raise CapabilityError if its program is absent."""
    base = [f"--basedir={build.basedir}"] if build.basedir else []
    # A small redo log makes a small template. At its start the server creates one of the configured size.
    # MySQL 9 no longer has the setting.
    small = "--loose-innodb-log-file-size=16M"
    if build.family == "mysql":
        command = [str(build.binary), "--no-defaults", *base, f"--datadir={datadir}", small, "--initialize-insecure"]
        return [(command, "")]
    names = ("mariadb-install-db", "mysql_install_db")
    if build.root:
        places = [Path("/usr/bin") / name for name in names]
        script = next((place for place in places if on_host(place, build.root).is_file()), None)
    elif build.basedir:
        places = [build.basedir / folder / name for name in names for folder in ("scripts", "bin")]
        script = next((place for place in places if place.is_file()), None)
    else:
        script = program_search.which(names[0]) or program_search.which(names[1])
    if script is None:
        raise CapabilityError("mariadb-install-db is not installed", "apt install mariadb-server")
    # Root logs in by unix_socket, which only root of this host can use. powerprof has its own account.
    command = [
        str(script),
        "--no-defaults",
        *base,
        f"--datadir={datadir}",
        small,
        "--skip-test-db",
        "--skip-name-resolve",
        # The host's own name may not resolve (containers, minimal guests).
        "--force",
        "--auth-root-authentication-method=socket",
        "--auth-root-socket-user=root",
    ]
    return [(command, "")]


def build_login(directory: Path) -> Login:
    """Return powerprof's account with a random password: every user of the host can reach a loopback port."""
    return Login(user=USER, password=secrets.token_urlsafe(24), socket=directory / _MYSQL_SOCKET)


def build_files(build: ServerBuild, account: Login) -> Mapping[str, str]:
    """Return the file that creates the account. A password in a private file is on no command line."""
    return {_INIT_SQL: _write_account_sql(build, account.user, account.password)}


def build_command_line(
    build: ServerBuild, settings: Mapping[str, Setting], connections: int, directory: Path
) -> list[str]:
    """Return the command line after the program: the requested settings, then those that make the server private.

    The last of two settings with the same name applies, in any spelling.
    """
    argv = ["--no-defaults", "--skip-name-resolve"]
    if build.names_threads:
        # On other builds it would use memory and name no thread.
        argv.append("--performance-schema=ON")
    if connections > 100:
        argv += [
            f"--max-connections={connections + _SPARE_CONNECTIONS}",
            f"--open-files-limit={connections + SPARE_FILES}",
            # Thousands of clients connect at once, and none may be refused (listen(2), net.core.somaxconn).
            "--back-log=1024",
        ]
    return [
        *argv,
        *format_settings(settings),
        f"--datadir={directory}/data",
        f"--socket={directory}/{_MYSQL_SOCKET}",
        f"--pid-file={directory}/mysqld.pid",
        f"--tmpdir={directory / 'tmp'}",
        f"--init-file={directory}/{_INIT_SQL}",
        # Statements of a workload may not use files of this host: INTO OUTFILE, LOAD DATA, DATA DIRECTORY.
        f"--secure-file-priv={directory / 'tmp'}",
        "--local-infile=OFF",
        "--loose-skip-symbolic-links",
        # MySQL's second protocol listens on all addresses by default.
        "--loose-mysqlx=OFF",
    ]


def read_thread_names(connect: Callable[[], Sql], pid: int) -> dict[int, str]:
    """Return the names of performance_schema."""
    with connect() as connection:
        return sql.read_thread_names(connection, pid)


def build_network_options(port: int | None, address: str) -> list[str]:
    """Return the options for TCP."""
    return ["--skip-networking"] if port is None else [f"--port={port}", f"--bind-address={address}"]


def list_processes(pid: int) -> Sequence[int]:
    """Return the server's only process."""
    return (pid,)


def _write_account_sql(build: ServerBuild, user: str, password: str) -> str:
    """Return the statements for --init-file, one per line, that create powerprof's account for local connections."""
    lines = ["SET SESSION sql_log_bin=0;"]
    for host in ("localhost", "127.0.0.1"):
        if build.family == "mysql" and build.version < (5, 7, 6):
            lines.append(
                f"GRANT ALL PRIVILEGES ON *.* TO '{user}'@'{host}' IDENTIFIED BY '{password}' WITH GRANT OPTION;"
            )
            continue
        how = "WITH mysql_native_password " if build.family == "mysql" and build.version < (8, 4, 0) else ""
        lines.append(f"CREATE USER IF NOT EXISTS '{user}'@'{host}' IDENTIFIED {how}BY '{password}';")
        lines.append(f"GRANT ALL PRIVILEGES ON *.* TO '{user}'@'{host}' WITH GRANT OPTION;")
    if build.family == "mysql":
        # MySQL's empty data admit everyone as root, and those of 5.5 without any name.
        if build.version < (5, 7, 6):
            lines.append(f"DELETE FROM mysql.user WHERE user <> '{user}';")  # noqa: S608 - a constant of ours
            lines.append("FLUSH PRIVILEGES;")
        else:
            lines.append(f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';")
    return "\n".join(lines) + "\n"
