# SPDX-License-Identifier: Apache-2.0
"""Compiled ground-truth programs, and a cache of symbol tables that is not the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.ground_truth import build

STATUS = """Package: mariadb-server-core
Status: install ok installed
Architecture: amd64
Version: 1:10.11.14-0+deb12u2

Package: libc6
Architecture: amd64
Multi-Arch: same
Version: 2.36-9+deb12u13

Package: evil
Architecture: amd64
Version: 1.0;reboot
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A ground-truth program by name, compiled once a session."""
    directory = tmp_path_factory.mktemp("programs")
    return lambda name: build(name, directory)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XDG_CACHE_HOME of the test; no debuginfod."""
    directory = tmp_path_factory.getbasetemp() / "stacks-cache"
    directory.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    return directory


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    """A root with dpkg's and apt's files."""
    info, lists = tmp_path / "var/lib/dpkg/info", tmp_path / "var/lib/apt/lists"
    info.mkdir(parents=True)
    lists.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Debian GNU/Linux"\nID=debian\n')
    (info / "mariadb-server-core.list").write_text("/.\n/usr\n/usr/sbin\n/usr/sbin/mariadbd\n")
    (info / "libc6:amd64.list").write_text("/lib/x86_64-linux-gnu/libc.so.6\n")
    (info / "evil.list").write_text("/usr/bin/evil\n")
    (info / "mariadb-server-core.md5sums").write_text("/usr/bin/not-a-list\n")
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    return tmp_path
