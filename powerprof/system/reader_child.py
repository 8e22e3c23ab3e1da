# SPDX-License-Identifier: Apache-2.0
"""Open and read paths and memory that other accounts control, in a program that its parent may abandon.

A path or a page of memory may be on a file system that another process serves (FUSE, also below an overlay; NFS). Its
reader then sleeps where no signal reaches it. Only the standard library is used, so that the start is fast.

Requests are lines on stdin: a verb and its words; paths are written as `x` and hexadecimal bytes. An answer consists of
parts, each with its length before it, and ends with an empty part. A descriptor travels with its part (SCM_RIGHTS). The
words of `stacks` name the places of an interpreter's frames (stacks/interpreter.py: chain_words).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

STACK_BYTES = 0x4000
MAX_THREADS = 20_000
MAX_MAPS_BYTES = 16 << 20
MAX_VDSO_BYTES = 1 << 16
_PAGE = 4096
_ANSWER_S = 1.5
# Limits of an interpreter: threads, frames of a thread, bytes of a frame, bytes of one request for memory.
MOST_STATES = 4096
MOST_FRAMES = 32
FRAME_BYTES = 80
MOST_BYTES = 1 << 17
NO_INNER = (1 << 32) - 1
RECORD = struct.Struct("<QQQQ")
# A file: size, time of the last change in ns, device, inode, owner, group, mode, stored bytes, whether it is a copy.
FILE = struct.Struct("<qqQQIIIq?")
# An open file: device, inode; the name follows.
LINK = struct.Struct("<QQ")
# Our own error numbers.
NOT_REGULAR, TOO_LARGE, REPLACED = -1, -2, -3
_CONNECT_S = 0.5
_CHUNK = 1 << 20
_MAX_FILES = 20_000

# File systems of this kernel and its disks (include/uapi/linux/magic.h): ext4, XFS, Btrfs, squashfs, EROFS, F2FS, ZFS,
# bcachefs, ISO 9660; UDF, FAT, exFAT, JFS, ReiserFS, NILFS, NTFS3, cramfs, romfs; tmpfs, ramfs, hugetlbfs, proc.
_DISKS = (0xEF53, 0x58465342, 0x9123683E, 0x73717368, 0xE0F5E1E2, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x9660)
_OTHERS = (0x15013346, 0x4D44, 0x2011BAB0, 0x3153464A, 0x52654973, 0x3434, 0x7366746E, 0x28CD3D45, 0x7275)
_LOCAL = frozenset((*_DISKS, *_OTHERS, 0x01021994, 0x858458F6, 0x958458F6, 0x9FA0))
_OVERLAY = 0x794C7630
_FIEMAP = 0xC020660B
_SYS_OPENAT2, _NO_MAGIC_LINKS, _IN_ROOT = 437, 0x02, 0x10
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LIBC = ctypes.CDLL(None, use_errno=True)


def _send(part: bytes, descriptor: int | None = None) -> None:
    data = struct.pack("<I", len(part)) + part
    if descriptor is None:
        _OUT.sendall(data)
        return
    sent = socket.send_fds(_OUT, [data], [descriptor])
    _OUT.sendall(data[sent:])


def _fail(number: int) -> None:
    _send(b"e" + struct.pack("<i", number))


def _maps(base: Path) -> None:
    """Send the bytes of maps (a name may contain any byte except the line end), then the vdso if there is one."""
    with (base / "maps").open("rb") as file:
        text = file.read(MAX_MAPS_BYTES)
    if len(text) == MAX_MAPS_BYTES:
        text = text[: text.rfind(b"\n") + 1]
    _send(b"m" + text)
    line = next((entry for entry in text.split(b"\n") if entry.endswith(b" [vdso]")), None)
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


def _read_word(memory: int, address: int) -> int:
    """Return a word of memory; 0 if it is not readable."""
    try:
        data = os.pread(memory, 8, address)
    except (OSError, OverflowError, ValueError):
        return 0
    return int.from_bytes(data, "little") if len(data) == 8 else 0


def states(memory: int, words: Sequence[int]) -> dict[int, int]:
    """Return the addresses of an interpreter's thread states, by the id of the thread in its own namespace."""
    addresses: dict[int, int] = {}
    state = _read_word(memory, words[0])
    for _ in range(MOST_STATES):
        if not state:
            break
        addresses.setdefault(_read_word(memory, state + words[2]), state)
        state = _read_word(memory, state + words[1])
    return addresses


def chain(memory: int, words: Sequence[int], state: int) -> bytes:
    """Return the frames of a thread in the format of interpreter.bpf.h: two words each, then two zeros."""
    _, _, _, current, inner, code, previous, instruction, entry = words
    parts = []
    at = _read_word(memory, state + current)
    if at and inner != NO_INNER:
        at = _read_word(memory, at + inner)
    for _ in range(MOST_FRAMES):
        if not at:
            parts.append(bytes(16))
            break
        try:
            frame = os.pread(memory, FRAME_BYTES, at)
        except (OSError, OverflowError, ValueError):
            break
        if len(frame) < FRAME_BYTES:
            break
        parts.append(frame[code : code + 8] + frame[instruction : instruction + 7] + frame[entry : entry + 1])
        at = int.from_bytes(frame[previous : previous + 8], "little")
    return b"".join(parts)


def _read_inner_id(base: Path, tid: int) -> int:
    """Return the id of a thread in its own namespace."""
    try:
        lines = (base / "task" / str(tid) / "status").read_bytes().split(b"\n")
    except OSError:
        return tid
    numbers = next((line.split() for line in lines if line.startswith(b"NSpid:")), [])
    return int(numbers[-1]) if len(numbers) > 1 else tid


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


def _stacks(base: Path, *where: str) -> None:
    """Send the stack of each blocked thread.

    A part contains tid, ip, sp, the size of an interpreter's frames, these frames, and the bytes from sp up.
    """
    end_s = time.monotonic() + _ANSWER_S
    tids = sorted(int(name) for name in os.listdir(base / "task") if name.isdigit())[:MAX_THREADS]
    words = [int(word) for word in where]
    memory = os.open(base / "mem", os.O_RDONLY)
    try:
        addresses = states(memory, words) if words else {}
        for tid in tids:
            before = _read_position(base / "task" / str(tid))
            if before is None or before[0] == 0:
                continue
            stack = _copy_stack(memory, before[1])
            state = addresses.get(_read_inner_id(base, tid), 0) if addresses else 0
            frames = chain(memory, words, state) if state else b""
            if stack and _read_position(base / "task" / str(tid)) == before:
                _send(b"s" + RECORD.pack(tid, *before, len(frames)) + frames + stack)
            if time.monotonic() > end_s:
                _send(b"c")  # The answer is cut: there are too many threads.
                break
    finally:
        os.close(memory)


class _Refused(OSError):
    """A file that is not opened because of our own rules."""


def is_local(file: int) -> bool:
    """Return whether reads of an open file wait for no other process.

    An overlay has no data. FIEMAP reaches the lower or upper file that has them; FUSE does not support it.
    """
    described = ctypes.create_string_buffer(256)
    if _LIBC.fstatfs(file, described):
        return False
    kind = int.from_bytes(described.raw[:8], sys.byteorder) & 0xFFFFFFFF
    if kind != _OVERLAY:
        return kind in _LOCAL
    try:
        fcntl.ioctl(file, _FIEMAP, bytearray(struct.pack("<QQIIII", 0, 4096, 0, 0, 0, 0)))
    except OSError:
        return _is_own_mount(file)
    return True


def _is_own_mount(file: int) -> bool:
    """Return whether a file was opened through a mount of our own namespace: root mounted it."""
    try:
        fields = dict(line.split(b":\t") for line in Path(f"/proc/self/fdinfo/{file}").read_bytes().splitlines()[:4])
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except (OSError, ValueError):
        return False
    return b"\n" + fields.get(b"mnt_id", b"-") + b" " in b"\n" + mounts


def _open(root: bytes, path: bytes, flags: int) -> int:
    """Open a path, inside of a root if one is given: symbolic links, absolute ones too, are resolved inside of it."""
    if not root:
        return os.open(path, flags | os.O_CLOEXEC)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGIC_LINKS)
        file: int = _LIBC.syscall(ctypes.c_long(_SYS_OPENAT2), folder, ctypes.c_char_p(path), how, ctypes.c_size_t(24))
        if file < 0:
            raise OSError(ctypes.get_errno(), "")
        return file
    finally:
        os.close(folder)


def _open_regular(root: bytes, path: bytes, follow: bool) -> int:
    """Open a regular file. The type is checked first: opening a device or a pipe may have effects."""
    probe = _open(root, path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(probe).st_mode):
            raise _Refused(NOT_REGULAR, "")
        # With O_NONBLOCK, a lease of another process is an error and does not block.
        return os.open(f"/proc/self/fd/{probe}", _READ)
    finally:
        os.close(probe)


def _pack_status(status: os.stat_result, is_copy: bool = False) -> bytes:
    return FILE.pack(
        status.st_size,
        status.st_mtime_ns,
        status.st_dev,
        status.st_ino,
        status.st_uid,
        status.st_gid,
        status.st_mode,
        512 * status.st_blocks,
        is_copy,
    )


def _hand_over(file: int, most_bytes: int) -> None:
    """Send a regular file, or a copy of it in memory if its reader may have to wait."""
    try:
        status = os.fstat(file)
        if is_local(file):
            _send(b"f" + _pack_status(status), file)
            return
        if status.st_size > most_bytes:
            raise _Refused(TOO_LARGE, "")
        copy = os.memfd_create("copy", os.MFD_CLOEXEC)
        try:
            remaining = status.st_size
            while remaining and (data := os.read(file, min(remaining, _CHUNK))):
                os.write(copy, data)
                remaining -= len(data)
                _send(b"k")
            _send(b"f" + _pack_status(status, True), copy)
        finally:
            os.close(copy)
    finally:
        os.close(file)


def _file(root: str, path: str, follow: str, most_bytes: str) -> None:
    _hand_over(_open_regular(_path(root), _path(path), follow == "1"), int(most_bytes))


def _mapped(base: str, most_bytes: str, *files: str) -> None:
    """Send the files that a process has mapped, each given as START-END:INODE:PATH.

    map_files leads to the mapped inode even after a rename, but needs privileges. The name in the process's root is
    used if it still has the same inode.
    """
    folder = _path(base)
    for file in files:
        addresses, inode, path = file.split(":")
        try:
            try:
                opened = _open_regular(b"", folder + b"/map_files/" + addresses.encode(), True)
            except _Refused:
                raise
            except OSError:
                opened = _open_regular(folder + b"/root", _path(path), True)
                if os.fstat(opened).st_ino != int(inode):
                    os.close(opened)
                    raise _Refused(REPLACED, "") from None
            _hand_over(opened, int(most_bytes))
        except (OSError, ValueError) as error:
            _send(b"n" + struct.pack("<i", getattr(error, "errno", None) or errno.EINVAL))


def _status(path: str, follow: str) -> None:
    _send(b"t" + _pack_status(os.stat(_path(path), follow_symlinks=follow == "1")))  # noqa: PTH116 - bytes


def _read(path: str, most_bytes: str, from_end: str) -> None:
    file, remaining = _open_regular(b"", _path(path), True), int(most_bytes)
    try:
        if from_end == "1":
            os.lseek(file, max(0, os.fstat(file).st_size - remaining), os.SEEK_SET)
        while remaining and (data := os.read(file, min(remaining, _CHUNK))):
            _send(b"d" + data)
            remaining -= len(data)
    finally:
        os.close(file)


def _names(root: str, path: str, most: str) -> None:
    folder = _open(_path(root), _path(path), os.O_RDONLY | os.O_DIRECTORY)
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
        try:
            _VERBS[verb](*words)
        except (OSError, ValueError) as error:
            _fail(getattr(error, "errno", None) or 0)
        _send(b"")


if __name__ == "__main__":
    _OUT = socket.socket(fileno=1)
    main()
