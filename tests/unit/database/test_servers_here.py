# SPDX-License-Identifier: Apache-2.0
"""The rows of running servers."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.cli import app
from powerprof.database import servers_here
from powerprof.database.servers_here import describe_servers
from powerprof.system.errors import SeveralServersError
from tests.conftest import Tree


def _clocks(monkeypatch: pytest.MonkeyPatch, *readings: dict[int, int], took_s: float) -> list[str]:
    """Return the phrases of server 10 with processes 11 and 12, whose CPU time is read twice `took_s` apart."""
    clocks, now = iter(readings), iter((100.0, 100.0 + took_s))
    monkeypatch.setattr(servers_here, "list_family", lambda _: [10, 11, 12][: 3 if len(readings[0]) > 1 else 1])
    monkeypatch.setattr(servers_here, "_read_clocks", lambda _: next(clocks))
    monkeypatch.setattr(servers_here, "owner_of", lambda _: SimpleNamespace(distrust="runs as eve"))
    monkeypatch.setattr(servers_here, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(now)))
    (phrases,) = servers_here.describe_servers([10])
    return phrases


def test_a_servers_cpu_time_is_by_the_window(fake_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tree({"proc/10/comm": "odd\n"})
    # 30 ms, 50 ms and nothing within 0.4 s; process 12 has ended, and 13 was not there before.
    before, after = {10: 7_000_000, 11: 5_000_000, 12: 9_000_000}, {10: 37_000_000, 11: 55_000_000, 13: 10**9}
    phrases = _clocks(monkeypatch, before, after, took_s=0.4)
    assert phrases == ["odd 10", "3 processes", "runs as eve", "20.0 % CPU"]
    phrases = _clocks(monkeypatch, {10: 7_000_000}, {10: 7_000_000}, took_s=0.4)
    assert phrases == ["odd 10", "1 process", "runs as eve", "0.0 % CPU"]
    assert _clocks(monkeypatch, {10: 7}, {13: 10**9}, took_s=0.4)[-1] == "CPU unknown"
    assert _clocks(monkeypatch, {}, {}, took_s=0.4)[-1] == "CPU unknown"


@pytest.mark.parametrize("kind", ["same", "replaced", "missing"])
def test_a_program_is_its_own_file(tmp_path: Path, fake_tree: Tree, kind: str) -> None:
    program, other = tmp_path / "mariadbd", tmp_path / "other"
    program.write_text("one")
    other.write_text("two")
    status = other.stat() if kind == "replaced" else program.stat()
    host = fake_tree({})
    (host / "proc/10").mkdir()
    (host / "proc/10/exe").symlink_to(program)
    shown: Any = SimpleNamespace(status=lambda _: SimpleNamespace(device=status.st_dev, inode=status.st_ino))
    if kind == "missing":
        program.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers_here, "shared", lambda: shown)
        assert servers_here.find_own_program(10) == (program if kind == "same" else None)


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
