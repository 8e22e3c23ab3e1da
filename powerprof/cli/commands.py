# SPDX-License-Identifier: Apache-2.0
"""The table of commands, and the replacements of removed commands and options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command of the list.

    Attributes:
        panel: the question of the help that it belongs to.
        example: a command line that works when pasted, without `powerprof`.
        takes: the usual duration of the example.
        as_root: the example shows more with sudo.
        runs_words: it runs the words after -- as a command of the caller.
    """

    panel: str
    example: str
    takes: str
    as_root: bool = False
    runs_words: bool = False

    @property
    def example_line(self) -> str:
        """The example as it is typed."""
        return f"{'sudo ' if self.as_root else ''}powerprof {self.example}"


_TRACE = "the window and some seconds"

# Commands of the help in their order: name → command. A module of the same name has its options and its function.
COMMANDS = {
    "idle": Command("Idle", "idle --clients 16", "two minutes and a half, less than one with --quick", as_root=True),
    "residency": Command("Idle", "residency --duration 10", "as long as its window"),
    "attribute": Command("Why", "attribute --pid mysqld", "15 seconds", as_root=True),
    "profile": Command("Why", "profile --pid mysqld", _TRACE, as_root=True),
    "functions": Command("Why", "functions 'handle_*' --pid mysqld", _TRACE, as_root=True),
    "offcpu": Command("Why", "offcpu --pid mysqld", _TRACE, as_root=True),
    "syscalls": Command("Why", "syscalls --pid mysqld", _TRACE, as_root=True),
    "queries": Command("Why", "queries --pid mysqld --duration 30", _TRACE, as_root=True),
    "diagnose": Command("Why", "diagnose --pid mysqld", "15 seconds", as_root=True),
    "run": Command(
        "What if",
        "run -- gzip -k -c dump.sql",
        "a minute and a half; a command half a minute or 11 times its own",
        runs_words=True,
    ),
    "compare": Command(
        "What if", "compare index no-index", "four minutes, less than one with --quick", runs_words=True
    ),
    "sweep": Command("What if", "sweep city:index --clients 1,2,4,8", "half a minute a point"),
    "study": Command(
        "What if", "study power-efficiency --html page.html", "half an hour, with --quick five minutes", as_root=True
    ),
    "cure": Command("Fix", "cure --pid mysqld --thread page_cleaner --slack 50ms", "a minute", as_root=True),
    "watch": Command("Watch", "watch", "until q", as_root=True),
    "export": Command("Watch", "export --interval 15", "until it is stopped", as_root=True),
    "doctor": Command("Host", "doctor", "ten seconds", as_root=True),
    "energy": Command("Host", "energy --duration 10", "as long as its window", as_root=True),
    "workloads": Command("Host", "workloads city", "no time"),
    "servers": Command("Host", "servers", "no time; a download some minutes"),
    "runs": Command("Saved runs", "runs", "no time"),
    "report": Command("Saved runs", "report compare-0001 --html page.html", "a second"),
}

# Removed commands → the words to type instead. An entry has no effect while the command exists.
MOVED_COMMANDS = {
    "saturate": "sweep CONDITION [OTHER] --until p95=5ms",
    "symbols": "doctor --pid ID|NAME",
    "calibrate": "energy --calibrate",
    "slack": "cure --thread NAME --slack TIME --keep, or cure --thread NAME --release",
}

_STACK_FILES = {"--speedscope": "{command} --folded FILE or --pprof FILE, which speedscope opens"}

# Removed options by command → the words to type instead. An entry has no effect while the option exists.
MOVED_OPTIONS = {
    "runs": {"--parquet": "report RUN --csv FILE"},
    **dict.fromkeys(("profile", "report"), _STACK_FILES),
    "attribute": {
        **_STACK_FILES,
        **dict.fromkeys(("--on-cpu", "--event", "--frequency"), "profile"),
        **dict.fromkeys(("--functions", "--max-functions", "--allow-unwinding-risk", "--backend"), "functions GLOB"),
        **dict.fromkeys(("--wakers", "--sleeps"), "offcpu"),
    },
    "queries": {"--enable-consumers": "queries --method samples"},
}
