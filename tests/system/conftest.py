# SPDX-License-Identifier: Apache-2.0
"""Servers that tests share."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer


@pytest.fixture
def exclusive_statements(shared_cache: Path) -> Callable[[], AbstractContextManager[None]]:
    """Keep every test of `counts_statements` away: the exporter, or `watch`, sends statements to all servers here."""
    return lambda: _hold(shared_cache, fcntl.LOCK_EX)


@pytest.fixture
def asks_every_server(exclusive_statements: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Hold `exclusive_statements` for the whole test."""
    with exclusive_statements():
        yield


@pytest.fixture
def counts_statements(shared_cache: Path) -> Iterator[None]:
    """Keep every test of `asks_every_server` away: this one counts all statements of its server."""
    with _hold(shared_cache, fcntl.LOCK_SH):
        yield


@contextmanager
def _hold(cache: Path, kind: int) -> Iterator[None]:
    """Hold the lock of all workers on the statements of servers, in the order of the requests."""
    with (cache / "statements.lock").open("w") as file:
        with (cache / "statements.next").open("w") as following:
            fcntl.flock(following, fcntl.LOCK_EX)
            fcntl.flock(file, kind)
        yield


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """Return a folder with a short path that every account may enter, for sockets and data of servers."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


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


@pytest.fixture(scope="module")
def postgresql_server(shared_cache: Path) -> Iterator[PrivateServer]:
    """A private PostgreSQL for all tests of a module."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(shared_cache))
        with PrivateServer(family="postgresql", connections=40) as running:
            yield running
