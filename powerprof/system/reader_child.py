# SPDX-License-Identifier: Apache-2.0
"""Open and read paths and memory that other accounts control, in a program that its parent may abandon.

A path or a page of memory may be on a file system that another process serves (FUSE, also below an overlay; NFS). Its
reader then sleeps where no signal reaches it. Only the standard library is used, so that the start is fast.

Requests are lines on stdin: a verb and its words; paths are written as `x` and hexadecimal bytes. An answer consists of
parts, each with its length before it, and ends with the length 0 and its cost (USAGE). A descriptor travels with its
part (SCM_RIGHTS).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

STACK_BYTES = 0x4000
MAX_THREADS = 20_000
MAX_MAPS_BYTES = 16 << 20
# Executable mappings of a process. Java has some thousand.
MAX_MAPPINGS = 1 << 14
# Code without a file that may be a copy of a file's code: more is generated code.
MOST_HOLES = 1000
MAX_VDSO_BYTES = 1 << 16
_PAGE = 4096
_ANSWER_S = 1.5
# The most bytes of one request for memory.
MOST_BYTES = 1 << 17
RECORD = struct.Struct("<QQQ")
# A file: size, time of the last change in ns, device, inode, owner, group, mode, stored bytes, whether it is a copy.
FILE = struct.Struct("<qqQQIIIq?")
# An open file: device, inode; the name follows.
LINK = struct.Struct("<QQ")
# The time for an answer: seconds on a CPU, and asleep for another reason than a parent that reads too slowly.
USAGE = struct.Struct("<dd")
# Our own error numbers.
NOT_REGULAR, TOO_LARGE, REPLACED, OF_KERNEL, LATER, TOO_MANY = -1, -2, -3, -4, -5, -6
# The largest copy of a file whose reader may have to wait, and all copies of one answer.
MAX_COPY_BYTES = 40 << 20
_CONNECT_S = 0.5
_CHUNK = 1 << 20
_MAX_PASSWD_BYTES = 1 << 20
_MAX_FILES = 20_000

# File systems of this kernel and its disks (include/uapi/linux/magic.h): ext4, Btrfs, squashfs, EROFS, F2FS, ISO 9660;
# UDF, FAT, exFAT, JFS, ReiserFS, NILFS, NTFS3, cramfs, romfs; tmpfs, ramfs, hugetlbfs.
_DISKS = (0xEF53, 0x9123683E, 0x73717368, 0xE0F5E1E2, 0xF2F52010, 0x9660)
_OTHERS = (0x15013346, 0x4D44, 0x2011BAB0, 0x3153464A, 0x52654973, 0x3434, 0x7366746E, 0x28CD3D45, 0x7275)
_LOCAL = frozenset((*_DISKS, *_OTHERS, 0x01021994, 0x858458F6, 0x958458F6))
# XFS, ZFS and bcachefs keep readers out of a file while another process writes to it. That process may wait for the
# memory that it writes, which can be a page of its own FUSE (fs/xfs/xfs_file.c: xfs_file_buffered_read).
_LOCKED_BY_WRITERS = frozenset((0x58465342, 0x2FC12FC1, 0xCA451A4E))
_OVERLAY = 0x794C7630
# Files that the kernel makes: proc, sysfs, debugfs, tracefs, securityfs, configfs, both cgroup, bpf, pstore, efivarfs,
# SELinux, Smack, AppArmor, binfmt_misc, devpts, namespaces, resctrl, fusectl, RPC, nfsd. To open or read one may have
# effects, and an account can mount any of them over the name of its own file.
_OF_KERNEL = frozenset((0x9FA0, 0x62656572, 0x64626720, 0x74726163, 0x73636673, 0x62656570, 0x27E0EB, 0x63677270))
_OF_KERNEL |= {0xCAFE4A11, 0x6165676C, 0xDE5E81E4, 0xF97CFF8C, 0x43415D53, 0x5A3C69F0, 0x42494E4D, 0x1CD1, 0x6E736673}
_OF_KERNEL |= {0x7655821, 0x65735543, 0x67596969, 0x6E667364}
_NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h
_SYS_OPENAT2, _NO_MAGIC_LINKS, _IN_ROOT = 437, 0x02, 0x10
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Clock:
    """The time of this process: on a CPU, and asleep."""

    def __init__(self) -> None:
        try:
            self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._kept_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a request."""
        self._began = self._read()
        self._kept_s = 0.0

    def usage(self) -> tuple[float, float]:
        """Return the seconds since the request on a CPU, and asleep except in `wait_for_parent`."""
        (cpu_s, awake_s, at_s, sleeps), now = self._began, self._read()
        # Without a sleep, the difference is time of the hypervisor.
        asleep_s = now[2] - at_s - (now[1] - awake_s) - self._kept_s if now[3] > sleeps else 0.0
        return now[0] - cpu_s, max(0.0, asleep_s)

    def wait_for_parent(self) -> None:
        """Wait until the parent has read what was sent."""
        before = self._read()
        waiting = select.poll()
        waiting.register(_OUT, select.POLLOUT)
        waiting.poll()
        after = self._read()
        self._kept_s += max(0.0, after[2] - before[2] - (after[1] - before[1]))

    def _read(self) -> tuple[float, float, float, int]:
        """Return seconds on a CPU, on a CPU or waiting for one, of the clock, and the number of sleeps."""
        queued_s = 0.0
        if self._schedstat >= 0:
            queued_s = int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        cpu_s = time.process_time()
        sleeps = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        return cpu_s, cpu_s + queued_s, time.monotonic(), sleeps


def _send(part: bytes, descriptor: int | None = None) -> None:
    _send_bytes(struct.pack("<I", len(part)) + part, descriptor)


def _send_bytes(message: bytes, descriptor: int | None = None) -> None:
    data = memoryview(message)
    control = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
    while data:
        try:
            data = data[_OUT.sendmsg([data], control, socket.MSG_DONTWAIT) :]
            control = []
        except BlockingIOError:
            _CLOCK.wait_for_parent()


def _fail(number: int) -> None:
    _send(b"e" + struct.pack("<i", number))


def _is_code(line: bytes) -> bool:
    """Return whether a line of maps (START-END rwxp …) is an executable mapping."""
    return line[line.find(b" ") + 3 :][:1] == b"x"


def _is_without_file(line: bytes) -> bool:
    """Return whether a line of maps is memory without a file, or with one that has no name."""
    words = line.split(None, 5)
    return len(words) == 5 or (words[4] == b"0" and words[5][:1] != b"[") or line.endswith(b" (deleted)")


def _maps(base: Path) -> None:
    """Send the executable mappings as lines of maps, then the vdso if there is one.

    The lines include the mappings next to code without a file, which can be a copy of their file's code. A name may
    contain any byte except the line end.
    """
    with (base / "maps").open("rb") as file:
        text = file.read(MAX_MAPS_BYTES)
    if len(text) == MAX_MAPS_BYTES:
        text = text[: text.rfind(b"\n") + 1]
    every = text.split(b"\n")
    places = [at for at, line in enumerate(every) if _is_code(line)]
    if len(places) > MAX_MAPPINGS:
        raise _Refused(TOO_MANY, "")
    holes = [at for at in places if _is_without_file(every[at])]
    if len(holes) > MOST_HOLES:
        holes = []
    near = {at + step for at in holes for step in (-1, 1) if 0 <= at + step < len(every)}
    lines = [every[at] for at in sorted({*places, *near})]
    _send(b"m" + b"\n".join(lines))
    line = next((entry for entry in lines if entry.endswith(b" [vdso]")), None)
    if line is not None:
        start, end = (int(word, 16) for word in line.split(None, 1)[0].split(b"-"))
        with (base / "mem").open("rb", buffering=0) as memory:
            _send(b"v" + os.pread(memory.fileno(), min(end - start, MAX_VDSO_BYTES), start))


def _read_position(base: Path) -> tuple[int, int] | None:
    try:
        words = (base / "syscall").read_bytes().split()
    except OSError:
        return None
    # `nr arg0 … arg5 sp pc`, `-1 sp pc` for a thread blocked outside of a system call, or `running`.
    if len(words) not in (3, 9):
        return None
    try:
        return int(words[-1], 16), int(words[-2], 16)
    except ValueError:
        return None


def _copy_stack(memory: int, sp: int) -> bytes:
    """Return up to STACK_BYTES from sp. Read by pages, so that the end of the stack loses no readable bytes."""
    parts = []
    at, end = sp, sp + STACK_BYTES
    while at < end:
        size = min(_PAGE - at % _PAGE, end - at)
        try:
            part = os.pread(memory, size, at)
        except (OSError, OverflowError):
            break
        parts.append(part)
        if len(part) < size:
            break
        at += size
    return b"".join(parts)


def _memory(base: Path, *requests: str) -> None:
    """Send the readable bytes of each place, at most MOST_BYTES each."""
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        for request in requests:
            address, _, size = request.partition(":")
            try:
                data = os.pread(memory, min(int(size), MOST_BYTES), int(address)) if int(size) else b""
            except (OSError, OverflowError):
                data = b""
            _send(b"d" + data)
    finally:
        os.close(memory)


def _stacks(base: Path) -> None:
    """Send the stack of each blocked thread.

    A part contains tid, ip, sp, and the bytes from sp up.
    """
    end_s = time.monotonic() + _ANSWER_S
    tids = sorted(int(name) for name in os.listdir(base / "task") if name.isdigit())[:MAX_THREADS]
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        for tid in tids:
            before = _read_position(base / "task" / str(tid))
            if before is None or before[0] == 0:
                continue
            stack = _copy_stack(memory, before[1])
            if stack and _read_position(base / "task" / str(tid)) == before:
                _send(b"s" + RECORD.pack(tid, *before) + stack)
            if time.monotonic() > end_s:
                _send(b"c")  # The answer is cut: there are too many threads.
                break
    finally:
        os.close(memory)


class _Refused(OSError):
    """A file that is not opened because of our own rules."""


def _kind_of(file: int) -> int:
    """Return the magic number of the file system of an open file; 0 if it is unknown."""
    described = ctypes.create_string_buffer(256)
    return 0 if _LIBC.fstatfs(file, described) else int.from_bytes(described.raw[:8], sys.byteorder) & 0xFFFFFFFF


def waits_for_nobody(file: int, kind: int, process: int) -> bool:
    """Return whether later reads of an open file wait for no other process.

    An overlay has no data of its own. Whoever mounted it chose the file system that has them after a change. `process`
    is a descriptor of the folder in /proc through which the file was opened.
    """
    if kind in _LOCAL:
        return True
    status = os.fstat(file)
    is_ours = status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
    return is_ours and (kind in _LOCKED_BY_WRITERS or (kind == _OVERLAY and _is_mounted_by_root(file, process)))


def _is_mounted_by_root(file: int, process: int) -> bool:
    """Return whether only root of our user namespace can have mounted what a file was opened through.

    The mount is then in a namespace that belongs to our user namespace. Other accounts may make namespaces of their
    own, hand files over to a process outside, and start threads in them: so the mount itself is looked up. A process
    that has left our namespaces does not get back, so the owner is read last.
    """
    try:
        with open(f"/proc/self/fdinfo/{file}", "rb") as described:  # noqa: PTH123
            fields = dict(line.split(b":\t") for line in described.read().splitlines()[:4])
        with os.fdopen(os.open("mountinfo", _READ, dir_fd=process), "rb") as listed:
            mounts = listed.read()
        return b"\n" + fields[b"mnt_id"] + b" " in b"\n" + mounts and _has_mounts_of_root(process)
    except (OSError, ValueError, KeyError):
        return False


def _has_mounts_of_root(process: int) -> bool:
    """Return whether a process is in our mount namespace, or in one that belongs to our user namespace."""
    namespace = os.open("ns/mnt", _READ, dir_fd=process)
    try:
        if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/mnt")):  # noqa: PTH116
            return True
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        try:
            return os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user"))  # noqa: PTH116
        finally:
            os.close(owner)
    finally:
        os.close(namespace)


def _open(process: int, root: bytes, path: bytes, flags: int) -> int:
    """Open a path, inside of a root if one is given: symbolic links, absolute ones too, are resolved inside of it.

    A relative root is below `process`, a descriptor of a process's folder in /proc.
    """
    if not root:
        return os.open(path, flags | os.O_CLOEXEC, dir_fd=process)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    try:
        how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGIC_LINKS)
        file: int = _LIBC.syscall(ctypes.c_long(_SYS_OPENAT2), folder, ctypes.c_char_p(path), how, ctypes.c_size_t(24))
        if file < 0:
            raise OSError(ctypes.get_errno(), "")
        return file
    finally:
        os.close(folder)


def _open_process(base: str) -> int:
    return os.open(_path(base), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_regular(process: int, root: bytes, path: bytes, follow: bool = True) -> tuple[int, int]:
    """Return a descriptor of a regular file, and the magic number of its file system.

    Both are checked before the file is opened: opening a device, a pipe or a file of the kernel may have effects.
    """
    probe = _open(process, root, path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(probe).st_mode):
            raise _Refused(NOT_REGULAR, "")
        kind = _kind_of(probe)
        if kind in _OF_KERNEL:
            raise _Refused(OF_KERNEL, "")
        # With O_NONBLOCK, a lease of another process is an error and does not block.
        return os.open(f"/proc/self/fd/{probe}", _READ), kind
    finally:
        os.close(probe)


def _pack_status(status: os.stat_result, copied_bytes: int | None = None) -> bytes:
    return FILE.pack(
        status.st_size if copied_bytes is None else copied_bytes,
        status.st_mtime_ns,
        status.st_dev,
        status.st_ino,
        status.st_uid,
        status.st_gid,
        status.st_mode,
        512 * status.st_blocks,
        copied_bytes is not None,
    )


def _hand_over(file: int, kind: int, process: int, most_bytes: int) -> int:
    """Send a regular file, or a copy of it in memory if its reader may have to wait. Return the copied bytes."""
    try:
        status = os.fstat(file)
        if waits_for_nobody(file, kind, process):
            _send(b"f" + _pack_status(status), file)
            return 0
        copy = os.memfd_create("copy", os.MFD_CLOEXEC)
        try:
            size = 0
            # The status need not contain the size.
            while data := os.read(file, _CHUNK):
                size += len(data)
                if size > most_bytes:
                    raise _Refused(TOO_LARGE if most_bytes == MAX_COPY_BYTES else LATER, "")
                os.write(copy, data)
                _send(b"k")
            _send(b"f" + _pack_status(status, size), copy)
            return size
        finally:
            os.close(copy)
    finally:
        os.close(file)


def _file(base: str, root: str, path: str, follow: str) -> None:
    process = _open_process(base)
    try:
        file, kind = open_regular(process, _path(root), _path(path), follow == "1")
        _hand_over(file, kind, process, MAX_COPY_BYTES)
    finally:
        os.close(process)


def _mapped(base: str, *files: str) -> None:
    """Send the files that a process has mapped, each given as START-END:INODE:PATH.

    All copies together have at most MAX_COPY_BYTES.

    map_files leads to the mapped inode even after a rename, but needs privileges. The name in the process's root is
    used if it still has the same inode.
    """
    process, remaining = _open_process(base), MAX_COPY_BYTES
    for file in files:
        addresses, inode, path = file.split(":")
        try:
            try:
                opened, kind = open_regular(process, b"", b"map_files/" + addresses.encode())
            except _Refused:
                raise
            except OSError:
                opened, kind = open_regular(process, b"", b"root" + _path(path))
                if os.fstat(opened).st_ino != int(inode):
                    os.close(opened)
                    raise _Refused(REPLACED, "") from None
            remaining -= _hand_over(opened, kind, process, remaining)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) == LATER:
                remaining = 0
            _send(b"n" + struct.pack("<i", getattr(error, "errno", None) or errno.EINVAL))
    os.close(process)


def _passwd(base: str) -> None:
    """Send /etc/passwd of a process's root if only root can have chosen the root, its mounts and the file.

    A process in a user namespace of its own may change its root, and mount any file there. It does not get back, so the
    namespaces are read after the file.
    """
    process = _open_process(base)
    try:
        file, kind = open_regular(process, b"root", b"etc/passwd")
        with os.fdopen(file, "rb") as passwd:
            status, data = os.fstat(file), passwd.read(_MAX_PASSWD_BYTES)
        theirs, ours = os.stat("ns/user", dir_fd=process), os.stat("/proc/self/ns/user")  # noqa: PTH116
        is_of_root = os.path.samestat(theirs, ours) and _has_mounts_of_root(process)
    finally:
        os.close(process)
    is_stored = kind in _LOCAL or kind in _LOCKED_BY_WRITERS or kind == _OVERLAY
    if not is_of_root or not is_stored or status.st_uid or status.st_mode & 0o022:
        raise _Refused(errno.EPERM, "")
    _send(b"d" + data)


def _proc_file(base: str, name: str, most_bytes: str) -> None:
    """Send the first bytes of a file in a process's folder of /proc."""
    with open(_path(base) + b"/" + _path(name), "rb", buffering=0) as file:  # noqa: PTH123
        _send(b"d" + (file.read(int(most_bytes)) or b""))


def _status(path: str, follow: str) -> None:
    _send(b"t" + _pack_status(os.stat(_path(path), follow_symlinks=follow == "1")))  # noqa: PTH116 - bytes


def _read(path: str, most_bytes: str, from_end: str) -> None:
    file, remaining = open_regular(-1, b"", _path(path))[0], int(most_bytes)
    try:
        if from_end == "1":
            os.lseek(file, max(0, os.fstat(file).st_size - remaining), os.SEEK_SET)
        while remaining and (data := os.read(file, min(remaining, _CHUNK))):
            _send(b"d" + data)
            remaining -= len(data)
    finally:
        os.close(file)


def _names(root: str, path: str, most: str) -> None:
    folder = _open(-1, _path(root), _path(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(folder) as entries:
            names = [os.fsencode(entry.name) for entry, _ in zip(entries, range(int(most)), strict=False)]
    finally:
        os.close(folder)
    _send(b"d" + b"\0".join(names))


def _open_files(base: str) -> None:
    """Send device, inode and name of each file that a process has open."""
    folder = _path(base) + b"/fd/"
    for number in os.listdir(folder)[:_MAX_FILES]:
        try:
            name = os.readlink(folder + number)
            if name.startswith(b"/"):
                status = os.stat(folder + number)  # noqa: PTH116 - bytes
                _send(b"d" + LINK.pack(status.st_dev, status.st_ino) + name)
        except OSError:
            continue


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        # A full queue is an error at once.
        channel.settimeout(_CONNECT_S)
        channel.connect(_path(path))
        _send(b"c", channel.fileno())


def _real_path(path: str) -> None:
    _send(b"d" + os.path.realpath(_path(path)))


def _path(word: str) -> bytes:
    path = bytes.fromhex(word[1:])
    if b"\0" in path:
        raise OSError(errno.ENOENT, "")
    return path


_VERBS: dict[str, Callable[..., None]] = {
    "maps": lambda base: _maps(Path(os.fsdecode(_path(base)))),
    "stacks": lambda base, *where: _stacks(Path(os.fsdecode(_path(base))), *where),
    "memory": lambda base, *places: _memory(Path(os.fsdecode(_path(base))), *places),
    "file": _file,
    "mapped": _mapped,
    "passwd": _passwd,
    "proc_file": _proc_file,
    "status": _status,
    "read": _read,
    "names": _names,
    "open_files": _open_files,
    "connect": _connect,
    "real_path": _real_path,
}


def main() -> None:
    """Answer until stdin ends."""
    _send(b"")  # ready
    for line in sys.stdin:
        verb, *words = line.split()
        _CLOCK.begin()
        try:
            _VERBS[verb](*words)
        except (OSError, ValueError) as error:
            _fail(getattr(error, "errno", None) or 0)
        _send_bytes(bytes(4) + USAGE.pack(*_CLOCK.usage()))


if __name__ == "__main__":
    _OUT = socket.socket(fileno=1)
    _CLOCK = _Clock()
    main()
