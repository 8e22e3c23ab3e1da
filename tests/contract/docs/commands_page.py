# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/commands.md from what the commands declare: `python -m tests.contract.docs.commands_page`."""

from __future__ import annotations

import re
from collections import Counter

from tests.conftest import REPOSITORY
from tests.contract.docs.cli import Command, Parameter, commands

PAGE = REPOSITORY / "docs/reference/commands.md"
COMMAND = "python -m tests.contract.docs.commands_page"
_SHARED_BY = 3
_HEAD = "| option | meaning | default | range |\n|---|---|---|---|"

_INTRODUCTION = """# Commands

`powerprof COMMAND --help` (or `-h`, or `help COMMAND`) prints the same text. `--install-completion` sets up completion
for bash, zsh and fish. The value of an option is the next word, or follows `=`. The report is printed on stdout, errors
on stderr. Progress is printed on stderr if that is a terminal. See also [exit codes](exit-codes.md) and
[environment variables](environment.md).

`powerprof --version` prints the version. `powerprof --debug COMMAND …` adds a traceback to an error.

"""


def _value(value: object) -> str:
    if value is None or value is False:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _range(option: Parameter) -> str:
    if option.low is None and option.high is None:
        return ""
    if option.high is None:
        return f"from {option.low:g}"
    return f"{option.low:g} – {option.high:.10g}" if option.low is not None else f"to {option.high:.10g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(option: Parameter) -> str:
    word = f"{option.name} {option.metavar or 'VALUE'}" if option.takes_value else option.name
    return f"| `{_cell(word)}` | {_cell(option.help)} | {_value(option.default)} | {_range(option)} |"


def _argument(argument: Parameter) -> str:
    return argument.name if argument.required else f"[{argument.name}]"


def _shared(found: dict[str, Command]) -> list[str]:
    """The rows that several commands have word for word, in the order of their first command."""
    counted = Counter(_row(option) for command in found.values() for option in command.options)
    return [row for row, count in counted.items() if count >= _SHARED_BY]


def _prose(text: str) -> str:
    """The docstring that is the help, its options as code."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![`\w])", r"`\1`", text)
    return text.replace("docs/how-to/write-a-workload.md", "[Write a workload](../how-to/write-a-workload.md)")


def _section(command: Command, shared: list[str]) -> str:
    usage = " ".join(["powerprof", command.name, "[OPTIONS]", *map(_argument, command.arguments)])
    parts = [f"## {command.name}", _prose(command.help), f"    {usage}"]
    arguments = [f"| `{_cell(one.name)}` | {_cell(one.help)} | {_value(one.default)} |" for one in command.arguments]
    if arguments:
        parts.append("\n".join(["| argument | meaning | default |\n|---|---|---|", *arguments]))
    own = [row for row in map(_row, command.options) if row not in shared]
    if own:
        parts.append("\n".join([_HEAD, *own]))
    common = [f"`{one.name}`" for one in command.options if _row(one) in shared]
    if common:
        parts.append(f"[Shared options](#shared-options): {', '.join(common)}.")
    return "\n\n".join(parts)


def render() -> str:
    """The page as it has to be."""
    found = commands()
    shared = _shared(found)
    parts = [_section(command, shared) for command in found.values()]
    parts += ["## Shared options", "\n".join([_HEAD, *shared])]
    return _INTRODUCTION + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
