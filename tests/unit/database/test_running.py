# SPDX-License-Identifier: Apache-2.0
"""The rows of a user's choice of servers, on running processes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.cli import app
from powerprof.database.given import describe_servers
from powerprof.system.errors import SeveralServersError

_LISTENING = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("ready", flush=True)
while True:
    pass
"""


def test_servers_have_a_row_and_a_command_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "bin/postgres"
    program.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), program)
    place = tmp_path / "s.sock"
    command = [program, "-I", "-S", "-c", _LISTENING, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONHOME": sys.base_prefix}) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            (row,) = describe_servers([process.pid])
            assert row[:2] == [f"postgres {process.pid}", "PostgreSQL, version unknown"]
            assert row[2].endswith("s.sock")
            assert row[3] == "1 process"
            assert float(row[-1].removesuffix(" % CPU")) > 0
            error = SeveralServersError("which", [process.pid], "postgres")
            typed = ["attribute", "--pid=postgres,7", "--pid", "9, postgres", "--by", "unit"]
            lines = list(app._server_lines(error, typed))
            chosen = [f"--pid={process.pid},7", "--pid", f"9,{process.pid}", "--by", "unit"]
            assert shlex.split(lines[-1])[-6:] == ["attribute", *chosen]
            (*_, last) = app._server_lines(SeveralServersError("which", [process.pid]), ["diagnose"])
            assert shlex.split(last)[-3:] == ["diagnose", "--pid", str(process.pid)]
        finally:
            process.kill()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_rows_break_only_between_phrases(width: int) -> None:
    phrases = ["mariadbd 3003", "MariaDB 10.11.19", "/run/mysqld/mysqld.sock", "1 process", "2.6 % CPU"]
    lines = app.wrap_phrases(phrases, width)
    assert all(len(line) <= width for line in lines)
    assert [phrase for line in lines for phrase in line.strip().split("  ")] == phrases
    assert len(lines) == {40: 3, 80: 1, 200: 1}[width]
