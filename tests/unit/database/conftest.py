# SPDX-License-Identifier: Apache-2.0
"""A repository of Maven on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.programs.web import Web


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, str | bytes]]]:
    """Return the answers of a repository on loopback."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Web() as web:
        monkeypatch.setenv("POWERPROF_MAVEN_INDEX", f"{web.address}/maven2/")
        yield web.answers
