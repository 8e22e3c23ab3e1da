# SPDX-License-Identifier: Apache-2.0
"""Real servers: MariaDB's periodic threads by name and period, frames as perf sees them; PostgreSQL, Redis, nginx."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.system.program_search import need
from powerprof.system.programs import start, stop
from tests.programs.waiting import wait_until
from tests.system.attribution import perf
from tests.system.attribution.conftest import Attributed, functions_of, slept

NOBODY = 65534
Attribute = Callable[..., Attributed]


def test_mariadb_threads_have_names_periods_and_stacks_of_perf(
    attribute: Attribute, mariadbd: Path, tmp_path: Path
) -> None:
    with PrivateServer() as server:
        time.sleep(1.5)  # purge and page cleaner are busy at first
        data = tmp_path / "perf.data"
        with perf.recording(server.pid, data):
            found = attribute(server.pid, "--socket", str(server.socket), duration=5)
        conservation = found.record["conservation"]
        assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
        assert conservation["lost_count"] == 0
        names = {row["thread"]["server_name"] for row in found.rows}
        assert {"thread/mysys/statement_timer", "thread/innodb/thread_pool_thread"} <= names
        # Threads that the kernel runs for the server (io_uring's) have no stack of its functions.
        assert all(row["stack_complete"] for row in found.rows if row["stack"])
        of_timer = [row for row in found.rows if row["thread"]["server_name"] == "thread/mysys/statement_timer"]
        (tid,) = {row["thread"]["tid"] for row in of_timer}
        timer = slept(found, tid)
        assert {row["origin"] for row in timer} <= {"own_timer", "kernel"}
        # It waits 400 ms at a time, and a few times more in a server that has just started.
        per_second = sum(row["wakings_count"] for row in timer) / found.record["wakings_window_s"]
        assert 2.2 <= per_second <= 4.0
        for row in timer:
            # Down to the start of the thread, which libc names with its debug symbols (libc6-dbg) only.
            assert row["stack"][-1]["module"].startswith("libc.so")
            period_ms = row.get("period_ms")  # of wakings that ended no idle period there is none
            assert period_ms is None or abs(period_ms / 400 - round(period_ms / 400)) < 0.02
        assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0
        agreement = perf.compare(perf.stacks(data), found.rows)
        assert agreement.stacks >= 1
        assert agreement.agreeing >= 0.99 * agreement.comparable, agreement.differing


@contextmanager
def _private(program: str | Path, *arguments: object, kind: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    process = start([str(program), *map(str, arguments)], user=(NOBODY, NOBODY), measured=True)
    try:
        yield process
    finally:
        stop(process, kind=kind)


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory of nobody's, outside of pytest's, whose parents only root may enter."""
    with tempfile.TemporaryDirectory(prefix="servers-", dir="/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


@contextmanager
def _postgresql(room: Path) -> Iterator[None]:
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        pytest.skip("no capability: postgres (apt install postgresql)")
    subprocess.run(
        [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            binaries[-1] / "initdb",
            "-D",
            room / "data",
            "-A",
            "trust",
            "-N",
        ],
        check=True,
        capture_output=True,
        cwd=room,
        env={"HOME": str(room), "PATH": os.environ["PATH"]},
    )
    options = ["-D", room / "data", "-k", room, "-c", "listen_addresses=", "-c", "port=5499"]
    with _private(str(binaries[-1] / "postgres"), *options, kind=signal.SIGINT):
        wait_until((room / ".s.PGSQL.5499").exists, ".s.PGSQL.5499")
        yield


@contextmanager
def _redis(room: Path) -> Iterator[int]:
    redis = need("redis-server", "redis-server")
    with _private(redis, "--port", 0, "--unixsocket", room / "redis", "--dir", room, "--save", "") as process:
        wait_until((room / "redis").exists, "redis")
        yield process.pid


@contextmanager
def _nginx_with_a_client(room: Path) -> Iterator[None]:
    places = " ".join(
        f"{kind}_temp_path {room}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (room / "nginx.conf").write_text(
        f"daemon off; worker_processes 2; pid {room}/pid; error_log {room}/error;\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; {places} server {{ listen unix:{room}/nginx; location / {{ return 200 ok; }} }} }}\n"
    )
    asking = (
        "import socket, sys, time\n"
        "while True:\n"
        "    one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1])\n"
        "    one.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); one.recv(4096); one.close(); time.sleep(0.04)\n"
    )
    nginx = need("nginx", "nginx-light")
    with _private(nginx, "-p", room, "-c", room / "nginx.conf", "-e", room / "error"):
        wait_until((room / "nginx").exists, "nginx")
        with _private("/usr/bin/python3", "-c", asking, room / "nginx"):
            yield


# Alone: beside a PostgreSQL of an account that is no server's, other tests must not probe the same program file.
@pytest.mark.alone
def test_postgresql_redis_and_nginx_are_found_by_name(attribute: Attribute, room: Path) -> None:
    with _postgresql(room), _redis(room) as redis, _nginx_with_a_client(room):
        time.sleep(0.5)
        # All processes that PostgreSQL's and nginx's first ones started are those servers. Other Redis servers of
        # this machine would make the name ambiguous.
        found = attribute(f"postgres,{redis},nginx")
    record = found.record
    assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
    assert record["stacks"]["complete_count"] >= 0.99 * record["stacks"]["captured_count"] > 0
    assert record["target"]["label"] == "postgres, redis-server, nginx"
    assert len(record["target"]["pids"]) >= 5 + 1 + 3
    assert {"BackgroundWriterMain", "WalWriterMain"} <= functions_of(found.rows)
    # Redis's cron runs every 100 ms (hz 10).
    cron = [row for row in found.rows if "aeMain" in functions_of([row]) and row["origin"] == "own_timer"]
    assert abs(sum(row["wakings_count"] for row in cron) - 10 * record["wakings_window_s"]) <= 3
    asked = [row for row in found.rows if "ngx_process_events_and_timers" in functions_of([row])]
    assert sum(row["wakings_count"] for row in asked if row["origin"] == "other_process") >= 30
