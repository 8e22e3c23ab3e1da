# SPDX-License-Identifier: Apache-2.0
"""Every command of powerprof in a printed text comes from `next_steps.command_line`, and the parser accepts it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import typer

from powerprof.cli.app import COMMANDS, build_root
from powerprof.model.text import wrap
from powerprof.system import next_steps
from tests.conftest import REPOSITORY
from tests.unit.layers import sources

_PACKAGE = REPOSITORY / "powerprof"
_OWNER = _PACKAGE / "system/next_steps.py"
_COMMAND = re.compile(rf"\bpowerprof (--[a-z]|({'|'.join(COMMANDS)})\b(?! ·))")
# A value in a text: any word, and a number where a command expects one.
_VALUE = "1"


@cache
def _tree(file: Path) -> ast.Module:
    return sources.parse(file.read_text("utf-8"))


def _docstrings(tree: ast.Module) -> set[int]:
    bodies = (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))  # type: ignore[attr-defined]
    return {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}


def _literals(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts that a module can print, with {…} for the values in them."""
    tree = _tree(file)
    skipped = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def _rendered(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in node.values)
    return None


def printed_commands() -> dict[str, str]:
    """Return the commands that the code prints → where, those in full: a variable verb is the caller's own command."""
    commands: dict[str, str] = {}
    for file in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(_tree(file)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            words = None
            if node.func.id == "command_line":
                words = (_rendered(node.args[0]) or "").replace(" 1 1", " 1")  # several options in one value
            elif node.func.id == "next_command":
                words = " --pid 1 ".join(text for text in map(_rendered, node.args[1:]) if text)
            if words and words.split()[0] in COMMANDS:
                commands[words] = f"{file.relative_to(REPOSITORY)}:{node.lineno}"
    return commands


def test_no_other_text_names_a_command() -> None:
    found = [
        f"{file.relative_to(REPOSITORY)}:{line}: {text}"
        for file in sorted(_PACKAGE.rglob("*.py"))
        if file != _OWNER
        for line, text in _literals(file)
        if _COMMAND.search(text)
    ]
    found += [
        f"{file.name}: {match[0]}"
        for file in sorted(_PACKAGE.rglob("*.j2"))
        for match in _COMMAND.finditer(file.read_text("utf-8"))
    ]
    assert found == []


def test_no_text_joins_the_program_and_a_variable_command() -> None:
    versions = ("powerprof {…}\n", "powerprof {…}", "powerprof {…}{…}")
    found = [
        f"{file.relative_to(REPOSITORY)}:{line}: {text}"
        for file in sorted(_PACKAGE.rglob("*.py"))
        if file != _OWNER
        for line, text in _literals(file)
        if re.search(r"\bpowerprof \{…\}", text) and text not in versions
    ]
    assert found == []


def test_many_commands_are_printed() -> None:
    assert len(printed_commands()) > 30


def test_the_parser_accepts_every_printed_command() -> None:
    group, refused = build_root(), []
    for words in printed_commands():
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


def test_a_wrapped_command_can_be_pasted() -> None:
    command = "sudo /opt/powerprof/.venv/bin/powerprof cure --pid 4711 --thread 7 --slack 50ms"
    for width in range(50, 100):
        lines = wrap(f"it wakes often. To try it: {command}.", width)
        pasted = " ".join("\n".join(lines).replace(" \\\n", " ").split()).partition("To try it: ")[2]
        assert pasted == f"{command}." and max(map(len, lines)) <= width
    assert "\\" not in "".join(wrap("powerprof itself: 0.02 % CPU, 1.0 wake-ups/s, 0 events lost.", 20))
