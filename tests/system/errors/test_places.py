# SPDX-License-Identifier: Apache-2.0
"""Files and directories that cannot be written or read: refused before the measuring where that can be known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli
from tests.programs.unprivileged import as_nobody
from tests.system.errors.conftest import QUICK, Refused


def test_a_runs_directory_of_somebody_else(root: None, tmp_path: Path, powerprof_cli: Cli) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.is_relative_to("/tmp/pytest-of-root"):
            parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run(
        [*as_nobody(), sys.executable, "-m", "powerprof", "--runs-dir", str(closed), "idle", *QUICK],
        env={**powerprof_cli.environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == f"error: cannot save the run in {closed} (permission denied)"


# A file system of 16 KiB, seen by this one process and gone with it.
_SMALL_DISK = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount -t tmpfs -o size=16k none "$DISK" && head -c 16384 /dev/zero >"$DISK/full"; exec "$0" "$@"',
]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["residency", "--duration", "60", "--no-save", "--json", "DISK/run.json"],
            "--json: cannot write DISK/run.json",
        ),
        (["--runs-dir", "DISK", "residency", "--duration", "60"], "cannot save the run in DISK"),
        (["--runs-dir", "DISK", "idle", "--duration", "60"], "cannot save the run in DISK"),
    ],
)
def test_a_full_disk(root: None, tmp_path: Path, powerprof_cli: Cli, args: list[str], said: str) -> None:
    """Refused before the first window."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = [word.replace("DISK", str(disk)) for word in args]
    done = subprocess.run(
        [*_SMALL_DISK, sys.executable, "-m", "powerprof", *words],
        cwd=REPOSITORY,
        capture_output=True,
        env={**powerprof_cli.environment(), "DISK": str(disk)},
        encoding="utf-8",
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == f"error: {said.replace('DISK', str(disk))} (no space left on device)"
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert done.stdout == ""
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "args", "said"),
    [
        (["--quiet"], ["--no-save", "--json", "DISK/run.json"], "cannot write DISK/run.json"),
        (["--runs-dir", "DISK"], [], "cannot save the run in DISK"),
    ],
)
def test_a_disk_that_fills_meanwhile(
    tmp_path: Path, powerprof_cli: Cli, before: list[str], args: list[str], said: str
) -> None:
    """What was measured is not lost: the report comes out, then the error. A limit on files stands in for the disk.

    Where nothing else would be left, the report is shown also under --quiet.
    """
    words = [word.replace("DISK", str(tmp_path)) for word in (*before, "residency", "--duration", "0.1", *args)]
    done = subprocess.run(
        ["prlimit", "--fsize=100", sys.executable, "-m", "powerprof", *words],
        cwd=REPOSITORY,
        capture_output=True,
        env={**powerprof_cli.environment(), "PYTHONDONTWRITEBYTECODE": "1"},
        encoding="utf-8",
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"error: {said.replace('DISK', str(tmp_path))} (file too large)"
    assert done.stdout.startswith("The CPUs ran ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stdout", "said"), [("/dev/full", "no space left on device"), ("a pipe", "the reader closed the pipe")]
)
def test_a_stdout_that_takes_nothing(powerprof_cli: Cli, stdout: str, said: str) -> None:
    """Refused before a window of a minute where the result is for stdout."""
    done = _into(stdout, powerprof_cli, ["residency", "--duration", "60", "--json", "-"])
    assert done.stderr.splitlines() == [f"error: --json: cannot write to stdout ({said})", "hint: choose another file"]
    assert done.returncode == 1
    assert not (powerprof_cli.home / "state/powerprof/runs/residency-0001").exists()


def test_a_report_for_a_stdout_that_takes_nothing(powerprof_cli: Cli) -> None:
    """What was measured is saved, and said; where it is not to be saved, nothing is measured."""
    done = _into("/dev/full", powerprof_cli, ["residency", "--duration", "0.1"])
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            "error: cannot write to stdout (no space left on device)",
            "hint: the measured part is saved as residency-0001",
        ],
    )
    refused = _into("/dev/full", powerprof_cli, ["residency", "--duration", "60", "--no-save"])
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        1,
        "error: cannot write to stdout (no space left on device)",
    )


def _into(stdout: str, cli: Cli, words: list[str]) -> subprocess.CompletedProcess[str]:
    if stdout == "a pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(stdout, os.O_WRONLY)
    try:
        return subprocess.run(
            [sys.executable, "-m", "powerprof", *words],
            cwd=REPOSITORY,
            env={**cli.environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
            timeout=50,
        )
    finally:
        os.close(writer)


def test_neither_sysfs_nor_procfs(refused: Refused, tmp_path: Path) -> None:
    nothing = {"POWERPROF_SYSFS": str(tmp_path), "POWERPROF_PROCFS": str(tmp_path)}
    refused(1, r"cannot read .*/stat \(no such file\)", ["residency", "--duration", "0.05"], nothing)
    refused(1, r"cannot read .*/stat \(no such file\)", ["idle", *QUICK], nothing)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("time", "not a number", r"cannot read .*/state1/time \(not a number"),
        ("usage", "", r"cannot read .*/state1/usage \(not a number"),
        ("usage", None, r"."),
    ],
)
def test_a_damaged_sysfs(refused: Refused, tmp_path: Path, name: str, text: str | None, said: str) -> None:
    state = tmp_path / "devices/system/cpu/cpu0/cpuidle/state1"
    state.mkdir(parents=True)
    for counter in ("time", "usage", "above", "below", "rejected"):
        (state / counter).write_text("5\n")
    (state / "name").write_text("C1\n")
    (tmp_path / "devices/system/cpu/online").write_text("0\n")
    if text is None:
        (state / name).unlink()
        done = refused.cli(["residency", "--duration", "0.05"], {"POWERPROF_SYSFS": str(tmp_path)})
        assert "Traceback" not in done.err
        assert done.code in (0, 1)
    else:
        (state / name).write_text(text)
        refused(1, said, ["residency", "--duration", "0.05"], {"POWERPROF_SYSFS": str(tmp_path)})


def test_a_sysfs_that_may_not_be_read(root: None, tmp_path_factory: pytest.TempPathFactory, powerprof_cli: Cli) -> None:
    """Root may read everything: nobody has to try."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        counter = Path(folder) / "devices/system/cpu/cpu0/cpuidle/state1/time"
        counter.parent.mkdir(parents=True)
        for name in ("name", "time", "usage"):
            (counter.parent / name).write_text("1\n")
        (Path(folder) / "devices/system/cpu/online").write_text("0\n")
        counter.chmod(0)
        done = subprocess.run(
            [*as_nobody(), sys.executable, "-m", "powerprof", "residency", "--duration", "0.05", "--no-save"],
            cwd=REPOSITORY,
            capture_output=True,
            encoding="utf-8",
            env={**powerprof_cli.environment({"POWERPROF_SYSFS": folder}), "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == f"error: cannot read {counter} (permission denied)"


def test_the_cache_cannot_be_made(powerprof_cli: Cli, mariadbd: Path) -> None:
    """Nothing but time is lost: the server's empty data is made for this run alone."""
    done = powerprof_cli(["idle", *QUICK], {"XDG_CACHE_HOME": os.devnull})
    assert (done.code, done.err) == (0, "")
    assert "Saved as idle-0001." in done.out


@pytest.mark.parametrize("words", ["doctor", "--help"])
def test_a_full_disk_under_the_output_is_named(words: str, powerprof_cli: Cli) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "powerprof", *words.split()],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            env=powerprof_cli.environment({}),
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "no space left on device" in done.stderr.lower()
    assert "the system refused" not in done.stderr
