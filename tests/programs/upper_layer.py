# SPDX-License-Identifier: Apache-2.0
"""A process of an ordinary account on an overlay, whose upper layer is FUSE and gets no answer after a copy-up.

    python upper_layer.py DEVICE FOLDER PROGRAM NAME

DEVICE is a node of /dev/fuse, FOLDER an empty folder of this account. The process executes PROGRAM under NAME from the
lower layer, a folder. A change of its mode then moves the file to the upper layer, a file system in memory. The program
prints "ready PID". From now on the upper layer answers nothing. It ends after ten minutes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NAMESPACES = 0x10000000 | 0x00020000
_PR_SET_PDEATHSIG = 1
_LIFE_S = 600
# Numbers of include/uapi/linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, MKNOD, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 4, 8, 9, 10, 11, 12
SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, WHITEOUT = 21, 22, 23, 24, 4
OPEN, READ, WRITE, STATFS, INIT, OPENDIR, READDIR, CREATE, RENAME2 = 14, 15, 16, 17, 26, 27, 28, 35, 45
_SILENT = (FORGET, 36, 42)  # INTERRUPT, BATCH_FORGET
_EMPTY = (18, 20, 25, 29, 30, 34, 50)  # RELEASE, FSYNC, FLUSH, RELEASEDIR, FSYNCDIR, ACCESS, SYNCFS


@dataclass
class Node:
    """A file or folder in memory."""

    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, int] = field(default_factory=dict)
    attributes: dict[bytes, bytes] = field(default_factory=dict)


class Memory:
    """A file system in memory."""

    def __init__(self) -> None:
        self.nodes = {1: Node(stat.S_IFDIR | 0o755)}

    def attributes(self, number: int) -> bytes:
        node = self.nodes[number]
        return struct.pack("<6Q10I", number, len(node.data), 8, 0, 0, 0, 0, 0, 0, node.mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, number: int) -> bytes:
        return struct.pack("<QQQQII", number, 0, 3600, 0, 0, 0) + self.attributes(number)

    def add(self, folder: int, name: bytes, mode: int) -> int:
        number = max(self.nodes) + 1
        self.nodes[number] = Node(mode)
        self.nodes[folder].names[name] = number
        return number

    def answer(self, kind: int, node: int, body: bytes) -> bytes:
        """Return the answer to a request. Raise OSError."""
        if kind == INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
        if kind == LOOKUP:
            number = self.nodes[node].names.get(body.rstrip(b"\0"))
            if number is None:
                raise FileNotFoundError(2, "")
            return self.entry(number)
        if kind in (GETATTR, SETATTR):
            if kind == SETATTR:
                valid, _, _, size = struct.unpack_from("<IIQQ", body)
                here = self.nodes[node]
                if valid & 1:
                    here.mode = stat.S_IFMT(here.mode) | struct.unpack_from("<I", body, 68)[0] & 0o7777
                if valid & 8:
                    here.data = (here.data + bytearray(size))[:size]
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if kind in (MKNOD, MKDIR, CREATE):
            length = 8 if kind == MKDIR else 16
            mode = struct.unpack_from("<I", body, 4 if kind == CREATE else 0)[0]
            made = self.add(node, body[length:].rstrip(b"\0"), stat.S_IFDIR | mode & 0o7777 if kind == MKDIR else mode)
            return self.entry(made) + (struct.pack("<QII", 0, 0, 0) if kind == CREATE else b"")
        if kind in (UNLINK, RMDIR):
            self.nodes[node].names.pop(body.rstrip(b"\0"))
            return b""
        if kind in (RENAME, RENAME2):
            folder = struct.unpack_from("<Q", body)[0]
            old, new = body[8 if kind == RENAME else 16 :].rstrip(b"\0").split(b"\0")
            self.nodes[folder].names[new] = self.nodes[node].names.pop(old)
            if kind == RENAME2 and struct.unpack_from("<I", body, 8)[0] & WHITEOUT:
                self.add(node, old, stat.S_IFCHR)
            return b""
        if kind in (SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR):
            return self._extended(kind, self.nodes[node].attributes, body)
        if kind in (OPEN, OPENDIR):
            return struct.pack("<QII", 1 if kind == OPEN else 0, 0, 0)
        if kind == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self.nodes[node].data[offset : offset + size])
        if kind == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = self.nodes[node].data
            data.extend(bytes(max(0, offset + size - len(data))))
            data[offset : offset + size] = body[40 : 40 + size]
            return struct.pack("<II", size, 0)
        if kind == READDIR:
            return self._list(node, *struct.unpack_from("<QQI", body)[1:])
        if kind == STATFS:
            return struct.pack("<5Q10I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, *[0] * 7)
        if kind in _EMPTY:
            return b""
        raise OSError(38, "")

    @staticmethod
    def _extended(kind: int, attributes: dict[bytes, bytes], body: bytes) -> bytes:
        if kind == REMOVEXATTR:
            attributes.pop(body.rstrip(b"\0"), None)
            return b""
        size = struct.unpack_from("<I", body)[0]
        name, _, value = body[8:].partition(b"\0")
        if kind == SETXATTR:
            attributes[name] = value[:size]
            return b""
        if kind == GETXATTR and name not in attributes:
            raise OSError(61, "")
        answer = attributes[name] if kind == GETXATTR else b"".join(name + b"\0" for name in attributes)
        return answer if size else struct.pack("<II", len(answer), 0)

    def _list(self, node: int, offset: int, size: int) -> bytes:
        names = [(b".", node), (b"..", 1), *self.nodes[node].names.items()]
        listed = b""
        for place, (name, number) in enumerate(names[offset:], offset + 1):
            kind = stat.S_IFMT(self.nodes[number].mode) >> 12
            one = struct.pack("<QQII", number, place, len(name), kind) + name
            one += bytes(-len(one) % 8)
            if len(listed) + len(one) > size:
                break
            listed += one
        return listed


def serve(device: int, armed: Path) -> None:
    """Answer the requests until `armed` exists."""
    memory = Memory()
    while True:
        request = os.read(device, 1 << 18)
        _, kind, unique, node = struct.unpack_from("<IIQQ", request)
        if kind in _SILENT or (kind in (LOOKUP, GETATTR, OPEN, READ) and armed.exists()):
            continue
        answer, error = b"", 0
        try:
            answer = memory.answer(kind, node, request[40:])
        except OSError as failure:
            error = -(failure.errno or 5)
        try:
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)
        except FileNotFoundError:
            continue


def _mount(source: str, target: Path, kind: str, options: str) -> None:
    words = [os.fsencode(str(word)) for word in (source, target, kind)]
    if _LIBC.mount(*words, 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind}: {os.strerror(ctypes.get_errno())}")


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(device: str, folder: Path, program: Path, name: str) -> None:
    """Mount, start the program, move its file to the upper layer, and stop the answers."""
    signal.alarm(_LIFE_S)
    _end_with_parent()
    uid, gid = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    for name_of in ("fuse", "lower", "overlay"):
        (folder / name_of).mkdir()
    shutil.copyfile(program, folder / "lower" / name)
    (folder / "lower" / name).chmod(0o755)
    handle = os.open(device, os.O_RDWR)
    _mount("upper", folder / "fuse", "fuse", f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other")
    if os.fork() == 0:
        _end_with_parent()
        serve(handle, folder / "armed")
    os.close(handle)
    (folder / "fuse/upper").mkdir()
    (folder / "fuse/work").mkdir()
    layers = f"lowerdir={folder}/lower,upperdir={folder}/fuse/upper,workdir={folder}/fuse/work,userxattr"
    _mount("overlay", folder / "overlay", "overlay", layers)
    with subprocess.Popen([folder / "overlay" / name], preexec_fn=_end_with_parent) as process:
        (folder / "overlay" / name).chmod(0o711)
        (folder / "armed").touch()
        print(f"ready {process.pid}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
