# SPDX-License-Identifier: Apache-2.0
"""A private temporary tree with its programs, networks and disk limits, removed on every exit path."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from powerprof.database import janitor, sandbox
from powerprof.system import descriptors, program_search, programs
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError
from powerprof.system.folders import only_root_writes
from powerprof.system.fork import SendPart, run_in_fork
from powerprof.system.next_steps import system_command
from powerprof.system.sandbox import map_account

BRIDGED_PORT = 3306
_PATIENCE_S = 20.0
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # include/uapi/linux/{sockios,if}.h
_USER_NAMESPACE, _NETWORK_NAMESPACE = "/proc/thread-self/ns/user", "/proc/thread-self/ns/net"


class RunTree(Closeable):
    """A directory `powerprof-XXXXXXXXXXXX` with mode 0700 below $TMPDIR or /tmp; use it as a context manager.

    When the block ends, programs started with `tree.mark` are killed and the directory is removed. The janitor
    process does it if powerprof is killed. powerprof does it if the janitor was killed. Raises PowerprofError if the
    directory cannot be created.
    """

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._janitor: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._path: Path | None = None
        self._lock: int | None = None
        self._network: LoopbackNetwork | None = None
        self._extra: list[Path] = []

    @property
    def path(self) -> Path:
        """The directory."""
        if self._path is None:
            raise RuntimeError("the private directory is not there (outside its with block)")
        return self._path

    @property
    def mark(self) -> int:
        """The mark of the programs of this tree (`sandbox.start`)."""
        return janitor.mark_of(str(self.path))

    @property
    def network(self) -> LoopbackNetwork:
        """The network of the servers and clients of this tree, created on first use. Raises PowerprofError."""
        if self._network is None:
            self._network = LoopbackNetwork()
            self._network.__enter__()
        return self._network

    def _open(self) -> None:
        base = choose_base(self._base)
        theirs, self._pipe = os.pipe()
        answer, their_answer = os.pipe()
        try:
            self._janitor = programs.start(
                programs.python_command(janitor.__file__, str(os.getpid()), base, site=False),
                stdin=theirs,
                stdout=their_answer,
                dies_with_us=False,
            )
        finally:
            os.close(theirs)
            os.close(their_answer)
        with os.fdopen(answer, "rb") as stream:
            line = stream.readline() if descriptors.readable([stream.fileno()], _PATIENCE_S) else b""
        if not line.endswith(b"\n") or line.startswith(b"!"):
            reason = line[1:].decode(errors="replace").strip().lower() or "its janitor process did not start"
            raise PowerprofError(
                f"cannot make a private directory in {base} ({reason})",
                "set TMPDIR to a directory that exists and has room",
            )
        self._path = Path(os.fsdecode(line[:-1]))
        # The janitor alone holds the lock until now. If both are killed, the next janitor removes the tree.
        self._lock = janitor.hold(str(self._path))

    def also_remove(self, path: Path) -> None:
        """Remove `path` with the tree unless `keep` is called for it. Call this before the path is created."""
        self._extra.append(path)
        self._notify(b"+" + os.fsencode(path) + b"\n")

    def remove(self, name: str) -> None:
        """Remove a folder of the tree whose programs have ended, such as that of a stopped server."""
        janitor.remove_segments(str(self.path))
        janitor.remove_folder(str(self.path / name))

    def keep(self, path: Path) -> None:
        """Keep `path`: it is complete, or already removed."""
        self._extra.remove(path)
        self._notify(b"-" + os.fsencode(path) + b"\n")

    def _notify(self, line: bytes) -> None:
        if self._pipe is None:
            return
        # A killed janitor breaks the pipe. `close` then cleans up alone.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line)

    def close(self) -> None:
        """Kill the programs of the tree, remove it, and end the janitor."""
        if self._network is not None:
            self._network.close()
            self._network = None
        if self._path is not None:
            janitor.remove_trees([str(self._path), *map(str, self._extra)])
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._janitor is not None:
            try:
                self._janitor.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._janitor.kill()
                self._janitor.wait()
            self._janitor = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        path, self._path = self._path, None
        if path is not None and os.path.lexists(path):
            raise PowerprofError(f"cannot remove {path}", system_command("rm -r {}", path))


def choose_base(given: Path | None = None) -> Path:
    """Return the parent of private directories: `given`, else $TMPDIR. Raise PowerprofError if root may not trust it.

    An account that may rename a tree could redirect every path below it.
    """
    base = given or Path(tempfile.gettempdir())
    unsafe = only_root_writes(base) if os.geteuid() == 0 and base.is_dir() else None
    if unsafe is not None:
        raise PowerprofError(f"cannot make a private directory in {base} ({unsafe})", "set TMPDIR to /tmp")
    return base


def may_enter(path: Path, uid: int, gid: int) -> Path | None:
    """Return the first directory on the way to `path` that this user may not search; None if there is none."""
    for directory in [*reversed(path.absolute().parents), path.absolute()]:
        try:
            info = directory.stat()
        except OSError:
            return directory
        if info.st_uid == uid:
            bit = stat.S_IXUSR
        elif info.st_gid == gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not info.st_mode & bit:
            return directory
    return None


def find_refusal() -> str | None:
    """Return why this host cannot give servers their own networks; None if it can."""
    if program_search.which("ip") is None:
        return "ip is not installed (apt install iproute2)"
    if os.geteuid() != 0:
        return "it needs root"
    return None


@contextlib.contextmanager
def enter_namespace(namespace: int | None) -> Iterator[None]:
    """Move the calling thread, and the programs that it starts, into a namespace for the block; None stays."""
    if namespace is None:
        yield
        return
    home = os.open(_NETWORK_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call_libc("setns", namespace, _CLONE_NEWNET)
        yield
    finally:
        _call_libc("setns", home, _CLONE_NEWNET)
        os.close(home)


def _call_libc(name: str, *arguments: int) -> None:
    # os.setns and os.unshare came with Python 3.12.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        raise CapabilityError(f"cannot use network namespaces ({name}: {reason})", "run as root")


class LoopbackNetwork(Closeable):
    """A network with only a loopback device, for the servers and clients of one run.

    `handles` are the namespaces to join: a network namespace, and without root first the user namespace that owns it.
    They are empty if this host allows no namespaces.
    """

    _FIRST_PORT = 20_000

    def __init__(self) -> None:
        self.handles: tuple[int, ...] = ()
        self._ports = 0

    def _open(self) -> None:
        if not sandbox.has_namespaces():
            return
        if os.geteuid() == 0:
            self.handles = (_open_new_namespace(_raise_loopback),)
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:

            def work(say: SendPart) -> None:
                uid, gid = os.geteuid(), os.getegid()
                _call_libc("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
                map_account(uid, gid)
                _raise_loopback()
                own = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in (_USER_NAMESPACE, _NETWORK_NAMESPACE)]
                theirs.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", own))])

            if not run_in_fork(work, _PATIENCE_S).ended:
                raise PowerprofError("cannot make a network for private servers", "run as root")
            self.handles = tuple(socket.recv_fds(ours, 1, 2)[1])

    def next_port(self) -> int:
        """Return a port that no server of this network uses."""
        self._ports += 1
        return self._FIRST_PORT + self._ports

    def close(self) -> None:
        """Close the namespaces. The kernel removes each with its last process."""
        for handle in self.handles:
            os.close(handle)
        self.handles = ()


def _raise_loopback() -> None:
    """Activate the loopback device of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(handle, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


class BridgedNetwork(Closeable):
    """A group of namespaces joined by a bridge: `with BridgedNetwork(3) as network:`.

    The namespaces have no name. They exist as long as powerprof or a server in them runs, so that none is left behind.
    A further namespace holds the bridge; the host's own is unchanged. `namespaces[i]` is a descriptor for
    `enter_namespace`, `addresses[i]` its IPv4 address. Raises CapabilityError if the host cannot, PowerprofError if
    `ip` fails, UsageError for an invalid count.
    """

    def __init__(self, count: int) -> None:
        if not 1 <= count <= 200:
            raise UsageError(f"{count} network namespaces are not possible", "a topology of 1 to 200 servers")
        self.count = count
        self.namespaces: list[int] = []
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        self._bridge: list[int] = []

    def _open(self) -> None:
        reason = find_refusal()
        if reason is not None:
            raise CapabilityError(f"no network namespaces: {reason}", "run as root, or leave --network-namespaces out")
        self._bridge.append(_open_new_namespace())
        for _ in range(self.count):
            self.namespaces.append(_open_new_namespace())
        self._connect()

    def _connect(self) -> None:
        here = f"/proc/{os.getpid()}/fd"
        # Multicast snooping would run timers.
        lines = ["link add switch type bridge stp_state 0 mcast_snooping 0", "link set switch up"]
        for number, namespace in enumerate(self.namespaces):
            lines += [
                f"link add port{number} type veth peer name eth0 netns {here}/{namespace}",
                f"link set port{number} master switch up",
            ]
        _run_ip(self._bridge[0], lines)
        for address, namespace in zip(self.addresses, self.namespaces, strict=True):
            _run_ip(namespace, ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"])

    def close(self) -> None:
        """Close the namespaces. The kernel removes each with its last process."""
        for handle in [*self.namespaces, *self._bridge]:
            os.close(handle)
        self.namespaces.clear()
        self._bridge.clear()


def _open_new_namespace(prepare: Callable[[], None] = lambda: None) -> int:
    """Return a descriptor of a new namespace after calling `prepare` in it."""
    home = os.open(_NETWORK_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call_libc("unshare", _CLONE_NEWNET)
        try:
            # IPv6 would search for neighbours and routers by timer.
            for which in ("all", "default"):
                with contextlib.suppress(OSError):
                    Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
            prepare()
            return os.open(_NETWORK_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call_libc("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def _run_ip(namespace: int, lines: Sequence[str]) -> None:
    with enter_namespace(namespace):
        programs.run(
            [program_search.need("ip", "iproute2"), "-batch", "-"], stdin="\n".join(lines) + "\n", timeout_s=20
        )
