# SPDX-License-Identifier: Apache-2.0
"""A hundred random kills of cures of a PostgreSQL, after which nothing is changed."""

from __future__ import annotations

import collections
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli
from tests.programs.own_postgresql import OwnPostgresql, own_postgresql
from tests.programs.waiting import wait_until
from tests.system.cure.test_cure import with_own_journal

pytestmark = pytest.mark.usefixtures("root_bpf")
# Others by POWERPROF_KILLS=FIRST-END.
KILLS = range(*map(int, os.environ.get("POWERPROF_KILLS", "0-100").split("-")))
SEED = 20261129
# A setting that postgresql.auto.conf lacks, and one that it has.
_SETTINGS = ("work_mem=9MB", "autovacuum_naptime=7min")
_VICTIMS = ("INT", "TERM", "KILL", "keeper", "both", "both and server")
_KEEPER = "powerprof.reversible.keeper"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgresql]:
    with own_postgresql() as running:
        running.execute("ALTER SYSTEM SET autovacuum_naptime = '61s'", "SELECT pg_reload_conf()")
        yield running


def state(server: OwnPostgresql) -> tuple[object, ...]:
    """Return what a cure could have changed."""
    return sorted(server.auto_file.splitlines()), server.show("work_mem"), server.show("autovacuum_naptime")


def kill(server: OwnPostgresql, cli: Cli, number: int, length_s: float) -> str:
    """Do the kill of this number, and see that nothing is changed. Return what came of it."""
    chance, before = random.Random(SEED + number), state(server)
    victim, setting = _VICTIMS[number % len(_VICTIMS)], _SETTINGS[number // len(_VICTIMS) % 2]
    words = ["cure", "--pid", str(server.pid), "--set", setting, "--duration", "0.5", "--pairs", "3", "--yes",
             "--meter", "none", "--no-save"]  # fmt: skip
    process = cli.start(words)
    time.sleep(chance.uniform(0.0, length_s))
    was_changed = state(server) != before
    keepers = []
    with suppress(psutil.NoSuchProcess):
        keepers = [one for one in psutil.Process(process.pid).children(recursive=True) if _KEEPER in one.cmdline()]
    if victim in ("INT", "TERM", "KILL"):
        process.send_signal(getattr(signal, f"SIG{victim}"))
    else:
        for one in keepers:
            with suppress(psutil.NoSuchProcess):
                one.suspend()  # or it restores before it is killed
        if victim != "keeper":
            process.kill()
        for one in keepers:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    _, err = process.communicate(timeout=240)
    assert "Traceback" not in err, err
    if victim == "both and server":
        server.stop()
        server.start()
    if victim not in ("INT", "TERM", "keeper"):
        assert cli(["runs"]).code == 0
    wait_until(
        lambda: state(server) == before, f"{number}: {victim} to {setting}: {state(server)}, not {before}: {err}"
    )
    return f"{victim}{' while changed' if was_changed else ''}"


def test_a_hundred_kills(server: OwnPostgresql, powerprof_cli: Cli, tmp_path: Path) -> None:
    cli = with_own_journal(powerprof_cli, tmp_path)
    began_s = time.monotonic()
    words = ["cure", "--pid", str(server.pid), "--set", _SETTINGS[0], "--duration", "0.5", "--pairs", "3", "--yes",
             "--meter", "none", "--no-save"]  # fmt: skip
    assert cli(words, timeout=120).code == 0
    length_s = time.monotonic() - began_s
    outcomes, broken = collections.Counter[str](), []
    for number in KILLS:
        try:
            outcome = kill(server, cli, number, length_s)
        except AssertionError as error:
            broken.append(str(error))
            outcome = f"BROKEN {error}"
        print(f"{number:>4} {outcome}", flush=True)
        outcomes[outcome] += 1
    print(*(f"{count:>4} {outcome}" for outcome, count in sorted(outcomes.items())), sep="\n")
    assert broken == []
