# SPDX-License-Identifier: Apache-2.0
"""A given server that ends or stops while an experiment works on it: the command ends soon and names the server."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.announced import Announced
from tests.programs.option_files import write_options

COMMANDS = {
    "run": ["run", "index", "--duration", "20"],
    "compare": ["compare", "index", "no-index", "--duration", "20"],
    "alternating": ["compare", "index", "no-index", "--quick"],
    "sweep": ["sweep", "city:index", "--clients", "1,2"],
    "idle": ["idle", "--duration", "5"],
}
# Two looks of a busy host, and two connections for the account that is left.
SOON_S = 12.0
_WORKS = re.compile(rb"window|pair|round|settle|speed|tracing")


def draw_cases(seed: int) -> Iterator[tuple[str, str, float]]:
    draw = random.Random(seed)
    for command in COMMANDS:
        yield command, draw.choice(["KILL", "STOP"]), round(draw.uniform(0.5, 6.0), 1)


def try_case(cli: Cli, folder: Path, case: tuple[str, str, float]) -> None:
    command, event, at_s = case
    with PrivateServer() as server:
        assert server.pid is not None
        options = folder / "account.cnf"
        write_options(options, server.login)
        running = Announced([*COMMANDS[command], "--defaults-file", str(options)], cli.environment())
        running.until_window(pattern=_WORKS)
        time.sleep(at_s)
        was_running, happened_s = running.process.poll() is None, time.monotonic()
        os.kill(server.pid, getattr(signal, f"SIG{event}"))
        try:
            done = running.end()
        finally:
            if event == "STOP":
                os.kill(server.pid, signal.SIGCONT)
    assert was_running, done
    assert time.monotonic() - happened_s < SOON_S + (0 if event == "KILL" else 5)
    assert done.code == 1, done
    what = "ended" if event == "KILL" else "was stopped by a signal or a debugger"
    errors = [line for line in done.err.splitlines() if "error: " in line]
    assert len(errors) == 1 and re.search(rf"error: mariadbd \({server.pid}\) {what}", errors[0]), done.err
    assert not re.search(r"Traceback|Errno|Error\(", done.out + done.err), done


@pytest.mark.parametrize("case", list(draw_cases(67)), ids=str)
def test_an_experiment_says_that_its_given_server_ended(
    root_bpf: None, mariadbd: Path, powerprof_cli: Cli, tmp_path: Path, case: tuple[str, str, float]
) -> None:
    try_case(powerprof_cli, tmp_path, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for seed in range(6) for case in draw_cases(seed)], ids=str)
def test_more_experiments_say_that_their_given_server_ended(
    root_bpf: None, mariadbd: Path, powerprof_cli: Cli, tmp_path: Path, case: tuple[str, str, float]
) -> None:
    try_case(powerprof_cli, tmp_path, case)
