# SPDX-License-Identifier: Apache-2.0
"""A program that has moved its code to memory without a file: its stacks have names, and probes say why not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture(params=["all", "part", "memfd"])
def pid(request: pytest.FixtureRequest, tmp_path: Path, compilers: tuple[str, str]) -> Iterator[int]:
    source, program = REPOSITORY / "tests/programs/copied_truth.c", tmp_path / "copied_truth"
    subprocess.run([compilers[0], "-O1", "-g", "-o", str(program), str(source)], check=True)
    with subprocess.Popen([str(program), request.param], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_stacks_have_the_functions_of_the_file(powerprof_cli: Cli, pid: int) -> None:
    result = powerprof_cli(
        ["attribute", "--max-cost", "none", "--pid", str(pid), "--duration", "1.5", "--no-save", "--json", "-"]
    )
    assert result.code == 0, result.err
    found = json.loads(result.out)
    rows = [*found["wakeups"], *found["wakings_without_exit"]]
    named = [row for row in rows if [frame["function"] for frame in row["stack"]][-6:-3] == ["tick", "middle", "main"]]
    counts = [row.get("wakings_count") or row.get("count") or 0 for row in named]
    # A tick sleeps for 10 ms, and a busy host wakes it later.
    assert 20 < sum(counts) / found["window_s"] < 101
    assert {frame["module"] for row in rows for frame in row["stack"]} == {"copied_truth", "libc.so.6"}


def test_samples_have_them_too_and_probes_are_refused_with_the_reason(powerprof_cli: Cli, pid: int) -> None:
    result = powerprof_cli(["profile", "--pid", str(pid), "--duration", "3", "--no-save", "--json", "-"])
    assert result.code == 0, result.err
    found = json.loads(result.out)
    user = [one for one in found["functions"] if not one["kernel"] and one["self_count"]]
    assert user[0]["function"] == "middle"
    assert "[anonymous]" not in {one["module"] for one in found["functions"]}
    refused = powerprof_cli(["functions", "--pid", str(pid), "tick", "--duration", "1"])
    assert refused.code != 0
    assert (
        "'tick' cannot be probed (the process has copied its code to memory without a file (huge pages)" in refused.err
    )
    assert "powerprof" in refused.err and "profile" in refused.err
