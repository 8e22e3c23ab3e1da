# SPDX-License-Identifier: Apache-2.0
"""A command line of each subcommand that works as it stands, and how long it usually takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """`line` is without `powerprof` (and with sudo where it says more as root); `takes` is with the defaults."""

    line: str
    takes: str
    as_root: bool = False

    @property
    def typed(self) -> str:
        """What is typed."""
        return f"{'sudo ' if self.as_root else ''}powerprof {self.line}"


EXAMPLES = {
    "idle": Example("idle --clients 16", "two minutes and a half, less than one with --quick", as_root=True),
    "attribute": Example("attribute --pid mysqld", "15 seconds", as_root=True),
    "profile": Example("profile --pid mysqld", "the window and some seconds", as_root=True),
    "functions": Example("functions 'handle_*' --pid mysqld", "the window and some seconds", as_root=True),
    "offcpu": Example("offcpu --pid mysqld", "the window and some seconds", as_root=True),
    "syscalls": Example("syscalls --pid mysqld", "the window and some seconds", as_root=True),
    "queries": Example("queries --pid mysqld --duration 30", "the window and some seconds", as_root=True),
    "run": Example("run -- gzip -k -c dump.sql", "a minute and a half; a command half a minute or 11 times its own"),
    "compare": Example("compare index no-index", "four minutes, less than one with --quick"),
    "sweep": Example("sweep city:index --clients 1,2,4,8", "half a minute a point"),
    "saturate": Example("saturate index no-index --until p95=5ms", "three minutes for two conditions"),
    "study": Example(
        "study power-efficiency --html page.html", "half an hour, with --quick five minutes", as_root=True
    ),
    "residency": Example("residency --duration 10", "as long as its window"),
    "energy": Example("energy --duration 10", "as long as its window", as_root=True),
    "calibrate": Example("calibrate", "some minutes", as_root=True),
    "symbols": Example("symbols --pid mysqld", "a second; a download some minutes", as_root=True),
    "diagnose": Example("diagnose --pid mysqld", "15 seconds", as_root=True),
    "cure": Example("cure --pid mysqld --thread page_cleaner --slack 50ms", "a minute", as_root=True),
    "slack": Example("slack --pid mysqld --thread page_cleaner 50ms", "no time", as_root=True),
    "watch": Example("watch", "until q", as_root=True),
    "export": Example("export --interval 15", "until it is stopped", as_root=True),
    "doctor": Example("doctor", "ten seconds", as_root=True),
    "workloads": Example("workloads city", "no time"),
    "servers": Example("servers", "no time; a download some minutes"),
    "runs": Example("runs", "no time"),
    "report": Example("report compare-0001 --html page.html", "a second"),
}
