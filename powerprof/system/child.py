# SPDX-License-Identifier: Apache-2.0
"""The preparation of a child between fork and exec: death with its parent, privileges, files, network.

All of it runs in the child and takes no lock. An exception ends the child before its program starts.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from powerprof.system import files
from powerprof.system.errors import PowerprofError
from powerprof.system.own_processes import add_helper

# Limits for the files, TCP ports, abstract sockets and signals of a process, for any account (landlock(7)).
#
# A server's account often owns the host's databases too, and SQL can name files in many ways: logs, table folders,
# exports. The kernel refuses all of them.

# The same numbers on every architecture (include/uapi/asm-generic/unistd.h).
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
# include/uapi/linux/landlock.h: execute, write, read a file, read a folder, remove directory and file, make character
# device, directory, file, socket, pipe, block device and link; since version 2 move between folders, since 3 truncate.
_EXECUTE, _WRITE, _READ_FILE, _READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_CHANGE = _WRITE | sum(1 << bit for bit in range(4, 13))
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
# Version 1 refuses every move between folders, also RENAME TABLE.
_LEAST = 2
_WITH_TRUNCATE, _WITH_PORTS, _WITH_SCOPES = 3, 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed_access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def read_landlock_version() -> int:
    """Return the Landlock version of this kernel; 0 without Landlock and for version 1, which refuses too much."""
    answer = int(
        ctypes.CDLL(None).syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    )
    return answer if answer >= _LEAST else 0


def restrict(
    reads: Sequence[int],
    writes: Sequence[int],
    devices: Sequence[int],
    connects: Sequence[int] | None,
    binds: Sequence[int] | None,
) -> None:
    """Limit this process and its children for good. For use between fork and exec.

    `reads`, `writes` and `devices` are descriptors: the files and folders that they may read and execute, the folders
    that they may change as well, and the devices that they may also write to. `connects` and `binds` are the TCP ports
    that they may connect to and listen on; None sets no limit. Signals and abstract sockets of other processes are out
    of reach. Sets only the limits that the kernel's version knows. Raises OSError.
    """
    landlock_version = read_landlock_version()
    if not landlock_version:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    truncate = _TRUNCATE if landlock_version >= _WITH_TRUNCATE else 0
    files = _READ | _CHANGE | _MOVE | truncate
    ports = ((_CONNECT_TCP, connects), (_BIND_TCP, binds))
    net = sum(access for access, allowed in ports if allowed is not None) if landlock_version >= _WITH_PORTS else 0
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if landlock_version >= _WITH_SCOPES else 0
    # An older kernel accepts a longer structure if the rest of it is 0.
    ruleset = libc.syscall(
        ctypes.c_long(_CREATE),
        ctypes.byref(_Ruleset(files, net, scoped)),
        ctypes.c_size_t(ctypes.sizeof(_Ruleset)),
        ctypes.c_uint32(0),
    )
    _check(ruleset)
    try:
        for handles, access in ((reads, _READ), (devices, _READ_FILE | _WRITE | truncate), (writes, files)):
            for handle in handles:
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                allowed = access if is_folder else access & (_EXECUTE | _WRITE | _READ_FILE | truncate)
                _add(libc, ruleset, _PATH_BENEATH, _Beneath(allowed, handle))
        if net:
            for access, numbers in ports:
                for number in numbers or ():
                    _add(libc, ruleset, _NET_PORT, _Port(access, number))
        _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _add(libc: ctypes.CDLL, ruleset: int, kind: int, rule: ctypes.Structure) -> None:
    _check(
        libc.syscall(
            ctypes.c_long(_ADD), ctypes.c_int(ruleset), ctypes.c_int(kind), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    )


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# A child that sees only its own files and network, under an account that is not root.
#
# Three walls are each effective without the others: a mount namespace with a private file system, network namespaces,
# and Landlock. The file system contains the `usr` of this host or of another release. A program therefore has its own
# loader and libraries at their own paths, and its own name, build id and files.

# include/uapi/linux/{sched,mount,fs}.h
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _NOATIME, _NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
# The same numbers on every architecture (include/uapi/asm-generic/unistd.h, linux/mount.h, linux/fcntl.h).
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_CLONE, _CLOEXEC, _EMPTY_PATH, _RECURSIVE, _FROM_EMPTY_PATH, _AT_FDCWD = 1, 0o2000000, 0x1000, 0x8000, 4, -100
_PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_WRITABLE = tuple(Path("/dev") / name for name in ("null", "zero", "full"))
_DEVICES = (*_WRITABLE, Path("/dev/random"), Path("/dev/urandom"))
_SYSTEM = (Path("/usr"), *(Path("/") / name for name in _PROGRAMS), Path("/proc"), Path("/sys"), *_DEVICES)
# The size of /dev/shm and /tmp together. Memory is used as files are written.
_SIZE = b"mode=0755,size=512m"


class Confinement(msgspec.Struct, frozen=True):
    """The files and the network of a child.

    `reads` are files and folders of this host that it may read; its account must be able to reach them. It may change
    `folder` alone. It starts in `place`, which it may read. `root` holds the `usr` of another release. With `view`
    everything else is out of sight, unix sockets too. `namespaces` are open namespaces that it joins, the user
    namespace before the network. With `no_network` it gets a network namespace without any device. `connects` and
    `binds` are TCP ports as for `landlock.restrict`.
    """

    folder: Path | None = None
    reads: tuple[Path, ...] = ()
    place: Path | None = None
    root: Path | None = None
    view: bool = True
    namespaces: tuple[int, ...] = ()
    no_network: bool = False
    connects: tuple[int, ...] | None = ()
    binds: tuple[int, ...] | None = ()


def confine(confinement: Confinement, user: tuple[int, int] | None) -> None:
    """Move this process into its confinement and change it to `user`, permanently. For use between fork and exec.

    Without root, the namespaces need a user namespace. Raise OSError; PermissionError if the process would stay root.
    """
    if os.geteuid() == 0 and (user is None or user[0] == 0):
        raise PermissionError("a confined program is never run as root")
    libc = ctypes.CDLL(None, use_errno=True)
    _join(libc, confinement, user)
    if confinement.view:
        _check(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
        mask = os.umask(0o022)
        _furnish(libc, confinement, user)
        os.umask(mask)
        os.chdir(confinement.place or "/")
    _restrict(confinement, user)
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])


def _join(libc: ctypes.CDLL, confinement: Confinement, user: tuple[int, int] | None) -> None:
    for handle in confinement.namespaces:
        _check(libc.setns(handle, 0))
    flags = (_CLONE_NEWNS if confinement.view else 0) | (_CLONE_NEWNET if confinement.no_network else 0)
    if not flags:
        return
    uid, gid = os.geteuid(), os.getegid()
    alone = user is None and not confinement.namespaces
    _check(libc.unshare(flags | (_CLONE_NEWUSER if alone else 0)))
    if alone:
        map_account(uid, gid)


def map_account(uid: int, gid: int) -> None:
    """Map this process's old account into the user namespace that it has just made. Raise OSError."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


@contextmanager
def _rights_of(user: tuple[int, int] | None) -> Iterator[None]:
    """Act with the rights of `user`, so that root opens only files that the account can reach."""
    if user is None or os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user[1])
    os.seteuid(user[0])
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _open(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Open the paths that exist and that this account can reach."""
    opened = []
    for path in paths:
        try:
            opened.append((path, os.open(path, os.O_PATH | os.O_CLOEXEC)))
        except OSError:
            continue
    return opened


def _open_own(confinement: Confinement) -> list[tuple[Path, int]]:
    """Open the folder that the child may change. powerprof created it, so it is not a link."""
    if confinement.folder is None:
        return []
    how = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return [(confinement.folder, os.open(confinement.folder, how))]


def _open_place(confinement: Confinement) -> list[tuple[Path, int]]:
    place = confinement.place
    return _open([place]) if place is not None and place != Path("/") else []


def _restrict(confinement: Confinement, user: tuple[int, int] | None) -> None:
    changeable = _open_own(confinement)
    # The files of a private view were opened with the account's rights when it was made.
    with _rights_of(None if confinement.view else user):
        reads = _open([*confinement.reads, *([Path("/etc")] if confinement.root else [])])
    system, devices, place = _open(_SYSTEM), _open(_WRITABLE), _open_place(confinement)

    def numbers(opened: Sequence[tuple[Path, int]]) -> list[int]:
        return [handle for _, handle in opened]

    restrict(
        numbers([*system, *reads, *place]),
        numbers(changeable),
        numbers(devices),
        confinement.connects,
        confinement.binds,
    )
    for _, handle in (*changeable, *reads, *system, *devices, *place):
        os.close(handle)


def _furnish(libc: ctypes.CDLL, confinement: Confinement, user: tuple[int, int] | None) -> None:
    """Build the private file system and make it this process's root."""
    source = confinement.root or Path("/")
    # Any folder can hold the new root. Everything visible is opened before the mount covers it.
    root = confinement.root or Path("/usr")
    # The system's own paths are shown as they are: /bin may be a link.
    changeable, place = _open_own(confinement), [] if _is_system(confinement.place) else _open_place(confinement)
    with _rights_of(user):
        reads = _open([path for path in confinement.reads if not _is_system(path)])
    system = [Path("/proc"), Path("/sys"), *_DEVICES]
    links = {}
    programs = [(Path("/usr"), os.open(source / "usr", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))]
    for name in _PROGRAMS:
        if confinement.root is None and not (source / name).is_symlink():
            programs += _open([source / name])
        elif (source / "usr" / name).is_dir():
            links[name] = f"usr/{name}"
    devices = _open(system)
    mounts = [(path, handle, _RDONLY | _NOSUID | _NODEV) for path, handle in (*programs, *reads, *place)]
    mounts += [(path, handle, _NOSUID | _NODEV) for path, handle in changeable]
    mounts += [(path, handle, 0) for path, handle in devices]
    mounts = [(path, _copy_mounts(libc, handle), flags) for path, handle, flags in mounts]
    _check(libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", _NOSUID | _NODEV, _SIZE))
    # Mount a folder before the folders below it.
    shown: set[Path] = set()
    for path, handle, flags in sorted(mounts, key=lambda mount: len(mount[0].parts)):
        _show(libc, path, handle, root, flags, shown)
        os.close(handle)
    for name, target in links.items():
        (root / name).symlink_to(target)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True, exist_ok=True)
        if confinement.root is not None:
            (root / name).chmod(0o1777)
    if confinement.root is not None:
        uid, gid = user or (os.geteuid(), os.getegid())
        (root / "etc").mkdir(exist_ok=True)
        # Programs look up their account (initdb stops without one).
        (root / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nserver:x:{uid}:{gid}::/:/bin/sh\n")
        (root / "etc/group").write_text(f"root:x:0:\nserver:x:{gid}:\n")
    # With both at one place, the old root is on top and can be unmounted (pivot_root(2)).
    os.chdir(root)
    _check(libc.pivot_root(b".", b"."))
    _check(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _is_system(path: Path | None) -> bool:
    return path is not None and any(map(path.is_relative_to, _SYSTEM))


def _show(libc: ctypes.CDLL, path: Path, handle: int, root: Path, flags: int, shown: set[Path]) -> None:
    """Mount an open file or folder at its path in the new root, unless a mounted folder contains it already."""
    target = root / path.relative_to("/")
    if shown.isdisjoint(path.parents):
        # Make no folder below a shown one: its links still lead to this host's files.
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            target.touch()
    elif flags & _RDONLY:
        return
    _check(libc.syscall(_MOVE_MOUNT, handle, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH))
    if flags:
        # Keep the restrictions of the host's mount. A user namespace could not remove them.
        kept = os.statvfs(target).f_flag & (_RDONLY | _NOEXEC | _NOATIME | _NODIRATIME)
        _check(libc.mount(None, os.fsencode(target), None, _BIND | _REMOUNT | flags | kept, None))
    shown.add(path)


def _copy_mounts(libc: ctypes.CDLL, handle: int) -> int:
    """Return a copy of the open file or folder with all mounts below it, and close the original."""
    flags = _CLONE | _CLOEXEC | _EMPTY_PATH | _RECURSIVE
    copied: int = libc.syscall(_OPEN_TREE, handle, b"", flags)
    os.close(handle)
    if copied < 0:
        _check(copied)
    return copied


_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


class Child(msgspec.Struct, frozen=True):
    """The differences of a child from its parent.

    `user` (uid, gid) is the account that a child of root gets, `confinement` limits its files and its network.
    `affinity` are its CPUs. With `own_mounts`, the mounts that it makes end with it. `mark` is its limit of
    real-time CPU time in µs, by which a run tree knows its programs.
    """

    user: tuple[int, int] | None = None
    confinement: Confinement | None = None
    dies_with_us: bool = True
    affinity: Sequence[int] | None = None
    own_mounts: bool = False
    mark: int | None = None

    def prepare(self) -> None:
        """Apply the settings in the child, after subprocess changed the account. Raise OSError.

        A change of credentials clears the signal of the parent's death (prctl(2)), so the signal is set here.
        """
        if self.affinity:
            os.sched_setaffinity(0, self.affinity)
        if self.confinement is not None:
            confine(self.confinement, self.user)
        if self.dies_with_us:
            die_with_parent()
        if self.user or self.confinement is not None:
            _refuse_new_privileges()
        if self.own_mounts:
            _isolate_mounts()
        if self.mark is not None:
            resource.setrlimit(resource.RLIMIT_RTTIME, (self.mark, resource.getrlimit(resource.RLIMIT_RTTIME)[1]))

    def account(self) -> dict[str, Any]:
        """Return subprocess's arguments for the account. `confine` needs root and changes the account itself."""
        if self.user is None or self.confinement is not None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}


def die_with_parent() -> None:
    """Let the kernel kill this process when the *thread* that forked it ends: the main thread starts children."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _refuse_new_privileges() -> None:
    """Prevent a child that gave up root from regaining it through set-user-id programs."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _isolate_mounts() -> None:
    """Give this process private mounts, which end with it. Does nothing without root."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _REC | _PRIVATE, None)


# Work in a fork of this process. Its memory is freed with it, and a crash affects only the fork.
#
# A fork has its parent's data, so it needs no input. Its result is in a memory file, which is read after its end. The
# parent wakes up once.

_LENGTH = struct.Struct("<I")
_EXIT_PATIENCE_S = 1.0
# Children that were killed but have not ended.
_UNREAPED: list[int] = []

SendPart = Callable[[bytes], None]


class ForkResult(msgspec.Struct, frozen=True):
    """The parts that a fork returned, whether it finished, and its CPU time in seconds."""

    parts: list[bytes]
    ended: bool
    cpu_s: float


def run_in_fork(work: Callable[[SendPart], None], timeout_s: float) -> ForkResult:
    """Run `work` in a fork. It passes each part of its result to the function that it gets. Call from the main thread.

    `work` should take no lock that another thread may hold. A fork that has not ended after `timeout_s` seconds is
    killed, and its parts so far are returned. Raise PowerprofError if there are too many processes.
    """
    results = os.memfd_create("apart", os.MFD_CLOEXEC)
    parent, pid = os.getpid(), 0
    _UNREAPED[:] = [child for child in _UNREAPED if not reap(child, 0.0)]
    try:
        pid = os.fork()
        if pid == 0:
            _work(work, results, parent)
        add_helper(pid)
        status, cpu_s = _wait(pid, timeout_s)
        pid = 0
        return ForkResult(_parts(results), status == 0, cpu_s)
    except OSError as error:
        raise PowerprofError(
            f"cannot fork ({(error.strerror or str(error)).lower()})",
            "allow more processes: ulimit -u, and pids.max of its control group",
        ) from error
    finally:
        os.close(results)
        if pid:
            # After an interrupt the result is not needed.
            _kill(pid)


def _work(work: Callable[[SendPart], None], results: int, parent: int) -> None:
    """Run `work` in the child. Never return, and skip the parent's exit handlers."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != parent:
            return
        # Garbage collection would touch, and so copy, every page.
        gc.disable()
        work(lambda part: _put(results, part))
        status = 0
    finally:
        os._exit(status)


def _put(results: int, part: bytes) -> None:
    view = memoryview(_LENGTH.pack(len(part)) + part)
    while view:
        view = view[os.write(results, view) :]


def _wait(pid: int, timeout_s: float) -> tuple[int, float]:
    """Return (wait status, CPU seconds) of a child. Kill it if it does not end in time."""
    ended = reap(pid, timeout_s) or _kill(pid)
    return ended or (signal.SIGKILL, 0.0)


def _kill(pid: int) -> tuple[int, float] | None:
    """Kill a child and return (wait status, CPU seconds).

    Return None and abandon the child if it sleeps in the kernel: it ends when it wakes.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    ended = reap(pid, _EXIT_PATIENCE_S)
    if ended is None:
        _UNREAPED.append(pid)
    return ended


def reap(pid: int, timeout_s: float | None) -> tuple[int, float] | None:
    """Return (wait status, CPU seconds) of a child that ends within `timeout_s` (None: ever); otherwise None.

    The CPU time includes the children that it waited for.
    """
    try:
        with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as ended:
            files.readable([ended.fileno()], timeout_s)
        ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        return signal.SIGKILL, 0.0
    return (status, usage.ru_utime + usage.ru_stime) if ended_pid else None


def _parts(results: int) -> list[bytes]:
    """Return the complete parts of the memory file."""
    data = os.pread(results, os.fstat(results).st_size, 0)
    parts, at = [], 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        part = data[at + _LENGTH.size : at + _LENGTH.size + size]
        if len(part) < size:
            break
        parts.append(part)
        at += _LENGTH.size + size
    return parts
