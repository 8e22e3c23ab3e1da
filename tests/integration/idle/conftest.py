# SPDX-License-Identifier: Apache-2.0
"""`powerprof idle` in a room of its own; what it needs of the cache is made once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.integration.database.conftest import Room
from tests.integration.idle.ending import Idle


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, mariadbd: Path) -> Path:
    """A cache with the server's template and kernel headers."""
    cli = Cli(tmp_path_factory.mktemp("warm"), shared_cache)
    words = ["idle", "--clients", "0", "--duration", "0.05", "--repeat", "2", "--energy-source", "none", "--no-save"]
    done = cli(words)
    assert done.code == 0, done.err
    return shared_cache


@pytest.fixture
def own_room() -> Iterator[Room]:
    """A TMPDIR that the server's user may enter."""
    path = Path(tempfile.mkdtemp(prefix="room-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield Room(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def idle(powerprof_cli: Cli, own_room: Room, warm_cache: Path) -> Iterator[Callable[[Sequence[str]], Idle]]:
    """`idle(["--clients", "3"])` starts it with short phases."""
    started: list[subprocess.Popen[str]] = []

    def start(args: Sequence[str] = ()) -> Idle:
        running = Idle.start(powerprof_cli, own_room, warm_cache, args)
        started.append(running.process)
        return running

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
