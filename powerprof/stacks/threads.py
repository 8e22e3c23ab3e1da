"""What a server calls its threads: performance_schema of MariaDB and MySQL, the kernel's name otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from powerprof.errors import PowerprofError
from powerprof.files import reason_of, try_text
from powerprof.paths import procfs

THREADS_QUERY = "SELECT THREAD_OS_ID, NAME FROM performance_schema.threads WHERE THREAD_OS_ID IS NOT NULL"
MAX_NAME = 128


class Cursor(Protocol):
    """What is used of a DB-API cursor."""

    def execute(self, query: str) -> Any: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...


class Connection(Protocol):
    """What is used of a DB-API connection (pymysql)."""

    def cursor(self) -> Any: ...


def names_from_rows(rows: Iterable[Sequence[Any]]) -> dict[int, str]:
    """tid → server name, from rows of THREADS_QUERY. A row of another shape is left out."""
    names = {}
    for row in rows:
        if len(row) < 2 or row[0] is None or not row[1]:
            continue
        try:
            tid = int(row[0])
        except (TypeError, ValueError):
            continue
        name = row[1].decode("utf-8", "replace") if isinstance(row[1], bytes) else str(row[1])
        if tid > 0:
            names[tid] = "".join(one if one.isprintable() else "?" for one in name[:MAX_NAME])
    return names


def server_names(connection: Connection, pid: int) -> dict[int, str]:
    """tid → `thread/innodb/page_cleaner_thread` of a MariaDB or MySQL server.

    THREAD_OS_ID is the id in the server's own PID namespace; for a container it is translated. Raises
    PowerprofError where the query fails (performance_schema off gives no rows, which is no error).
    """
    try:
        cursor = connection.cursor()
        cursor.execute(THREADS_QUERY)
        rows = cursor.fetchall()
    except Exception as error:  # every driver has a base class of its own
        raise PowerprofError(
            f"cannot read the server's thread names ({error})",
            "GRANT SELECT ON performance_schema.threads to this user",
        ) from error
    names = names_from_rows(rows)
    return {tid: names[inner] for tid, inner in _namespace_ids(pid).items() if inner in names}


def thread_names(connection: Connection | None, pid: int) -> dict[int, str]:
    """tid → the server's name of the thread where a connection is given and knows it, else the kernel's (comm).

    Raises PowerprofError where the process is gone, or the query fails.
    """
    names = comms(pid)
    if connection is not None:
        names.update(server_names(connection, pid))
    return names


def comms(pid: int) -> dict[int, str]:
    """tid → comm of every thread of a process. Raises PowerprofError where the process is gone."""
    tasks = procfs() / str(pid) / "task"
    try:
        tids = sorted(int(one.name) for one in tasks.iterdir() if one.name.isdigit())
    except OSError as error:
        raise PowerprofError(f"cannot list the threads of process {pid} ({reason_of(error)})") from error
    found = ((tid, try_text(tasks / str(tid) / "comm")) for tid in tids)
    return {tid: comm for tid, comm in found if comm is not None}


def _namespace_ids(pid: int) -> dict[int, int]:
    """tid here → tid in the innermost PID namespace of the thread."""
    ids = {}
    for tid in comms(pid):
        for line in (try_text(procfs() / str(pid) / "task" / str(tid) / "status") or "").splitlines():
            if line.startswith("NSpid:"):
                ids[tid] = int(line.split()[-1])
                break
        else:
            ids[tid] = tid
    return ids
