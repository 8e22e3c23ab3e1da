# SPDX-License-Identifier: Apache-2.0
"""`doctor --pid --self-test` of a real server: each row of its release, and all known statements counted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli


@pytest.mark.parametrize("family", ["mysql", "postgresql"])
def test_a_release_is_checked_by_known_statements(
    powerprof_cli: Cli, root_bpf: None, tmp_path: Path, family: str
) -> None:
    target = tmp_path / "checked.json"
    with PrivateServer(family=family) as server:
        done = powerprof_cli(["doctor", "--pid", str(server.pid), "--self-test", "--json", str(target)])
    assert (done.code, done.err) == (0, "")
    rows = {row["name"]: row for row in json.loads(target.read_text())["server"]}
    assert list(rows) == ["release", "probes", "samples", "thread_names", "digests", "self_test"]
    assert [rows[name]["status"] for name in ("release", "probes", "samples", "thread_names")] == ["ok"] * 4
    assert "The release of this server:" in done.out
    if family == "postgresql":  # root has no role there
        assert (rows["self_test"]["status"], rows["self_test"]["remedy"]) == (
            "limited",
            "sudo -u postgres createuser root",
        )
        return
    counted = re.match(r"([\d,]+) of ([\d,]+) known statements counted by probes in 10 s", rows["self_test"]["detail"])
    assert rows["self_test"]["status"] == "ok" and counted is not None
    assert counted[1] == counted[2] and int(counted[1].replace(",", "")) > 100


def test_another_program_has_no_release(powerprof_cli: Cli, root: None, tmp_path: Path) -> None:
    done = powerprof_cli(["doctor", "--pid", "self-test-of-nothing"])
    assert done.code == 2
    assert "The release" not in done.out
