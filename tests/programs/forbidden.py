# SPDX-License-Identifier: Apache-2.0
"""A host with everything that a sandbox must keep out of reach, and the question whether a sandbox does."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerprof.database import sandbox
from powerprof.system import programs

_PROBE = Path(__file__).with_name("probe.py").read_text()
PYTHON = next(path for path in ("/usr/bin/python3", str(Path(sys.executable).resolve())) if Path(path).exists())


@dataclass(frozen=True)
class Forbidden:
    """Files for everybody, listening sockets and a process of the servers' account, none of them a sandbox's business.

    `targets` is what the probe is told.
    """

    place: Path
    secret: Path
    tcp: socket.socket
    unix: socket.socket
    targets: Mapping[str, list[Any]]

    @property
    def port(self) -> int:
        """The TCP port that listens on the host's loopback."""
        return int(self.tcp.getsockname()[1])

    def was_reached(self) -> bool:
        """Return whether anybody connected to one of its sockets."""
        for listener in (self.tcp, self.unix):
            listener.setblocking(False)
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                continue
            return True
        return False

    def reached_from(self, confinement: Any) -> dict[str, Any]:
        """Run the probe in that confinement, under the servers' account: its uid and what it reached."""
        done = programs.run(
            [PYTHON, "-I", "-S", "-c", _PROBE, json.dumps(self.targets)],
            user=sandbox.choose_user(None),
            confinement=confinement,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@contextmanager
def forbidden() -> Iterator[Forbidden]:
    """Make it, and remove it at the end."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forbidden-", dir="/tmp"))
        stack.callback(shutil.rmtree, place)
        place.chmod(0o777)
        secret = place / "secret"
        secret.write_text("kept apart\n")
        secret.chmod(0o644)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        unix.bind(str(place / "socket"))
        (place / "socket").chmod(0o777)
        name = f"forbidden-{secrets.token_hex(4)}"
        abstract.bind("\0" + name)
        for listener in (unix, abstract):
            listener.listen()
        other = programs.start(["sleep", "600"], user=sandbox.choose_user(None))
        stack.callback(programs.stop, other)
        targets = {
            "read": [str(secret), "/etc/shadow", "/etc/fstab", "/root/.profile", f"{Path.home()}/.ssh/known_hosts"],
            "list": [str(place), "/root", "/home", "/var/lib/mysql", "/run", "/tmp"],
            "write": [str(place), "/tmp", "/dev/shm", "/var/tmp"],
            "tcp": [tcp.getsockname()[1]],
            "udp": [udp.getsockname()[1]],
            "unix": [str(place / "socket")],
            "abstract": [name],
            "signal": [other.pid],
            "environment": [other.pid],
        }
        yield Forbidden(place, secret, tcp, unix, targets)


def is_confined(pid: int) -> list[str]:
    """Return what a running process has that no confined one may have; empty for one that is confined."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    found = []
    if "0" in status["Uid"].split() + status["Gid"].split():
        found.append("root")
    if int(status["CapEff"], 16) or int(status["CapPrm"], 16) or status["NoNewPrivs"] != "1":
        found.append("rights to gain")
    for name in ("mnt", "net"):
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            found.append(f"the host's {name} namespace")
    seen = set(os.listdir(f"/proc/{pid}/root"))
    found += sorted(seen & {"root", "home", "run", "var", "srv", "mnt", "boot"})
    return found
