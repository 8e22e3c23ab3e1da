# SPDX-License-Identifier: Apache-2.0
"""Every command explains itself; a wrong command line is one line of error and one of hint, with exit code 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.cli.commands import COMMANDS
from tests.conftest import Cli
from tests.unit.docs.test_pages import problems_of
from tools.pages.cli import example_duration
from tools.pages.pages import CommandLine


def test_the_help_lists_commands_by_question(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--help"])
    assert done.code == 0
    sections = re.split(r"^(\S.*):$", done.out.partition("  -h, --help")[2], flags=re.MULTILINE)
    listed = {
        panel: re.findall(r"^  ([a-z-]+) {2,}\S.{10,}$", text, re.MULTILINE)
        for panel, text in zip(sections[1::2], sections[2::2], strict=True)
    }
    assert list(listed) == ["Idle", "Why", "What if", "Fix", "Watch", "Host", "Saved runs"]
    assert [(panel, name) for panel, names in listed.items() for name in names] == [
        (command.panel, name) for name, command in COMMANDS.items()
    ]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_help_with_an_example_and_its_duration(powerprof_cli: Cli, name: str) -> None:
    done, command = powerprof_cli([name, "--help"]), COMMANDS[name]
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: powerprof {name} [OPTIONS]")
    assert problems_of(CommandLine(Path("help"), command.example)) == []
    example = rf"Example: .*\bpowerprof {re.escape(f'{command.example} Duration: {example_duration(name)}')}"
    assert re.search(example, " ".join(done.out.split()))


def test_options_are_in_groups_with_limits_in_words(powerprof_cli: Cli) -> None:
    text = powerprof_cli(["compare", "--help"]).out
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert {"Arguments", "Options", "Output", "Energy"} <= set(headings)
    assert "3 to 1000" in text


def test_shares_of_profile_are_of_the_target(powerprof_cli: Cli) -> None:
    text = " ".join(powerprof_cli(["profile", "--help"]).out.split())
    assert "share of the target's CPU time" in text
    assert "of this host" not in text.partition("Options:")[0]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal(powerprof_cli: Cli, columns: int) -> None:
    """Lines have at most 80 columns. On a narrower terminal no line wraps twice."""
    for words in ([], ["compare"], ["export"]):
        done = powerprof_cli([*words, "--help"], {"COLUMNS": str(columns), "TERM": "dumb"})
        too_long = [line for line in done.out.splitlines() if len(line) > min(columns + 2, 80)]
        too_long = [line for line in too_long if not re.match(r"\S.*:$", line)]  # a heading is not wrapped
        assert (done.code, too_long) == (0, [])
        assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        *((f"{name} --no-such-option", "no such option: --no-such-option", f"{name} --help") for name in COMMANDS),
        ("nosuch", "no such command 'nosuch'", "powerprof --help"),
        ("help nosuch", "no such command 'nosuch'", "powerprof --help"),
        ("atribute", "no such command 'atribute'", "did you mean attribute[?] .*powerprof attribute$"),
        ("\x1b[31mred", r"no such command '\\x1b\[31mred'", "powerprof --help"),
        ("--nosuch", "no such option: --nosuch", "powerprof --help"),
        ("--debug", "missing command", "powerprof --help"),
        ("doctor more", "unexpected argument: more", "leave it out: .*powerprof doctor; .*powerprof doctor --help"),
        ("doctor --json", "--json has no value", "--json FILE: Write the result as JSON"),
        ("doctor --json /nonexistent/x.json", "--json /nonexistent/x.json: no such directory", "create it first"),
        ("functions --pid 1", "missing argument 'GLOB'", "powerprof functions --pid 1 'handle_[*]'"),
        ("cure --slack 1ms", "--slack needs a thread", "--thread NAME"),
        ("energy --meter model@x", "--meter model@x: a CPU of a guest is a thread or a core", "model@thread"),
        # Options of the commands that trace a process.
        ("functions x --pid 1 --backend dtrace --allow-unwinding-risk", ".* has no effect with DTrace", ""),
        ("profile --pid 1 --by device", "--by device is not a choice here", "one of"),
        ("attribute --pid 1 --by day", "--by day is not a choice here", "one of"),
        ("attribute --pid 1 --by function --lines", "--lines has no effect on rows by function", "add --by stack"),
        ("profile --pid 1 --lines", "--lines has no effect on rows by function", "add --by stack"),
        ("attribute -p nosuch", "--pid nosuch: no process is called nosuch", "ps -e"),
        ("residency foo", "foo needs --from BEFORE", "powerprof residency --help"),
        ("energy foo bar", "foo needs --from FILE", "powerprof energy --help"),
        ("--runs-dir /nonexistent runs", "--runs-dir /nonexistent: no such directory", "name a directory"),
        ("export --statements abc", "--statements abc: no process is called abc", "ps -e lists them"),
        ("attribute --pid mysqld,,", "--pid mysqld,, has an empty value", ".*such as 1234,mysqld"),
        ("export --statements -3", "--statements '-3' is not a process id or name", ".*such as 1234"),
    ],
)
def test_a_wrong_command_line_is_named_with_a_remedy(powerprof_cli: Cli, line: str, error: str, hint: str) -> None:
    done = powerprof_cli(line.split(" "))
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert re.match(f"error: {error}", first), first
    assert re.match(f"hint: .*{hint}", second), second
    assert done.err.replace("\n", "").isprintable()


def test_without_a_command_the_help_is_an_error(powerprof_cli: Cli) -> None:
    done = powerprof_cli([])
    assert (done.code, done.out) == (2, "")
    assert "Saved runs:" in done.err


def test_the_version_is_printed(powerprof_cli: Cli) -> None:
    done = powerprof_cli(["--version"])
    assert done.code == 0
    assert re.fullmatch(r"powerprof \d+\.\d+\.\d+\n", done.out)
    assert powerprof_cli(["-V"]).out == done.out


@pytest.mark.parametrize("words", [["--help"], ["idle", "--clients", "none"]])
def test_slow_libraries_and_other_commands_are_not_imported_at_the_start(words: list[str], tmp_path: Path) -> None:
    slow = {
        "bcc",
        "drgn",
        "numpy",
        "scipy",
        "plotly",
        "jinja2",
        "psutil",
        "pymysql",
        "rich",
        "pydantic",
        "powerprof.cli.compare",
    }
    program = (
        f"import sys; sys.argv={['powerprof', *words]}\nfrom powerprof.cli import main\n"
        f"try: main()\nexcept SystemExit: pass\nprint(sorted({slow} & set(sys.modules)))"
    )
    # On another host than this one no setting is restored that a killed command of another test left.
    env = {**os.environ, "POWERPROF_SYSFS": str(tmp_path), "POWERPROF_PROCFS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", cwd=tmp_path, env=env, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_has_the_usual_spellings(powerprof_cli: Cli) -> None:
    overview, of_idle = powerprof_cli(["--help"]), powerprof_cli(["idle", "--help"])
    for line, wanted in (("help", overview), ("-h", overview), ("help idle", of_idle), ("idle -h", of_idle)):
        done = powerprof_cli(line.split())
        assert (done.code, done.out, done.err) == (0, wanted.out, ""), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(powerprof_cli: Cli, shell: str) -> None:
    done = powerprof_cli(["--show-completion", shell], {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.code == 0
    assert "_POWERPROF_COMPLETE" in done.out
    words = {"COMP_WORDS": "powerprof at", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "powerprof at"}
    words["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    completed = powerprof_cli([], {"_POWERPROF_COMPLETE": f"complete_{shell}", **words})
    assert "attribute" in completed.out
