# SPDX-License-Identifier: Apache-2.0
"""Commands of powerprof that a user can paste: the only source of those in hints, notes, reports and pages.

A command has the path of the program as it was called, `sudo` if it needs it, and the target. There is none for a
server that has ended.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from powerprof.system.caller import SYSTEM_PATH, is_delegated

_PROCESSES = ("--pid", "--cgroup", "--system")
_SERVERS = ("--pid", "--socket", "--server", "--defaults-file")
# The options that name the target, for commands that have one.
_TARGETS = {
    **dict.fromkeys(("attribute", "deep-idle", "profile", "functions", "offcpu", "syscalls"), _PROCESSES),
    **dict.fromkeys(("queries", "diagnose", "cure"), _SERVERS),
}
# Commands that answer completely only as root.
_AS_ROOT = frozenset((*_TARGETS, "idle", "study", "watch", "export", "doctor", "energy"))
_WITHOUT_ROOT = frozenset(("--help", "--from", "--fetch"))
# Commands that need no right.
_UNPRIVILEGED = frozenset(("residency", "run", "compare", "sweep", "servers"))
# Commands that only read files of the caller. Under sudo the others are printed with sudo: root has another cache.
_READING = frozenset(("report", "runs", "workloads"))
# The running command: the program as it was called, and its words.
_RUNNING = ["powerprof"]


def set_running_command(argv: Sequence[str]) -> None:
    """Set the running command line. Without it, printed commands start with `powerprof` and have no target."""
    _RUNNING[:] = argv


def _needs_root(words: Sequence[str]) -> bool:
    """Return whether a command answers completely only as root. Help and files need no right."""
    return _command_of(words) in _AS_ROOT and not _WITHOUT_ROOT.intersection(words)


def _command_of(words: Sequence[str]) -> str:
    """Return the name of the command after the options of the program."""
    return next((word for before, word in pairwise(["", *words]) if word[:1] != "-" and before != "--runs-dir"), "")


def command_line(
    template: str, *values: object | Sequence[str], same_target: bool = False, environment: str = ""
) -> str:
    """Return a command of powerprof as this user has to type it: the program as it was called, with sudo if needed.

    Names of threads, workloads, runs and files can come from other accounts. They are values, which are quoted here, so
    that a pasted command never runs their text.

    Args:
        template: The command with its options, and options of the program before it; each word `{}` is a value.
        values: A word each, or a list of words.
        same_target: Whether to add the processes or the server of the command line that is running.
        environment: A variable and its value, which sudo would not pass on.
    """
    words = _fill(template, values)
    command = _command_of(words)
    with_sudo = _needs_root(words) and os.geteuid() != 0
    if is_delegated():
        with_sudo = command not in _READING and "--help" not in words
    target = f" {_find_typed_target(command)}" if same_target else ""
    variable = f"{environment} " if environment else ""
    return f"{'sudo ' if with_sudo else ''}{variable}{_name_program(with_sudo)} {' '.join(words)}{target}".rstrip()


def system_command(template: str, *values: object) -> str:
    """Return a command of the system with quoted values, such as `chmod o-w {}`."""
    return " ".join(_fill(template, values))


def _fill(template: str, values: Sequence[object | Sequence[str]]) -> list[str]:
    """Return the words of a template, its values quoted for a shell."""
    import shlex

    words: list[str] = []
    remaining = iter(values)
    for word in template.split():
        if word != "{}":
            words.append(word)
            continue
        value = next(remaining)
        parts = value if isinstance(value, list | tuple) else [value]
        words += [shlex.quote(str(part)) for part in parts]
    return words


def documented(words: str) -> str:
    """Return a command as the documentation prints it, for a program on the path."""
    return f"{'sudo ' if _needs_root(words.split()) else ''}powerprof {words}"


def this_command_line(*options: str, as_root: bool = False) -> str:
    """Return the running command with further options before its name; with sudo if root is needed, or typed it."""
    import shlex

    with_sudo = is_delegated() or (as_root and os.geteuid() != 0)
    return f"{'sudo ' if with_sudo else ''}{_name_program(with_sudo)} {shlex.join([*options, *_RUNNING[1:]])}"


def find_commands(text: str) -> list[tuple[int, int]]:
    """Return the places of commands of powerprof in a sentence: (start, end)."""
    if "powerprof " not in text:
        return []
    names = "|".join(_AS_ROOT | _UNPRIVILEGED | _READING)
    program = r"(?:sudo )?(?:[A-Z_]+=\S+ )?(?:[^\s(]+ -m |[^\s(]*/)?\bpowerprof"
    # The sentence goes on after punctuation or a bracket.
    words = r"(?: [^\s()]*[^\s().,;])*"
    before = r"(?: --quiet| --debug| --runs-dir (?:'[^']*'|\S+))*"
    return [match.span() for match in re.finditer(rf"{program}{before} (?:{names})\b{words}", text)]


def _name_program(with_sudo: bool) -> str:
    import shlex
    import shutil

    called = Path(_RUNNING[0])
    if called.name == "__main__.py" and called.parent.name == "powerprof":
        return f"{shlex.quote(sys.executable)} -m powerprof"
    if called.name == "powerprof" and "/" in _RUNNING[0]:
        path = shutil.which("powerprof", path=SYSTEM_PATH if with_sudo else None)
        if path is None or os.path.realpath(path) != os.path.realpath(called):
            return shlex.quote(_RUNNING[0])
    return "powerprof"


def _find_typed_target(command: str) -> str:
    """Return the options of the running command line that name its target and that `command` has too."""
    import shlex

    options = _TARGETS.get(command, ())
    typed: list[str] = []
    for word, following in pairwise([*_RUNNING[1:], ""]):
        if word == "--":
            break
        option, equals, _ = ("--pid" if word == "-p" else word).partition("=")
        if option in options:
            typed += [word] if equals or option == "--system" else [option, following]
    return shlex.join(typed)
