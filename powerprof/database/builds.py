"""Which server a binary is, and what differs between families and versions in starting it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from powerprof import programs
from powerprof.errors import CapabilityError, PowerprofError, UsageError

Family = Literal["mariadb", "mysql"]
Setting = str | int | float | bool | None | Sequence[str]

# Libraries that old generic builds want and Debian 12 does not install by itself.
_PACKAGES = {"libaio.so.1": "libaio1", "libncurses.so.5": "libncurses5", "libtinfo.so.5": "libtinfo5"}
# These make the server private: powerprof sets them, a workload may not.
_OURS = frozenset(
    {
        "no_defaults",
        "defaults_file",
        "defaults_extra_file",
        "datadir",
        "basedir",
        "socket",
        "port",
        "bind_address",
        "networking",
        "pid_file",
        "log_error",
        "init_file",
        "user",
        "tmpdir",
        "bootstrap",
        "daemonize",
        "chroot",
        "grant_tables",
        "lc_messages_dir",
        "language",
    }
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ServerBuild:
    """A server program. `basedir`: it is not a system one; `template`: its empty data came with it."""

    binary: Path
    family: Family
    version: tuple[int, int, int]
    text: str
    basedir: Path | None = None
    template: Path | None = None

    @property
    def name(self) -> str:
        """As people write it: `MariaDB 10.11.19`."""
        return f"{'MariaDB' if self.family == 'mariadb' else 'MySQL'} {'.'.join(map(str, self.version))}"

    @property
    def names_threads(self) -> bool:
        """True where performance_schema.threads carries THREAD_OS_ID (MySQL 5.7.5, MariaDB 10.5)."""
        return self.version >= ((10, 5, 0) if self.family == "mariadb" else (5, 7, 5))

    @property
    def key(self) -> str:
        """Names the template: it changes with the binary."""
        info = self.binary.resolve().stat()
        identity = f"{self.binary.resolve()} {info.st_size} {info.st_mtime_ns} {self.basedir} {self.text}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return f"{self.family}-{'.'.join(map(str, self.version))}-{digest}"


def find_build(binary: Path | None = None, basedir: Path | None = None, template: Path | None = None) -> ServerBuild:
    """The server to start: `binary`, or one below `basedir`, or mariadbd or mysqld of this host.

    Raises CapabilityError where there is none or a library is missing, PowerprofError where it does not run.
    """
    if binary is None and basedir is not None:
        names = ("bin/mariadbd", "sbin/mariadbd", "bin/mysqld", "sbin/mysqld", "libexec/mysqld")
        binary = next((basedir / name for name in names if (basedir / name).is_file()), None)
        if binary is None:
            raise PowerprofError(f"no server program below {basedir}", "name it by --server-binary")
    if binary is None:
        binary = programs.which("mariadbd") or programs.which("mysqld")
    if binary is None:
        raise CapabilityError("neither mariadbd nor mysqld is installed", "apt install mariadb-server")
    if not binary.is_file() or not os.access(binary, os.X_OK):
        reason = "not an executable file" if binary.exists() else "no such file"
        raise PowerprofError(f"cannot start the server {binary} ({reason})")
    return _identify(binary, basedir, template)


def _identify(binary: Path, basedir: Path | None, template: Path | None) -> ServerBuild:
    done = programs.run([binary, "--no-defaults", "--version"], timeout_s=30, check=False)
    text = done.stdout.strip()
    found = re.search(r"Ver (\d{1,4})\.(\d{1,4})\.(\d{1,4})(\S*)", text)
    if done.returncode != 0 or not found:
        refuse_missing_library(done.stderr, binary)
        raise PowerprofError(f"{binary} is not a MariaDB or MySQL server ({done.tail(1) or 'no version'})")
    version = (int(found[1]), int(found[2]), int(found[3]))
    family: Family = "mariadb" if "mariadb" in text.lower() else "mysql"
    if template is None and family == "mysql" and version < (5, 7, 6):
        raise CapabilityError(
            f"{binary} is MySQL {'.'.join(map(str, version))}: its empty data must come with it",
            "fetch it: powerprof servers fetch mysql-5.5.9",
        )
    return ServerBuild(binary, family, version, text, basedir, template)


def refuse_missing_library(output: str, binary: Path) -> None:
    """Raises CapabilityError where the loader's message says that a library is missing."""
    missing = re.search(r"error while loading shared libraries: (\S+):", output)
    if missing:
        package = _PACKAGES.get(missing[1])
        raise CapabilityError(
            f"{binary} needs {missing[1]}, which is not installed",
            f"apt install {package}" if package else f"apt-file search {missing[1]}",
        )


def initialise_command(build: ServerBuild, datadir: Path, user: str | None) -> list[str]:
    """The command that makes an empty data directory. Raises CapabilityError where its program is absent."""
    as_user = [f"--user={user}"] if user else []
    base = [f"--basedir={build.basedir}"] if build.basedir else []
    # A small redo log makes a small template; the server makes one of the size it is set to when it starts.
    small = "--innodb-log-file-size=16M"
    if build.family == "mysql":
        return [
            str(build.binary),
            "--no-defaults",
            *base,
            *as_user,
            f"--datadir={datadir}",
            small,
            "--initialize-insecure",
        ]
    names = ("mariadb-install-db", "mysql_install_db")
    if build.basedir:
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
        *as_user,
        f"--datadir={datadir}",
        small,
        "--skip-test-db",
        "--skip-name-resolve",
        "--auth-root-authentication-method=socket",
        "--auth-root-socket-user=root",
    ]


def account_sql(build: ServerBuild, user: str, password: str) -> str:
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


def setting_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """A my.cnf fragment as options: True is ON, None the bare option, a sequence the option repeated.

    Raises UsageError for a name that is none, and for those that keep the server private.
    """
    words = []
    for name, value in settings.items():
        plain = name.lower().replace("-", "_").removeprefix("loose_")
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of a server setting")
        if plain in _OURS or plain.removeprefix("skip_") in _OURS:
            raise UsageError(f"the server setting {name} is powerprof's own and cannot be changed")
        for one in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            text = {True: "ON", False: "OFF"}[one] if isinstance(one, bool) else str(one)
            if "\0" in text or "\n" in text:
                raise UsageError(f"the server setting {name} has a line break or NUL in its value")
            words.append(f"--{name}" if one is None else f"--{name}={text}")
    return words
