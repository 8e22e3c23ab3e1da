# SPDX-License-Identifier: Apache-2.0
"""Completion by the protocol of the shells: the environment of bash, zsh and fish, and bash itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.cli.completion import Typed, list_values
from powerprof.energy.request import NAMES
from powerprof.experiment.host_settings import list_host_settings
from powerprof.queries.askers import GROUPINGS
from powerprof.report.profile import BY as PROFILE_BY
from powerprof.report.wakeup_groups import BY as STACK_BY
from powerprof.workloads.catalogue import list_conditions, list_names
from powerprof.workloads.studies import list_studies

_PROGRAM = Path(sys.executable).parent / "powerprof"


def complete(shell: str, *words: str, folder: Path) -> tuple[int, list[str], str]:
    """Complete the last word, and return the exit code, the lines and what was printed on stderr."""
    typed = ["powerprof", *words]
    environment = {
        **os.environ,
        "_POWERPROF_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": " ".join(typed),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "POWERPROF_RUNS_DIR": str(folder),
    }
    done = subprocess.run([_PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.split("\n"), done.stderr


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("attribute-0001", "compare-0002", "$(touch x)"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_the_runs(shell: str, runs: Path) -> None:
    code, lines, errors = complete(shell, "report", "", folder=runs)
    assert (code, errors) == (0, "")
    text = "\n".join(lines)
    assert "attribute-0001" in text and "compare-0002" in text and "touch" not in text


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["report", "att"], ["attribute-0001"]),
        (["attribute", "--by", ""], list(STACK_BY)),
        (["profile", "--by", "f"], [name for name in PROFILE_BY if name[0] == "f"]),
        (["queries", "--by", ""], list(GROUPINGS)),
        (["study", ""], list_studies()),
        (["workloads", ""], list_names()),
        (["run", ""], list_conditions()),
        (["compare", "--design", ""], ["rate", "work"]),
        (["energy", "--meter", "rapl,"], [f"rapl,{name}" for name in ("auto", "none", "model", *NAMES)]),
        (["cure", "--host", ""], [f"{name}=" for name in list_host_settings()]),
        (["servers", "f"], ["fetch"]),
        (["servers", "fetch", "mysql-5.5."], ["mysql-5.5.9"]),
    ],
)  # fmt: skip
def test_values(words: list[str], names: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs / "cache"))
    code, lines, errors = complete("bash", *words, folder=runs)
    assert (code, errors) == (0, "")
    assert sorted(filter(None, lines)) == sorted(names)


@pytest.mark.parametrize(
    "words",
    [
        ["attribute", "--by"],
        ["attribute", "--duration", "1", "--duration", "2", "--p"],
        ["attribute", "--nosuch", "--p"],
        ["attribute", "", "--p"],
        ["nosuch", ""],
        ["--nosuch", "id"],
        ["run", "--", ""],
        ["run", "--", "gz"],
        ["compare", "--", "gzip", "--", ""],
        ["report", "--runs-dir", "/nonexistent", ""],
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_wrong_command_line_prints_no_error(shell: str, words: list[str], runs: Path) -> None:
    _, lines, errors = complete(shell, *words, folder=runs)
    assert errors == ""
    assert not [line for line in lines if "error" in line or "hint" in line]


def test_after_the_dashes_the_words_are_those_of_a_command(runs: Path) -> None:
    assert complete("bash", "run", "--", "", folder=runs)[1] == ["", ""]


def test_only_plain_names_are_listed(tmp_path: Path) -> None:
    for name in ("fine", "b$(id)", "c d", "-e", "f`id`", "g\nh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "workload.toml").write_text("")
    typed = Typed(command="workloads", values={"workloads": [str(tmp_path)]})
    assert set(list_values("", "[NAME]", typed, "")) - set(list_names()) == {"fine"}


def test_bash_inserts_the_value(runs: Path) -> None:
    """The script that `powerprof --show-completion` prints, in bash."""
    environment = {**os.environ, "POWERPROF_RUNS_DIR": str(runs), "PATH": f"{_PROGRAM.parent}:{os.environ['PATH']}"}
    script = subprocess.run(
        [_PROGRAM],
        env={**environment, "_POWERPROF_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ask = (
        f"{script}\nCOMP_WORDS=(powerprof report com); COMP_CWORD=2; "
        "_powerprof_completion powerprof; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", ask], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("compare-0002\n", "")
