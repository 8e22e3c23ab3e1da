# SPDX-License-Identifier: Apache-2.0
"""Try to reach what a sandbox must keep out of reach, and print the attempts that succeeded.

Its argument is a JSON object: paths to `read`, folders to `list` and to `write` in, TCP and UDP ports of 127.0.0.1,
unix sockets and names of abstract ones, and the pid of another process of the same account. It uses the standard
library alone, so that the host's interpreter runs it in the sandbox.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable


def connect(family: int, address: "str | tuple[str, int]") -> None:
    """Connect a stream socket. Raises OSError."""
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(3)
        client.connect(address)


def send(port: int) -> None:
    """Send one datagram. Raises OSError, also if no process listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        client.connect(("127.0.0.1", port))
        client.send(b"x")
        with contextlib.suppress(TimeoutError):
            client.recv(1)


def read(path: str) -> None:
    """Read one byte of a file. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123
        file.read(1)


def create(folder: str) -> None:
    """Create a file. Raises OSError."""
    with open(os.path.join(folder, f"made-by-{os.getpid()}"), "wb"):  # noqa: PTH118, PTH123
        pass


TRIES: "dict[str, Callable[..., object]]" = {
    "read": read,
    "list": os.listdir,
    "write": create,
    "tcp": lambda port: connect(socket.AF_INET, ("127.0.0.1", port)),
    "unix": lambda path: connect(socket.AF_UNIX, path),
    "abstract": lambda name: connect(socket.AF_UNIX, "\0" + name),
    "udp": send,
    "signal": lambda pid: os.kill(pid, signal.SIGCONT),
    "environment": lambda pid: read(f"/proc/{pid}/environ"),
}


def main() -> None:
    """Print {"uid": …, "reached": […]}."""
    reached = []
    for kind, targets in json.loads(sys.argv[1]).items():
        for target in targets:
            try:
                TRIES[kind](target)
            except OSError:
                continue
            reached.append(f"{kind} {target}")
    print(json.dumps({"uid": os.getuid(), "reached": reached}))


if __name__ == "__main__":
    main()
