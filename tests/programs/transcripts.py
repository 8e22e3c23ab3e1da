# SPDX-License-Identifier: Apache-2.0
"""Write the transcripts of docs/read-a-report.md by real runs on this host, shortened at `…` (`make gallery`).

A block of the page is found by its command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from powerprof.database.private_server import PrivateServer
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs/read-a-report.md"
# After the answer, what is kept of each report; the answer itself always is.
KEPT = {
    "idle --clients 16 --duration 3": (
        r" +baseline ",
        r"C0 \(running\)",
        r"  average residency",
        r"wake-ups from idle",
        r"  by the server",
        r" +/s +% ",
        r" *\d.* timer ",
        r" +[\d.]+ % of [\d,]+ idle exits named: ",
        r"(Baseline drift|powerprof itself)",
    ),
    "attribute --pid mysqld --duration 5": (
        r" +/s +",
        r" +\d.* own timer",
        r"[\d,]+ classified \+ ",
        r"powerprof itself",
    ),
    "compare index no-index --pairs 6 --duration 1": (
        r" +index +no-index",
        r"C0 ms/query, server ",
        r"joules/query",
        r"wake-ups/query",
        r"p95 latency",
    ),
}
Account = Callable[[PrivateServer, Path], Path]


def write(folder: Path, account: Account, server: Callable[[], AbstractContextManager[PrivateServer]]) -> None:
    """Measure each and put it into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for command, kept in KEPT.items():
        print(f"gallery: transcript, {command}", file=sys.stderr)
        words = command.split()
        if "mysqld" in words:
            with server() as running:
                given = ["--defaults-file", str(account(running, folder))]
                printed = _run([*(str(running.pid) if word == "mysqld" else word for word in words), *given])
        else:
            printed = _run(words)
        text = replaced(text, command, shortened(printed.splitlines(), kept))
    PAGE.write_text(text, encoding="utf-8")


def _run(words: Sequence[str]) -> str:
    return subprocess.run(
        [sys.executable, "-m", "powerprof", *words, "--no-save"],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    ).stdout


def shortened(lines: Sequence[str], kept: Iterable[str]) -> list[str]:
    """The answer, which ends with a full stop, and the first line that begins so of each; `…` for all the rest."""
    end = next(number for number, line in enumerate(lines, 1) if line.endswith("."))
    rest = lines[end:]
    found = [next((line for line in rest if re.match(pattern, line)), None) for pattern in kept]
    chosen = [line for line in found if line is not None]
    return [*lines[:end], *(["…", *chosen] if chosen else []), "…"]


def replaced(text: str, command: str, lines: Sequence[str]) -> str:
    """Return the text with these lines below the command."""
    head = f"```console\n$ sudo powerprof {command}\n"
    before, found, after = text.partition(head)
    if not found:
        raise ValueError(f"the page has no block of: {command}")
    return before + head + "\n".join(lines) + "\n```" + after.partition("```")[2]
