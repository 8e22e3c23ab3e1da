# SPDX-License-Identifier: Apache-2.0
"""The end of an error log in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.database import private_server
from powerprof.system.errors import PowerprofError


def _tail(tmp_path: Path, text: bytes) -> str:
    path = tmp_path / "error.log"
    path.write_bytes(text)
    with path.open("rb") as file:
        return private_server.read_log_errors(file.fileno())


def test_errors_come_before_what_follows_from_them(tmp_path: Path) -> None:
    said = _tail(
        tmp_path,
        (
            b"2026-11-20 10:45:24 0 [Note] Starting MariaDB\n"
            b"2026-11-20 10:45:25 0 [ERROR] /usr/sbin/mariadbd: unknown variable 'x=1'\n"
            b"2026-11-20 10:45:25 0 [ERROR] Aborting\n"
        ),
    )
    assert said == "/usr/sbin/mariadbd: unknown variable 'x=1'"


def test_time_stamps_of_all_generations_go(tmp_path: Path) -> None:
    said = _tail(
        tmp_path,
        (b"261120 10:45:24 [ERROR] one\n261120  9:05:24 [ERROR] two\n2026-11-20T10:45:24.123456Z 0 [ERROR] three\n"),
    )
    assert said == "one / two / three"
    assert _tail(tmp_path, b"".join(b"[ERROR] %d\n" % number for number in range(9))) == "6 / 7 / 8"
    assert _tail(tmp_path, b"[ERROR] Aborting\n[Note] x\n") == "Aborting"


def test_without_errors_the_last_lines(tmp_path: Path) -> None:
    assert _tail(tmp_path, b"a\n\nb\nc\nd\n") == "b / c / d"


def test_hostile_bytes_stay_one_printable_line(tmp_path: Path) -> None:
    said = _tail(tmp_path, b"\x1b[31m[ERROR] red\x07\xff\n" + b"x" * 200_000)
    assert said.isprintable()
    assert len(said) <= 600
    assert _tail(tmp_path, b"") == "it reported nothing"
    assert private_server.read_log_errors(-1) == "its log cannot be read (bad file descriptor)"


def test_a_full_disk_is_told_from_other_errors() -> None:
    assert private_server.reports_full_disk("preallocating 314572800 bytes for file ./ibdata2 failed with error 28")
    assert private_server.reports_full_disk('Error writing file (Errcode: 28 "No space left on device")')
    assert private_server.reports_full_disk("write failed, errno: 122 (disk quota exceeded)")
    assert not private_server.reports_full_disk("failed with error 280")
    assert not private_server.reports_full_disk("read 28 pages without an error")


@pytest.mark.parametrize(
    ("code", "reason"),
    [(-9, "was killed by SIGKILL"), (-11, "was killed by SIGSEGV"), (0, "ended with 0"), (3, "ended with 3")],
)
def test_the_end_of_a_server_is_described(code: int, reason: str) -> None:
    tree: Any = SimpleNamespace(path=Path("/t"))
    server = private_server.PrivateServer(tree=tree, name="server-1")
    process: Any = SimpleNamespace(pid=77, returncode=code, poll=lambda: code)
    server._process = process
    with pytest.raises(PowerprofError, match=rf"server-1 \(pid 77\) {reason}: it was not started"):
        server.check()
    process.poll = lambda: None
    server.check()
