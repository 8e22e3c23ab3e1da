# SPDX-License-Identifier: Apache-2.0
"""Folders of journals, made-up threads, and servers with variables, for settings that are changed and restored."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from powerprof.database import sql
from powerprof.database.base import Login, StatementError
from powerprof.reversible.variables import Variable
from powerprof.system import paths
from tests.conftest import Tree
from tests.programs.answers import Answers


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the folders of journals of this test: emptied by a boot, and kept. Without root both are one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(paths, "ROOT_CHANGED", tmp_path / "changed")
    monkeypatch.setattr(paths, "ROOT_CHANGED_FOR_GOOD", tmp_path / "for-good")
    return paths.changed_dir(), paths.changed_dir(outlasts=True)


@pytest.fixture
def refuse() -> Iterator[Callable[[Path], None]]:
    """Return a function that makes a file refuse every write, also those of root: a link to a sealed memory file."""
    handles: list[int] = []

    def seal(place: Path) -> None:
        handles.append(os.memfd_create(f"refusing-{len(handles)}", os.MFD_ALLOW_SEALING))
        os.write(handles[-1], place.read_bytes())
        fcntl.fcntl(handles[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        place.unlink()
        place.symlink_to(f"/proc/{os.getpid()}/fd/{handles[-1]}")

    yield seal
    for handle in handles:
        os.close(handle)


def thread_files(tid: int, started_ticks: int = 4242, *, flags: int = 0, slack: str = "50000") -> dict[str, str]:
    """Return the files of a thread for `fake_tree`."""
    words = ["S", *map(str, range(101, 126))]
    words[6], words[19] = str(flags), str(started_ticks)
    files = {"stat": f"{tid} (x) {' '.join(words)}\n", "timerslack_ns": slack, "comm": "x\n"}
    return {f"proc/{tid}/{name}": text for name, text in files.items()}


class VariableServer:
    """A server with global variables, whose process is 77 since tick 4242.

    Attributes:
        values: the variables.
        moves: the other variables that each setting of a variable changes, by (name, value).
        session: the variables with session scope.
    """

    def __init__(self, **values: str) -> None:
        self.values = values
        self.moves: dict[tuple[str, str], dict[str, str]] = {}
        self.session: set[str] = set()
        self.refused: set[str] = set()
        self.connection = Answers(
            {
                "SELECT @@GLOBAL.": lambda text: [(self.values[self._name(text)],)],
                "SELECT @@SESSION.": self._session_value,
                "SHOW GLOBAL VARIABLES": lambda _: list(self.values.items()) or [],
                "SET GLOBAL ": self._set,
            }
        )

    def variable(self, name: str, value: str, **fields: Any) -> Variable:
        """Return the setting of a variable in this server."""
        login = Login(user="u", host="h", port=4001, password="s3cret").to_fields()
        return Variable(login, name, value, **{"pid": 77, "started_ticks": 4242, **fields})

    def _name(self, text: str) -> str:
        wanted = text.partition(".")[2].casefold()
        return next(name for name in self.values if name.casefold() == wanted)

    def _session_value(self, text: str) -> list[tuple[str]]:
        if self._name(text) not in self.session:
            raise StatementError("is a GLOBAL variable", None, 1238)
        return [("1",)]

    def _set(self, text: str, *arguments: Any) -> list[tuple[Any, ...]]:
        name, _, value = text.removeprefix("SET GLOBAL ").partition(" = ")
        name, value = self._name(f".{name}"), str(arguments[0]) if arguments else value
        if name in self.refused:
            raise StatementError(f"{name} is read only", None, 1238)
        self.values[name] = {"ON": "1", "OFF": "0"}.get(value, value)
        self.values |= self.moves.get((name, value), {})
        return []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, fake_tree: Tree) -> VariableServer:
    """Return a server whose variables can be changed, with its process in a made-up /proc."""
    fake_tree(thread_files(77))
    made = VariableServer(max_connections="151", sync_binlog="1", long_query_time="10.000000", flush="0")
    monkeypatch.setattr(sql, "connect", lambda *_, **__: nullcontext(made.connection))
    return made
