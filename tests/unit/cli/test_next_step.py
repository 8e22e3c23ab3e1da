# SPDX-License-Identifier: Apache-2.0
"""The next step that a report prints works when it is pasted: an existing server, a program that is found, sudo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from powerprof.cli import idle
from powerprof.cli.commands import COMMANDS
from powerprof.model.records import ServerInfo
from powerprof.system import next_steps
from powerprof.system.next_steps import command_line
from tests.conftest import Cli


@pytest.fixture(autouse=True)
def no_command_needs_sudo() -> None:
    """Replace the fixture of the unit tests: these judge sudo itself."""


def _called_as(monkeypatch: pytest.MonkeyPatch, program: str, *, uid: int = 1000) -> None:
    monkeypatch.setattr(next_steps, "_RUNNING", [program, "idle"])
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.delenv("SUDO_UID", raising=False)


def test_a_given_server_is_named_by_its_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    _called_as(monkeypatch, "/opt/powerprof/.venv/bin/powerprof")
    server = ServerInfo(version="10.11.19-MariaDB", private=False, pid=42)
    assert idle.next_step(server) == "Find the functions: sudo /opt/powerprof/.venv/bin/powerprof attribute --pid 42"


def test_root_needs_no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    _called_as(monkeypatch, ".venv/bin/powerprof", uid=0)
    assert command_line("attribute --pid 42") == ".venv/bin/powerprof attribute --pid 42"


def test_sudo_is_printed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _called_as(monkeypatch, ".venv/bin/powerprof", uid=0)
    monkeypatch.setenv("SUDO_UID", "65534")
    assert command_line("attribute --pid 42") == "sudo .venv/bin/powerprof attribute --pid 42"
    assert command_line("report idle-0001") == ".venv/bin/powerprof report idle-0001"


def test_a_program_on_the_path_has_its_short_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "powerprof"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    _called_as(monkeypatch, str(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line("runs") == "powerprof runs"
    # sudo searches its own directories.
    assert command_line("doctor") == f"sudo {program} doctor"


def test_a_module_is_called_by_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    _called_as(monkeypatch, "/usr/lib/python3/dist-packages/powerprof/__main__.py")
    assert command_line("runs") == f"{sys.executable} -m powerprof runs"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_that_start_a_private_server_offer_one(powerprof_cli: Cli, name: str) -> None:
    text = powerprof_cli([name, "--help"]).out
    starts_one = name in ("idle", "run", "compare", "sweep")
    assert ("Server to connect to (default: start a private server):" in text) == starts_one
    assert ("--server-build" in text.replace("--server-build NAME. ", "")) == (starts_one or name == "servers")
