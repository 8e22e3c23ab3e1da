# SPDX-License-Identifier: Apache-2.0
"""A process of an ordinary account, in user and mount namespaces of its own, with a file on a mount of its choice.

    python foreign_mounts.py DEVICE FOLDER KIND SOURCE PLACE

DEVICE is a node of /dev/fuse, FOLDER an empty folder of this account. PLACE becomes a file on a mount of KIND with the
bytes of SOURCE. The program prints "ready PID" for a process that executes PLACE if it is a program, or else sleeps. If
PLACE is called `handed`, that process is outside of the namespaces and maps it; if it is called `locked`, it is this
one. The program reads a line from stdin, changes the file so that its readers wait or read another file system, and
prints "changed". With `locked`, its memory map is then locked. It ends after a minute.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NAMESPACES, _BIND = 0x10000000 | 0x00020000, 4096
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
# The account's own command line, in a file of proc that belongs to root.
_SPEAK = f"import ctypes, time; ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 0); print(flush=True); time.sleep(60)"
KINDS = ("disk", "tmpfs", "fuse", "overlay on disk", "overlay on fuse", "proc", "sysfs")


def _mount(source: Path | str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    words = [os.fsencode(str(word)) for word in (source, target, kind)]
    if _LIBC.mount(*words, flags, options.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount {kind}: {os.strerror(ctypes.get_errno())}")


def _attributes(node: int, size: int) -> bytes:
    mode = 0o40755 if node == 1 else 0o100755
    return struct.pack("<6Q10I", node, 0 if node == 1 else size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(device: int, data: bytes, armed: Path) -> None:
    """Serve one file called `file`. Reads get no answer once `armed` exists."""
    while True:
        request = os.read(device, 1 << 18)
        _size, kind, unique, node = struct.unpack_from("<IIQQ", request)
        body, error, answer = request[40:], 0, b""
        if kind in (2, 42, 36):  # FORGET, BATCH_FORGET, INTERRUPT
            continue
        if kind == 26:  # INIT
            answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
        elif kind == 1:  # LOOKUP
            if body.rstrip(b"\0") == b"file":
                answer = struct.pack("<QQQQII", 2, 0, 3600, 0, 0, 0) + _attributes(2, len(data))
            else:
                error = -2
        elif kind == 3:  # GETATTR
            answer = struct.pack("<QII", 0, 0, 0) + _attributes(node, len(data))
        elif kind in (14, 27):  # OPEN, OPENDIR; with FOPEN_DIRECT_IO no page is kept
            answer = struct.pack("<QII", 1, 0, 0)
        elif kind == 15:  # READ
            if armed.exists():
                continue
            _, offset, wanted = struct.unpack_from("<QQI", body)
            answer = data[offset : offset + wanted]
        elif kind == 17:  # STATFS
            answer = struct.pack("<5Q10I", 0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)
        elif kind not in (18, 25, 28, 29, 34):  # RELEASE, FLUSH, READDIR, RELEASEDIR, ACCESS
            error = -38
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)
        except FileNotFoundError:
            continue


def _fuse(device: str, folder: Path, source: Path) -> Path:
    mounted = folder / "fuse"
    mounted.mkdir()
    handle = os.open(device, os.O_RDWR)
    _mount("foreign", mounted, "fuse", 0, f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other")
    if os.fork() == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _serve(handle, source.read_bytes(), folder / "armed")
    os.close(handle)
    return mounted


def _overlay(folder: Path, lower: Path) -> Path:
    upper, mounted = folder / "upper", folder / "overlay"
    upper.mkdir()
    mounted.mkdir()
    _mount("tmpfs", upper, "tmpfs")
    (upper / "u").mkdir()
    (upper / "w").mkdir()
    _mount("overlay", mounted, "overlay", 0, f"lowerdir={lower},upperdir={upper}/u,workdir={upper}/w,userxattr")
    return mounted / "file"


def _make(kind: str, device: str, folder: Path, source: Path) -> Path:
    """Return a file with the bytes of `source` on a mount of that kind."""
    plain = folder / "plain"
    plain.mkdir()
    if kind == "tmpfs":
        _mount("tmpfs", plain, "tmpfs")
    if kind in ("disk", "tmpfs", "overlay on disk"):
        shutil.copyfile(source, plain / "file")
        (plain / "file").chmod(0o755)
    if kind == "overlay on disk":
        return _overlay(folder, plain)
    if kind == "fuse":
        return _fuse(device, folder, source) / "file"
    if kind == "overlay on fuse":
        return _overlay(folder, _fuse(device, folder, source))
    return Path("/sys/kernel/uevent_seqnum") if kind == "sysfs" else plain / "file"


def _speak(source: Path) -> Path:
    """Return a file of proc with a copy of a text. Its process is not dumpable, so that the file belongs to root."""
    text = "\n" + source.read_text() if source.name == "text" else ""
    words = [sys.executable, "-I", "-S", "-c", _SPEAK, text]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=_end_with_parent)
    assert process.stdout is not None
    process.stdout.readline()
    return Path(f"/proc/{process.pid}/cmdline")


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _map_outside() -> tuple[int, socket.socket]:
    """Return a process in the namespaces of the host, which maps the file that it receives."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _end_with_parent()
        _, files, _, _ = socket.recv_fds(theirs, 1, 1)
        kept = mmap.mmap(files[0], 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        os.close(files[0])
        theirs.send(b"m")
        time.sleep(60)
        os._exit(len(kept) > 0)
    return pid, ours


def _lock_map(place: Path) -> None:
    """Lock the memory map of this process: a reader of a page waits for the FUSE, and a writer waits for the reader."""
    page = mmap.mmap(os.open(place, os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    os.write(1, b"changed\n")
    threading.Thread(target=os.pread, args=(memory, 8, address), daemon=True).start()
    time.sleep(0.2)
    _LIBC.mmap(None, 1 << 20, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def main(device: str, folder: Path, kind: str, source: Path, place: Path) -> None:
    """Mount, start the program, and change the file on request."""
    signal.alarm(60)
    _end_with_parent()
    spoken = _speak(source)
    outside, channel = _map_outside()
    uid, gid = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    file = spoken if kind == "proc" else _make(kind, device, folder, source)
    if not place.exists():
        place.touch()
    _mount(file, place, "none", _BIND)
    is_program = source.read_bytes()[:4] == b"\x7fELF" and kind not in ("proc", "sysfs")
    if place.name == "locked":
        os.write(1, f"ready {os.getpid()}\n".encode())
        sys.stdin.readline()
        (folder / "armed").touch()
        _lock_map(place)
    words = [str(place)] if is_program else ["/bin/sleep", "60"]
    with subprocess.Popen(words, preexec_fn=_end_with_parent) as process:
        if place.name == "handed":
            handle = os.open(place, os.O_RDONLY)
            socket.send_fds(channel, [b"m"], [handle])
            os.close(handle)
            assert channel.recv(1) == b"m"
        print(f"ready {outside if place.name == 'handed' else process.pid}", flush=True)
        sys.stdin.readline()
        (folder / "armed").touch()
        if kind in ("overlay on disk", "tmpfs") and not is_program:
            place.write_bytes(b"other bytes" * 100)
        elif kind == "overlay on disk":
            place.chmod(0o700)  # moves the file to the upper layer
        print("changed", flush=True)
        sys.stdin.readline()
        process.kill()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]))
