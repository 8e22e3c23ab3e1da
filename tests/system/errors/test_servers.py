# SPDX-License-Identifier: Apache-2.0
"""Servers that are not there, are not servers, or are addressed wrongly."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

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
