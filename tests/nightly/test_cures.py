# SPDX-License-Identifier: Apache-2.0
"""Cures that change nothing claim nothing; and whatever is killed at whatever moment, everything is as before."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.truth import compiled
from tests.system.cure.test_cure import DEFAULT, Truth, cure

pytestmark = pytest.mark.usefixtures("root_bpf")
_CURES = int(os.environ.get("POWERPROF_SOAK_CURES", "20"))
_KILLS = int(os.environ.get("POWERPROF_SOAK_KILLS", "200"))
_KEEPER = "powerprof.reversible.keeper"
_VARIABLE = "innodb_print_all_deadlocks"


@pytest.fixture
def truth(tmp_path: Path, compilers: Sequence[str]) -> Iterator[Truth]:
    running = Truth(compiled(compilers[0], "slack_truth.c", tmp_path), tmp_path, 10)
    yield running
    running.end()


def test_cures_that_change_nothing_are_inconclusive(truth: Truth, powerprof_cli: Cli) -> None:
    for number in range(_CURES):
        words = cure(truth, "--slack", "50us", "--no-save", "--seed", str(number + 1))
        result = powerprof_cli(words, timeout=300)
        assert result.code == 0, result.err
        assert result.out.startswith("Inconclusive: "), (number, result.out)
        assert truth.slack() == DEFAULT
        print(f"cure {number + 1}: inconclusive", flush=True)


def _kill(process: subprocess.Popen[str], generator: random.Random) -> str:
    """Powerprof, its keeper, or both; by a signal that can or cannot be handled."""
    children = []
    with suppress(psutil.Error):
        children = [one for one in psutil.Process(process.pid).children() if _KEEPER in one.cmdline()]
    whom = generator.choice(("powerprof", "keeper", "both"))
    number = generator.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    if whom != "powerprof":
        for child in children:
            with suppress(psutil.Error):
                child.kill()
    if whom != "keeper":
        process.send_signal(number)
    else:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    return f"{whom} {signal.Signals(number).name}"


def test_random_kills_leave_everything_as_before(truth: Truth, powerprof_cli: Cli, tmp_path: Path) -> None:
    generator = random.Random(34)
    with PrivateServer() as server:
        login = server.login
        options = tmp_path / "my.cnf"
        write_options(options, login)
        which = ["--pid", str(server.pid), "--defaults-file", str(options), "--set", f"{_VARIABLE}=ON"]
        variable = ["cure", *which, "--duration", "0.5", "--pairs", "3", "--yes", "--meter", "none"]
        changed = 0
        for number in range(_KILLS):
            process = powerprof_cli.start(variable if number % 2 else cure(truth, "--slack", "50ms"))
            with suppress(subprocess.TimeoutExpired):
                process.wait(generator.uniform(0.2, 9.0))
            changed += truth.slack() != DEFAULT
            how = _kill(process, generator)
            # A keeper that lives puts it back when powerprof has died; else the next start does.
            result = powerprof_cli(["runs"])
            assert result.code == 0, (number, how, result.err)
            for child in psutil.process_iter(["cmdline"]):
                words = child.info["cmdline"] or []
                if _KEEPER in words and str(process.pid) in words:
                    child.wait(60)
            assert truth.slack() == DEFAULT, (number, how)
            with server.connect() as connection:
                assert sql.fetch_scalar(connection, f"SELECT @@GLOBAL.{_VARIABLE}") == 0, (number, how)
            assert truth.process.poll() is None
            print(f"kill {number + 1}: {how}", flush=True)
        assert changed or _KILLS < 40
