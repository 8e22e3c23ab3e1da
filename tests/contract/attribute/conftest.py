# SPDX-License-Identifier: Apache-2.0
"""A capture of a small ground-truth program, taken once: what replays, reports and damage are tested on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Cli, CliResult
from tests.programs import ground_truth


class Taken:
    """A saved run, the JSON that its command wrote, and how long after the window the command ended."""

    def __init__(self, run: Path, json: bytes, result: CliResult, ended_ns: int) -> None:
        self.run, self.json, self.result, self.ended_ns = run, json, result, ended_ns


@pytest.fixture(scope="session")
def taken(root_bpf: None, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """`powerprof attribute` on sleepers for 1.5 s; the program and its file are gone afterwards."""
    base = tmp_path_factory.mktemp("taken")
    cli = Cli(base / "home")
    program = ground_truth.build("sleepers", base)
    with ground_truth.running(program) as truth:
        result = cli(
            [
                "attribute",
                "--pid",
                str(truth["pid"]),
                "--duration",
                "1.5",
                "--energy-source",
                "none",
                "--runs-dir",
                str(base / "runs"),
                "--json",
                str(base / "out.json"),
            ]
        )
        ended_ns = time.monotonic_ns()
    program.unlink()
    assert result.code == 0, result.err
    return Taken(base / "runs/attribute-0001", (base / "out.json").read_bytes(), result, ended_ns)
