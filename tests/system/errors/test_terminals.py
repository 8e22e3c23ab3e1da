# SPDX-License-Identifier: Apache-2.0
"""Terminals that know no Unicode, and terminals that go away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli
from tests.programs.in_window import until_in_window

SAVED = REPOSITORY / "tests/fixtures/saved"


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize("name", ["idle-0001", "compare-0001", "attribute-0001", "sweep-0001"])
def test_a_report_without_unicode(powerprof_cli: Cli, name: str, environment: dict[str, str]) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", name], environment)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii() or environment.get("LC_ALL") == "C"  # C.UTF-8 is what C becomes where it exists
    assert "Traceback" not in done.out


def test_stand_ins_say_what_the_characters_said(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", "idle-0001"], {"PYTHONIOENCODING": "ascii"})
    # Another encoding needs another interpreter, so both are called by the same words, which next steps repeat.
    whole = powerprof_cli(["--runs-dir", str(SAVED), "report", "idle-0001"], {"PYTHONIOENCODING": "utf-8"}).out
    for char, said in {
        "“": '"',
        "”": '"',
        "×": "x",
        "−": "-",
        "–": "-",
        "±": "+/-",
        "·": "|",
        "≈": "~",
        "…": "...",
        "←": "<-",
    }.items():
        whole = whole.replace(char, said)
    assert done.out == whole


def test_an_error_without_unicode(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", "läuft"], {"PYTHONIOENCODING": "ascii"})
    assert done.code == 2
    assert done.err.splitlines()[0].startswith("error: no run 'l?uft' in ")


def test_json_is_utf_8_whatever_the_terminal_is(powerprof_cli: Cli) -> None:
    done = powerprof_cli(
        ["--runs-dir", str(SAVED), "report", "compare-0001", "--json", "-"], {"PYTHONIOENCODING": "ascii"}
    )
    assert json.loads(done.out)["schema"] == "powerprof.comparison/1"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 130), (signal.SIGINT, 130)])
def test_what_was_measured_until_a_signal_is_saved(powerprof_cli: Cli, number: signal.Signals, code: int) -> None:
    process = powerprof_cli.start(["residency", "--duration", "60"])
    until_in_window(process, 60)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "the measured part is saved as residency-0001" in err
    assert "Saved as residency-0001." in out


def test_a_terminal_that_goes_away_leaves_the_run(powerprof_cli: Cli, tmp_path: Path) -> None:
    """The shell in the terminal is gone, its reader too: SIGHUP, and nobody to tell it to."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", "residency", "--duration", "60"],
        env=powerprof_cli.environment(),
        cwd=REPOSITORY,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    until_in_window(process, 60)
    os.close(master)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 129
    saved = powerprof_cli(["runs", "--json", "-"])
    assert (saved.code, saved.err) == (0, "")
    assert [run["ended"]["how"] for run in json.loads(saved.out)["runs"]] == ["interrupted"]
