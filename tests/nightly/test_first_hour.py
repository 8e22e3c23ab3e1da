# SPDX-License-Identifier: Apache-2.0
"""The first hour on a host with a MariaDB, a MySQL and two PostgreSQL clusters under load: each printed command works.

What README and tutorial propose is typed in a terminal, then each next step and each command of a hint, exactly as
printed, then those that these print. $HOUR names a file for the transcript.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from powerprof.system.next_steps import find_commands
from tests.conftest import REPOSITORY
from tests.nightly.hour import Server, servers
from tests.nightly.typed import CHOICE, Typed, type_command

pytestmark = pytest.mark.historical("mysql-9.7")

_PROGRAM = str(REPOSITORY / ".venv/bin/powerprof")
# A value for the reader to fill in is no command to paste.
_PLACEHOLDER = re.compile(r"\b[A-Z]{3,}…?(?![\w/.-])|…|\.\.\.")
# Downloads, a measurement of minutes, and a page of symbols are tested elsewhere.
_LEFT_OUT = re.compile(r" (servers fetch|study|energy --calibrate|.*--fetch)\b")
_DEPTH = 3
# After Ctrl-C a command ends by the signal, or its shell with 130.
_GOOD = (0, 130, -2)
# A glob that the user typed fits one kind of server.
_NO_FUNCTION = "means no function of the process"


@dataclass
class Hour:
    """The typed commands, and the printed ones with the command that printed them."""

    servers: set[int]
    typed: list[Typed] = field(default_factory=list)
    printed: dict[str, str] = field(default_factory=dict)

    def type(self, words: str, program: str = _PROGRAM, timeout_s: float = 120) -> Typed:
        """Type a command, and note the commands that it prints."""
        return self.paste(f"{program} {words}", timeout_s)

    def paste(self, line: str, timeout_s: float = 120) -> Typed:
        """Type a whole line."""
        result = type_command(line, 12 if re.search(r"powerprof (watch|export)\b", line) else timeout_s)
        self.typed.append(result)
        is_list = result.status == 2 and CHOICE.search(result.output) is not None
        for command in printed_commands(result.output):
            pid = re.search(r"--pid (\d+)", command)
            # A list names servers of other users too, which may end at any time.
            if not is_list or pid is None or int(pid[1]) in self.servers:
                self.printed.setdefault(command, line)
        return result

    def follow(self) -> None:
        """Paste what was printed, and what that prints."""
        pasted = {typed.command for typed in self.typed}
        for _ in range(_DEPTH):
            for command in [command for command in self.printed if command not in pasted]:
                pasted.add(command)
                if not _PLACEHOLDER.search(command) and not _LEFT_OUT.search(command):
                    self.paste(command)

    def wrong(self) -> list[tuple[str, str, str]]:
        """Return the pasted commands that fail: (command, the printing command, its end)."""
        return [
            (typed.command, self.printed[typed.command], typed.output[-300:])
            for typed in self.typed
            if typed.command in self.printed and typed.status not in _GOOD and _NO_FUNCTION not in typed.output
        ]


def printed_commands(output: str) -> Iterator[str]:
    """Yield the commands of a printed text; a long one goes on after a backslash."""
    for line in re.sub(r" \\\n\s*", " ", output).splitlines():
        for begin, end in find_commands(line):
            yield line[begin:end]


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Server]]:
    """The servers of the host."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make soak)")
    with servers() as started:
        yield started


def _write(hour: Hour, title: str) -> None:
    if "HOUR" in os.environ:
        with Path(os.environ["HOUR"]).open("a") as file:
            file.write(f"=== {title}\n")
            for typed in hour.typed:
                origin = hour.printed.get(typed.command)
                file.write(f"--- $ {typed.command}    (exit {typed.status}, {typed.seconds} s)\n")
                file.write(f"printed by: {origin}\n" if origin else "")
                file.writelines(f"    | {line}\n" for line in typed.output.splitlines())


_FIRST = (
    *("doctor", "idle --quick", "attribute --pid mysqld --duration 3", "attribute --duration 3", "diagnose"),
    *("queries --pid mysqld --duration 3", "queries", "cure", "profile --duration 2", "offcpu --duration 2"),
    *("syscalls --duration 2", "functions 'handle_*' --duration 2", "compare index no-index --pairs 4 --duration 1"),
    *("watch", "runs"),
)


def test_the_first_commands_of_a_host_with_four_servers(
    hosts: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hour = Hour({server.pid for server in hosts.values()})
    for words in _FIRST:
        hour.type(words)
    hour.follow()
    _write(hour, "a host with four servers")
    assert hour.wrong() == []


_SECOND = (
    *("idle --quick --socket {socket}", "attribute --pid {pid} --duration 3", "diagnose --pid {pid} --duration 3"),
    *("queries --pid {pid} --duration 3", "profile --pid {pid} --duration 2", "offcpu --pid {pid} --duration 2"),
    *("syscalls --pid {pid} --duration 2", "functions 'handle_*' --pid {pid} --duration 2", "cure --pid {pid}"),
    *("doctor --pid {pid}", "watch --pid {pid}", "runs"),
)


@pytest.mark.parametrize("name", ["mariadb", "mysql", "postgresql-1"])
def test_the_commands_for_one_server(
    hosts: dict[str, Server], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hour, server = Hour({each.pid for each in hosts.values()}), hosts[name]
    socket = server.socket
    for words in _SECOND:
        if name.startswith("postgresql") and "--socket" in words:
            continue
        hour.type(words.format(pid=server.pid, socket=socket))
    hour.follow()
    _write(hour, name)
    assert hour.wrong() == []
