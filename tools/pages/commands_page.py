# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/commands.md from what the commands declare: `python -m tools.pages.commands_page`."""

from __future__ import annotations

import re
from collections import Counter

from powerprof.cli.parameters import EXPERT_HEADING, OWN_HEADING
from tests.conftest import REPOSITORY
from tools.pages.cli import Command, Parameter, commands

PAGE = REPOSITORY / "docs/reference/commands.md"
COMMAND = "python -m tools.pages.commands_page"
_SHARED_BY = 2

_INTRODUCTION = """# Commands

`powerprof COMMAND --help` prints the same text. `--install-completion` sets up completion for bash, zsh and fish.
`powerprof --version` prints the version; `powerprof --debug COMMAND …` adds a traceback to an error.
`powerprof --quiet COMMAND …` prints no report and no progress. `powerprof --runs-dir DIR COMMAND …` uses another
directory of saved runs than the state directory. The report is printed on stdout; errors, and progress on a terminal,
on stderr. See [exit codes](environment.md#exit-codes) and
[environment variables](environment.md#environment-variables). A TIME is 5s, 500ms, 2m, 1h or 1d; without a unit, it
has the one of the default.

"""


def _value(value: object) -> str:
    if value is None or value is False:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _range(option: Parameter) -> str:
    unit = f" {option.unit}" if option.unit else ""
    if option.low is None and option.high is None:
        return ""
    if option.high is None:
        return f"from {option.low:g}{unit}"
    return f"{option.low:g}–{option.high:.10g}{unit}" if option.low is not None else f"to {option.high:.10g}{unit}"


def _item(name: str, meaning: str, *facts: str) -> str:
    """Return the line of an option or argument: name, meaning, and its default and range in parentheses."""
    known = ", ".join(filter(None, facts))
    return f"- `{name}`: {meaning.removesuffix('.')} ({known})." if known else f"- `{name}`: {meaning}"


def _row(option: Parameter) -> str:
    word = f"{option.name} {option.metavar or 'VALUE'}" if option.takes_value else option.name
    return _item(word, option.help, _default(option), _range(option))


def _default(parameter: Parameter) -> str:
    value = "" if parameter.default == () else _value(parameter.default)
    unit = f" {parameter.unit}" if parameter.unit else ""
    return f"default {value}{unit}" if value and "default" not in parameter.help else ""


def _usage(argument: Parameter) -> str:
    return argument.name if argument.required else f"[{argument.name}]"


def _shared(found: dict[str, Command]) -> dict[str, list[Parameter]]:
    """Return heading → the options that several commands have word for word, in the order of their first command."""
    options = [option for command in found.values() for option in command.options]
    counted = Counter(map(_row, options))
    rows = {_row(option): option for option in reversed(options) if counted[_row(option)] >= _SHARED_BY}
    groups: dict[str, list[Parameter]] = {}
    for row in filter(rows.__contains__, counted):
        groups.setdefault(rows[row].heading.partition(" (")[0].removesuffix(" to connect to"), []).append(rows[row])
    # The command prints an option itself if its name alone would not tell which line applies.
    named = {
        heading: [option for option in group if [each.name for each in group].count(option.name) == 1]
        for heading, group in groups.items()
        if len(group) > 1 and heading not in (OWN_HEADING, EXPERT_HEADING)
    }
    common = [option for heading, group in groups.items() if heading not in named for option in group]
    names = Counter(option.name for option in rows.values())
    return {**named, "Common": [option for option in common if names[option.name] == 1]}


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _prose(text: str) -> str:
    """The docstring that is the help, its options as code."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![`\w])", r"`\1`", text)
    return text.replace("docs/how-to/write-a-workload.md", "[Write a workload](../how-to/write-a-workload.md)")


def _section(command: Command, shared: dict[str, list[Parameter]]) -> str:
    usage = " ".join(["powerprof", command.name, "[OPTIONS]", *map(_usage, command.arguments)])
    parts = [f"## {command.name}", _prose(command.help), *([f"    {usage}"] if command.arguments else [])]
    rows = {_row(option): option for option in command.options}
    lines = [_item(one.name, one.help, _default(one)) for one in command.arguments]
    groups, names = [], []
    for heading, options in shared.items():
        used = [option for option in options if rows.pop(_row(option), None)]
        if len(used) == len(options):
            groups.append(f"[{heading}](#{_anchor(heading)})")
        else:
            names += [f"`{option.name}`" for option in used]
    lines += rows
    if groups or names:
        lines.append(f"- [Shared](#shared-options): {', '.join([*groups, *names])}.")
    return "\n\n".join([*parts, "\n".join(lines)])


def render() -> str:
    """Return the page."""
    found = commands()
    shared = _shared(found)
    parts = ["## Shared options"]
    for heading, options in shared.items():
        parts += [f"### {heading}", "\n".join(map(_row, options))]
    parts += [_section(command, shared) for command in found.values()]
    return _INTRODUCTION + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
