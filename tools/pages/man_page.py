# SPDX-License-Identifier: Apache-2.0
"""Writes docs/powerprof.1, the manual page, from what the commands declare: `make man`."""

from __future__ import annotations

import re

from powerprof.cli.commands import COMMANDS
from tests.conftest import REPOSITORY
from tools.pages.cli import Command, Parameter, commands, example_duration

PAGE = REPOSITORY / "docs/powerprof.1"
COMMAND = "make man"

_HEAD = r""".\" Written by `make man` from the help of the commands.
.TH POWERPROF 1 "" "powerprof" "User Commands"
.SH NAME
powerprof \- power\-efficiency profiling for database servers on Linux
.SH SYNOPSIS
.B powerprof
[\fB\-\-quiet\fR] [\fB\-\-runs\-dir\fR \fIDIR\fR]
.I COMMAND
[\fIOPTIONS\fR] [\fIARGUMENTS\fR]
.br
.B powerprof
.RB [ \-\-version | \-\-help | help
.IR COMMAND ]
.SH DESCRIPTION
powerprof finds the functions and threads that keep the CPUs of a database server awake, measures or estimates the
energy, and shows if a change saves any. The report goes to standard output, progress and errors to standard error.
\-\-quiet prints no report and no progress; \-\-runs\-dir is the directory of saved runs (default: the state directory).
A TIME is 5s, 500ms, 2m, 1h or 1d; without a unit, it has the one of the default.
"""
_EXITS = {
    "0": "done",
    "1": "failure: a server that died, a damaged file, a full disk",
    "2": "wrong command line",
    "3": "missing capability of this host; the message names it",
    "4": "compare \\-\\-fail\\-if\\-worse found B worse than A",
    "129, 130": "hung up, or interrupted; the measured part is saved",
}


def _escaped(text: str) -> str:
    """Text as roff reads it: backslashes, hyphens and letters beyond ASCII as they are, no line taken for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _option(option: Parameter) -> str:
    value = f" \\fI{_escaped(option.metavar or 'VALUE')}\\fR" if option.takes_value else ""
    more = []
    if option.default not in (None, False, ()):
        more.append(f"default {option.default:g} {option.unit}" if option.unit else f"default {option.default}")
    if option.low is not None and option.high is not None:
        more.append(f"{option.low:g} to {option.high:.10g} {option.unit}".rstrip())
    told = option.help + (f" ({', '.join(more)})" if more else "")
    return f".TP\n\\fB{_escaped(option.name)}\\fR{value}\n{_escaped(told)}"


def _command(command: Command) -> str:
    words = " ".join(f"[{one.name}]" if not one.required else one.name for one in command.arguments)
    example, duration = COMMANDS[command.name].example_line, example_duration(command.name)
    paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
    parts = [f".SS {_escaped(f'powerprof {command.name} {words}'.strip())}", "\n.PP\n".join(map(_escaped, paragraphs))]
    parts += [_option(one) for one in command.options]
    parts.append(f".PP\nExample (duration: {_escaped(duration)}):\n.PP\n.RS\n{_escaped(example)}\n.RE")
    return "\n".join(parts)


def render() -> str:
    """The page as it has to be."""
    exits = "\n".join(f".TP\n.B {code}\n{said}" for code, said in _EXITS.items())
    parts = [_HEAD + ".SH COMMANDS", *map(_command, commands().values())]
    parts += [".SH EXIT STATUS", exits, ".SH FILES", ".TP\n.I ~/.local/state/powerprof/runs\nsaved runs"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
