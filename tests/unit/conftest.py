# SPDX-License-Identifier: Apache-2.0
"""Unit tests see the commands of reports without sudo and without a target, however the tests are run."""

from __future__ import annotations

import pytest

from powerprof.system import next_steps
from powerprof.system.reader_process import shared
from powerprof.system.reader_waits import ReaderWaits


@pytest.fixture(autouse=True)
def no_command_needs_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_steps, "_needs_root", lambda words: False)


@pytest.fixture(autouse=True)
def no_account_has_used_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of an earlier test use up no budget of a later one."""
    monkeypatch.setattr(shared(), "waits", ReaderWaits())
