# SPDX-License-Identifier: Apache-2.0
"""Which server a binary is, and what differs between families and versions in starting it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powerprof.database.isolation import sandbox
from powerprof.database.isolation.sandbox import Sandbox, account_name, find_server_account
from powerprof.system import programs
from powerprof.system.errors import CapabilityError, PowerprofError

Family = Literal["mariadb", "mysql", "postgresql"]
_TITLES = {"mariadb": "MariaDB", "mysql": "MySQL", "postgresql": "PostgreSQL"}

# Libraries that old generic builds want and Debian 12 does not install by itself.
_PACKAGES = {"libaio.so.1": "libaio1", "libncurses.so.5": "libncurses5", "libtinfo.so.5": "libtinfo5"}


@dataclass(frozen=True)
class ServerBuild:
    """A server program. `basedir`: it is not a system one; `template`: its empty data came with it; `root`: it is of
    another release, and all its paths are below that folder, in which it is run."""

    binary: Path
    family: Family
    version: tuple[int, int, int]
    text: str
    basedir: Path | None = None
    template: Path | None = None
    root: Path | None = None

    @property
    def name(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""
        parts = self.version[:2] if self.family == "postgresql" else self.version
        return f"{_TITLES[self.family]} {'.'.join(map(str, parts))}"

    @property
    def names_threads(self) -> bool:
        """True where performance_schema.threads carries THREAD_OS_ID (MySQL 5.7.5, MariaDB 10.5)."""
        return self.version >= ((10, 5, 0) if self.family == "mariadb" else (5, 7, 5))

    def sandbox(self, folder: Path | None = None) -> Sandbox:
        """Return the sandbox of its programs, which may change `folder` alone and have no network."""
        reads = tuple(path for path in (self.basedir,) if path is not None)
        return Sandbox(folder, reads, root=self.root)

    @property
    def key(self) -> str:
        """Names the template: it changes with the binary."""
        info = on_host(self.binary, self.root).stat()
        # What is fetched is moved once, after it was tried: where a root or a base directory lies is not what it is.
        place = self.binary if self.root is not None else self.binary.resolve()
        if self.basedir is not None and place.is_relative_to(self.basedir.resolve()):
            place = place.relative_to(self.basedir.resolve())
        identity = f"{place} {info.st_size} {info.st_mtime_ns} {self.text}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return f"{self.family}-{'.'.join(map(str, self.version))}-{digest}"


def on_host(path: Path, root: Path | None) -> Path:
    """Where this host has a file of a program that is run in `root`."""
    return path if root is None else root / path.relative_to("/")


def check_program(file: Path, wanted: str = "mariadbd or mysqld") -> None:
    """Raises PowerprofError where there is no program; `wanted` is what the hint asks for."""
    if not os.path.isfile(file) or not os.access(file, os.X_OK):  # noqa: PTH113 - Path's raises where a name is too long
        reason = "not an executable file" if os.path.lexists(file) else "no such file"
        raise PowerprofError(f"cannot start the server {file} ({reason})", f"name a {wanted}")


def find_build(
    binary: Path | None = None, basedir: Path | None = None, template: Path | None = None, root: Path | None = None
) -> ServerBuild:
    """The server to start: `binary` (of `root`), or one below `basedir`, or mariadbd or mysqld of this host.

    Raises CapabilityError where there is none or a library is missing, PowerprofError where it does not run.
    """
    if binary is None and basedir is not None:
        names = ("bin/mariadbd", "sbin/mariadbd", "bin/mysqld", "sbin/mysqld", "libexec/mysqld")
        binary = next((basedir / name for name in names if (basedir / name).is_file()), None)
        if binary is None:
            raise PowerprofError(
                f"--server-basedir {basedir}: no server program below it", "name it with --server-binary"
            )
    if binary is None:
        binary = programs.which("mariadbd") or programs.which("mysqld")
    if binary is None:
        raise CapabilityError("neither mariadbd nor mysqld is installed", "apt install mariadb-server")
    check_program(on_host(binary, root))
    return _identify(ServerBuild(binary, "mysql", (0, 0, 0), "", basedir, template, root))


def _identify(asked: ServerBuild) -> ServerBuild:
    # Not as root, whoever wrote it. From its own folder: the account may be unable to come there by the whole path.
    owner, binary = find_server_account(), asked.binary
    program = [f"./{binary.name}" if asked.root is None else str(binary), "--no-defaults", "--version"]
    near = binary.absolute().parent if asked.root is None else None
    try:
        done = sandbox.run(program, asked.sandbox(), timeout_s=30, place=near)
    except PowerprofError as error:
        reason = error.message.replace(program[0], str(binary))
        hint = f"servers run as {account_name(owner)}: may that user run it?" if owner is not None else None
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
    if asked.template is None and family == "mysql" and version < (5, 7, 6):
        raise CapabilityError(
            f"{binary} is MySQL {'.'.join(map(str, version))}: its empty data directory must come with it",
            "fetch it: powerprof servers fetch mysql-5.5.9",
        )
    return dataclasses.replace(asked, family=family, version=version, text=text)


def raise_missing_library(output: str, binary: Path) -> None:
    """Raises CapabilityError where the loader's message says that a library is missing."""
    missing = re.search(r"error while loading shared libraries: (\S+):", output)
    if missing:
        package = _PACKAGES.get(missing[1])
        raise CapabilityError(
            f"{binary} needs {missing[1]}, which is not installed",
            f"apt install {package}" if package else f"apt-file search {missing[1]}",
        )


def build_initialise_command(build: ServerBuild, datadir: Path) -> list[str]:
    """The command that makes an empty data directory. Raises CapabilityError where its program is absent."""
    base = [f"--basedir={build.basedir}"] if build.basedir else []
    # A small redo log makes a small template; the server makes one of the size it is set to when it starts.
    # MySQL 9 has the setting no more.
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
    # root by unix_socket: only root of this host can use it; powerprof has an account of its own.
    return [
        str(script),
        "--no-defaults",
        *base,
        f"--datadir={datadir}",
        small,
        "--skip-test-db",
        "--skip-name-resolve",
        # A host whose own name does not resolve (a container, a minimal guest) is no reason to refuse.
        "--force",
        "--auth-root-authentication-method=socket",
        "--auth-root-socket-user=root",
    ]


def write_account_sql(build: ServerBuild, user: str, password: str) -> str:
    """Statements for --init-file, one per line, that make powerprof's own account (locally only)."""
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
        # MySQL's empty data let everybody in as root, and 5.5 without any name at all.
        if build.version < (5, 7, 6):
            lines.append(f"DELETE FROM mysql.user WHERE user <> '{user}';")  # noqa: S608 - a constant of ours
            lines.append("FLUSH PRIVILEGES;")
        else:
            lines.append(f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';")
    return "\n".join(lines) + "\n"
