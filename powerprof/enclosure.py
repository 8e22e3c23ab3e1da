# SPDX-License-Identifier: Apache-2.0
"""A child that sees only the files and the network that it was given, under an account that is not root.

Three walls, each effective without the others: a mount namespace with a private file system, network
namespaces, and Landlock. The file system is made of the `usr` of this host or of another release, so that a program
has its own loader and libraries at their own paths, with its name, its build id and its files.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from powerprof import landlock

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
# Of memory that is taken as it is written to: room for what a server puts into /dev/shm and /tmp.
_SIZE = b"mode=0755,size=512m"


@dataclass(frozen=True)
class Confinement:
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
    """Move this process into its confinement and make it that user, for good. For use between fork and exec.

    Without root the namespaces need a user namespace. Raises OSError; PermissionError if it would stay root.
    """
    if os.geteuid() == 0 and (user is None or user[0] == 0):
        raise PermissionError("a confined program is never run as root")
    libc = ctypes.CDLL(None, use_errno=True)
    _join(libc, confinement, user)
    if confinement.view:
        _must(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
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
        _must(libc.setns(handle, 0))
    flags = (_CLONE_NEWNS if confinement.view else 0) | (_CLONE_NEWNET if confinement.no_network else 0)
    if not flags:
        return
    uid, gid = os.geteuid(), os.getegid()
    alone = user is None and not confinement.namespaces
    _must(libc.unshare(flags | (_CLONE_NEWUSER if alone else 0)))
    if alone:
        map_account(uid, gid)


def map_account(uid: int, gid: int) -> None:
    """Give this process, in a user namespace that it has just made, the account that it had. Raises OSError."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


@contextmanager
def _rights_of(user: tuple[int, int] | None) -> Iterator[None]:
    """Act with the rights of the account, so that root opens no file for it that it could not reach."""
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
    """Open the folder that it may change: powerprof made it, and no link leads elsewhere."""
    if confinement.folder is None:
        return []
    how = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return [(confinement.folder, os.open(confinement.folder, how))]


def _open_place(confinement: Confinement) -> list[tuple[Path, int]]:
    place = confinement.place
    return _open([place]) if place is not None and place != Path("/") else []


def _restrict(confinement: Confinement, user: tuple[int, int] | None) -> None:
    own = _open_own(confinement)
    # The files of a private view were opened with the account's rights when it was made.
    with _rights_of(None if confinement.view else user):
        reads = _open([*confinement.reads, *([Path("/etc")] if confinement.root else [])])
    system, devices, place = _open(_SYSTEM), _open(_WRITABLE), _open_place(confinement)

    def numbers(opened: Sequence[tuple[Path, int]]) -> list[int]:
        return [handle for _, handle in opened]

    landlock.restrict(
        numbers([*system, *reads, *place]), numbers(own), numbers(devices), confinement.connects, confinement.binds
    )
    for _, handle in (*own, *reads, *system, *devices, *place):
        os.close(handle)


def _furnish(libc: ctypes.CDLL, confinement: Confinement, user: tuple[int, int] | None) -> None:
    """Make the file system, and make it this process's root."""
    source = confinement.root or Path("/")
    # Any folder can carry the new root; all that is to be seen is opened before it is covered.
    root = confinement.root or Path("/usr")
    # The system's own paths are shown as they are: /bin may be a link.
    own, place = _open_own(confinement), [] if _is_system(confinement.place) else _open_place(confinement)
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
    wanted = [(path, handle, _RDONLY | _NOSUID | _NODEV) for path, handle in (*programs, *reads, *place)]
    wanted += [(path, handle, _NOSUID | _NODEV) for path, handle in own]
    wanted += [(path, handle, 0) for path, handle in devices]
    wanted = [(path, _copy_mounts(libc, handle), flags) for path, handle, flags in wanted]
    _must(libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", _NOSUID | _NODEV, _SIZE))
    # A folder before those below it.
    shown: set[Path] = set()
    for path, handle, flags in sorted(wanted, key=lambda one: len(one[0].parts)):
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
        # A program that asks who it is gets an answer (initdb refuses to go on without one).
        (root / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nserver:x:{uid}:{gid}::/:/bin/sh\n")
        (root / "etc/group").write_text(f"root:x:0:\nserver:x:{gid}:\n")
    # Both at the same place: the old root is then on top, and is taken off (pivot_root(2)).
    os.chdir(root)
    _must(libc.pivot_root(b".", b"."))
    _must(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _is_system(path: Path | None) -> bool:
    return path is not None and any(map(path.is_relative_to, _SYSTEM))


def _show(libc: ctypes.CDLL, path: Path, handle: int, root: Path, flags: int, shown: set[Path]) -> None:
    """Mount an open file or folder at its path in the new root, unless a shown folder contains it already."""
    target = root / path.relative_to("/")
    if shown.isdisjoint(path.parents):
        # Make no folder below a shown one: its links still lead to this host's files.
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            target.touch()
    elif flags & _RDONLY:
        return
    _must(libc.syscall(_MOVE_MOUNT, handle, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH))
    if flags:
        # What the host forbids on that mount stays forbidden; in a user namespace it could not be allowed.
        kept = os.statvfs(target).f_flag & (_RDONLY | _NOEXEC | _NOATIME | _NODIRATIME)
        _must(libc.mount(None, os.fsencode(target), None, _BIND | _REMOUNT | flags | kept, None))
    shown.add(path)


def _copy_mounts(libc: ctypes.CDLL, handle: int) -> int:
    """Return a copy of the open file or folder with all mounts below it, and close the original."""
    flags = _CLONE | _CLOEXEC | _EMPTY_PATH | _RECURSIVE
    copied: int = libc.syscall(_OPEN_TREE, handle, b"", flags)
    os.close(handle)
    if copied < 0:
        _must(copied)
    return copied


def _must(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
