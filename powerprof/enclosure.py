# SPDX-License-Identifier: Apache-2.0
"""A program in a file system of its own, made of another release's `usr`: its own loader and libraries, at their own
paths, so that it is the program of that release, with its name, its build id and its files where it looks for them.

What of this host is to be seen in it is named; all of it goes with the program's mount namespace.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

# include/uapi/linux/{sched,mount,fs}.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _NOATIME, _NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_TO_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Of memory that is taken as it is written to: room for what a server puts into /dev/shm and /tmp.
_SIZE = b"mode=0755,size=512m"


@dataclass(frozen=True)
class Enclosure:
    """`root` holds the release's `usr`; `shares` are folders of this host that are there at the same paths."""

    root: Path
    shares: tuple[Path, ...] = ()


def enter(enclosure: Enclosure, user: tuple[int, int] | None) -> None:
    """Move this process into it and make it that user, for good. For use between fork and exec.

    Without root by a user namespace, where this host allows that. Raises OSError; PermissionError for root itself, who
    has no business there.
    """
    if os.geteuid() == 0 and (user is None or user[0] == 0):
        raise PermissionError("another release's program is never run as root")
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = user or (os.geteuid(), os.getegid())
    if user is None:
        _must(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    else:
        _must(libc.unshare(_CLONE_NEWNS))
    _must(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
    mask = os.umask(0o022)
    _furnish(libc, enclosure, uid, gid)
    os.umask(mask)
    # Both at the same place: the old root is then on top, and is taken off (pivot_root(2)).
    os.chdir(enclosure.root)
    _must(libc.pivot_root(b".", b"."))
    _must(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
    if user is not None:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def _furnish(libc: ctypes.CDLL, enclosure: Enclosure, uid: int, gid: int) -> None:
    root = enclosure.root
    # Opened before the new file system lies over the folder that holds it.
    wanted = [(root / "usr", root / "usr", _RDONLY | _NOSUID | _NODEV)]
    wanted += [(path, root / path.relative_to("/"), _NOSUID | _NODEV) for path in enclosure.shares]
    how = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = [(os.open(path, how), target, flags) for path, target, flags in wanted]
    merged = [name for name in _TO_USR if (root / "usr" / name).is_dir()]
    _must(libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", _NOSUID | _NODEV, _SIZE))
    for handle, target, flags in opened:
        target.mkdir(parents=True, exist_ok=True)
        _bind(libc, Path(f"/proc/self/fd/{handle}"), target, flags)
        os.close(handle)
    for name in merged:
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "sys"):
        (root / name).mkdir()
        _bind(libc, Path("/") / name, root / name)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _bind(libc, Path("/dev") / name, root / "dev" / name)
    (root / "etc").mkdir()
    # A program that asks who it is gets an answer (initdb refuses to go on without one).
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nserver:x:{uid}:{gid}::/:/bin/sh\n")
    (root / "etc/group").write_text(f"root:x:0:\nserver:x:{gid}:\n")


def _bind(libc: ctypes.CDLL, source: Path, target: Path, flags: int = 0) -> None:
    _must(libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND | _REC, None))
    if flags:
        # What the host forbids on that mount stays forbidden; in a user namespace it could not be allowed.
        kept = os.statvfs(target).f_flag & (_RDONLY | _NOEXEC | _NOATIME | _NODIRATIME)
        _must(libc.mount(None, os.fsencode(target), None, _BIND | _REMOUNT | flags | kept, None))


def _must(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
