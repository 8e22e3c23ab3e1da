# SPDX-License-Identifier: Apache-2.0
"""Whatever ends powerprof, no process, tree or socket stays."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.programs.unprivileged import NOBODY, as_nobody
from tests.programs.waiting import wait_until
from tests.system.database.conftest import Room, Script

_HOLD = """
    import time
    from powerprof.database.private_server import PrivateServer
    with PrivateServer(port="ephemeral") as server:
        print(server.pid, server.tree._janitor.pid, flush=True)
        time.sleep(120)
"""


def _wait_held(process: subprocess.Popen[str]) -> tuple[int, int]:
    assert process.stdout is not None
    server, janitor = process.stdout.readline().split()
    return int(server), int(janitor)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGHUP, -1)]
)
def test_a_signal_to_powerprof(room: Room, script: Script, number: int, code: int) -> None:
    process = script(_HOLD)
    _wait_held(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    if code == 130:
        assert err.splitlines()[0] == "error: interrupted"
        assert room.trees() == []
    room.wait_empty()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("moment_s", [0.2, 0.35, 0.6])
def test_a_signal_while_it_starts(room: Room, script: Script, number: int, moment_s: float) -> None:
    """The moments cover the interpreter's start, the janitor's, the copy, the launch and readiness."""
    process = script(_HOLD)
    time.sleep(moment_s)
    process.send_signal(number)
    process.communicate(timeout=60)
    room.wait_empty()


@pytest.mark.parametrize("moment_s", [0.4, 0.9])
def test_kill_while_the_template_is_made(room: Room, script: Script, moment_s: float) -> None:
    cache = room.path / "cache"
    process = script(_HOLD, XDG_CACHE_HOME=str(cache))
    time.sleep(moment_s)
    process.kill()
    process.communicate(timeout=60)
    room.wait_empty()
    shelf = cache / "powerprof/server-template"
    assert list(shelf.glob(".*")) == [], "a template is there whole or not at all"


def test_kill_of_the_janitor_alone(room: Room, script: Script) -> None:
    process = script(_HOLD)
    _, janitor = _wait_held(process)
    os.kill(janitor, signal.SIGKILL)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    room.wait_empty()


def test_kill_of_both_and_the_next_start(room: Room, script: Script) -> None:
    process = script(_HOLD)
    server, janitor = _wait_held(process)
    # The janitor cannot act while it is stopped, and the kernel ends the server with powerprof.
    os.kill(janitor, signal.SIGSTOP)
    process.kill()
    os.kill(janitor, signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(room.trees()) == 1
    following = script(_HOLD)
    assert _wait_held(following)[0] != server
    wait_until(lambda: len(room.trees()) == 1, "the end of the first tree")
    following.send_signal(signal.SIGTERM)
    following.communicate(timeout=60)
    room.wait_empty()


def test_kill_of_the_server(room: Room, script: Script) -> None:
    process = script("""
        import os, signal, time
        from powerprof.database.private_server import PrivateServer
        with PrivateServer() as server:
            os.kill(server.pid, signal.SIGKILL)
            while server.alive():
                time.sleep(0.02)
            server.check()
    """)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed by SIGKILL" in err.splitlines()[0]
    room.wait_empty()


def test_an_error_inside(room: Room, script: Script) -> None:
    process = script("""
        from powerprof.database.private_server import PrivateServer
        with PrivateServer():
            raise ValueError("inside")
    """)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert room.trees() == []


_DISK = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount -t tmpfs -o size="$SIZE",mode=755 none "$DISK" && "$0" "$@"; code=$?; '
    'for left in "$DISK"/powerprof-*; do [ -e "$left" ] && echo "left $left"; done; exit $code',
)


@pytest.mark.parametrize(
    ("size", "said"), [("1m", "not enough room for a server in"), ("100m", "not enough room for a server in")]
)
def test_a_small_disk(room: Room, script: Script, root: None, size: str, said: str) -> None:
    disk = room.path / "disk"
    disk.mkdir()
    process = script(_HOLD, prefix=_DISK, SIZE=size, DISK=str(disk), TMPDIR=str(disk))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said in err.splitlines()[0]
    assert err.splitlines()[1].startswith("hint: make room, or set TMPDIR")
    assert out == ""


def test_a_disk_that_fills_up_while_the_server_starts(room: Room, script: Script, root: None) -> None:
    disk = room.path / "disk"
    disk.mkdir()
    process = script(
        """
        from powerprof.database.private_server import PrivateServer
        PrivateServer(settings={"innodb-data-file-path": "ibdata1:12M;ibdata2:300M"}).__enter__()
    """,
        prefix=_DISK,
        SIZE="230m",
        DISK=str(disk),
        TMPDIR=str(disk),
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = err.splitlines()
    assert lines[0].startswith("error: the private server did not start, it ended with 1: ")
    assert lines[1].startswith("hint: make room, or set TMPDIR")
    assert out == ""


def test_a_small_disk_for_the_cache(room: Room, script: Script, root: None) -> None:
    disk = room.path / "disk"
    disk.mkdir()
    process = script(_HOLD, prefix=_DISK, SIZE="8m", DISK=str(disk), XDG_CACHE_HOME=str(disk))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[0].startswith("error: cannot copy the server's data to ")
    assert "no space left on device" in err.splitlines()[0]


def test_an_ordinary_user_needs_no_root(room: Room, script: Script, root: None) -> None:
    """Also shows that a server of another user than mysql is started and removed."""
    home = room.path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    process = script(
        """
        import os, psutil
        from powerprof.database.private_server import PrivateServer
        from powerprof.database import sql
        with PrivateServer(port="ephemeral") as server, server.connect() as connection:
            print(psutil.Process(server.pid).uids().real, sql.fetch_scalar(connection, "SELECT 7*6"), flush=True)
    """,
        prefix=as_nobody(),
        TMPDIR=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        HOME=str(home),
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("65534 42\n", "")
    assert list(home.glob("powerprof-*")) == []
