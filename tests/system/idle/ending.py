# SPDX-License-Identifier: Apache-2.0
"""A `powerprof idle` that is going to be ended by force, and what must be left of it: a saved run and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import Cli
from tests.programs.remains import exists, held_programs
from tests.programs.waiting import wait_until
from tests.system.database.conftest import Room

# Until Python itself is up a signal ends it as it ends any program.
_INTERPRETER_S = 0.5


@dataclass
class Idle:
    """One running `powerprof idle` in a room of its own."""

    cli: Cli
    room: Room
    process: subprocess.Popen[str]
    started_s: float = field(default_factory=time.monotonic)
    programs: set[int] = field(default_factory=set)
    out: str = ""
    err: str = ""

    @classmethod
    def start(cls, cli: Cli, room: Room, cache: Path, args: Sequence[str] = ()) -> Idle:
        """Short phases; the cache has the server's template already."""
        usual = {"--clients": "3", "--duration": "0.2", "--repeat": "2", "--meter": "none"}
        words = ["idle", *(word for pair in usual.items() if pair[0] not in args for word in pair), *args]
        environment = {"TMPDIR": str(room.path), "XDG_CACHE_HOME": str(cache)}
        return cls(cli, room, cli.start(words, environment))

    def children(self) -> dict[str, int]:
        """`server` and `janitor` while they run."""
        found = {}
        for pid in self.room.processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"janitor.py") for word in words):
                found["janitor"] = pid
            elif words[0].endswith((b"mariadbd", b"mysqld")) and b"--no-defaults" in words:
                found["server"] = pid
        return found

    def wait_traced(self) -> set[int]:
        """Until its BPF programs are loaded."""
        return wait_until(lambda: held_programs(self.process.pid), "BPF programs")

    def send(self, number: int, pid: int | None = None) -> None:
        """Note what it holds, then signal it or a child."""
        self.programs |= held_programs(self.process.pid)
        try:
            os.kill(pid or self.process.pid, number)
        except ProcessLookupError:
            assert self.process.poll() is not None or pid is not None

    def end(self) -> int:
        """Wait for its end, and see that nothing but saved runs is left. Returns its exit code."""
        try:
            # On an idle machine some ten seconds; the compiler and the BPF loader starve on an overloaded one.
            self.out, self.err = self.process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.out, self.err = self.process.communicate(timeout=60)
            raise
        self.room.wait_empty()
        assert list(self.room.path.iterdir()) == []
        # The kernel frees a program some time after its last holder has gone (RCU).
        wait_until(lambda: not any(exists("prog_id", one) for one in self.programs), "the end of its BPF programs", 20)
        assert "Traceback" not in self.err
        assert "Warning" not in self.err
        assert "Exception ignored" not in self.err
        return self.process.returncode

    def runs(self) -> list[dict[str, Any]]:
        """The runs that it saved."""
        folder = self.cli.home / "state/powerprof/runs"
        found = sorted(folder.glob("*/run.json")) if folder.exists() else []
        left = list(folder.glob("*/.*")) if folder.exists() else []
        assert left == []
        return [json.loads(path.read_text()) for path in found]


def check_interrupted(idle: Idle, number: int, moment_s: float) -> str:
    """The promises of a SIGINT or SIGTERM at any moment; returns what had been reached."""
    code = idle.end()
    runs = idle.runs()
    if code == -number:
        assert moment_s < _INTERPRETER_S
        return "starting"
    if code == 0:
        # It came too late: the report was out.
        assert len(runs) == 1
        assert not runs[0]["ended"]
        return "done"
    assert code == 130, idle.err
    first = idle.err.splitlines()[0]
    if not runs:
        assert first.startswith("error: interrupted")
        return "nothing measured"
    assert first == "error: interrupted", idle.err
    assert idle.err.splitlines()[1] == f"hint: the measured part is saved as {runs[0]['id']}"
    names = [phase["name"] for phase in runs[0]["phases"]]
    whole = ["baseline", "server", "clients", "baseline-after"]
    assert names == whole[: len(names)]
    # While it is saved a signal waits: that run is whole.
    assert runs[0]["ended"] or names == whole
    assert all(phase["windows"] for phase in runs[0]["phases"])
    return names[-1]
