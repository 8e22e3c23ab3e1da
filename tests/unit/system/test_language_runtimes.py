# SPDX-License-Identifier: Apache-2.0
"""Language run-times of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.system.language_runtimes import language_of
from tests.conftest import Tree
from tests.unit.system.conftest import add_process


@pytest.mark.parametrize(
    ("exe", "maps", "head", "language"),
    [
        ("/opt/java/bin/java", "", b"", "Java"),
        ("/usr/bin/nodejs", "", b"", "Node"),
        ("/opt/app", "7f0 r-xp 0 0 0 /opt/jdk/libjvm.so\n", b"", "Java"),
        ("/opt/app", "7f0 r-xp 0 0 0 /opt/mylibjvm.so\n", b"", None),
        ("/opt/app", "", b"\x7fELF\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id", "Go"),
        ("/opt/app", "", b"\x7fELF Go", None),
    ],
)
def test_a_run_time_is_known_by_program_library_or_note(
    fake_tree: Tree, tmp_path: Path, exe: str, maps: str, head: bytes, language: str | None
) -> None:
    program = tmp_path / exe.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(head)
    add_process(fake_tree, 7, str(program), files={"maps": maps})
    assert language_of(7) == language
    assert language_of(8) is None
