# SPDX-License-Identifier: Apache-2.0
"""Made-up processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Tree


def add_process(
    fake_tree: Tree,
    pid: int,
    exe: str,
    *,
    comm: str = "",
    uids: Iterable[int] = (0, 0, 0, 0),
    files: Mapping[str, str] = {},
) -> Path:
    """Add a process to the made-up /proc. Return its folder."""
    numbers = "\t".join(map(str, uids))
    texts = {"comm": f"{comm or Path(exe).name[:15]}\n", "status": f"Name:\tx\nState:\tS\nUid:\t{numbers}\n", **files}
    folder = fake_tree({f"proc/{pid}/{name}": text for name, text in texts.items()}) / f"proc/{pid}"
    if exe:
        (folder / "exe").symlink_to(exe)
    return folder


@pytest.fixture
def procfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return tmp_path
