# SPDX-License-Identifier: Apache-2.0
"""Every command of powerprof in a printed text comes from `next_steps.command_line`, and the parser accepts it."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from powerprof.cli.app import build_root
from powerprof.cli.commands import COMMANDS
from powerprof.model.text import wrap
from powerprof.system import next_steps
from tests.conftest import REPOSITORY
from tests.unit.layers import sources

_PACKAGE = REPOSITORY / "powerprof"
_COMMAND = re.compile(rf"\bpowerprof (--[a-z]|({'|'.join(COMMANDS)})\b(?! ·))")
# A value in a text: any word, and a number where a command expects one.
_VALUE = "1"


def _rendered(node: ast.expr) -> str:
    """Return an argument of a call as its words in a command; a list of words that is known only later has none."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in node.values)
    if isinstance(node, ast.List | ast.Tuple):
        return " ".join(map(_rendered, node.elts))
    # Lists of words that are known only when the command is printed.
    return "" if ast.unparse(node) in ("place", "outputs", "folder", "names", "candidate.options") else _VALUE


def _words(call: ast.Call) -> str:
    """Return the words of a command that the code prints, with `_VALUE` for each value; empty for other calls."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name == "next_command":
        options = " ".join(map(_rendered, call.args[2:]))
        return f"{_rendered(call.args[1])} --pid {_VALUE} {options}"
    if name != "command_line" or not isinstance(call.args[0], ast.Constant):
        return ""
    words = str(call.args[0].value)
    for value in call.args[1:]:
        words = words.replace("{}", _rendered(value), 1)
    return words


def printed_commands() -> dict[str, str]:
    """Return the commands that the code prints → where, those in full: a variable verb is the caller's own command."""
    commands: dict[str, str] = {}
    for file, node in _calls():
        words = _words(node)
        if words and words.split()[0] in COMMANDS:
            commands[words] = f"{file}:{node.lineno}"
    return commands


@cache
def _calls() -> tuple[tuple[str, ast.Call], ...]:
    files = sources.modules().items()
    return tuple(
        (f"powerprof/{name}", n) for name, text in files for n in sources.walk(text) if isinstance(n, ast.Call)
    )


def test_the_words_of_a_command_are_not_made_of_values() -> None:
    """Else a name of another account runs when the command is pasted. Tables of the program's own texts are none."""
    own = {"COMMANDS[str(self.name)].example"}
    found = [
        f"{file}:{node.lineno}"
        for file, node in _calls()
        if isinstance(node.func, ast.Name)
        and node.func.id == "command_line"
        and not (isinstance(node.args[0], ast.Constant) or ast.unparse(node.args[0]) in own)
    ]
    found += [
        f"{file.name}: {match[0]}"
        for file in sorted(_PACKAGE.rglob("*.j2"))
        for match in re.finditer(r"command_line\((?!'[^']*'[,)])[^)]*", file.read_text("utf-8"))
    ]
    assert found == []


def test_the_words_of_a_command_of_the_system_are_not_made_of_values() -> None:
    """`system_command` quotes them: a file of another account can have any name."""
    command = re.compile(r"(?:^|[^a-z])(?:rm|chmod|chown|mkdir|mv|cp|ln|cat)(?: -\S+| [a-z]-[a-z])* $")
    found = [
        f"powerprof/{name}:{node.lineno}"
        for name, text in sources.modules().items()
        for node in sources.walk(text)
        if isinstance(node, ast.JoinedStr)
        for part, value in itertools.pairwise(node.values)
        if isinstance(part, ast.Constant) and isinstance(value, ast.FormattedValue) and command.search(str(part.value))
    ]
    assert found == []


@given(st.text(min_size=1), st.lists(st.text(), max_size=3))
def test_a_value_is_one_word_for_a_shell(value: str, words: list[str]) -> None:
    line = next_steps.command_line("cure --thread {} {} --release", value, words)
    assert shlex.split(line)[-3 - len(words) :] == ["--thread", value, *words, "--release"]


@pytest.mark.parametrize(
    "value", ["t$(touch made)", "a;touch made", "`touch made`", "a\ntouch made", "'; touch made; '"]
)
def test_a_pasted_command_runs_no_value(tmp_path: Path, value: str) -> None:
    line = next_steps.command_line("sweep --resume {}", value).partition("sweep --resume ")[2]
    done = subprocess.run(["sh", "-c", f"printf %s {line}"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, list(tmp_path.iterdir())) == (value, [])


def test_no_other_text_names_a_command_or_joins_the_program_and_a_variable_command() -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, source in sources.modules().items()
        if name != "system/next_steps.py"
        for line, text in sources.strings(source)
        if _COMMAND.search(text)
        or (re.search(r"\bpowerprof \{\}", text) and text not in ("powerprof {}\n", "powerprof {}", "powerprof {}{}"))
    ]
    found += [
        f"{file.name}: {match[0]}"
        for file in sorted(_PACKAGE.rglob("*.j2"))
        for match in _COMMAND.finditer(file.read_text("utf-8"))
    ]
    assert found == []


def test_the_parser_accepts_every_printed_command() -> None:
    group, refused, printed = build_root(), [], printed_commands()
    assert len(printed) > 30
    for words in printed:
        name, *arguments = shlex.split(words)
        if "--" in arguments:
            del arguments[arguments.index("--") :]
        command = group.get_command(None, name)  # type: ignore[arg-type]
        try:
            command.make_context(name, arguments)
        except typer.Exit:  # after --help
            pass
        except click.ClickException as error:
            refused.append(f"{words}: {error.format_message()}")
    assert refused == []


def test_every_command_has_its_right() -> None:
    assert set(COMMANDS) == next_steps._AS_ROOT | next_steps._UNPRIVILEGED | next_steps._READING


@pytest.mark.parametrize("width", range(30, 121, 6))
def test_a_command_is_not_broken_inside_a_sentence(width: int) -> None:
    """A command has one line; one that is longer than a line has lines without other words."""
    commands = [
        "powerprof idle",
        "sudo powerprof attribute --pid 4711",
        "powerprof compare index no-index --duration 5s",
    ]
    for count in range(4):
        before, after = ("word " * count, " then wait" * count)
        for command in commands:
            lines = wrap(f"{before}to see it: {command}.{after}", width)
            first = next(at for at, line in enumerate(lines) if command.split()[0] in line.split())
            if len(command) < width:
                assert f"{command}." in lines[first]
                continue
            last = next(at for at, line in enumerate(lines[first:], first) if not line.endswith(" \\"))
            pasted = " ".join(line.removesuffix(" \\") for line in lines[first : last + 1])
            assert pasted == f"{command}."


def test_a_wrapped_command_can_be_pasted() -> None:
    command = "sudo /opt/powerprof/.venv/bin/powerprof cure --pid 4711 --thread 7 --slack 50ms"
    for width in range(50, 100):
        lines = wrap(f"it wakes often. To try it: {command}.", width)
        pasted = " ".join("\n".join(lines).replace(" \\\n", " ").split()).partition("To try it: ")[2]
        assert pasted == f"{command}." and max(map(len, lines)) <= width
    assert "\\" not in "".join(wrap("powerprof itself: 0.02 % CPU, 1.0 wake-ups/s, 0 events lost.", 20))
