# SPDX-License-Identifier: Apache-2.0
"""Private servers in a room of their own: TMPDIR is the test's, so that what is left shows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

# What a script needs to behave as the command line does: a signal is an exception, an error is one line.
_PRELUDE = """
import signal, sys
from powerprof.system import signals
from powerprof.system.errors import Interrupted, PowerprofError
signals.install()  # with it an interrupt that Python drops in a destructor comes again
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
def main():
{body}
try:
    main()
except (PowerprofError, Interrupted) as error:
    print(f"error: {{error.message}}", f"hint: {{error.hint}}", sep="\\n", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@dataclass(frozen=True)
class Room:
    """A TMPDIR that the server's user may enter, and the programs that have been started below it."""

    path: Path

    def trees(self) -> list[Path]:
        """Run trees that exist."""
        return list(self.path.glob("powerprof-*"))

    def processes(self) -> list[int]:
        """Processes that belong to a run tree of this room, and janitors that watch over one."""
        found = []
        room = os.fsencode(self.path)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes()
                place = os.fsencode((entry / "cwd").readlink())
            except OSError:
                continue
            janitor = room in words.split(b"\0") and b"janitor.py\0" in words
            # A server names its data, and works there: PostgreSQL overwrites its command line.
            if janitor or room + b"/powerprof-" in words + place:
                found.append(int(entry.name))
        return found

    def wait_empty(self, patience_s: float = 20.0) -> None:
        """Fails where a process or tree is still there after a while: that is the promise that is tested."""
        deadline = time.monotonic() + patience_s
        while self.trees() or self.processes():
            assert time.monotonic() < deadline, f"left: {self.trees()} {self.processes()}"
            time.sleep(0.05)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """TMPDIR for one test; whatever is left in it at the end is a failure."""
    path = Path(tempfile.mkdtemp(prefix="room-", dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    room = Room(path)
    try:
        yield room
        room.wait_empty()
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _cache(request: pytest.FixtureRequest, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched servers are in the account's own cache."""
    if request.node.get_closest_marker("historical") is None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))


Script = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def script(mariadbd: Path) -> Iterator[Script]:
    """`script(body, prefix=(), **environment)` runs Python lines as powerprof would, in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, *, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _PRELUDE.format(body=lines)],
            env={**os.environ, **environment},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
