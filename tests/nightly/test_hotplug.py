# SPDX-License-Identifier: Apache-2.0
"""Rounds of CPUs that go and come while settings of the host are changed, each with a kill at a random moment.

Events are hotplug of some CPUs, a suspend (all CPUs but the first), a CPU with the kernel's default, and a value of
somebody else. Victims are powerprof, it and its keeper, or these and its janitor. In the end each CPU has its old value
or the one that somebody else gave it, and no journal is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli
from tests.programs.hotplug import CPUS, DEFAULT, OLD, OURS, FakeCpus
from tests.programs.remains import Footprint
from tests.programs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "sysbench")

# Others by POWERPROF_HOTPLUGS=FIRST-END.
ROUNDS = range(*map(int, os.environ.get("POWERPROF_HOTPLUGS", "0-120").split("-")))
SEED = 20261128
_VICTIMS = ("none", "INT", "KILL", "both", "janitor")
WORKLOAD = f"""
schema = "powerprof.workload/1"
name = "hosts"
title = "settings of the host"
load = {{ sql = ["SELECT 1"], clients = 1, rate_hz = 50, reads_only = true }}
[conditions.present]
[conditions.fast]
host = ["cpu-governor={OURS}", "disable-state=C1"]
[conditions.slow]
host = ["cpu-governor=conservative"]
"""
_QUIET = ["--meter", "none"]
_CURE = ["cure", "--pid", "PID", "--yes", "--duration", "0.5", "--pairs", "6", *_QUIET]
COMMANDS = {
    "cure": [*_CURE, "--host", f"cpu-governor={OURS}"],
    "cure of a state": [*_CURE, "--host", "disable-state=C1"],
    "study": ["study", "power-profiles", "--quick", "--only", "load-10", *_QUIET],
    "sweep": [
        *("sweep", "hosts:present", "--workloads", "WORKLOADS", "--set", "condition=fast,slow,present"),
        "--trust",
        *("--duration", "0.4", "--repeat", "3", *_QUIET),
    ],
}


class Machine:
    """The eight CPUs of a round.

    Attributes:
        right: the governor that each CPU must have in the end.
    """

    def __init__(self, cpus: FakeCpus, chance: random.Random) -> None:
        self.cpus, self.chance = cpus, chance
        self.right = [OLD] * 8
        self.away: dict[int, str | None] = {}

    def is_changed(self) -> bool:
        return self.cpus.governors() != [OLD] * 8 or "1" in self.cpus.flags()

    def step(self) -> str:
        """Let something happen, and return it."""
        kind = self.chance.choice(("go", "back", "suspend", "set", "nothing"))
        online = [cpu for cpu in CPUS if cpu not in self.away]
        if kind == "go" and len(online) > 3:
            for cpu in self.chance.sample(online[1:], self.chance.randint(1, 3)):
                self.cpus.go(cpu)
                self.away[cpu] = self.chance.choice((None, None, DEFAULT))
        elif kind == "back":
            self.bring_back()
        elif kind == "suspend":
            self.cpus.go(*online[1:])
            time.sleep(self.chance.choice((0.0, 0.01, 0.2)))
            self.cpus.back(*online[1:])
        elif kind == "set":
            cpu = self.chance.choice(online)
            place = self.cpus.governor(cpu)
            other = place.with_name("other")
            other.write_text("ondemand")
            other.replace(place)
            self.right[cpu] = "ondemand"
        return kind

    def mend(self) -> None:
        """Fill the files that a kill left empty: sysfs has no moment between the truncation and the write."""
        for cpu in CPUS:
            for place, value in ((self.cpus.governor(cpu), OURS), (self.cpus.flag(cpu), "1")):
                if not place.read_text():
                    place.write_text(value)

    def bring_back(self) -> None:
        for cpu, governor in self.away.items():
            self.cpus.back(cpu, governor=governor)
            self.right[cpu] = governor or self.right[cpu]
        self.away = {}


@pytest.fixture
def room() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="hotplug-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def _of_module(processes: list[psutil.Process], word: str) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if any(word in each for each in process.cmdline()):
                found.append(process)
    return found


def _end(process: subprocess.Popen[str], footprint: Footprint, victim: str) -> None:
    """Kill the victims."""
    footprint.note()
    if victim in ("both", "janitor"):
        process.send_signal(signal.SIGSTOP)
        children = footprint.descendants()
        for each in _of_module(children, "reversible.keeper"):
            each.suspend()  # or it restores before it is killed
        killed = _of_module(children, "reversible.keeper")
        killed += _of_module(children, "janitor") if victim == "janitor" else []
        process.kill()
        for each in killed:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    elif victim != "none":
        process.send_signal(getattr(signal, f"SIG{victim}"))


def run_round(number: int, cli: Cli, room: Path) -> str:
    """Run one round, check what is left, and return what happened."""
    chance = random.Random(SEED + number)
    command, victim = list(COMMANDS)[number % len(COMMANDS)], chance.choice(_VICTIMS)
    folder = room / f"cpus-{number}"
    folder.mkdir()
    machine = Machine(FakeCpus.make(folder), chance)
    temporary = room / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o755)
    (room / "hosts").mkdir(exist_ok=True)
    (room / "hosts/workload.toml").write_text(WORKLOAD)
    within = machine.cpus.under(cli)
    words = f"{number}: {command}, {victim}:"
    with subprocess.Popen(["sleep", "600"]) as target:
        places = {"PID": str(target.pid), "WORKLOADS": str(room)}
        process = within.start([places.get(word, word) for word in COMMANDS[command]], {"TMPDIR": str(temporary)})
        footprint = Footprint(process.pid, (temporary,))
        try:
            wait_until(lambda: machine.is_changed() or process.poll() is not None, f"{words} no change", 120.0)
            for _ in range(chance.randint(0, 6)):
                words += f" {machine.step()}"
                footprint.note()
                time.sleep(chance.choice((0.0, 0.05, 0.3, 1.0)))
            _end(process, footprint, victim)
            _, err = process.communicate(timeout=300)
            words += f" → {process.returncode} {err[-300:]!r}"
            assert "Traceback" not in err, words
            if victim in ("both", "janitor"):
                machine.mend()
            machine.bring_back()
            wait_until(lambda: not _of_module(list(footprint.processes.values()), "reversible.keeper"), words, 150.0)
            wait_until(lambda: not within(["runs"]).code and not machine.cpus.journals(), words)
            assert machine.cpus.governors() == machine.right, words
            assert machine.cpus.flags() == ["0"] * 8, words
        finally:
            target.kill()
            process.kill()
            process.communicate()
            for each in footprint.processes.values():
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            machine.cpus.close()
    return words


def test_every_cpu_has_its_value_after_each_round(room: Path, tmp_path: Path) -> None:
    cli, broken = Cli(tmp_path), []
    for number in ROUNDS:
        try:
            print(run_round(number, cli, room), flush=True)
        except AssertionError as error:
            broken.append(str(error))
            print(f"BROKEN {error}", flush=True)
    assert broken == []
