# SPDX-License-Identifier: Apache-2.0
"""The table of commands, and the replacements of removed commands and options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
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
    "idle": Command(
        panel="Idle",
        example="idle --clients 16",
        takes="two minutes and a half, less than one with --quick",
        as_root=True,
    ),
    "residency": Command(panel="Idle", example="residency --duration 10", takes="as long as its window"),
    "attribute": Command(panel="Why", example="attribute --pid mysqld", takes="15 seconds", as_root=True),
    "profile": Command(panel="Why", example="profile --pid mysqld", takes=_TRACE, as_root=True),
    "functions": Command(panel="Why", example="functions 'handle_*' --pid mysqld", takes=_TRACE, as_root=True),
    "offcpu": Command(panel="Why", example="offcpu --pid mysqld", takes=_TRACE, as_root=True),
    "syscalls": Command(panel="Why", example="syscalls --pid mysqld", takes=_TRACE, as_root=True),
    "queries": Command(panel="Why", example="queries --pid mysqld --duration 30", takes=_TRACE, as_root=True),
    "diagnose": Command(panel="Why", example="diagnose --pid mysqld", takes="15 seconds", as_root=True),
    "run": Command(
        panel="What if",
        example="run -- gzip -k -c dump.sql",
        takes="a minute and a half; a command half a minute or 11 times its own",
        runs_words=True,
    ),
    "compare": Command(
        panel="What if",
        example="compare index no-index",
        takes="four minutes, less than one with --quick",
        runs_words=True,
    ),
    "sweep": Command(panel="What if", example="sweep city:index --clients 1,2,4,8", takes="half a minute a point"),
    "study": Command(
        panel="What if",
        example="study power-efficiency --html page.html",
        takes="half an hour, with --quick five minutes",
        as_root=True,
    ),
    "cure": Command(
        panel="Fix", example="cure --pid mysqld --thread page_cleaner --slack 50ms", takes="a minute", as_root=True
    ),
    "slack": Command(
        panel="Fix", example="slack --pid mysqld --thread page_cleaner 50ms", takes="no time", as_root=True
    ),
    "watch": Command(panel="Watch", example="watch", takes="until q", as_root=True),
    "export": Command(panel="Watch", example="export --interval 15", takes="until it is stopped", as_root=True),
    "doctor": Command(panel="Host", example="doctor", takes="ten seconds", as_root=True),
    "energy": Command(panel="Host", example="energy --duration 10", takes="as long as its window", as_root=True),
    "workloads": Command(panel="Host", example="workloads city", takes="no time"),
    "servers": Command(panel="Host", example="servers", takes="no time; a download some minutes"),
    "runs": Command(panel="Saved runs", example="runs", takes="no time"),
    "report": Command(panel="Saved runs", example="report compare-0001 --html page.html", takes="a second"),
}

# Removed commands → the words to type instead. An entry has no effect while the command exists.
MOVED_COMMANDS = {
    "saturate": "sweep CONDITION [OTHER] --until p95=5ms",
    "symbols": "doctor --pid ID|NAME",
    "calibrate": "energy --calibrate",
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
