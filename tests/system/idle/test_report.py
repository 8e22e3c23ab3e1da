# SPDX-License-Identifier: Apache-2.0
"""The report of an idle run for people: the same twice, within 80 columns, plain in a pipe."""

from __future__ import annotations

import copy
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Cli
from tests.programs.balance import counts_idle_exits
from tests.system.idle.conftest import Measured

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

ESCAPE = "\x1b"


def on_a_terminal(cli: Cli, args: list[str], env: dict[str, str] | None = None, columns: int = 80) -> str:
    """What the command writes to a terminal of that width."""
    mine, its = pty.openpty()
    environment = cli.environment({"TERM": "xterm-256color", "COLUMNS": str(columns), **(env or {})})
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", *args],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(its)
    text = b""
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # EIO: the other end was closed
            break
        if not part:
            break
        text += part
    os.close(mine)
    assert process.wait(30) == 0
    return text.decode().replace("\r\n", "\n")


def variant(measured: Measured, tmp_path: Path, change: Any) -> Path:
    """The run with something in it changed, as a file."""
    run = copy.deepcopy(measured.run)
    change(run)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    return path


def test_the_answer_comes_first_and_the_balance_is_there(measured: Measured) -> None:
    text = measured.cli(["report", measured.run["id"]]).out
    # The tests' host is often busy: that is an answer as well.
    assert text.startswith(("An idle MariaDB ", "The threads of an idle MariaDB ", "No answer: the CPUs were "))
    if text.startswith("An idle"):
        assert re.match(r"An idle MariaDB \d+\.\d+ (wakes the CPUs \d|wakes no CPU)", text)
        first = " ".join(text.split("\n\n")[0].split())
        assert "16 silent connections" in first or "the effect of the connections is unknown" in first
    counted = r"cpuidle counted [\d,]+\." if counts_idle_exits() else ""
    said = " ".join(text.split())
    assert re.search(rf" [\d,]+ classified \+ [\d,]+ unknown \+ [\d,]+ lost = [\d,]+; {counted}", said)
    for words in (
        "baseline",
        "16 clients",
        "C0 (running)",
        "wake-ups from idle",
        "Causes of wake-ups",
        "powerprof itself",
    ):
        assert words in text


def test_the_same_run_gives_the_same_report(measured: Measured) -> None:
    first, second = (measured.cli(["report", measured.run["id"]]) for _ in range(2))
    assert (first.code, first.out) == (0, second.out)
    assert measured.cli(["report", measured.run["id"], "--json", "-"]).out == measured.result.out


def test_a_pipe_gets_no_escape_codes_and_80_columns(measured: Measured) -> None:
    done = measured.cli(["report", measured.run["id"]])
    assert ESCAPE not in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert all(line == line.rstrip() for line in done.out.splitlines())


def test_no_colour_where_none_is_wanted(measured: Measured) -> None:
    args = ["report", measured.run["id"]]
    assert ESCAPE not in on_a_terminal(measured.cli, args, {"NO_COLOR": "1"})
    assert ESCAPE not in on_a_terminal(measured.cli, args, {"TERM": "dumb"})


def test_a_terminal_of_any_width_gets_the_same_words(measured: Measured) -> None:
    args = ["report", measured.run["id"]]
    narrow, wide = (on_a_terminal(measured.cli, args, {"NO_COLOR": "1"}, columns) for columns in (80, 200))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", narrow)
    assert max(len(line) for line in plain.splitlines()) <= 80
    first = " ".join(plain.split())[:60]
    assert first == " ".join(re.sub(r"\x1b\[[0-9;]*m", "", wide).split())[:60]


def test_long_and_hostile_names_are_cut_and_cleaned(measured: Measured, tmp_path: Path) -> None:
    def change(run: dict[str, Any]) -> None:
        run["options"]["clients_count"] = 10_000
        run["host"]["idle_driver"] = "\x1b[31mdriver" * 20
        run["server"]["version"] = "MariaDB " * 30
        for phase in run["phases"]:
            for state in phase["states"][-1:]:
                state["name"] = "a state with a name of some length"
            for cause in phase["causes"]:
                cause.update(
                    process="p" * 40 + "\x1b]0;title\x07",
                    thread="thread/of/a/very/long/name" * 3,
                    name="n" * 90,
                    period_ms=399.96,
                    wakeups_hz=12345.6,
                )

    done = measured.cli(["report", str(variant(measured, tmp_path, change))])
    assert done.code == 0
    assert ESCAPE not in done.out
    assert "\x07" not in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_a_run_that_was_interrupted_says_so(measured: Measured, tmp_path: Path) -> None:
    def change(run: dict[str, Any]) -> None:
        run["phases"] = run["phases"][:1]
        run["deltas"] = run["drift"] = []
        run["ended"] = {"how": "interrupted", "why": "by a signal"}

    done = measured.cli(["report", str(variant(measured, tmp_path, change))])
    assert done.code == 0
    assert done.out.startswith("Interrupted: partial results.\n")


def test_unknown_figures_are_question_marks(measured: Measured, tmp_path: Path) -> None:
    """A host without cpuidle knows no states; none of its figures may become 0."""

    def change(run: dict[str, Any]) -> None:
        run["deltas"] = run["drift"] = []
        for phase in run["phases"]:
            phase.update(c0_percent=None, idle_percent=None, wakeups_hz=None, states=[], causes=[], energy=[])
            phase.update(conservation=None, server_exits=None)

    done = measured.cli(["report", str(variant(measured, tmp_path, change))])
    assert done.code == 0
    assert re.search(r"^C0 \(running\) +\? +\? +\?$", done.out, re.MULTILINE)
    assert "C0 and wake-ups are unknown on this host." in done.out
    assert "no meter and no model" in done.out
