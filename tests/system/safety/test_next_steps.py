# SPDX-License-Identifier: Apache-2.0
"""Every kind of command that a report prints is executed as printed, on a real server and a real run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.system.next_steps import find_commands
from tests.conftest import Cli
from tests.unit.layers.test_next_steps import printed_commands

pytestmark = pytest.mark.usefixtures("mariadbd", "root_bpf")

# Options that only shorten the command.
_SHORTER = {**dict.fromkeys(("attribute", "profile", "queries", "diagnose", "energy", "residency"), "--duration 500ms")}
# A download, minutes of measuring, recordings, meters of other hosts, an exporter that runs until a signal, or names
# that only the user knows.
_NOT_RUN = re.compile(
    r"fetch|study|idle|run |compare|COMPARISON|sweep|--calibrate|--from|--stacks|handle_slave|--keep|--finding|--help"
    r"|--meter|export"
)
_NO_TARGET = (
    "attribute",
    "profile",
    "queries",
    "diagnose",
    "cure",
    "attribute --pid postgres",
    "cure --pid 1 --thread 1",
)


def _run(cli: Cli, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line],
        env=cli.environment(),
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def test_each_printed_command_works_when_it_is_pasted(
    powerprof_cli: Cli, tmp_path: Path, pooled_server: Callable[..., PrivateServer]
) -> None:
    server = pooled_server()
    program = f"{shlex.quote(sys.executable)} -m powerprof"
    saved = _run(powerprof_cli, tmp_path, f"{program} residency --duration 100ms")
    diagnosed = _run(powerprof_cli, tmp_path, f"{program} diagnose --pid {server.pid} --duration 1s --no-save")
    assert (saved.returncode, diagnosed.returncode) == (0, 0)
    text = re.sub(r" \\\n *", " ", diagnosed.stdout)
    printed = {text[start:end] for start, end in find_commands(text) if not _NOT_RUN.search(text[start:end])}
    assert any(f"queries --pid {server.pid}" in line for line in printed)
    listed = [words for words in printed_commands() if words not in _NO_TARGET and not _NOT_RUN.search(words)]
    for words in listed:
        words = words.replace("--pid 1", f"--pid {server.pid}").replace("--thread 1 ", f"--thread {server.pid} ")
        words = re.sub(r"^ ?report (1+|RUN)\b", "report residency-0001", words)
        printed.add(f"{program} {words.replace('workloads NAME', 'workloads city')}")
    assert len(printed) >= 10
    wrong, kinds = [], set[tuple[str, ...]]()
    for line in sorted(printed):
        command = next(word for word in shlex.split(line.removeprefix("sudo ").partition("powerprof ")[2]))
        kind = (command, *(word for word in line.split() if word.startswith("--")))
        if kind in kinds or command == "cure":  # test_cure.py runs its list and trials
            continue
        kinds.add(kind)
        done = _run(powerprof_cli, tmp_path, f"{line} {_SHORTER.get(command, '')}")
        if done.returncode != 0:
            wrong.append((line, done.returncode, done.stderr))
    assert wrong == []
