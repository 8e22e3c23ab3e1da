# SPDX-License-Identifier: Apache-2.0
"""Things that do not exist: each option and argument that names a run, file, folder, process, workload or server ends
with the documented exit code (docs/reference/environment.md), before anything begins.

The options come from the application itself. `CODES` decides by the word for the value in the help.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from powerprof.model.runs import About, RunStore
from tests.programs.in_process import Run, the_commands, up_to_the_first_window
from tests.system.errors.test_odd_values import BASE, BESIDE, WRITES
from tools.pages.cli import commands

__all__ = ["the_commands", "up_to_the_first_window"]

# Metavar → exit code and missing values. An input file has code 1, everything else is a wrong command line.
CODES = {
    "RUN": (2, ("attribute-0099", "nosuch", "nosuch/run.json")),
    "RUN|prune": (2, ("attribute-0099", "nosuch")),
    "FILE": (1, ("nosuch", "nosuch/below")),
    "FILE…": (1, ("nosuch",)),
    "FILE[#COLUMN]": (1, ("nosuch", "nosuch#2")),
    "BEFORE": (1, ("nosuch",)),
    "CPU|FILE": (2, ("nosuch", "./nosuch")),
    "DIR": (2, ("nosuch", "nosuch/below")),
    "ID|NAME": (2, ("nosuch", "4194302")),
    "PATH|UNIT": (2, ("nosuch", "nosuch.service", "/sys/fs/cgroup/nosuch")),
    "CONDITION": (2, ("nosuch", "nosuch:index", "city:nosuch")),
    "STEP": (2, ("nosuch",)),
    "STUDY": (2, ("nosuch",)),
    "NAME[:CPUS]": (2, ("nosuch",)),
}
# Named by the option: programs of the host, and the words of `servers`.
BY_NAME = {"--server-build": (2, ("nosuch", "mariadb-1.0")), "--meter": (2, ("nosuch",))}
# What these need besides, so that the missing thing is the only fault.
MORE: dict[tuple[str, str], tuple[str, ...]] = {("doctor", "--defaults-file"): ("--pid", "1")}
WRITTEN = {*WRITES, "--label"}
# Named places of runs, each with one that is missing.
STORES = [
    ["runs"],
    ["runs", "idle-0001"],
    ["runs", "idle-0001", "--label", "x"],
    ["runs", "prune", "--keep", "3"],
    ["report", "idle-0001"],
    ["attribute", "--from", "attribute-0001"],
    ["doctor", "--from", "attribute-0001"],
    ["compare", "run-0001", "--with", "last"],
    ["compare", "run-0001", "--with", "v1"],
    ["compare", "run-0001", "run-0002"],
]


class Named(msgspec.Struct, kw_only=True):
    """The fields of a record that the store reads."""

    id: str | None
    started_at: str
    command: str
    schema: str = "powerprof.run/1"


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_missing_thing_of(command: str, up_to_the_first_window: Run) -> None:
    wrong = []
    for option in commands()[command].options:
        code, values = BY_NAME.get(option.name) or CODES.get(option.metavar, (0, ()))
        if option.name in WRITTEN:
            continue
        for value in values:
            more = MORE.get((command, option.name), ())
            line = [command, *BESIDE.get((command, option.name), BASE.get(command, ())), *more, option.name, value]
            ended = up_to_the_first_window(line)
            hint = re.search(r"^hint: (\S.*)", ended.err, re.MULTILINE)
            if ended.code != code or hint is None or ended.out or Path("nosuch").exists():
                wrong.append(f"{' '.join(line)}: {ended}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", STORES, ids=" ".join)
def test_a_missing_run_or_store_is_a_wrong_command_line(line: list[str], up_to_the_first_window: Run) -> None:
    """The code is 2 with a missing store, an empty one and none, and the command in the hint lists the same store."""
    Path("empty").mkdir()
    for store in (["--runs-dir", "nosuch"], ["--runs-dir", "empty"], []):
        ended = up_to_the_first_window([*store, *line])
        if ended.code == 0:
            assert store != ["--runs-dir", "nosuch"], ended
            continue
        assert ended.code == 2, ended
        # `compare` saves its result in the store, and so makes it.
        if store[1:] == ["nosuch"] and not Path("nosuch").exists():
            assert "--runs-dir nosuch: no such directory" in ended.err, ended
        else:
            assert ended.err.endswith(" ".join(["powerprof", *store, "runs"]) + "\n"), ended


def test_a_run_without_an_earlier_one_is_a_wrong_command_line(up_to_the_first_window: Run) -> None:
    """`--with` finds the newest run of the same command and target; `last` is one before the run."""
    store = RunStore(Path("store").absolute())
    for name, started_at, target, labels in (
        ("v1", "2026-01-01T00:00:00Z", "city:index", ["v1"]),
        ("other", "2026-01-02T00:00:00Z", "city:no-index", []),
        ("usual", "2026-01-03T00:00:00Z", "city:index", []),
        ("newest", "2026-01-04T00:00:00Z", "city:index", []),
    ):
        record = Named(id=None, started_at=started_at, command=name)
        store.save("run", record, about=About(labels=labels, target=target))
    assert store.find_earlier("run-0004", "last") == "run-0003"
    assert store.find_earlier("run-0004", "v1") == "run-0001"
    for name, label, reason in (
        ("run-0001", "last", "no earlier run of the same command and target as run-0001"),
        ("run-0002", "last", "no earlier run"),
        ("run-0004", "v2", "no run with the label v2"),
        ("run-0005", "last", "no run 'run-0005'"),
        ("store/run-0004", "last", "store/run-0004 is not the id of a run"),
    ):
        ended = up_to_the_first_window(["--runs-dir", str(store.directory), "compare", name, "--with", label])
        assert ended.code == 2, ended
        assert ended.err.startswith(f"error: {reason}"), ended
        assert ended.err.endswith(f"powerprof --runs-dir {store.directory} runs\n"), ended
