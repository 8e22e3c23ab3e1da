# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on energy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.energy.meter_trees import Tree


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Return the empty sysfs of a made-up host, which powerprof reads instead of this one."""
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    return Tree(tmp_path)
