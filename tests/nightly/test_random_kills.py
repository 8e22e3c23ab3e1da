# SPDX-License-Identifier: Apache-2.0
"""Two hundred kills at random moments: INT, TERM and KILL to powerprof, KILL to a child of it, and KILL to powerprof
and its keeper, or its janitor, over seventeen commands. Three of them change global variables of a server that is not
theirs, four the settings of eight CPUs made of files.

Nothing may be left (processes, mounts, namespaces, BPF objects, sockets, folders), each setting of the server is as
before, what was measured is saved, and no run that was saved before is lost. The seed says which kill comes when; how
far a command is by then, the host.
"""

from __future__ import annotations

import collections
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from powerprof.report.kinds import load_saved
from tests.conftest import Cli
from tests.programs.hotplug import OURS, FakeCpus
from tests.programs.option_files import write_options
from tests.programs.remains import Footprint

pytestmark = pytest.mark.usefixtures("root_bpf", "sysbench")

# Others by POWERPROF_KILLS=FIRST-END.
KILLS = range(*map(int, os.environ.get("POWERPROF_KILLS", "0-200").split("-")))
SEED = 20261122
_QUIET = ["--meter", "none"]
_SHORT = ["--duration", "0.5", "--repeat", "2", "--attribute", "1"]
_CURE = ["--duration", "0.5", "--pairs", "3", "--yes"]
_GIVEN = ["--workloads", "WORKLOADS", "--defaults-file", "CNF"]
# Conditions that this host lacks in part.
_PROFILES = ["power-profiles:present", "power-profiles:latency-performance"]
# innodb_io_capacity raises innodb_io_capacity_max, and lowering that one lowers the first.
WORKLOAD = """
schema = "powerprof.workload/1"
name = "moves"
title = "settings that move others"
load = { kind = "statements", sql = ["SELECT 1"], clients = 1, rate_hz = 50, reads_only = true, database = "shop" }
[conditions.high]
server.set_global = { innodb_io_capacity = 5000, max_connect_errors = 777, innodb_flush_log_at_trx_commit = 0 }
[conditions.low]
server.set_global = { innodb_io_capacity_max = 100, innodb_flush_log_at_trx_commit = 2 }
[parameters.most]
key = "server.set_global.innodb_io_capacity_max"
"""
COMMANDS = {
    "idle": ["idle", "--clients", "2", "--duration", "0.3", "--repeat", "2", *_QUIET],
    "compare": ["compare", "index", "no-index", "--pairs", "3", "--duration", "0.4", "--attribute", "1", *_QUIET],
    "topology": ["run", "replica-unique-id", "--network-namespaces", *_SHORT, *_QUIET],
    "attribute": ["attribute", "--pid", "PID", "--duration", "1.5", *_QUIET],
    "diagnose": ["diagnose", "--pid", "PID", "--defaults-file", "CNF", "--duration", "1.5"],
    "queries": ["queries", "--defaults-file", "CNF", "--explain", "--yes", "--duration", "1.5", *_QUIET],
    "cure": ["cure", "--pid", "PID", "--defaults-file", "CNF", "--set", "max_connect_errors=101", *_CURE, *_QUIET],
    "offcpu": ["offcpu", "--pid", "PID", "--duration", "1.5"],
    "watch": ["watch", "--plain", "--interval", "1", "--count", "2", "--pid", "PID", *_QUIET],
    "given compare": ["compare", "moves:high", "moves:low", "--pairs", "3", "--duration", "0.3", *_GIVEN, *_QUIET],
    "given run": ["run", "moves:high", "--repeat", "3", "--duration", "0.3", *_GIVEN, *_QUIET],
    "given sweep": [
        *("sweep", "moves:low", "--set", "most=100,150,2500", "--repeat", "3", "--duration", "0.3", *_GIVEN, *_QUIET)
    ],
    "host cure": ["cure", "--pid", "PID", "--host", f"cpu-governor={OURS}", *_CURE, *_QUIET],
    "host compare": ["compare", *_PROFILES, "--pairs", "3", "--duration", "0.4", *_QUIET],
    "host sweep": [
        *("sweep", _PROFILES[0], "--set", "condition=present,latency-performance", "--repeat", "3"),
        *("--duration", "0.3", *_QUIET),
    ],
    "host study": ["study", "power-profiles", "--quick", "--only", "load-0", *_QUIET],
    "export": ["export", "--listen", "unix:ROOM/export.sock", "--interval", "1", "--pid", "PID", *_QUIET],
}
# One kind of them: POWERPROF_KILLED=given.
COMMANDS = {name: words for name, words in COMMANDS.items() if name.startswith(os.environ.get("POWERPROF_KILLED", ""))}
# These save no runs, or run until they are stopped: that is no failure.
_UNSAVED, _ENDLESS_S = ("watch", "export"), 8.0
_VICTIMS = ("INT", "TERM", "KILL", "child", "keeper", "janitor")
# A process that is killed together with powerprof, by a word of its command line.
_TOGETHER = {"keeper": "powerprof.reversible.keeper", "janitor": "janitor.py"}
_SMALL_IDLE = ["idle", "--clients", "1", "--duration", "0.3", "--repeat", "3", "--no-save", *_QUIET]
# Until Python is up a signal ends it as it ends any program.
_INTERPRETER_S = 1.5


@dataclass(frozen=True)
class Server:
    """What attribute and diagnose look at, alive before and after."""

    private: PrivateServer
    defaults: Path

    def put_into(self, words: list[str]) -> list[str]:
        folder = str(self.defaults.parent)
        places = {"PID": str(self.private.pid), "CNF": str(self.defaults), "WORKLOADS": folder}
        return [places.get(word, word) for word in words]

    def settings(self) -> tuple[list[object], ...]:
        """What commands could have changed in it."""
        with self.private.connect() as connection:
            return (
                sql.fetch_rows(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name NOT LIKE '%gtid%'"),
                sql.fetch_rows(connection, "SELECT User FROM mysql.user ORDER BY 1"),
                sql.fetch_rows(connection, "SELECT NAME, ENABLED FROM performance_schema.setup_consumers ORDER BY 1"),
            )


@pytest.fixture(scope="module")
def target(mariadbd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with PrivateServer(name="target", settings={"performance_schema": "ON"}) as server:
        path = tmp_path_factory.mktemp("account") / "client.cnf"
        login = server.login
        write_options(path, login)
        with server.connect() as connection:
            sql.execute(connection, "CREATE DATABASE shop")
        (path.parent / "moves").mkdir()
        (path.parent / "moves/workload.toml").write_text(WORKLOAD)
        yield Server(server, path)


@dataclass(frozen=True)
class Bench:
    """One home and one TMPDIR for all kills, and CPUs with a journal of their own for the settings of the host."""

    cli: Cli
    room: Path
    target: Server
    cpus: FakeCpus

    @property
    def host_cli(self) -> Cli:
        return self.cpus.under(self.cli)

    def settings(self) -> tuple[object, ...]:
        """Return what commands could have changed."""
        return (*self.target.settings(), self.cpus.governors(), self.cpus.flags(), self.cpus.journals())

    def restore(self) -> None:
        """Let the next start restore the settings."""
        for cli in (self.cli, self.host_cli):
            assert cli(["runs"]).code == 0

    def start(self, command: str) -> tuple[subprocess.Popen[str], Footprint]:
        words = [word.replace("ROOM", str(self.room)) for word in self.target.put_into(COMMANDS[command])]
        cli = self.host_cli if command.startswith("host") else self.cli
        process = cli.start(words, {"TMPDIR": str(self.room)})
        return process, Footprint(process.pid, (self.room,))

    def saved(self) -> dict[str, str]:
        """Digest of each saved run, each of which can be read."""
        folder = self.cli.home / "state/powerprof/runs"
        assert list(folder.glob("*/.*")) == []
        found = {}
        for path in folder.glob("*"):
            load_saved(str(path))
            digest = hashlib.sha256()
            for file in sorted(path.iterdir()):
                digest.update(file.read_bytes())
            found[path.name] = digest.hexdigest()
        return found


@pytest.fixture(scope="module")
def bench(target: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    room = Path(tempfile.mkdtemp(prefix="room-", dir="/tmp"))
    room.chmod(0o755)
    cpus = FakeCpus.make(tmp_path_factory.mktemp("cpus"))
    yield Bench(Cli(tmp_path_factory.mktemp("kills")), room, target, cpus)
    shutil.rmtree(room, ignore_errors=True)


@pytest.fixture(scope="module")
def lengths_s(bench: Bench) -> dict[str, float]:
    """How long each command takes undisturbed, the first of them with an empty cache."""
    found = {}
    for command in COMMANDS:
        process, _ = bench.start(command)
        began = time.monotonic()
        if command == "export":
            time.sleep(_ENDLESS_S)
            process.terminate()
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        found[command] = time.monotonic() - began
    return found


def _has_word(process: psutil.Process, end: str) -> bool:
    try:
        return any(word.endswith(end) for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def kill(bench: Bench, number: int, lengths_s: dict[str, float]) -> str:
    """Do the kill of this number, and see that all is as promised; what came of it."""
    chance = random.Random(SEED + number)
    command = list(COMMANDS)[number % len(COMMANDS)]
    victim = _VICTIMS[number // len(COMMANDS) % len(_VICTIMS)]
    before, settings = bench.saved(), bench.settings()
    process, footprint = bench.start(command)
    moment_s = chance.uniform(0.0, lengths_s[command])
    time.sleep(moment_s)
    footprint.note()
    words = f"{number}: {victim} to {command} after {moment_s:.2f} s"
    if victim == "child":
        children = sorted(footprint.descendants(), key=lambda one: one.pid)
        if children:
            one = chance.choice(children)
            try:
                words += f" ({' '.join(one.cmdline()[:5])[:90]})"
                one.kill()
            except Exception as error:  # it has gone
                words += f" ({type(error).__name__})"
    elif victim in _TOGETHER:
        others = [one for one in footprint.descendants() if _has_word(one, _TOGETHER[victim])]
        words += f" ({len(others)} {victim}s)"
        with suppress(psutil.NoSuchProcess):
            for one in others:
                one.suspend()  # or it restores or removes before it is killed
        process.kill()
        with suppress(psutil.NoSuchProcess):
            for one in others:
                one.kill()
    else:
        process.send_signal(getattr(signal, f"SIG{victim}"))
    if victim == "child" and command == "export":
        time.sleep(1.0)
        process.terminate()
    _, err = process.communicate(timeout=240)
    code = process.returncode
    words += f": {code} {err!r}"
    if command == "export" and victim in ("KILL", *_TOGETHER):
        # The name of its socket stays, where nobody answers: its next start takes it away, as it does for itself here.
        again, _ = bench.start(command)
        time.sleep(_ENDLESS_S)
        again.terminate()
        again.communicate(timeout=60)
        assert again.returncode == 0, words
    if victim == "janitor" and others:
        # The next start of a server ends the servers that are left, and removes their folders.
        assert bench.cli(_SMALL_IDLE, {"TMPDIR": str(bench.room)}).code == 0, words
    assert footprint.wait_for_nothing() == [], words
    if victim in ("KILL", *_TOGETHER):
        bench.cpus.finish_writes(OURS)
        # The next start restores what nobody was left to restore, and drops accounts once the server lets go of them.
        bench.restore()
    until_s = time.monotonic() + 30.0
    while bench.settings() != settings and time.monotonic() < until_s:
        time.sleep(0.2)
        if victim in ("KILL", *_TOGETHER):
            bench.restore()
    assert bench.settings() == settings, words
    after = bench.saved()
    assert {name: after.get(name) for name in before} == before, words
    new = set(after) - set(before)
    assert not re.search(r"Traceback|\w+Warning:|Exception ignored", err), words
    if victim in ("INT", "TERM"):
        early = code == -getattr(signal, f"SIG{victim}") and moment_s < _INTERPRETER_S
        assert code in (0, 130) or early, words
        saved = re.search(r"(?:the measured part is saved as|powerprof sweep --resume) (\S+)", err)
        if command in _UNSAVED:
            return f"{command} {victim} {code}"
        assert (code == 0) == (bool(new) and not saved) or saved, words
        # A study saves the run of each step, too.
        assert not saved or new == {saved[1]} or (command == "host study" and saved[1] in new), words
    elif victim == "child":
        # A cure says what it is going to change.
        lines = [kind for line in err.splitlines() if (kind := line.split(":")[0]) in ("error", "hint")]
        assert (code, lines) == (0, []) or (code == 1 and lines in (["error"], ["error", "hint"])), words
    assert bench.target.private.alive(), words
    return f"{command} {victim} {code}{' saved' if new else ''}"


def test_two_hundred_kills(bench: Bench, lengths_s: dict[str, float]) -> None:
    outcomes, broken = collections.Counter[str](), []
    for number in KILLS:
        try:
            what = kill(bench, number, lengths_s)
        except AssertionError as error:
            broken.append(str(error))
            what = f"BROKEN {error}"
        print(f"{number:>4} {what}", flush=True)
        outcomes[what.partition(" saved")[0]] += 1
    print(*(f"{count:>4} {what}" for what, count in sorted(outcomes.items())), sep="\n")
    assert broken == []
