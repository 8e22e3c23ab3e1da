# SPDX-License-Identifier: Apache-2.0
"""The process that cleans up when powerprof cannot (kill -9, a crash, the out-of-memory killer).

`runtree.RunTree` runs this file as a script: standard library only, no site packages, about 10 MB resident. The script
creates the run tree itself, so that no tree exists at any instant without its janitor. It then sleeps in poll() without
a time-out, and causes no wake-up until powerprof closes the pipe or dies.

All programs of a tree have a mark: a soft limit of real-time CPU time (RLIMIT_RTTIME, of seventy thousand years) that
contains the number in the tree's name. It identifies the processes to kill, instead of a list of pids: grandchildren
and recent forks inherit it, no server overwrites it, and /proc/PID/limits shows it without a lock that another account
could hold. The environment would need the memory map of every process of the host.

powerprof and its janitor hold a lock on the tree. A tree without a holder is left of two that were killed together, and
the next janitor removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import os
import re
import select
import signal
import sys
import time

_PATIENCE_S = 10.0
_FIRST_MARK = 1 << 61
_NAME = re.compile(r"powerprof-([0-9a-f]{12})")
# Anybody may fill /tmp with names.
_MOST_NAMES = 100_000
# The paths that are removed with the tree, one per line.
_ALSO = ".also"


def mark_of(tree: str) -> int:
    """Return the mark of the programs of a tree, from its name."""
    name = _NAME.fullmatch(os.path.basename(tree))  # noqa: PTH119
    if name is None:
        raise ValueError(tree)
    return _FIRST_MARK + int(name[1], 16)


def marked_pids(tree: str) -> list[int]:
    """Return the running processes of the tree."""
    mark = str(mark_of(tree)).encode()
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _is_marked(pid, mark)]


def _is_marked(pid: int, mark: bytes) -> bool:
    """Return whether a process has the mark and runs.

    Programs of a tree are never root's, and another account's program may have started a process of root with the mark.
    """
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:  # noqa: PTH123
            if b" " + mark + b" " not in file.read():
                return False
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            lines = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    except OSError:
        return False
    uids = [int(word) for word in lines[b"Uid"].split()]
    is_ours = 0 not in uids if os.geteuid() == 0 else os.getuid() in uids
    return is_ours and lines[b"State"][:1] not in b"ZX"


def kill_marked(tree: str) -> bool:
    """Send SIGKILL to every process of the tree. Return True when none is left."""
    mark = str(mark_of(tree)).encode()
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


def remove_segments(tree: str) -> None:
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
    remove_segments(trees[0])
    for tree in trees:
        remove_folder(tree)


def remove_folder(path: str) -> None:
    """Remove a folder; processes that are just ending may still add files."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            _remove_tree(path)
        if not os.path.lexists(path):
            break
        time.sleep(0.02)


def _remove_tree(tree: str) -> None:
    """Remove a folder and, as far as possible, all that is in it. Raise OSError.

    Folders are moved to the top one by one. A server may have nested them deeper than Python's recursion, the number of
    open files and the length of a path allow.
    """
    with contextlib.suppress(OSError):
        top = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            pending = os.listdir(top)
            while pending:
                with contextlib.suppress(OSError):
                    pending += _remove_level(top, pending.pop())
        finally:
            os.close(top)
    os.rmdir(tree)  # noqa: PTH106


def _remove_level(top: int, name: str) -> list[str]:
    """Remove a file, or a folder without its folders, which move to the top. Return their new names. Raise OSError."""
    if _unlink(top, name):
        return []
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    moved: list[str] = []
    try:
        for inner in os.listdir(folder):
            if not _unlink(folder, inner):
                moved.append(f"moved-{os.urandom(8).hex()}")
                with contextlib.suppress(OSError):
                    os.rename(inner, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)
    return moved


def _unlink(folder: int, name: str) -> bool:
    """Remove a file. Return False if that fails: it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _make_tree(base: str) -> tuple[str, int]:
    """Return a new tree and the descriptor that holds its lock. Raise OSError."""
    while True:
        tree = f"{base}/powerprof-{os.urandom(6).hex()}"
        try:
            os.mkdir(tree, 0o700)  # noqa: PTH102
        except FileExistsError:
            continue
        # Another janitor takes it for a left one until it is locked.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            return tree, hold(tree)


def hold(tree: str) -> int:
    """Lock a tree as one that is used, until the descriptor is closed. Raise OSError."""
    handle = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.stat(tree)  # noqa: PTH116 - it is still there
    except OSError:
        os.close(handle)
        raise
    return handle


def remove_left(base: str) -> None:
    """Remove the trees of our account in `base` whose powerprof and janitor have both ended."""
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry, _ in zip(entries, range(_MOST_NAMES), strict=False):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_left_tree(base, entry.name)


def _open_ours(base: str, name: str) -> int:
    """Open a folder of our account. Raise OSError.

    A name can be a file system of another account (FUSE), whose process would answer even stat(2). O_PATH and the
    number of the mount ask nobody.
    """
    mounts: list[bytes] = []
    places: list[int] = []
    try:
        for place in (base, f"{base}/{name}"):
            flags = os.O_PATH | os.O_DIRECTORY | (os.O_NOFOLLOW if places else 0)
            places.append(os.open(place, flags))
            with open(f"/proc/self/fdinfo/{places[-1]}", "rb") as file:  # noqa: PTH123
                mounts += [line for line in file if line.startswith(b"mnt_id:")]
        if mounts[0] != mounts[1] or os.fstat(places[1]).st_uid != os.geteuid():
            raise PermissionError
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=places[1])
    finally:
        for handle in places:
            os.close(handle)


def _remove_left_tree(base: str, name: str) -> None:
    tree, handle = f"{base}/{name}", _open_ours(base, name)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        also: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            listed = os.open(_ALSO, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=handle)
            with open(listed, "rb") as file:  # noqa: PTH123
                also = [os.fsdecode(line) for line in file.read().split(b"\0") if line]
        remove_trees([tree, *also])
    finally:
        os.close(handle)


def _write_also(tree: str, paths: list[str]) -> None:
    """Write down the further paths, for the next janitor. Only we may write into the tree."""
    with contextlib.suppress(OSError):
        handle = os.open(f"{tree}/{_ALSO}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123
            file.write(b"\0".join(map(os.fsencode, paths)))


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
            _write_also(trees[0], trees[1:])


def main() -> None:
    """Take powerprof's pid and the folder for the tree as arguments. Stdin is the pipe, stdout takes the answer."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    try:
        tree, _ = _make_tree(sys.argv[2])  # the lock is held until our end
    except OSError as error:
        os.write(1, f"!{error.strerror}\n".encode())
        return
    trees = [tree]
    try:
        os.write(1, os.fsencode(tree) + b"\n")
        os.close(1)
        remove_left(sys.argv[2])
        _watch(int(sys.argv[1]), trees)
    finally:
        remove_trees(trees)


if __name__ == "__main__":
    main()
