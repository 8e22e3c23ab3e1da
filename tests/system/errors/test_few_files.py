# SPDX-License-Identifier: Apache-2.0
"""Few file descriptors: a command works or ends with one error, at its start and in the middle of its work."""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from powerprof.cli.commands import COMMANDS
from powerprof.database.private_server import PrivateServer
from powerprof.system.open_files import count_needed
from tests.conftest import REPOSITORY, Cli, CliResult

_TIME = ["--duration", "0.5"]
_SHELL = ("bash", "-c", 'ulimit -n "$0"; exec "$@"')
# Command lines that need what the others need not, in one window. PID is a server.
WINDOWS = {
    "attribute": ["attribute", "--system", "--meter", "none", *_TIME],
    "profile": ["profile", "--pid", "PID", *_TIME],
    "functions": ["functions", "*dispatch_command*", "--pid", "PID", *_TIME],
    "offcpu": ["offcpu", "--pid", "PID", *_TIME],
    "syscalls": ["syscalls", "--pid", "PID", *_TIME],
    "queries": ["queries", "--pid", "PID", *_TIME],
    "diagnose": ["diagnose", "--pid", "PID", *_TIME],
    "watch": ["watch", "--plain", "--count", "2", "--interval", "1", "--pid", "PID"],
    "residency": ["residency", *_TIME],
    "energy": ["energy", *_TIME],
    "run": ["run", "--quick", "--", "true"],
}


def _limited(cli: Cli, limit: int, words: list[str]) -> CliResult:
    return Cli(cli.home, cli.cache, within=(*_SHELL, str(limit)))(words)


def _check_error(done: CliResult) -> None:
    """One error with a remedy, no traceback, no nested exception."""
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert re.search(r"^hint: ", done.err, re.MULTILINE), done.err
    assert not re.search(r"Traceback|Exception|Error\(|Errno", done.out + done.err), done.err


def _draw_limits(seed: int) -> list[tuple[str, int]]:
    draw = random.Random(seed)
    return [(name, draw.randint(20, count_needed() - 1)) for name in COMMANDS]


@pytest.mark.parametrize(("name", "limit"), _draw_limits(66))
def test_a_hard_limit_below_the_need_is_refused_before_the_work(powerprof_cli: Cli, name: str, limit: int) -> None:
    words = COMMANDS[name].example.replace("'", "").split()
    refused = _limited(powerprof_cli, limit, words)
    assert (refused.code, refused.out) == (1, "")
    _check_error(refused)
    assert refused.err.startswith(f"error: this shell allows {limit} open files; powerprof needs {count_needed()}\n")


@pytest.fixture(scope="module")
def server(mariadbd: object, pooled_server: Callable[..., PrivateServer]) -> PrivateServer:
    return pooled_server()


def _words(name: str, server: PrivateServer) -> list[str]:
    return [str(server.pid) if word == "PID" else word for word in WINDOWS[name]]


@pytest.mark.parametrize("name", [name for name in WINDOWS if name != "run"])
def test_the_least_limit_is_enough(root_bpf: None, powerprof_cli: Cli, server: PrivateServer, name: str) -> None:
    done = _limited(powerprof_cli, count_needed(), _words(name, server))
    assert (done.code, [line for line in done.err.splitlines() if "files" in line]) == (0, []), done.err


def test_a_soft_limit_is_raised_and_a_typed_command_gets_the_old_one(powerprof_cli: Cli) -> None:
    command = "case $(ulimit -n) in 90) ;; *) exit 7; esac"
    shell = ("bash", "-c", 'ulimit -Sn 90; exec "$@"', "bash")
    done = Cli(powerprof_cli.home, powerprof_cli.cache, within=shell)(["run", "--quick", "--", "bash", "-c", command])
    assert (done.code, done.err) == (0, ""), done
    assert "exit code 0" in done.out


def _draw_moments(seed: int, names: list[str]) -> Iterator[tuple[str, float, int]]:
    draw = random.Random(seed)
    for name in names:
        yield name, round(draw.uniform(0.5, 3.0), 2), draw.choice([-20, -3, 0, 1, 2, 4, 8])


@pytest.mark.parametrize(("name", "at_s", "room"), list(_draw_moments(66, [*WINDOWS])))
def test_files_that_run_out_in_the_middle_are_one_error(
    root_bpf: None, powerprof_cli: Cli, server: PrivateServer, name: str, at_s: float, room: int
) -> None:
    """The limit falls to `room` files more than are open. Children that the command started end with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", *_words(name, server)],
        env=powerprof_cli.environment(),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    time.sleep(at_s)
    children: list[psutil.Process] = []
    with suppress(ProcessLookupError, psutil.Error, FileNotFoundError):
        limit = max(3, len(os.listdir(f"/proc/{process.pid}/fd")) + room)
        children = psutil.Process(process.pid).children(recursive=True)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    out, err = process.communicate(timeout=90)
    done = CliResult(process.returncode, out, err)
    if done.code:
        _check_error(done)
    assert done.code in (0, 1, 3), done
    assert not re.search(r"Traceback|Exception in|Errno", err), err
    _, alive = psutil.wait_procs(children, 10)
    assert alive == []
