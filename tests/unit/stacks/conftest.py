# SPDX-License-Identifier: Apache-2.0
"""Compiled ground-truth programs, and a cache of symbol tables that is not the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.ground_truth import build


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
    """A root with apt's folder of indexes."""
    (tmp_path / "var/lib/apt/lists").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Debian GNU/Linux"\nID=debian\n')
    return tmp_path
