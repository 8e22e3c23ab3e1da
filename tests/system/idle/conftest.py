# SPDX-License-Identifier: Apache-2.0
"""`powerprof idle` in a folder of its own with a filled cache, and one run of it for every test of its report."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, CliResult
from tests.system.database.conftest import Room
from tests.system.idle.ending import Idle


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, mariadbd: Path) -> Path:
    """A cache with the server's template and kernel headers."""
    cli = Cli(tmp_path_factory.mktemp("warm"), shared_cache)
    words = ["idle", "--clients", "0", "--duration", "0.05", "--repeat", "2", "--meter", "none", "--no-save"]
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


@dataclass(frozen=True)
class Measured:
    """How the command ended, its JSON, and the command line tool whose home has the saved run."""

    result: CliResult
    run: dict[str, Any]
    cli: Cli

    def phase(self, name: str) -> dict[str, Any]:
        """One phase by its name."""
        return next(phase for phase in self.run["phases"] if phase["name"] == name)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, mariadbd: Path, root_bpf: None) -> Measured:
    """16 silent clients on a private server, causes traced, JSON on stdout."""
    cli = Cli(tmp_path_factory.mktemp("idle"), shared_cache)
    done = cli(["idle", "--clients", "16", "--duration", "1", "--repeat", "2", "--json", "-"])
    assert done.code == 0, done.err
    return Measured(done, json.loads(done.out), cli)
