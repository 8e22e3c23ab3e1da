# SPDX-License-Identifier: Apache-2.0
"""A network namespace for each server: its own interface, interrupts and bytes.

The namespaces have no name: they exist as long as powerprof or a server in them does, so that nothing can stay
behind, whatever is killed. A further namespace holds the bridge that joins them; the host's own is not touched.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from powerprof.database.isolation import sandbox
from powerprof.system import programs
from powerprof.system.child import Say, apart, map_account
from powerprof.system.closeable import Closeable
from powerprof.system.errors import CapabilityError, PowerprofError, UsageError

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # include/uapi/linux/{sockios,if}.h
_OWN_USER = "/proc/thread-self/ns/user"
_MAKING_S = 20.0
_OWN = "/proc/thread-self/ns/net"
BRIDGED_PORT = 3306


def find_refusal() -> str | None:
    """Why this host cannot give servers a network of their own; None where it can."""
    if programs.which("ip") is None:
        return "ip is not installed (apt install iproute2)"
    if os.geteuid() != 0:
        return "it needs root"
    return None


@contextlib.contextmanager
def enter_namespace(namespace: int | None) -> Iterator[None]:
    """The calling thread, and what it starts meanwhile, is in that namespace; None is where it is already."""
    if namespace is None:
        yield
        return
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", namespace, _CLONE_NEWNET)
        yield
    finally:
        _call("setns", home, _CLONE_NEWNET)
        os.close(home)


def _call(name: str, *arguments: int) -> None:
    # os.setns and os.unshare came with Python 3.12.
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        raise CapabilityError(f"cannot use network namespaces ({name}: {reason})", "run as root")


class LoopbackNetwork(Closeable):
    """A network with a loopback device alone, for the servers and clients of one run. No other process is in it.

    `handles` are the namespaces to join: a network namespace, and without root before it the user namespace that owns
    it. They are empty if this host allows no namespaces.
    """

    _FIRST_PORT = 20_000

    def __init__(self) -> None:
        self.handles: tuple[int, ...] = ()
        self._ports = 0

    def _open(self) -> None:
        if not sandbox.has_namespaces():
            return
        if os.geteuid() == 0:
            self.handles = (_new(_raise_loopback),)
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:

            def work(say: Say) -> None:
                uid, gid = os.geteuid(), os.getegid()
                _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
                map_account(uid, gid)
                _raise_loopback()
                own = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in (_OWN_USER, _OWN)]
                theirs.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", own))])

            if not apart(work, _MAKING_S).ended:
                raise PowerprofError("cannot make a network for private servers", "run as root")
            self.handles = tuple(socket.recv_fds(ours, 1, 2)[1])

    def next_port(self) -> int:
        """Return a port that no server of this network has."""
        self._ports += 1
        return self._FIRST_PORT + self._ports

    def close(self) -> None:
        """Close the namespaces; the kernel removes each with its last process."""
        for handle in self.handles:
            os.close(handle)
        self.handles = ()


def _raise_loopback() -> None:
    """Set up the loopback device of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(handle, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


class BridgedNetwork(Closeable):
    """`with Network(3) as network:` joins three namespaces by a bridge.

    `network.namespaces[i]` is a file descriptor for `inside`, `network.addresses[i]` the IPv4 address there.
    Raises CapabilityError where the host cannot, PowerprofError where `ip` fails, UsageError for too many.
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
        self._bridge.append(_new())
        for _ in range(self.count):
            self.namespaces.append(_new())
        self._connect()

    def _connect(self) -> None:
        here = f"/proc/{os.getpid()}/fd"
        # Multicast snooping would run timers of its own.
        lines = ["link add switch type bridge stp_state 0 mcast_snooping 0", "link set switch up"]
        for number, namespace in enumerate(self.namespaces):
            lines += [
                f"link add port{number} type veth peer name eth0 netns {here}/{namespace}",
                f"link set port{number} master switch up",
            ]
        _ip(self._bridge[0], lines)
        for address, namespace in zip(self.addresses, self.namespaces, strict=True):
            _ip(namespace, ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"])

    def close(self) -> None:
        """Let go of the namespaces; the kernel removes each with its last process."""
        for handle in [*self.namespaces, *self._bridge]:
            os.close(handle)
        self.namespaces.clear()
        self._bridge.clear()


def _new(furnish: Callable[[], None] = lambda: None) -> int:
    """A new namespace, held by a file descriptor only; `furnish` is called in it."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            # IPv6 would look for neighbours and routers by timer.
            for which in ("all", "default"):
                with contextlib.suppress(OSError):
                    Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
            furnish()
            return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def _ip(namespace: int, lines: Sequence[str]) -> None:
    with enter_namespace(namespace):
        programs.run([programs.need("ip", "iproute2"), "-batch", "-"], stdin="\n".join(lines) + "\n", timeout_s=20)
