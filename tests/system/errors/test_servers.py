# SPDX-License-Identifier: Apache-2.0
"""Servers and programs that are refused before the first window: missing, silent, too small, or of another kind."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from powerprof.database.base import Server
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.system.errors.conftest import QUICK, Refused


def test_a_port_where_nobody_listens(refused: Refused) -> None:
    """One that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    refused(
        1,
        rf"cannot connect to mysql://root@127\.0\.0\.1:{port}/ .*refused",
        ["idle", *QUICK, "--server", f"mysql://root@127.0.0.1:{port}/"],
    )


def test_a_port_where_something_else_listens(refused: Refused) -> None:
    """It accepts and hangs up; a server would greet."""
    import threading

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def hang_up() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    connection.close()
            except OSError:
                return

        threading.Thread(target=hang_up, daemon=True).start()
        port = listener.getsockname()[1]
        refused(1, r"cannot connect to ", ["idle", *QUICK, "--server", f"mysql://root@127.0.0.1:{port}/"])
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("path", ["/nonexistent.sock", "/tmp", "/etc/passwd", "/" + "x" * 200])
def test_sockets_that_are_none(refused: Refused, path: str) -> None:
    refused(1, r"cannot connect to .*", ["idle", *QUICK, "--socket", path])


@pytest.mark.parametrize(("binary", "said"), [("/bin/true", r"/bin/true is not a MariaDB or MySQL server")])
def test_programs_that_are_no_server(refused: Refused, binary: str, said: str) -> None:
    """Found before the baseline is measured: nothing is printed."""
    refused(1, said, ["idle", *QUICK, "--server-binary", binary])


def test_no_server_is_installed(refused: Refused, tmp_path: Path, root: None) -> None:
    """The sbin folders are searched as well as PATH: they are covered by empty ones, for this process only."""
    import subprocess
    import sys

    from tests.conftest import REPOSITORY

    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            'for folder in /usr/local/sbin /usr/sbin; do mount --bind "$EMPTY" "$folder"; done; exec "$0" "$@"',
            sys.executable,
            "-m",
            "powerprof",
            "idle",
            *QUICK,
        ],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
        env={**refused.cli.environment(), "PATH": "/bin:/usr/bin", "EMPTY": str(tmp_path)},
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == ("error: neither mariadbd nor mysqld is installed\nhint: apt install mariadb-server\n")


# Less than half of one window; Python takes seconds to start on a busy host.
_WINDOW_S = 120
_SOON_S = 55.0
LONG = ("--duration", str(_WINDOW_S))
CITY = ("city:index", *LONG)

TABLE: list[tuple[int, str, tuple[str, ...]]] = [
    (1, r"is not a MariaDB or MySQL server", ("compare", "index", "no-index", *LONG, "--server-binary", "/bin/true")),
    (1, r"is not a MariaDB or MySQL server", ("sweep", *CITY, "--clients", "1,2", "--server-binary", "/bin/true")),
    (1, r"^error: cannot run /etc \(it is a directory\)", ("compare", "--", "true", "--", "/etc")),
    (3, r"no log was named", ("idle", *LONG, "--meter", "meter_log")),
    (3, r"rapl: no RAPL energy counters", ("idle", *LONG, "--meter", "rapl")),
]


@pytest.mark.parametrize(
    ("code", "said", "args"), TABLE, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_the_table(refused: Refused, tmp_path: Path, code: int, said: str, args: tuple[str, ...]) -> None:
    """These run a program first: the server, or the measured command."""
    _refused_soon(refused, code, said, args, {"POWERPROF_SYSFS": str(tmp_path)} if "rapl" in args else None)


def _refused_soon(
    refused: Refused, code: int, said: str, args: tuple[str, ...], env: Mapping[str, str] | None = None
) -> None:
    started_s = time.monotonic()
    refused(code, said, args, env)
    assert time.monotonic() - started_s < _SOON_S
    assert list(refused.cli.home.glob("state/powerprof/runs/[a-z]*")) == []


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that hangs: the kernel accepts for it, and it says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("command", [("idle", *LONG), ("compare", "index", "no-index", *LONG), ("diagnose", *LONG)])
def test_a_server_that_does_not_answer(refused: Refused, silent: int, command: tuple[str, ...]) -> None:
    address = f"mysql://root@127.0.0.1:{silent}/"
    said = rf"cannot connect to {address} \(the server did not answer in \d+ s( in all)?\)"
    _refused_soon(refused, 1, said, (*command, "--server", address))


@pytest.fixture
def small(mariadbd: Path) -> Iterator[Server]:
    """A server with room for ten connections."""
    with PrivateServer(settings={"max_connections": 10}) as server:
        yield server


@pytest.mark.parametrize(
    "command",
    [("idle", "--clients", "50", *LONG), ("sweep", *CITY, "--clients", "1,50")],
    ids=lambda command: command[0],
)
def test_more_clients_than_a_given_server_takes(
    refused: Refused, small: Server, tmp_path: Path, command: tuple[str, ...]
) -> None:
    options = tmp_path / "account.cnf"
    login = small.login
    write_options(options, login)
    said = r"the server has room for \d+ more connections, 50 are wanted \(max_connections 10\)"
    _refused_soon(refused, 1, said, (*command, "--defaults-file", str(options)))


def test_a_folder_that_the_servers_account_may_not_enter(root: None, refused: Refused, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = refused(
        1, r"the server's account .* cannot access /", ["idle", "--clients", "0", *LONG], {"TMPDIR": str(tmp_path)}
    )
    assert done.err.endswith("set TMPDIR to a directory that it may enter, such as /tmp\n")


def test_saved_runs_take_no_options_of_measuring(refused: Refused) -> None:
    for number in ("1", "2"):
        done = refused.cli(["--quiet", "--runs-dir", str(refused.cli.home / "runs"), "residency", "--duration", "0.1"])
        assert done.code == 0, number
    words = ("--runs-dir", str(refused.cli.home / "runs"), "compare", "residency-0001", "residency-0002")
    said = r"--duration and --pairs have no effect on saved runs"
    _refused_soon(refused, 2, said, (*words, "--duration", "60", "--pairs", "4"))


def test_without_a_place_for_runs_it_is_measured_and_said(powerprof_cli: Cli) -> None:
    """Nobody chose the place, so nobody is refused for it: HOME may be missing in a service or a container."""
    done = powerprof_cli(["residency", "--duration", "0.1"], {"XDG_STATE_HOME": "/proc"})
    assert done.code == 0
    assert done.out.startswith("The CPUs ran ")
    assert "Saved as" not in done.out
    assert done.err.startswith("note: the run will not be saved: cannot create /proc/powerprof/runs (")
