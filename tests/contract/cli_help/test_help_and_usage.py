# SPDX-License-Identifier: Apache-2.0
"""Every command explains itself, and a wrong command line is one line of error, one of hint, exit code 2."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from powerprof.cli.commands import COMMANDS
from tests.conftest import Cli
from tests.contract.docs.pages import CommandLine
from tests.contract.docs.test_pages import problems_of


def command_names() -> list[str]:
    return sorted(COMMANDS)


def assert_usage_error(code: int, out: str, err: str) -> None:
    assert code == 2, err
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])


def test_the_help_lists_every_command_with_a_line(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--help"])
    assert done.code == 0
    listed = re.findall(r"^  ([a-z-]+) {2,}(\S.*)$", done.out.partition("Idle:")[2], re.MULTILINE)
    assert sorted(name for name, _ in listed) == command_names()
    assert all(len(text) > 10 for _, text in listed)


@pytest.mark.parametrize("name", command_names())
def test_each_command_has_help_of_its_own(powerprof_cli: Cli, name: str) -> None:
    done = powerprof_cli([name, "--help"])
    assert done.code == 0
    assert done.err == ""
    assert done.out.lstrip().startswith(f"Usage: powerprof {name}")
    assert len(done.out.splitlines()) > 5


@pytest.mark.parametrize("name", command_names())
def test_each_command_has_an_example_that_exists_and_the_time_it_takes(powerprof_cli: Cli, name: str) -> None:
    command = COMMANDS[name]
    assert problems_of(CommandLine(Path("help"), command.example)) == []
    text = " ".join(powerprof_cli([name, "--help"]).out.split())
    assert f"Example: {command.example_line} takes {command.takes}" in text


def test_options_stand_in_groups_and_limits_are_words(powerprof_cli: Cli) -> None:
    text = powerprof_cli(["compare", "--help"]).out
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert {"Arguments", "Options", "Where a result goes besides the terminal"} <= set(headings)
    assert any(heading.startswith("Which meters are read") for heading in headings)
    assert "1 to 1000" in text and "<=x" not in text


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal(powerprof_cli: Cli, columns: int) -> None:
    """80 columns are the most that are easy to read; where it is narrow, no line of text breaks twice."""
    for words in ([], ["compare"], ["export"]):
        done = powerprof_cli([*words, "--help"], {"COLUMNS": str(columns), "TERM": "dumb"})
        too_long = [line for line in done.out.splitlines() if len(line) > min(columns + 2, 80)]
        too_long = [line for line in too_long if not re.match(r"\S.*:$", line)]  # a heading is not wrapped
        assert (done.code, too_long) == (0, [])
        assert "[[" not in done.out and "\x1b" not in done.out


@pytest.mark.parametrize("name", command_names())
def test_an_unknown_option_is_named(powerprof_cli: Cli, name: str) -> None:
    done = powerprof_cli([name, "--no-such-option"])
    assert_usage_error(done.code, done.out, done.err)
    assert "--no-such-option" in done.err
    assert f"powerprof {name} --help" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nosuch"], "nosuch"),
        (["--nosuch"], "--nosuch"),
        (["doctor", "more"], "more"),
        (["doctor", "--json"], "--json"),
        (["doctor", "--json", "/nonexistent/x.json"], "/nonexistent"),
        (["--debug"], "command"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(powerprof_cli: Cli, args: list[str], said: str) -> None:
    done = powerprof_cli(args)
    assert_usage_error(done.code, done.out, done.err)
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["functions", "x", "--backend", "dtrace", "--allow-unwinding-risk"], "has no effect with DTrace"),
        (["profile", "--by", "device"], "--by device is not a choice here"),
        (["attribute", "--by", "day"], "--by day is not a choice here"),
        (["attribute", "--by", "function", "--lines"], "--lines has no effect on rows by function"),
        (["profile", "--lines"], "--lines has no effect on rows by function"),
    ],
)
def test_options_of_verbs_about_a_target(powerprof_cli: Cli, words: list[str], said: str) -> None:
    done = powerprof_cli([*words, "--pid", str(os.getpid())])
    assert_usage_error(done.code, done.out, done.err)
    assert said in done.err


_SPEEDSCOPE = "{} --folded FILE or --pprof FILE, which speedscope opens"


@pytest.mark.parametrize(
    ("command", "words", "instead"),
    [
        ("attribute", ["--on-cpu"], "profile"),
        ("attribute", ["--event", "page-faults", "--on-cpu"], "profile"),
        ("attribute", ["--functions", "x"], "functions GLOB"),
        ("attribute", ["--functions=x", "--backend", "dtrace"], "functions GLOB"),
        ("attribute", ["--wakers"], "offcpu"),
        ("attribute", ["--sleeps"], "offcpu"),
        *((name, ["--speedscope", "f"], _SPEEDSCOPE.format(name)) for name in ("attribute", "profile", "report")),
        ("runs", ["--parquet", "d", "export"], "report RUN --csv FILE"),
    ],
)
def test_removed_option_names_its_replacement(powerprof_cli: Cli, command: str, words: list[str], instead: str) -> None:
    done = powerprof_cli([command, *words])
    option = words[0].partition("=")[0]
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: {command} has no {option}\nhint: powerprof {instead}\n"


def test_queries_by_the_servers_history_are_by_samples_now(powerprof_cli: Cli) -> None:
    option = powerprof_cli(["queries", "--pid", "mysqld", "--enable-consumers"])
    assert (option.code, option.out) == (2, "")
    assert option.err == "error: queries has no --enable-consumers\nhint: powerprof queries --method samples\n"
    method = powerprof_cli(["queries", "--pid", str(os.getpid()), "--method", "history"])
    assert (method.code, method.out, method.err.count("\n")) == (2, "", 2)
    assert "--method samples" in method.err


def test_control_characters_of_the_command_line_do_not_reach_the_terminal(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["\x1b[31mred"])
    assert_usage_error(done.code, done.out, done.err)
    assert "\x1b" not in done.err


def test_without_a_command_the_help_is_shown_as_an_error(powerprof_cli: Cli) -> None:
    done = powerprof_cli([])
    assert (done.code, done.out) == (2, "")
    assert "Saved runs:" in done.err


def test_the_version_is_that_of_the_package(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--version"])
    assert done.code == 0
    assert re.fullmatch(r"powerprof \d+\.\d+\.\d+\n", done.out)


@pytest.mark.parametrize("words", [["--help"], ["idle", "--clients", "none"]])
def test_nothing_slow_is_imported_before_it_is_needed(words: list[str], tmp_path: Path) -> None:
    """Starting quickly is a promise: libraries and other commands are loaded where they are used."""
    import subprocess
    import sys

    slow = {"bcc", "drgn", "numpy", "scipy", "plotly", "jinja2", "pymysql", "rich", "pydantic"}
    slow |= {"powerprof.cli.compare"} if words[0] == "idle" else set()
    program = (
        f"import sys; sys.argv={['powerprof', *words]}\nfrom powerprof.cli import main\n"
        f"try: main()\nexcept SystemExit: pass\nprint(sorted({slow} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_is_found_where_people_look_for_it(powerprof_cli: Cli) -> None:
    whole, of_idle = powerprof_cli(["--help"]), powerprof_cli(["idle", "--help"])
    for words, wanted in ((["help"], whole), (["-h"], whole), (["help", "idle"], of_idle), (["idle", "-h"], of_idle)):
        done = powerprof_cli(words)
        assert (done.code, done.out, done.err) == (0, wanted.out, ""), words
    assert powerprof_cli(["-V"]).out == powerprof_cli(["--version"]).out
    assert powerprof_cli(["help", "nosuch"]).code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_each_shell(powerprof_cli: Cli, shell: str) -> None:
    done = powerprof_cli(["--show-completion", shell], {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.code == 0
    assert "_POWERPROF_COMPLETE" in done.out
    words = {"COMP_WORDS": "powerprof at", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "powerprof at"}
    words["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    completed = powerprof_cli([], {"_POWERPROF_COMPLETE": f"complete_{shell}", **words})
    assert "attribute" in completed.out
