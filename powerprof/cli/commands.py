# SPDX-License-Identifier: Apache-2.0
"""The table of commands: the question, the example and the duration of each."""

from __future__ import annotations

import msgspec

from powerprof.system.next_steps import documented


class Command(msgspec.Struct, frozen=True):
    """A command of the list.

    Attributes:
        panel: the question of the help that it belongs to.
        example: a command line that works when pasted, without `powerprof`.
        takes: the duration of the example; empty if it is computed from the plan of the command.
        runs_words: it runs the words after -- as a command of the caller.
    """

    panel: str
    example: str
    takes: str = ""
    runs_words: bool = False

    @property
    def example_line(self) -> str:
        """The example in the documentation."""
        return documented(self.example)


def module_name(command: str) -> str:
    """Return the module of a command."""
    return f"powerprof.cli.{file_stem(command)}"


def file_stem(command: str) -> str:
    """Return the name of a command's file without its suffix."""
    return command.replace("-", "_")


# Commands of the help in their order: name → command. A module of the same name has its options and its function.
COMMANDS = {
    "idle": Command("Idle", "idle --clients 16"),
    "residency": Command("Idle", "residency --duration 10"),
    "attribute": Command("Why", "attribute --pid mysqld"),
    "deep-idle": Command("Why", "deep-idle"),
    "profile": Command("Why", "profile --pid mysqld"),
    "functions": Command("Why", "functions 'handle_*' --pid mysqld"),
    "offcpu": Command("Why", "offcpu --pid mysqld"),
    "syscalls": Command("Why", "syscalls --pid mysqld"),
    "queries": Command("Why", "queries --pid mysqld --duration 30"),
    "diagnose": Command("Why", "diagnose --pid mysqld"),
    "run": Command("What if", "run -- gzip -k -c dump.sql", runs_words=True),
    "compare": Command("What if", "compare index no-index", runs_words=True),
    "sweep": Command("What if", "sweep city:index --clients 1,2,4,8"),
    "study": Command("What if", "study power-efficiency -o page.html"),
    "cure": Command("Fix", "cure --pid mysqld --thread page_cleaner --slack 50ms"),
    "watch": Command("Watch", "watch", "until you press q"),
    "export": Command("Watch", "export --interval 15", "until it is stopped"),
    "doctor": Command("Host", "doctor", "about a second"),
    "energy": Command("Host", "energy --duration 10"),
    "workloads": Command("Host", "workloads city", "less than a second"),
    "servers": Command("Host", "servers", "less than a second; a download takes minutes"),
    "runs": Command("Saved runs", "runs", "less than a second"),
    "report": Command("Saved runs", "report compare-0001 -o page.html", "about a second"),
}
