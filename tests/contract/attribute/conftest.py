# SPDX-License-Identifier: Apache-2.0
"""A capture of a small ground-truth program, taken once: what replays, reports and damage are tested on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli, CliResult
from tests.programs import ground_truth

# Where other programs take all CPUs no sleeper ends an idle period, and there is none to report: it gets more windows.
_WINDOWS = 8


class Taken:
    """A saved run, the JSON that its command wrote, and how the command ended."""

    def __init__(self, run: Path, json: bytes, result: CliResult) -> None:
        self.run, self.json, self.result = run, json, result


@pytest.fixture(scope="session")
def taken(root_bpf: None, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Taken:
    """`powerprof attribute` on sleepers for 1.5 s; the program and its file are gone afterwards."""
    base = tmp_path_factory.mktemp("taken")
    program = ground_truth.build("sleepers", base)
    with ground_truth.running(program) as truth:
        for number in range(_WINDOWS):
            one = _take(Cli(base / "home", shared_cache), base / f"window-{number}", str(truth["pid"]))
            if "wait_nanosleep" in _functions(one):
                break
    program.unlink()
    return one


def _take(cli: Cli, folder: Path, pid: str) -> Taken:
    folder.mkdir()
    out, runs = folder / "out.json", folder / "runs"
    words = ["--duration", "1.5", "--energy-source", "none", "--runs-dir", str(runs), "--json", str(out)]
    result = cli(["attribute", "--pid", pid, *words])
    assert result.code == 0, result.err
    return Taken(runs / "attribute-0001", out.read_bytes(), result)


def _functions(taken: Taken) -> set[str | None]:
    """Those that ended idle periods."""
    return {frame["function"] for row in json.loads(taken.json)["wakeups"] for frame in row["stack"]}
