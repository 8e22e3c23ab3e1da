# SPDX-License-Identifier: Apache-2.0
"""What a script, a service or another account starts us with: closed streams, somebody else's home, a late signal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli, CliResult
from tests.programs.unprivileged import as_nobody

PROGRAM = (sys.executable, "-m", "powerprof")


def _run(words: Sequence[str], environment: Mapping[str, str]) -> CliResult:
    done = subprocess.run(
        words,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    return CliResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(powerprof_cli: Cli, tmp_path: Path, closed: str) -> None:
    """Nothing that is meant for a stream gets into a file that took its number."""
    shell = ("sh", "-c", f'exec "$0" "$@" {closed}', *PROGRAM)
    page = tmp_path / "run.json"
    measured = _run([*shell, "residency", "--duration", "0.05", "--json", str(page)], powerprof_cli.environment())
    assert (measured.code, measured.err) == (0, "")
    assert measured.out == "" if ">&-" in closed.split() else measured.out.startswith("The CPUs ran ")
    assert json.loads(page.read_text())["id"] == "residency-0001"
    if ">&-" in closed.split() and "2>&-" not in closed:
        lost = _run([*shell, "residency", "--duration", "0.05", "--no-save"], powerprof_cli.environment())
        assert (lost.code, lost.err.partition("\n")[0]) == (1, "error: stdout is closed, and no file gets the result")
    refused = _run([*shell, "report", "nosuch"], powerprof_cli.environment())
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "" if "2>&-" in closed else refused.err.startswith("error: no run 'nosuch'")


@pytest.fixture
def closed_home(root: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As `su` and `setpriv` leave it: HOME is root's, and nobody else may look into it."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    return {"HOME": str(home)}


@pytest.mark.parametrize(
    "command", [["residency", "--duration", "0.05"], ["servers"], ["doctor"]], ids=lambda command: command[0]
)
def test_a_home_that_may_not_be_looked_into(
    powerprof_cli: Cli, closed_home: dict[str, str], command: list[str]
) -> None:
    environment = {name: value for name, value in powerprof_cli.environment().items() if not name.startswith("XDG_")}
    done = _run([*as_nobody(), *PROGRAM, *command], {**environment, **closed_home})
    assert done.code == 0, done.err
    assert done.out
    if command[0] == "residency":
        assert done.err.startswith(f"note: the run will not be saved: cannot save the run in {closed_home['HOME']}")
    else:
        assert done.err == ""


def test_a_home_that_is_not_there_is_not_made(powerprof_cli: Cli, tmp_path: Path) -> None:
    """As service accounts have it: /nonexistent."""
    home = tmp_path / "nowhere"
    environment = {name: value for name, value in powerprof_cli.environment().items() if not name.startswith("XDG_")}
    done = _run([*PROGRAM, "residency", "--duration", "0.05"], {**environment, "HOME": str(home)})
    place = f"{home}/.local/state/powerprof/runs"
    assert (done.code, done.err) == (
        0,
        f"note: the run will not be saved: cannot create {place} (no such file or directory)\n",
    )
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile"], "cannot load BPF programs: not permitted"),
        (["functions", "main"], r"process {pid} cannot be read (permission denied)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_process_of_somebody_else(root: None, powerprof_cli: Cli, words: list[str], said: str) -> None:
    """A right that the account does not have, and no failure: code 3."""
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            typed = (*words, "--pid", str(other.pid), "--duration", "30", "--no-save")
            done = _run([*as_nobody(), *PROGRAM, *typed], powerprof_cli.environment())
        finally:
            other.kill()
    assert (done.code, done.out) == (3, "")
    error, hint = done.err.splitlines()
    assert error == "error: " + said.format(pid=other.pid)
    assert re.fullmatch(r"hint: run as root( or as its user)?: sudo .* -m powerprof .*", hint)


_LATE = """
import signal, sys
from powerprof.system import signals
from powerprof.cli import main
ignore = signals.ignore
def late():
    signals.ignore = ignore
    signal.raise_signal(signal.SIGTERM)
signals.ignore = late
sys.argv = ["powerprof", "--version"]
main()
"""


def test_a_signal_when_all_is_done(powerprof_cli: Cli) -> None:
    done = _run([sys.executable, "-c", _LATE], powerprof_cli.environment())
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("powerprof ")


@pytest.mark.parametrize(
    ("setting", "words", "said", "hint"),
    [
        ("export TMPDIR=/etc/passwd", ["idle"], "TMPDIR=/etc/passwd: not a directory", "unset it"),
        ("export TMPDIR=/proc/nosuch", ["runs"], "TMPDIR=/proc/nosuch: no such directory", "unset it"),
        ("mkdir gone; cd gone; rmdir ../gone", ["runs"], "the working directory is gone", "cd to another directory"),
        ("ulimit -n 20", ["attribute", "--system", "--duration", "50ms"], "20 open files", "1024"),
        ("ulimit -v 300000", ["attribute", "--system", "--duration", "50ms"], "memory", "ulimit -v unlimited"),
    ],
)
def test_a_limit_or_a_place_of_the_shell(
    root: None, powerprof_cli: Cli, tmp_path: Path, setting: str, words: list[str], said: str, hint: str
) -> None:
    """The hint undoes what the shell was told."""
    environment = powerprof_cli.environment() | {"PYTHONPATH": str(REPOSITORY)}
    shell = ("sh", "-c", f'cd "$1"; shift; {setting}; exec "$0" "$@"', PROGRAM[0], str(tmp_path), *PROGRAM[1:])
    refused = _run([*shell, *words], environment)
    assert refused.code in (1, 2) and "Traceback" not in refused.err
    error, last = refused.err.splitlines()
    assert error.startswith("error: ") and said in error
    assert last.startswith("hint: ") and hint in last


def test_a_limit_of_processes_is_named(root: None, powerprof_cli: Cli) -> None:
    shell = ("bash", "-c", 'ulimit -u 1; exec "$0" "$@"', *PROGRAM)
    refused = _run([*as_nobody(), *shell, "idle", "--quick", "--no-save"], powerprof_cli.environment())
    assert refused.code == 1, refused
    assert "too many processes of this account" in refused.err and "ulimit -u" in refused.err


def test_a_run_that_may_not_be_read_is_not_missing(root: None, powerprof_cli: Cli) -> None:
    runs = Path("/run/powerprof-test-runs")
    try:
        (runs / "residency-0001").mkdir(parents=True)
        (runs / "residency-0001/run.json").write_text("{}")
        runs.chmod(0o755)
        (runs / "residency-0001").chmod(0o700)
        for words in (["--runs-dir", str(runs), "report", "residency-0001"], ["report", str(runs / "residency-0001")]):
            done = _run([*as_nobody(), *PROGRAM, *words], powerprof_cli.environment())
            assert done.code == 1 and done.err.startswith("error: cannot look for the run ")
            assert "permission denied" in done.err
    finally:
        shutil.rmtree(runs)
