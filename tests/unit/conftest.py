# SPDX-License-Identifier: Apache-2.0
"""Unit tests see the commands of reports without sudo, whoever runs the tests."""

from __future__ import annotations

import pytest

from powerprof.system import next_steps


@pytest.fixture(autouse=True)
def no_command_needs_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_steps, "_needs_root", lambda words: False)
