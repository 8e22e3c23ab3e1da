# SPDX-License-Identifier: Apache-2.0
"""A child that sees only its own files and network, under an account that is not root.

Three walls are each effective without the others: a mount namespace with a private file system, network namespaces,
and Landlock. The file system contains the `usr` of this host or of another release. A program therefore has its own
loader and libraries at their own paths, and its own name, build id and files.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from powerprof.system.landlock import check, restrict

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
        check(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
        mask = os.umask(0o022)
        _build_root(libc, confinement, user)
        os.umask(mask)
        os.chdir(confinement.place or "/")
    _restrict(confinement, user)
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])


def _join(libc: ctypes.CDLL, confinement: Confinement, user: tuple[int, int] | None) -> None:
    for handle in confinement.namespaces:
        check(libc.setns(handle, 0))
    flags = (_CLONE_NEWNS if confinement.view else 0) | (_CLONE_NEWNET if confinement.no_network else 0)
    if not flags:
        return
    uid, gid = os.geteuid(), os.getegid()
    alone = user is None and not confinement.namespaces
    check(libc.unshare(flags | (_CLONE_NEWUSER if alone else 0)))
    if alone:
        map_account(uid, gid)


def map_account(uid: int, gid: int) -> None:
    """Map this process's old account into the user namespace that it has just made. Raise OSError."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


@contextmanager
def _use_rights(user: tuple[int, int] | None) -> Iterator[None]:
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
    with _use_rights(None if confinement.view else user):
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


def _build_root(libc: ctypes.CDLL, confinement: Confinement, user: tuple[int, int] | None) -> None:
    """Build the private file system and make it this process's root."""
    source = confinement.root or Path("/")
    # Any folder can hold the new root. Everything visible is opened before the mount covers it.
    root = confinement.root or Path("/usr")
    # The system's own paths are shown as they are: /bin may be a link.
    changeable, place = _open_own(confinement), [] if _is_system(confinement.place) else _open_place(confinement)
    with _use_rights(user):
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
    check(libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", _NOSUID | _NODEV, _SIZE))
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
    check(libc.pivot_root(b".", b"."))
    check(libc.umount2(b".", _MNT_DETACH))
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
    check(libc.syscall(_MOVE_MOUNT, handle, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH))
    if flags:
        # Keep the restrictions of the host's mount. A user namespace could not remove them.
        kept = os.statvfs(target).f_flag & (_RDONLY | _NOEXEC | _NOATIME | _NODIRATIME)
        check(libc.mount(None, os.fsencode(target), None, _BIND | _REMOUNT | flags | kept, None))
    shown.add(path)


def _copy_mounts(libc: ctypes.CDLL, handle: int) -> int:
    """Return a copy of the open file or folder with all mounts below it, and close the original."""
    flags = _CLONE | _CLOEXEC | _EMPTY_PATH | _RECURSIVE
    copied: int = libc.syscall(_OPEN_TREE, handle, b"", flags)
    os.close(handle)
    if copied < 0:
        check(copied)
    return copied


def isolate_mounts() -> None:
    """Give this process private mounts, which end with it. Does nothing without root."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _REC | _PRIVATE, None)
