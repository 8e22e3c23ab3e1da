# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, or gets full: one line says so, and what was measured is kept."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli, CliResult

pytestmark = pytest.mark.usefixtures("root", "mariadbd")

IDLE = ["idle", "--clients", "2", "--duration", "0.2", "--repeat", "2", "--meter", "none"]
# The shell becomes powerprof in a mount namespace that ends with it, so that no mount can be left.
_MOUNTED = 'mount -t tmpfs -o "size=$1,mode=755" tmpfs "$2" && shift 2 && exec "$@"'


@dataclass
class SmallDisk:
    """A file system of a few MiB that one powerprof sees at `place`, and nobody else."""

    cli: Cli
    place: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, size: str, variable: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start powerprof with `variable` (TMPDIR, XDG_…_HOME) leading there."""
        inside = ["sh", "-c", _MOUNTED, "sh", size, self.place, sys.executable, "-m", "powerprof", *words]
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", *inside],
            env=self.cli.environment({variable: str(self.place), **environment}),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.started.append(process)
        return process

    def fill(self, process: subprocess.Popen[str]) -> None:
        """Take all the room that is left, through the process's own view."""
        handle = os.open(f"/proc/{process.pid}/root{self.place}/ballast", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for size in (1 << 20, 4096):
                while True:
                    os.write(handle, b"\0" * size)
        except OSError as error:
            assert error.errno == errno.ENOSPC
        finally:
            os.close(handle)

    def seen(self, process: subprocess.Popen[str], pattern: str) -> bool:
        """Whether a file of this name is there for the process."""
        return any(Path(f"/proc/{process.pid}/root{self.place}").glob(pattern))

    def runs(self) -> list[list[str]]:
        """Names of the phases with windows of each saved run."""
        folder = self.cli.home / "state/powerprof/runs"
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/run.json"))]
        return [[phase["name"] for phase in one["phases"] if phase["windows"]] for one in found]


@pytest.fixture
def disk(powerprof_cli: Cli) -> Iterator[SmallDisk]:
    # The server's account has to reach its own folder, and pytest's folders are closed to it.
    place = Path(tempfile.mkdtemp(prefix="small-", dir="/tmp"))
    place.chmod(0o755)
    small = SmallDisk(powerprof_cli, place)
    yield small
    for process in small.started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)
    place.rmdir()


def ended(process: subprocess.Popen[str]) -> CliResult:
    out, err = process.communicate(timeout=300)
    return CliResult(process.returncode, out, err)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)


def check_said_in_one_line(done: CliResult, reason: str) -> None:
    lines = done.err.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith("note: ")] in (["error"], ["error", "hint"])
    assert reason in next(line for line in lines if line.startswith("error: "))
    assert "Traceback" not in done.err


def test_a_server_without_room_for_its_data(disk: SmallDisk) -> None:
    done = ended(disk.start("20m", "TMPDIR", *IDLE))
    assert done.code == 1
    check_said_in_one_line(done, f"not enough room for a server in {disk.place} (20 MiB free, ")


def test_a_cache_without_room_keeps_the_baseline(disk: SmallDisk) -> None:
    done = ended(disk.start("1m", "XDG_CACHE_HOME", *IDLE))
    assert done.code == 1
    check_said_in_one_line(done, "no space left on device")
    assert disk.runs() in ([], [["baseline"]])


def test_a_store_without_room_shows_the_report_all_the_same(disk: SmallDisk) -> None:
    done = ended(disk.start("4k", "XDG_STATE_HOME", "residency", "--duration", "0.05"))
    assert done.code == 0
    assert done.err.splitlines() == [
        f"note: the run will not be saved: cannot save the run in {disk.place}/powerprof/runs (no space left on device)"
    ]
    assert done.out.startswith("The CPUs ran ")


# A server that makes its data waits for room, and is given up after three minutes.
@pytest.mark.nightly
@pytest.mark.parametrize("pattern", ["powerprof-*", "powerprof-*/**/ibdata1", "powerprof-*/**/*.sock"])
def test_a_disk_that_fills_while_the_server_starts_or_runs(disk: SmallDisk, pattern: str) -> None:
    process = disk.start("400m", "TMPDIR", *IDLE)
    until(lambda: disk.seen(process, pattern), process)
    disk.fill(process)
    done = ended(process)
    assert "Traceback" not in done.err
    if done.code != 0:  # an idle server writes nothing: once it has started it may well come through
        check_said_in_one_line(done, "")
        assert "not enough room for a server" in done.err or "no space left" in done.err.lower(), done.err
    assert disk.runs() and disk.runs()[0][0] == "baseline"


@pytest.mark.nightly
def test_a_store_that_fills_while_measuring_has_kept_room_for_the_run(disk: SmallDisk) -> None:
    process = disk.start("2m", "XDG_STATE_HOME", *IDLE)
    until(lambda: disk.seen(process, "powerprof/runs/*"), process)
    disk.fill(process)
    done = ended(process)
    assert (done.code, done.err) == (0, "")
    assert "Saved as idle-0001." in done.out
