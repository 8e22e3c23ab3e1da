# SPDX-License-Identifier: Apache-2.0
"""Processes that are called a database server and are none: nobody's alert, and no figure that waits for them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from powerprof.live.servers import WatchedServers, owner_of_server
from powerprof.live.statements import ServedServer
from powerprof.system.errors import UsageError
from powerprof.system.processes import owner_of, select_trusted
from powerprof.system.targets import may_be_forged, resolve
from tests.system.safety.conftest import GID, UID, Attacker

# Listens, takes every connection, and never says a word.
_SILENT = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("ready", flush=True)
kept = []
while True:
    kept.append(listening.accept())
"""


def program(folder: Path, attacker: Attacker | None = None) -> Path:
    """An interpreter that is called mariadbd."""
    path = folder / "mariadbd"
    shutil.copy(Path(sys.executable).resolve(), path)
    path.chmod(0o755)
    return attacker.owns(path) if attacker else path


@contextmanager
def silent(path: Path, folder: Path, *, uid: int = 0) -> Iterator[int]:
    """A process of that program and its pid."""
    place = folder / f"{len(list(folder.iterdir()))}.sock"
    who = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
    process = subprocess.Popen(
        [path, "-I", "-S", "-c", _SILENT, str(place)],
        stdout=subprocess.PIPE,
        env={"PYTHONHOME": sys.base_prefix},
        **who,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


def found(servers: WatchedServers) -> set[int]:
    servers.begin_window()
    return set(servers._servers)


def test_a_process_of_another_account_is_not_asked_and_has_no_figure(attacker: Attacker) -> None:
    with silent(program(attacker.home, attacker), attacker.home, uid=UID) as pid:
        assert owner_of_server(pid).distrust == "runs as nobody"
        servers = WatchedServers(None)
        assert pid not in found(servers)
        assert any(f"such as {pid}" in note or "processes that look like" in note for note in servers.notes)
        servers.close()


def test_a_process_of_roots_whose_program_or_socket_is_anothers_is_not_asked(attacker: Attacker) -> None:
    top = attacker.home.parent
    with silent(program(attacker.home, attacker), attacker.home) as pid:
        assert owner_of_server(pid).distrust == "its program belongs to nobody"
    own = program(top)
    with silent(own, attacker.home) as pid:
        assert owner_of_server(pid).distrust is None
        own.chmod(0o775)
        assert owner_of_server(pid).distrust is None
        os.chown(own, 0, GID)
        own.chmod(0o775)
        assert owner_of_server(pid).distrust == f"group {GID} may write to its program"
        own.chmod(0o755)
        place = max(attacker.home.glob("*.sock"), key=lambda path: path.stat().st_mtime_ns)
        os.chown(place, UID, GID)
        assert owner_of_server(pid).distrust == "its socket belongs to nobody"


def test_a_name_means_the_service_and_not_another_accounts_process(attacker: Attacker) -> None:
    forged, own = program(attacker.home, attacker), program(attacker.home.parent)
    names = [path.rename(path.with_name("mariadbd-name")) for path in (forged, own)]
    with ExitStack() as stack:
        others = [stack.enter_context(silent(names[0], attacker.home, uid=UID)) for _ in range(2)]
        with pytest.raises(UsageError, match="2 servers are called mariadbd-name"):
            resolve(["mariadbd-name"])
        assert may_be_forged("mariadbd-name")
        served = ServedServer("mariadbd-name")
        assert "2 servers are called" in served.trouble
        server = stack.enter_context(silent(names[1], attacker.home.parent))
        assert resolve(["mariadbd-name"]).pids == (server,)
        assert not may_be_forged("mariadbd-name")
        assert select_trusted([*others, server]) == [server]
        assert select_trusted(others) == others


def test_a_web_servers_account_is_no_servers_account(attacker: Attacker) -> None:
    top = attacker.home.parent
    path = program(top)
    uid = pwd.getpwnam("www-data").pw_uid
    room = top / "www"
    room.mkdir()
    os.chown(room, uid, uid)
    with silent(path, room, uid=uid) as pid:
        assert owner_of_server(pid).distrust == "runs as www-data"
        assert owner_of(pid, any_service=True).distrust is None
    mysql = pwd.getpwnam("mysql").pw_uid
    os.chown(room, mysql, mysql)
    with silent(path, room, uid=mysql) as pid:
        assert owner_of_server(pid).distrust is None


def test_one_that_the_user_names_is_asked_and_its_figure_says_whose_it_is(attacker: Attacker) -> None:
    path = program(attacker.home, attacker)
    with silent(path, attacker.home, uid=UID) as pid:
        servers = WatchedServers([pid])
        assert found(servers) == {pid}
        (state,) = [server.state for server in servers._servers.values()]
        assert (state.up, state.account, state.program) == (False, "nobody", str(path))
        servers.close()


def test_silent_servers_are_asked_side_by_side_and_not_only_those_of_low_numbers(attacker: Attacker) -> None:
    top = attacker.home.parent
    path = program(top)
    with ExitStack() as stack:
        pids = {stack.enter_context(silent(path, top)) for _ in range(20)}
        servers = WatchedServers(list(pids))
        began_s = time.monotonic()
        assert found(servers) == pids
        # Each is waited for 3 s: one after the other, 16 of them took 48 s.
        assert time.monotonic() - began_s < 24
        servers.close()


def test_silent_servers_of_option_files_are_waited_for_side_by_side(attacker: Attacker) -> None:
    top = attacker.home.parent
    path = program(top)
    with ExitStack() as stack:
        accounts = []
        for number in range(12):
            room = top / f"room{number}"
            room.mkdir()
            stack.enter_context(silent(path, room))
            accounts.append(top / f"{number}.cnf")
            accounts[-1].write_text(f"[client]\nuser=u\nsocket={next(room.iterdir())}\n")
        servers = WatchedServers([], accounts=accounts)
        began_s = time.monotonic()
        assert found(servers) == set()
        # One after the other they took three seconds each.
        assert time.monotonic() - began_s < 16
        servers.close()
