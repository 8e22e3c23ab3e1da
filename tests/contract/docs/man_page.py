# SPDX-License-Identifier: Apache-2.0
"""Writes docs/powerprof.1, the manual page, from what the commands declare: `make man`."""

from __future__ import annotations

import re

from powerprof.cli.app import COMMANDS
from tests.conftest import REPOSITORY
from tests.contract.docs.cli import Command, Parameter, commands

PAGE = REPOSITORY / "docs/powerprof.1"
COMMAND = "make man"

_HEAD = r""".\" Written by `make man` from the help of the commands.
.TH POWERPROF 1 "" "powerprof" "User Commands"
.SH NAME
powerprof \- power\-efficiency profiling for database servers on Linux
.SH SYNOPSIS
.B powerprof
.I COMMAND
[\fIOPTIONS\fR] [\fIARGUMENTS\fR]
.br
.B powerprof
.RB [ \-\-version | \-\-help | help
.IR COMMAND ]
.SH DESCRIPTION
powerprof says what a database server costs while it does nothing, which function on which thread wakes the CPUs,
and how much energy a change would save, with an interval and a verdict. The report goes to standard output, progress
and errors to standard error.
"""
_EXITS = {
    "0": "done",
    "1": "it failed: a server that died, a damaged file, a full disk",
    "2": "the command line makes no sense",
    "3": "this host cannot do it; the message names what is missing",
    "4": "compare \\-\\-fail\\-if\\-worse found B worse than A",
    "129, 130": "hung up, or interrupted; what was measured until then is saved",
}


def _escaped(text: str) -> str:
    """Text as roff reads it: backslashes, hyphens and letters beyond ASCII as they are, no line taken for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _option(option: Parameter) -> str:
    value = f" \\fI{_escaped(option.metavar or 'VALUE')}\\fR" if option.takes_value else ""
    more = []
    if option.default not in (None, False):
        more.append(f"default {option.default}")
    if option.low is not None and option.high is not None:
        more.append(f"{option.low:g} to {option.high:.10g}")
    told = option.help + (f" ({', '.join(more)})" if more else "")
    return f".TP\n\\fB{_escaped(option.name)}\\fR{value}\n{_escaped(told)}"


def _command(command: Command) -> str:
    words = " ".join(f"[{one.name}]" if not one.required else one.name for one in command.arguments)
    example = COMMANDS[command.name]
    paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
    parts = [f".SS {_escaped(f'powerprof {command.name} {words}'.strip())}", "\n.PP\n".join(map(_escaped, paragraphs))]
    parts += [_option(one) for one in command.options]
    parts.append(
        f".PP\nExample, which takes {_escaped(example.takes)}:\n.PP\n.RS\n{_escaped(example.example_line)}\n.RE"
    )
    return "\n".join(parts)


def render() -> str:
    """The page as it has to be."""
    exits = "\n".join(f".TP\n.B {code}\n{said}" for code, said in _EXITS.items())
    parts = [_HEAD + ".SH COMMANDS", *map(_command, commands().values())]
    parts += [".SH EXIT STATUS", exits, ".SH FILES", ".TP\n.I ~/.local/state/powerprof/runs\nsaved runs"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
