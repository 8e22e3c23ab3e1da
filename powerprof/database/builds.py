# SPDX-License-Identifier: Apache-2.0
"""Server programs: their product and version, and the commands that start families and versions differently."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.database import sandbox
from powerprof.database.sandbox import Sandbox, account_name, find_server_account
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.next_steps import command_line

Family = Literal["mariadb", "mysql", "postgresql"]
_TITLES = {"mariadb": "MariaDB", "mysql": "MySQL", "postgresql": "PostgreSQL"}

# Libraries of old generic builds that Debian 12 does not install by default.
_PACKAGES = {"libaio.so.1": "libaio1", "libncurses.so.5": "libncurses5", "libtinfo.so.5": "libtinfo5"}


class ServerBuild(msgspec.Struct, frozen=True):
    """A server program.

    Attributes:
        basedir: Its base directory if it is not a system program.
        template: The empty data that came with it.
        root: The folder of another release in which it runs; all its paths are below.
    """

    binary: Path
    family: Family
    version: tuple[int, int, int]
    text: str
    basedir: Path | None = None
    template: Path | None = None
    root: Path | None = None

    @property
    def name(self) -> str:
        """Product and version, such as `MariaDB 10.11.19`."""
        parts = self.version[:2] if self.family == "postgresql" else self.version
        return f"{_TITLES[self.family]} {'.'.join(map(str, parts))}"

    @property
    def names_threads(self) -> bool:
        """Whether performance_schema.threads contains THREAD_OS_ID (MySQL 5.7.5, MariaDB 10.5)."""
        return self.version >= ((10, 5, 0) if self.family == "mariadb" else (5, 7, 5))

    def sandbox(self, folder: Path | None = None) -> Sandbox:
        """Return the sandbox of its programs, which may change `folder` alone and have no network."""
        reads = tuple(path for path in (self.basedir,) if path is not None)
        return Sandbox(folder, reads, root=self.root)

    @property
    def key(self) -> str:
        """The name of its template, which changes with the program."""
        info = on_host(self.binary, self.root).stat()
        # A fetched server is moved after its trial: the place of its root or base directory is not part of the key.
        place = self.binary if self.root is not None else self.binary.resolve()
        if self.basedir is not None and place.is_relative_to(self.basedir.resolve()):
            place = place.relative_to(self.basedir.resolve())
        identity = f"{place} {info.st_size} {info.st_mtime_ns} {self.text}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return f"{self.family}-{'.'.join(map(str, self.version))}-{digest}"


def on_host(path: Path, root: Path | None) -> Path:
    """Return the place on this host of a file of a program that runs in `root`."""
    return path if root is None else root / path.relative_to("/")


def check_program(file: Path, wanted: str = "mariadbd or mysqld") -> None:
    """Raise PowerprofError if there is no such program; the hint names `wanted`."""
    if not os.path.isfile(file) or not os.access(file, os.X_OK):  # noqa: PTH113 - Path's raises where a name is too long
        reason = "not an executable file" if os.path.lexists(file) else "no such file"
        raise PowerprofError(f"cannot start the server {file} ({reason})", f"name a {wanted}")


def find_build(
    binary: Path | None = None, basedir: Path | None = None, template: Path | None = None, root: Path | None = None
) -> ServerBuild:
    """Return the server to start: `binary` (of `root`), or this host's mariadbd or mysqld.

    `basedir` is its base directory (default: that of its folder, if it has messages of a server and is not /usr).
    Raises CapabilityError if there is none or a library is missing, PowerprofError if it does not run.
    """
    if binary is None:
        binary = programs.which("mariadbd") or programs.which("mysqld")
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


def raise_missing_library(output: str, binary: Path) -> None:
    """Raise CapabilityError if the loader's message reports a missing library."""
    missing = re.search(r"error while loading shared libraries: (\S+):", output)
    if missing:
        package = _PACKAGES.get(missing[1])
        raise CapabilityError(
            f"{binary} needs {missing[1]}, which is not installed",
            f"apt install {package}" if package else f"apt-file search {missing[1]}",
        )


def build_initialise_command(build: ServerBuild, datadir: Path) -> list[str]:
    """Return the command that creates an empty data directory. Raise CapabilityError if its program is absent."""
    base = [f"--basedir={build.basedir}"] if build.basedir else []
    # A small redo log makes a small template. At its start the server creates one of the configured size.
    # MySQL 9 no longer has the setting.
    small = "--loose-innodb-log-file-size=16M"
    if build.family == "mysql":
        return [str(build.binary), "--no-defaults", *base, f"--datadir={datadir}", small, "--initialize-insecure"]
    names = ("mariadb-install-db", "mysql_install_db")
    if build.root:
        places = [Path("/usr/bin") / name for name in names]
        script = next((place for place in places if on_host(place, build.root).is_file()), None)
    elif build.basedir:
        places = [build.basedir / folder / name for name in names for folder in ("scripts", "bin")]
        script = next((place for place in places if place.is_file()), None)
    else:
        script = programs.which(names[0]) or programs.which(names[1])
    if script is None:
        raise CapabilityError("mariadb-install-db is not installed", "apt install mariadb-server")
    # Root logs in by unix_socket, which only root of this host can use. powerprof has its own account.
    return [
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


def write_account_sql(build: ServerBuild, user: str, password: str) -> str:
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
