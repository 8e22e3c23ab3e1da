# SPDX-License-Identifier: Apache-2.0
"""The servers of a user's first hour, with load: MariaDB as Debian configures it, MySQL 9.7, two PostgreSQL.

They run as accounts of their own, in folders below a temporary one, next to an application, an exporter and a cron job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from powerprof.database import catalogue

_MARIADB = """
mariadb-install-db --user=mysql --datadir={0}/data --skip-test-db >/dev/null
exec setpriv --reuid=mysql --regid=mysql --clear-groups --pdeathsig KILL \
    mariadbd --datadir={0}/data --socket={0}/mysqld.sock --pid-file={0}/pid --skip-networking
"""
# In the root of its packages, whose files stay as they are.
_MYSQL = """
mkdir {0}/layers {0}/root
mount -t tmpfs none {0}/layers && mkdir {0}/layers/upper {0}/layers/work
mount -t overlay -o lowerdir={1},upperdir={0}/layers/upper,workdir={0}/layers/work none {0}/root
cd {0}/root && mkdir -p run/mysqld var/lib/data tmp dev proc etc
cp /etc/passwd /etc/group etc  # without its account, the server is a stranger's
for name in lib lib64 bin sbin; do [ -e $name ] || ln -s usr/$name $name; done
mount --bind {0}/socket run/mysqld && mount --rbind /dev dev && mount -t proc proc proc
chown mysql var/lib/data && chmod 1777 tmp
become="setpriv --pdeathsig KILL chroot --userspec=$(id -u mysql):$(id -g mysql)"
set -- --no-defaults --datadir=/var/lib/data --socket=/run/mysqld/mysqld.sock --skip-networking
set -- "$@" --mysqlx=OFF --secure-file-priv=NULL
$become . /usr/sbin/mysqld "$@" --initialize-insecure
exec $become . /usr/sbin/mysqld "$@"
"""
_POSTGRES = """
become="setpriv --reuid=postgres --regid=postgres --clear-groups --pdeathsig KILL"
$become $(ls -d /usr/lib/postgresql/*/bin | tail -1)/initdb --auth=trust --pgdata={0}/data >/dev/null
exec $become $(ls -d /usr/lib/postgresql/*/bin | tail -1)/postgres -D {0}/data -k {0} -p {1} -c listen_addresses=
"""
_TABLE = "CREATE TABLE customer (id INT PRIMARY KEY, name VARCHAR(40))"
_ROWS = """
INSERT INTO customer WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000)
SELECT a.n * 20 + b.n, CONCAT('customer ', a.n * 20 + b.n) FROM s a JOIN s b ON b.n <= 20
"""
_POSTGRES_ROWS = "INSERT INTO customer SELECT n, 'customer ' || n FROM generate_series(1, 20000) n"
_SCAN = "SELECT COUNT(*) FROM customer WHERE name = 'customer 17';"
_LOADS = """
while :; do echo "{scan}"; sleep 0.3; done | {client} >/dev/null &
while :; do echo "{status}"; sleep 0.2; done | {client} >/dev/null &
while :; do echo "SELECT 1;" | {client} >/dev/null; sleep 5; done
"""


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    pid: int
    socket: Path


@contextmanager
def running(program: str, socket: Path) -> Iterator[int]:
    """Start a shell program that becomes a server, in a mount namespace, and wait for its socket."""
    log = socket.parent.with_suffix(".log")
    with log.open("w") as sink:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", program], stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        end_s = time.monotonic() + 120
        while not socket.exists():
            assert process.poll() is None and time.monotonic() < end_s, log.read_text()[-2000:]
            time.sleep(0.2)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _folder(parent: Path, name: str, account: str) -> Path:
    folder = parent / name
    folder.mkdir()
    subprocess.run(["chown", account, folder], check=True)
    return folder


@contextmanager
def _loaded(client: str, status: str, rows: str) -> Iterator[None]:
    """Run an application, an exporter and a cron job."""
    for _ in range(100):
        if (
            subprocess.run(["sh", "-c", f"echo 'SELECT 1;' | {client}"], capture_output=True, check=False).returncode
            == 0
        ):
            break
        time.sleep(0.3)
    subprocess.run(["sh", "-ec", f"{client} >/dev/null"], input=f"{_TABLE};\n{rows};\n".encode(), check=True)
    loads = subprocess.Popen(
        ["sh", "-c", _LOADS.format(scan=_SCAN, status=status, client=client)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        os.killpg(loads.pid, signal.SIGKILL)
        loads.wait()


@contextmanager
def servers(
    names: tuple[str, ...] = ("mariadb", "mysql", "postgresql-1", "postgresql-2"),
) -> Iterator[dict[str, Server]]:
    """Start the servers and their load; everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hour-", dir="/var/tmp") as made, ExitStack() as stack:
        parent = Path(made)
        parent.chmod(0o755)
        started: dict[str, Server] = {}
        for name in names:
            folder = _folder(parent, name, "postgres" if name.startswith("postgres") else "mysql")
            if name.startswith("postgresql"):
                port = 54320 + int(name[-1])
                program, socket = _POSTGRES.format(folder, port), folder / f".s.PGSQL.{port}"
                client, rows = f"psql -q -U postgres -h {folder} -p {port} postgres", _POSTGRES_ROWS
                status = "SELECT * FROM pg_stat_database;"
            else:
                socket = folder / "mysqld.sock"
                program = _MARIADB.format(folder)
                if name == "mysql":
                    socket = _folder(folder, "socket", "mysql") / "mysqld.sock"
                    program = _MYSQL.format(folder, catalogue.load_build("mysql-9.7").root)
                client = f"mariadb -u root -S {socket} --init-command='CREATE DATABASE IF NOT EXISTS shop; USE shop'"
                rows, status = _ROWS, "SHOW GLOBAL STATUS;"
            pid = stack.enter_context(running(program, socket))
            stack.enter_context(_loaded(client, status, rows))
            started[name] = Server(name, pid, socket)
        yield started
