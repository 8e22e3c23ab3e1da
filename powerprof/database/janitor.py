# SPDX-License-Identifier: Apache-2.0
"""The process that cleans up when powerprof cannot (kill -9, a crash, the out-of-memory killer).

`runtree.RunTree` runs this file as a script: standard library only, no site packages, about 10 MB resident. The script
creates the run tree itself, so that no tree exists at any instant without its janitor. It then sleeps in poll() without
a time-out, and causes no wake-up until powerprof closes the pipe or dies. All programs of a tree carry
POWERPROF_TREE=<tree> in their environment. This mark identifies the processes to kill, instead of a list of pids: it
covers grandchildren and recent forks, and a random name belongs to no other process.
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
    """Return the running processes of the tree. A zombie has no environment and is not counted."""
    mark = f"{MARK}={tree}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _is_marked(int(entry), mark):
            pids.append(int(entry))
    return pids


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark in file.read().split(b"\0") or _works_in_tree(pid, mark)
    except OSError:
        return False


def _works_in_tree(pid: int, mark: bytes) -> bool:
    """Return whether a PostgreSQL process has its data in the tree.

    PostgreSQL overwrites the environment with process titles. Its processes outlive their parent by up to one
    statement, and are identified by name and working directory.
    """
    tree = mark.partition(b"=")[2]
    with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123
        name = file.read().strip()
    return name == b"postgres" and os.readlink(f"/proc/{pid}/cwd".encode()).startswith(tree + b"/")


def kill_marked(tree: str) -> bool:
    """Send SIGKILL to every process of the tree. Return True when none is left."""
    mark = f"{MARK}={tree}".encode()
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        pids = marked_pids(tree)
        if not pids:
            return True
        for pid in pids:
            # Open the pidfd before the mark is read again: a reused pid never gets the signal.
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


def _count_attached(number: str, maker: str, owner: int) -> int | None:
    """Return the number of processes that have this segment attached; None if it belongs to another process."""
    with open("/proc/sysvipc/shm", encoding="ascii") as file:  # noqa: PTH123
        # key shmid perms size cpid lpid nattch uid … (ipc/shm.c, sysvipc_shm_proc_show)
        for row in (line.split() for line in file):
            if (row[1], row[4], row[7]) == (number, maker, str(owner)):
                return int(row[6])
    return None


def _remove_segments(tree: str) -> None:
    """Remove the shared memory by which a killed PostgreSQL marks its data as in use.

    Its number is in postmaster.pid (line 7: key, id). The server can write that file. A segment is therefore removed
    only if no process has it attached, the file's owner owns it, and the process of line 1 created it.
    """
    for path in glob.glob(f"{glob.escape(tree)}/*/data/postmaster.pid"):  # noqa: PTH207
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, encoding="ascii", errors="replace") as file:  # noqa: PTH123
                lines = file.read(4096).splitlines()
                owner = os.fstat(handle).st_uid
            number = lines[6].split()[1]
            # Processes detach a moment after they have left /proc.
            for _ in range(50):
                if _count_attached(number, lines[0], owner) == 0:
                    ctypes.CDLL(None).shmctl(int(number), 0, None)  # IPC_RMID
                    break
                time.sleep(0.02)
        except (OSError, ValueError, IndexError):
            continue


def remove_trees(trees: list[str]) -> None:
    """Kill the processes of the first tree and remove all trees. A second call does nothing."""
    kill_marked(trees[0])
    _remove_segments(trees[0])
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
    """Sleep until powerprof closes its end or dies. Read paths to remove (`+path`) and to keep (`-path`)."""
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
    """Take powerprof's pid and the folder for the tree as arguments. Stdin is the pipe, stdout takes the answer."""
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
