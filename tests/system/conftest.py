# SPDX-License-Identifier: Apache-2.0
"""Servers that tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer


@pytest.fixture(scope="session")
def pooled_server(shared_cache: Path, mariadbd: Path) -> Iterator[Callable[..., PrivateServer]]:
    """Return a private server for these settings, started once per session, for tests that leave them unchanged.

    A test makes its own schemas and accounts.
    """
    servers: dict[str, PrivateServer] = {}
    with ExitStack() as stack:

        def start(**settings: object) -> PrivateServer:
            key = repr(settings)
            if key not in servers:
                with pytest.MonkeyPatch.context() as environment:
                    environment.setenv("XDG_CACHE_HOME", str(shared_cache))
                    environment.setenv("TMPDIR", "/tmp")
                    environment.setattr(tempfile, "tempdir", None)
                    servers[key] = stack.enter_context(PrivateServer(settings=settings))
            return servers[key]

        yield start
