# SPDX-License-Identifier: Apache-2.0
"""Every verb beside the zoo: INT, TERM and KILL at random moments end it in time, and it keeps within its budgets.

POWERPROF_ZOO=FIRST-END selects the rounds. Nothing remains but abandoned readers, which end with the zoo.
"""

from __future__ import annotations

import collections
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.cli.commands import COMMANDS
from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs.option_files import write_options
from tests.programs.zoo import cage
from tests.programs.zoo_rounds import BUDGET_S, Visitor, end_by_signal, run_whole, visitor

pytestmark = pytest.mark.usefixtures("root_bpf", "sysbench")
ROUNDS = range(*map(int, os.environ.get("POWERPROF_ZOO", "0-200").split("-")))
SEED = 20261128
MAPPERS = int(os.environ.get("POWERPROF_ZOO_MAPPERS", "200"))
_QUIET = "--meter none --no-save"
_WINDOW = "--duration 1 --no-save"
# PID and CNF: a server of ours. In capitals else: an inhabitant of the zoo.
WORDS = {
    "idle": (f"idle --clients 2 --duration 0.3 --repeat 3 {_QUIET}",),
    "residency": (f"residency {_WINDOW}",),
    "attribute": (f"attribute --system {_WINDOW}", f"attribute --pid COVERED,EXEC,LOCKED {_WINDOW}"),
    "deep-idle": (f"deep-idle {_WINDOW}",),
    "profile": (f"profile --system {_WINDOW}", f"profile --pid STALLED,SLOW {_WINDOW}"),
    "functions": (f"functions handle_* --pid PID {_WINDOW}",),
    "offcpu": (f"offcpu --pid ENDLESS,COVERED {_WINDOW}",),
    "syscalls": (f"syscalls --pid COVERED {_WINDOW}",),
    "queries": (f"queries --pid PID {_WINDOW}",),
    "diagnose": (f"diagnose --pid SLOW {_WINDOW}", f"diagnose --pid PID --defaults-file CNF {_WINDOW}"),
    "run": (f"run index --duration 0.3 --repeat 2 --attribute 1 {_QUIET}",),
    "compare": (f"compare index no-index --pairs 3 --duration 0.3 --attribute 1 {_QUIET}",),
    "sweep": (f"sweep index --clients 1,2 --duration 0.3 --repeat 3 {_QUIET}",),
    "study": (f"study dirty-pages --quick {_QUIET}",),
    "cure": (
        f"cure --pid PID --defaults-file CNF --set max_connect_errors=101 --duration 0.5 --pairs 3 --yes {_QUIET}",
        "cure --pid COVERED",
    ),
    "watch": ("watch --plain --no-ask --count 2 --interval 1 --meter none",),
    "export": ("export --listen unix:ROOM/export.sock --interval 1 --statements PID --meter none",),
    "doctor": ("doctor --pid COVERED", "doctor"),
    "energy": ("energy --duration 1",),
    "workloads": ("workloads city",),
    "servers": ("servers",),
    "runs": ("runs",),
    "report": ("report RECORD",),
}
# The exporter runs until it is stopped.
ENDLESS_S = {"export": 8.0}
# Most that a command takes without the zoo.
ALONE_S = {"idle": 40.0, "run": 40.0, "compare": 60.0, "sweep": 60.0, "study": 180.0}


@pytest.fixture(scope="module")
def beside(mariadbd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A server whose program an inhabitant maps, a saved run, and the visitor."""
    folder = tmp_path_factory.mktemp("zoo")
    with (
        cage(mariadbd) as place,
        PrivateServer(binary=place / "server/mariadbd", settings={"performance_schema": "ON"}) as server,
    ):
        write_options(folder / "client.cnf", server.login)
        with server.connect() as connection:
            sql.execute(connection, "CREATE DATABASE shop")
        cli = Cli(folder)
        record = folder / "record.json"
        assert cli(["residency", "--duration", "0.3", "--no-save", "--json", str(record)]).code == 0
        places = {"PID": str(server.pid), "CNF": str(folder / "client.cnf"), "RECORD": str(record)}
        with visitor(cli, place, places, MAPPERS) as found:
            yield found
        assert server.alive()


def run_all(beside: Visitor, broken: list[str]) -> dict[str, float]:
    """Return the duration of each command line beside the zoo. Note those beyond their budget."""
    lengths_s = {}
    for verb, lines in WORDS.items():
        for line in lines:
            beside.open()
            lengths_s[line] = alone_s = ALONE_S.get(verb, 15.0)
            try:
                lengths_s[line] = run_whole(beside, line, alone_s + BUDGET_S, ENDLESS_S.get(verb))
            except AssertionError as error:
                print(f"BROKEN {error}", flush=True)
                broken.append(str(error))
            print(f"{lengths_s[line]:6.1f} s {line}", flush=True)
    return lengths_s


def test_every_verb_has_words() -> None:
    assert set(WORDS) == set(COMMANDS)


def test_signals_end_every_verb_beside_the_zoo(beside: Visitor) -> None:
    lines, broken = [line for group in WORDS.values() for line in group], list[str]()
    lengths_s = run_all(beside, broken)
    outcomes = collections.Counter[str]()
    for number in ROUNDS:
        chance = random.Random(SEED + number)
        line, name = lines[number % len(lines)], chance.choice(("INT", "TERM", "KILL"))
        beside.open()
        try:
            what = end_by_signal(beside, line, name, chance.uniform(0.0, lengths_s[line]))
        except AssertionError as error:
            broken.append(str(error))
            what = f"BROKEN {error}"
        print(f"{number:>4} {what}", flush=True)
        outcomes[f"{line.split()[0]} {name}"] += 1
    print(*(f"{count:>4} {what}" for what, count in sorted(outcomes.items())), sep="\n")
    beside.close()
    assert broken == []
