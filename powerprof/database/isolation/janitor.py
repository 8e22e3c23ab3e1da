# SPDX-License-Identifier: Apache-2.0
"""The process that cleans up when powerprof no longer can (kill -9, a crash, the out-of-memory killer).

`runtree.RunTree` starts this file as a script of its own: standard library only, no site packages, about
10 MB resident. It makes the run tree itself, so that there is no instant at which a tree exists that nobody
would remove. Then it sleeps in poll() without a time-out and costs no wake-up until powerprof closes the pipe
or dies. Everything that runs for a tree carries POWERPROF_TREE=<tree> in its environment; that mark, and not
a list of pids, says what to kill: it covers grandchildren and what was forked an instant ago, and a random
name can belong to nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import select
import shutil
import signal
import sys
import time

MARK = "POWERPROF_TREE"
_PATIENCE_S = 10.0


def marked_pids(tree: str) -> list[int]:
    """Processes of the tree that still run. A zombie has no environment any more and is not counted."""
    mark = f"{MARK}={tree}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _is_marked(int(entry), mark):
            pids.append(int(entry))
    return pids


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark in file.read().split(b"\0") or _works_there(pid, mark)
    except OSError:
        return False


def _works_there(pid: int, mark: bytes) -> bool:
    """PostgreSQL's processes write their titles over their environment, and live on for the length of a statement when
    the one that began them is gone: they are known by name and working directory, their data in the tree."""
    tree = mark.partition(b"=")[2]
    with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
        name = file.read().strip()
    return name == b"postgres" and os.readlink(f"/proc/{pid}/cwd".encode()).startswith(tree + b"/")


def kill_marked(tree: str) -> bool:
    """SIGKILL to every process of the tree; True once none is left."""
    mark = f"{MARK}={tree}".encode()
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        pids = marked_pids(tree)
        if not pids:
            return True
        for pid in pids:
            # The pidfd is opened before the mark is looked at again: a reused pid is never hit.
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if _is_marked(pid, mark):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def _attached(number: str, maker: str, owner: int) -> int | None:
    """How many have that segment attached; None where it is another's."""
    with open("/proc/sysvipc/shm", encoding="ascii") as file:  # noqa: PTH123
        # key shmid perms size cpid lpid nattch uid … (ipc/shm.c, sysvipc_shm_proc_show)
        for row in (line.split() for line in file):
            if (row[1], row[4], row[7]) == (number, maker, str(owner)):
                return int(row[6])
    return None


def _forget_segments(tree: str) -> None:
    """Remove the segment of shared memory by which a PostgreSQL that was killed knew that its data were in use.

    Its number is in postmaster.pid (line 7: key, id). Only one that nobody has attached, of that file's owner and made
    by the process of line 1, is removed: the file is the server's to write.
    """
    for path in glob.glob(f"{glob.escape(tree)}/*/data/postmaster.pid"):  # noqa: PTH207
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, encoding="ascii", errors="replace") as file:  # noqa: PTH123
                lines = file.read(4096).splitlines()
                owner = os.fstat(handle).st_uid
            number = lines[6].split()[1]
            # Its processes let go of it a moment after they can no longer be seen.
            for _ in range(50):
                if _attached(number, lines[0], owner) == 0:
                    ctypes.CDLL(None).shmctl(int(number), 0, None)  # IPC_RMID
                    break
                time.sleep(0.02)
        except (OSError, ValueError, IndexError):
            continue


def remove_trees(trees: list[str]) -> None:
    """Kill what runs for the first tree and remove all of them; does nothing the second time."""
    kill_marked(trees[0])
    _forget_segments(trees[0])
    for tree in trees:
        for _ in range(50):
            shutil.rmtree(tree, ignore_errors=True)
            if not os.path.lexists(tree):
                break
            time.sleep(0.02)


def _make_tree(base: str) -> str:
    while True:
        path = f"{base}/powerprof-{os.urandom(4).hex()}"
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102
        except FileExistsError:
            continue
        return path


def _watch(parent: int, trees: list[str]) -> None:
    """Sleep until powerprof closes its end or dies; learn what else is to be removed (`+path`, `-path`)."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except OSError:
        return
    if os.getppid() != parent:
        return
    rest = b""
    while True:
        if any(handle != 0 for handle, _ in poll.poll()):
            return
        data = os.read(0, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            path = os.fsdecode(line[1:])
            if line[:1] == b"+":
                trees.append(path)
            elif path in trees[1:]:
                trees.remove(path)


def main() -> None:
    """Arguments: powerprof's pid, and where to make the tree. Stdin is the pipe, stdout takes the answer."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    try:
        tree = _make_tree(sys.argv[2])
    except OSError as error:
        os.write(1, f"!{error.strerror}\n".encode())
        return
    trees = [tree]
    try:
        os.write(1, os.fsencode(tree) + b"\n")
        os.close(1)
        _watch(int(sys.argv[1]), trees)
    finally:
        remove_trees(trees)


if __name__ == "__main__":
    main()
