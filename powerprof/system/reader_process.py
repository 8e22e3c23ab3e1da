# SPDX-License-Identifier: Apache-2.0
"""The owner of every access to paths, memory and sockets that another account controls (/proc/PID/…).

Each access happens in a child that can be abandoned. Descriptors come back only of files whose reads wait for no other
process; the child copies any other file into memory. `reader_waits` has the limits of the time that this may take.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

import msgspec

from powerprof.system import descriptors, errors, files, open_files, programs, reader_child, signals
from powerprof.system.caller import is_system_account
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.foreign_text import whole
from powerprof.system.paths import procfs
from powerprof.system.reader_waits import ChildSleep, ReaderWaits
from powerprof.system.tasks import process_folder

# A page or an inode arrives at once, or its server blocks us. Only time asleep counts: a child that waits for a CPU is
# late, but no process blocks it.
PATIENCE_S = 1.0
ANSWER_S = 3.0
LATEST_S = 30.0
# A shorter sleep is the kernel's own.
_LEAST_SLEEP_S = 0.002
# The factors for the patience with files of system accounts, which may be on a slow disk, and after a signal.
_PATIENCE_WITH_SYSTEM, _PATIENCE_AFTER_SIGNAL = 5.0, 0.2
_UNKNOWN = (1 << 32) - 1
_LOOK_S = 0.1
_START_S, _END_S = 20.0, 0.5
_MAX_BYTES = 512 << 20
# Places of memory and mapped files in one request.
_MAX_PLACES = 500
_MAX_FILES = 50
_CONTROL_BYTES = socket.CMSG_SPACE(4)
_MSG_CMSG_CLOEXEC = 0x40000000
_LATER = "beyond the copies of one answer"
_REASONS = {
    reader_child.LATER: _LATER,
    reader_child.TOO_MANY: f"more than {reader_child.MAX_MAPPINGS:,} executable mappings",
    reader_child.NOT_REGULAR: "not a regular file",
    reader_child.TOO_LARGE: f"larger than {reader_child.MAX_COPY_BYTES >> 20} MiB, and reading it may block",
    reader_child.OF_KERNEL: "a file of the kernel",
    reader_child.REPLACED: "replaced on disk since it was started (run as root to read it)",
}


class Unreadable(PowerprofError):
    """An error for a process that has ended or could not be read. `errno` is the kernel's, if there is one."""

    def __init__(self, message: str, number: int = 0, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, hint)
        self.errno = number
        # The same in a few words, for one file.
        self.reason = reason or message


class _TooLateError(Exception):
    """The child got too little CPU time to answer."""


# A mapping: start, end, inode, path.
Place = tuple[int, int, int, str]


class FileStatus(msgspec.Struct, frozen=True):
    """The status of a file, as stat(2) returns it."""

    size_bytes: int
    mtime_ns: int
    device: int
    inode: int
    uid: int
    gid: int
    mode: int
    stored_bytes: int
    # The file is in memory, because another process may block readers. No other process can be traced by it.
    is_copy: bool

    @property
    def is_trusted(self) -> bool:
        """Whether only root or we can have written it."""
        return not self.is_copy and self.uid in (0, os.geteuid()) and not self.mode & 0o022

    @property
    def key(self) -> str:
        """Return the key of this version of this file in the caches."""
        return f"{self.device:x}-{self.inode:x}-{self.size_bytes:x}-{self.mtime_ns:x}"


class Opened(FileStatus, frozen=True):
    """An open regular file; a context manager that closes it. Reads of `fd` wait for no other process."""

    fd: int

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


class ReaderProcess(Closeable):
    """Sends requests to a child, which starts with the first request. `shared()` returns this process's reader."""

    def __init__(self) -> None:
        self.waits = ReaderWaits()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._asked_s = time.monotonic()
        # Received descriptors and bytes.
        self._received: list[int] = []
        self._buffer = bytearray()
        self._lock = threading.RLock()

    def maps(self, pid: int) -> tuple[bytes, bytes | None]:
        """Return the executable mappings as lines of /proc/PID/maps, and the vdso. Raise Unreadable."""
        parts = {part[:1]: part[1:] for part in self._request(pid, "maps", _base(pid))}
        if b"m" not in parts:
            raise Unreadable(f"process {pid} cannot be read")
        return parts[b"m"], parts.get(b"v")

    def stacks(self, pid: int, meanwhile: Callable[[], object]) -> list[tuple[int, int, int, bytes]]:
        """Return (tid, ip, sp, bytes from sp up) of each blocked thread. Raise Unreadable.

        `meanwhile` is called after each thread and must not send requests.
        """
        record = reader_child.RECORD
        stacks = []
        for part in self._request(pid, "stacks", _base(pid), meanwhile=meanwhile):
            if part[:1] == b"s":
                stacks.append((*record.unpack_from(part, 1), part[1 + record.size :]))
        return stacks

    def memory(self, pid: int, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the readable bytes of each (address, size) of a process: all, some, or none. Raise Unreadable."""
        contents: list[bytes] = []
        for first in range(0, len(places), _MAX_PLACES):
            batch = places[first : first + _MAX_PLACES]
            words = (f"{address}:{size}" for address, size in batch)
            parts = [part[1:] for part in self._request(pid, "memory", _base(pid), *words) if part[:1] == b"d"]
            if len(parts) != len(batch):
                raise Unreadable(f"process {pid} cannot be read")
            contents += parts
        return contents

    def open_in_root(self, pid: int, root: Path, path: str, *, follow: bool = True) -> Opened | str:
        """Open a regular file by its name inside `root` (`/proc/PID/root`); the reason if that fails.

        Symbolic links, absolute ones too, are resolved inside of the root; with `follow` False the file itself must
        not be one. `pid` is the process that chose the name.
        """
        base, inside = (root.parent, root.name) if process_of(root) else ("/proc/self", root)
        return self._files(pid, 1, "file", _word(base), _word(inside), _word(path), str(int(follow)))[0]

    def open_mapped(self, pid: int, place: Place) -> Opened | str:
        """Open the very file that a process has mapped; the reason if that fails."""
        return self._mapped(pid, [place])[0]

    def open_all_mapped(self, pid: int, places: Sequence[Place]) -> Iterator[Opened | str]:
        """Yield the files as `open_mapped` returns them, and close them."""
        for first in range(0, len(places), _MAX_FILES):
            batch = places[first : first + _MAX_FILES]
            with ExitStack() as stack:
                files_opened = self._mapped(pid, batch)
                for file in files_opened:
                    if isinstance(file, Opened):
                        stack.enter_context(file)
                for place, file in zip(batch, files_opened, strict=True):
                    # The copies of one answer are limited, and these are not in use any more.
                    again = self.open_mapped(pid, place) if file == _LATER else file
                    with again if isinstance(again, Opened) and again is not file else nullcontext():
                        yield again

    def _mapped(self, pid: int, places: Sequence[Place]) -> list[Opened | str]:
        words = [f"{start:x}-{end:x}:{inode}:{_word(path)}" for start, end, inode, path in places]
        return self._files(pid, len(places), "mapped", _base(pid), *words)

    def _files(self, pid: int, count: int, verb: str, *words: str) -> list[Opened | str]:
        results: list[Opened | str] = []
        with self._lock:
            try:
                for part in self._request(pid, verb, *words):
                    if part[:1] == b"f":
                        results.append(Opened(*(*reader_child.FILE.unpack(part[1:]), self._received.pop(0))))
                    elif part[:1] == b"n":
                        results.append(_word_reason(struct.unpack("<i", part[1:])[0]))
            except Unreadable as error:
                return [error.reason] * count
        return results if len(results) == count else ["not a regular file"] * count

    def status(self, path: Path, *, follow: bool = True) -> FileStatus | None:
        """Return the status of a file; None if it cannot be read."""
        try:
            parts = self._request(process_of(path), "status", _word(path), str(int(follow)))
        except Unreadable:
            return None
        return FileStatus(*reader_child.FILE.unpack(parts[0][1:]))

    def read(self, pid: int, path: Path, most_bytes: int, *, from_end: bool = False) -> bytes | None:
        """Return the first or last bytes of a regular file; None if it cannot be read.

        `pid` is the process that chose the path.
        """
        try:
            parts = self._request(pid, "read", _word(path), str(most_bytes), str(int(from_end)))
        except Unreadable:
            return None
        return b"".join(part[1:] for part in parts)

    def proc_file(self, pid: int, name: str, most_bytes: int, *, of_thread: bool = False) -> bytes | None:
        """Return the first bytes of a file such as `cmdline` in the folder of a process; None if it cannot be read.

        A read of such a file may wait for the memory map of the process, or for its exec. With `of_thread`, `pid` may
        be a thread, and the file is that of the thread even if it has ended.
        """
        base = _word(procfs() / str(pid)) if of_thread else _base(pid)
        try:
            return self._request(pid, "proc_file", base, _word(name), str(most_bytes))[0][1:]
        except Unreadable:
            return None

    def passwd(self, pid: int) -> bytes | None:
        """Return /etc/passwd of a process's root; None if it has none that only root can have put there."""
        try:
            return self._request(pid, "passwd", _base(pid))[0][1:]
        except Unreadable:
            return None

    def names(self, root: Path, folder: str, most: int) -> list[str] | None:
        """Return the names in a folder inside of a root; None if it cannot be read."""
        try:
            parts = self._request(process_of(root), "names", _word(root), _word(folder), str(most))
        except Unreadable:
            return None
        return [os.fsdecode(name) for name in parts[0][1:].split(b"\0") if name]

    def open_files(self, pid: int) -> dict[tuple[int, int], str]:
        """Return the paths of the files that a process has open, by (device, inode)."""
        try:
            parts = self._request(pid, "open_files", _base(pid))
        except Unreadable:
            return {}
        size = reader_child.LINK.size
        links = (((*reader_child.LINK.unpack_from(part, 1),), part[1 + size :]) for part in parts)
        return {(device, inode): name.decode("utf-8", "replace") for (device, inode), name in links}

    def connect(self, path: Path) -> socket.socket:
        """Connect to the unix socket of a process. Raises OSError."""
        with self._lock:
            try:
                self._request(process_of(path), "connect", _word(path))
            except Unreadable as error:
                raise OSError(error.errno, error.reason) from error
            return socket.socket(fileno=self._received.pop(0))

    def real_path(self, pid: int, path: str) -> Path:
        """Return a path without symbolic links; the same path if that fails. `pid` is the process that chose it."""
        with suppress(Unreadable):
            return Path(os.fsdecode(self._request(pid, "real_path", _word(path))[0][1:]))
        return Path(path)

    def charge(self, pid: int, worked_s: float) -> None:
        """Count CPU time of this process for what it read of a process."""
        with self._lock:
            self.waits.add(_is_read_as_person(pid), 0.0, worked_s)

    def rest(self, after_s: float) -> None:
        """End a child that has been idle for `after_s` seconds. Its memory costs more than a new start."""
        if time.monotonic() - self._asked_s >= after_s:
            self.close()

    def close(self) -> None:
        """End the child, or abandon it if it waits for another process."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                self._hang_up()
                _end(child)
            self._abandoned = [left for left in self._abandoned if left.poll() is None]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the child to a fork of this process. No thread of this process may use it within the block."""
        with self._lock:
            self._ensure_child()
            yield

    def take_back(self, waits: ReaderWaits | None) -> None:
        """Take the child back from an ended fork, with the fork's waits.

        None if the fork ended with an error: the child may then be in the middle of an answer.
        """
        if waits is None or waits != self.waits:
            self._abandon()
        if waits is not None:
            self.waits = waits

    def _request(self, pid: int, verb: str, *words: str, meanwhile: Callable[[], object] = lambda: None) -> list[bytes]:
        """Return the parts of an answer. Received descriptors are in `_received`. Raise Unreadable."""
        with self._lock:
            is_person = _is_read_as_person(pid)
            if self.waits.is_left_out(pid, is_person):
                why = "it or others kept their reader waiting or busy"
                raise Unreadable(f"process {pid} is not looked at: {why}", reason=f"not read: {why}")
            for descriptor in self._received:
                os.close(descriptor)
            self._received.clear()
            parts: list[bytes] = []
            self._asked_s = time.monotonic()
            child = self._ensure_child()
            sleep = ChildSleep(child.pid)
            patience = 1.0 if is_person else _PATIENCE_WITH_SYSTEM
            patience = _PATIENCE_AFTER_SIGNAL if signals.has_arrived() else patience
            try:
                for part in self._receive_parts(child, " ".join((verb, *words)).encode() + b"\n", sleep, patience):
                    parts.append(part)
                    meanwhile()
            except _TooLateError as error:
                self._abandon()
                raise Unreadable(
                    f"process {pid} could not be read in time: this host left its reader no CPU for {LATEST_S:g} s",
                    hint="try again when the host is less busy",
                    reason="not read: this host is too busy",
                ) from error
            except OSError as error:
                self.waits.add(is_person, sleep.slept_s(), left_behind=1)
                self.waits.leave_out(pid)
                self._abandon()
                raise Unreadable(
                    f"process {pid} could not be read in time: it kept a reader of its memory or files waiting",
                    reason="it kept its reader waiting",
                ) from error
            except BaseException:
                # After an interrupt, the rest of the answer would be read as the next answer.
                self._abandon()
                raise
            worked_s, slept_s = reader_child.USAGE.unpack(parts.pop()[1:])
            self.waits.add(is_person, slept_s if slept_s > _LEAST_SLEEP_S else 0.0, worked_s)
            if parts and parts[-1][:1] == b"e":
                number = struct.unpack("<i", parts[-1][1:])[0]
                why = _word_reason(number)
                raise Unreadable(f"process {pid} cannot be read ({why})", max(number, 0), reason=why)
            return parts

    def _receive_parts(
        self, child: subprocess.Popen[bytes], request: bytes, sleep: ChildSleep, patience: float
    ) -> Iterator[bytes]:
        if self._channel is None:
            raise BrokenPipeError
        self._channel.sendall(request)
        end_s = time.monotonic() + LATEST_S
        remaining = _MAX_BYTES
        while True:
            size = struct.unpack("<I", self._receive(child, 4, sleep, end_s, patience))[0]
            if not size:
                yield b"u" + self._receive(child, reader_child.USAGE.size, sleep, end_s, patience)
                return
            remaining -= size
            if remaining < 0:
                raise TimeoutError
            part = self._receive(child, size, sleep, end_s, patience)
            if part != b"k":
                yield part

    def _receive(
        self, child: subprocess.Popen[bytes], size: int, sleep: ChildSleep, end_s: float, patience: float
    ) -> bytes:
        if self._channel is None:
            raise BrokenPipeError
        waited = None
        while len(self._buffer) < size:
            is_over = time.monotonic() >= end_s
            if is_over or not descriptors.readable([self._channel.fileno()], _LOOK_S):
                waited = waited or ChildSleep(child.pid)
                if waited.slept_s() >= patience * PATIENCE_S or sleep.slept_s() >= patience * ANSWER_S:
                    raise TimeoutError
                if is_over:
                    raise _TooLateError
                continue
            # A receive ends after the first part with a descriptor.
            most_bytes = min(max(size - len(self._buffer), 1 << 16), 1 << 20)
            part, control, flags, _ = self._channel.recvmsg(most_bytes, _CONTROL_BYTES, _MSG_CMSG_CLOEXEC)
            self._received += [struct.unpack("i", words)[0] for _, _, words in control]
            if flags & socket.MSG_CTRUNC:
                # A descriptor was lost (unix(7)).
                raise open_files.explain_shortage()
            if not part:
                raise BrokenPipeError
            self._buffer += part
            waited = None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _ensure_child(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._has_hung_up():
            # The child dies with the thread that started it.
            self._abandoned.append(self._child)
            self._child = None
            self._hang_up()
        if self._child is None:
            argv = programs.python_command(reader_child.__file__, site=False)
            ours, theirs = socket.socketpair()
            with theirs:
                child = programs.start(argv, stdin=theirs.fileno(), stdout=theirs.fileno())
            self._channel = ours
            if not descriptors.readable([ours.fileno()], _START_S):
                self._hang_up()
                _end(child)
                raise PowerprofError(
                    "the child that reads other processes did not start",
                    "the host may be too busy: try again when it is idle",
                )
            ours.recv(4)
            self._child = child
        return self._child

    def _has_hung_up(self) -> bool:
        try:
            return self._channel is None or not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._buffer.clear()
        for descriptor in self._received:
            os.close(descriptor)
        self._received.clear()

    def _abandon(self) -> None:
        """Kill the child without waiting for its end: the signal takes effect when its sleep in the kernel ends."""
        child, self._child = self._child, None
        self._hang_up()
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            self._abandoned.append(child)


@cache
def shared() -> ReaderProcess:
    """Return the reader of this process."""
    return ReaderProcess()


def link_of(path: Path | str) -> str | None:
    """Return the target of a link of /proc/PID, whatever bytes it has; None if it cannot be read.

    The kernel keeps the name: no file system is asked.
    """
    try:
        return os.fsdecode(os.readlink(path)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except OSError:
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Close a child by the end of its channel, or kill it. Do not wait any longer."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
        return
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)


def _word_reason(number: int) -> str:
    return _REASONS.get(number) or errors.reason_of(OSError(number, os.strerror(number)))


def account_of_process(pid: int) -> int:
    """Return the highest account that a process may act as, because other accounts can run root's programs."""
    if not pid:
        return 0
    return max(account_ids(pid), default=_UNKNOWN)


def _is_read_as_person(pid: int) -> bool:
    """Return whether the limits of people apply to a process."""
    return not is_system_account(account_of_process(pid))


def is_of_person(pid: int) -> bool:
    """Return whether a process may act as an account other than ours that is not a system account."""
    uids = set(account_ids(pid)) - {os.geteuid()}
    return any(not is_system_account(uid) for uid in uids)


def account_ids(pid: int) -> list[int]:
    """Return the accounts that a process acts as: real, effective, saved, of its file accesses; empty if it ended."""
    # Root owns /proc/PID itself if the program may not be read, so the owner of the folder says nothing.
    uids = (whole(word) for word in files.read_fields(procfs() / str(pid) / "status").get("Uid", "").split())
    return [uid for uid in uids if uid is not None]


def process_of(path: Path) -> int:
    """Return the process through which a path leads (/proc/PID/…); 0 if there is none."""
    try:
        number = path.relative_to(procfs()).parts[0]
    except (ValueError, IndexError):
        return 0
    return whole(number) or 0


def _base(pid: int) -> str:
    return _word(process_folder(pid))


def _word(path: Path | str) -> str:
    return "x" + os.fsencode(path).hex()
