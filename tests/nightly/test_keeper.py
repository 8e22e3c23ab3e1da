# SPDX-License-Identifier: Apache-2.0
"""What the long tests start is gone with them, however they end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY

_DAEMON = ["sh", "-c", 'setsid sh -c \'echo $$ >"$0.new" && mv "$0.new" "$0" && exec sleep 600\' "$0" & sleep "$1"']


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nightly.keeper", str(folder)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )


def order(keeper: subprocess.Popen[str], *argv: str) -> None:
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps(argv) + "\n")
    keeper.stdin.flush()


def pid_in(path: Path) -> int:
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


@pytest.mark.parametrize("while_it_runs", [True, False])
def test_a_daemon_and_the_folder_are_gone_at_the_end_of_stdin(tmp_path: Path, while_it_runs: bool) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    pid_file = tmp_path / "pid"
    with start(folder) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        order(keeper, *_DAEMON, str(pid_file), "600" if while_it_runs else "0.5")
        daemon = pid_in(pid_file)
        if not while_it_runs:
            assert keeper.stdout.readline() == "0\n"
            order(keeper, "sh", "-c", "exit 7")
            assert keeper.stdout.readline() == "7\n"
        keeper.stdin.close()
        assert keeper.wait(20) == 0
    assert not psutil.pid_exists(daemon)
    assert not folder.exists()
