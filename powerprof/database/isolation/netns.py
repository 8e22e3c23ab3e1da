# SPDX-License-Identifier: Apache-2.0
"""A network namespace for each server: its own interface, interrupts and bytes.

The namespaces have no name: they exist as long as powerprof or a server in them does, so that nothing can stay
behind, whatever is killed. A further namespace holds the bridge that joins them; the host's own is not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from powerprof import programs
from powerprof.closeable import Closeable
from powerprof.errors import CapabilityError, UsageError

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"
PORT = 3306


def refusal() -> str | None:
    """Why this host cannot give servers a network of their own; None where it can."""
    if programs.which("ip") is None:
        return "ip is not installed (apt install iproute2)"
    if os.geteuid() != 0:
        return "it needs root"
    return None


@contextlib.contextmanager
def inside(namespace: int | None) -> Iterator[None]:
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


class Network(Closeable):
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
        reason = refusal()
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


def _new() -> int:
    """A new namespace, held by a file descriptor only."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            # IPv6 would look for neighbours and routers by timer.
            for which in ("all", "default"):
                with contextlib.suppress(OSError):
                    Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
            return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def _ip(namespace: int, lines: Sequence[str]) -> None:
    with inside(namespace):
        programs.run([programs.need("ip", "iproute2"), "-batch", "-"], stdin="\n".join(lines) + "\n", timeout_s=20)
