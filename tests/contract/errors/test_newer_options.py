# SPDX-License-Identifier: Apache-2.0
"""What was drawn against the newer options: the line names what was typed, and nothing was measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli


@pytest.mark.parametrize("command", ["report", "doctor --from", "attribute --from"])
def test_what_is_no_file_is_no_run(command: str, powerprof_cli: Cli, tmp_path: Path) -> None:
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for place, why in ((folder, "is a directory without a run.json"), (pipe, "is not a regular file")):
        done = powerprof_cli([*command.split(), str(place)])
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {place} {why}\nhint: ")


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("export --statements abc", "--statements abc: no process is called abc", "ps -e lists them"),
        ("export --statements -3", "--statements '-3' is neither a process id nor a name", "such as 1234"),
        ("queries --pid 1 --explain=maybe", "option '--explain' does not take a value", "powerprof queries --help"),
        ("slack 50ms 60ms --pid 1 --thread x", "unexpected argument: 60ms", "powerprof slack --help"),
        ("study read-buffer releases", "unexpected argument: releases", "powerprof study --help"),
    ],
)
def test_the_option_that_was_typed_is_named(line: str, error: str, hint: str, powerprof_cli: Cli) -> None:
    done = powerprof_cli(line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {error}\nhint: {hint}")


@pytest.mark.parametrize("words", ["doctor", "study", "workloads", "--help"])
def test_a_full_disk_under_what_is_printed_has_its_name(words: str, powerprof_cli: Cli) -> None:
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
