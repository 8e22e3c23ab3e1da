# SPDX-License-Identifier: Apache-2.0
"""Python's functions by file and line: each wake-up under the function that logged it, whatever C stack they share."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerprof.system.programs import need, start, stop
from tests.conftest import Cli
from tests.system.attribution.conftest import Attributed

PROGRAM = Path(__file__).resolve().parents[2] / "programs/sleepers.py"
_NOTE = np.dtype([("at_ns", "<i8"), ("tid", "<i4"), ("who", "<i4")])
# As they are numbered in the program: the function, and what marks its line.
FUNCTIONS = (
    ("wait_sleep", "sleep"),
    ("wait_select", "select"),
    ("wait_queue", "queue"),
    ("first_twin", "first"),
    ("second_twin", "second"),
    ("generated", "generator"),
    ("Worker.keyed", "method"),
    ("nested.<locals>.<lambda>", "nested"),
)


@dataclass(frozen=True)
class Sleeping:
    """A running sleepers.py, and where it notes its wake-ups."""

    pid: int
    threads: dict[str, int]
    notes: Path

    def noted(self, found: Attributed) -> Counter[str]:
        """Sleeps that ended in the window, by function, as the program tells."""
        window = found.captured
        notes = np.fromfile(self.notes, dtype=_NOTE)
        at = notes["at_ns"]
        inside = notes[(at >= window.counted_from_ns) & (at <= window.counted_to_ns)]
        return Counter(FUNCTIONS[who][0] for who in inside["who"].tolist())


@contextmanager
def sleeping(python: str | Path, notes: Path, *options: str) -> Iterator[Sleeping]:
    """The program by this interpreter."""
    process = start([python, *options, PROGRAM, "60", notes], stdout=subprocess.PIPE, measured=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        time.sleep(0.2)
        yield Sleeping(told["pid"], told["threads"], notes)
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


def label(function: str) -> str:
    """`function (sleepers.py:line)`, with the line on which it sleeps."""
    mark = dict(FUNCTIONS)[function]
    lines = PROGRAM.read_text().splitlines()
    return f"{function} (sleepers.py:{next(n for n, line in enumerate(lines, 1) if line.endswith(f'# here: {mark}'))})"


def wakings(rows: list[dict[str, Any]], labels: dict[str, str]) -> Counter[str]:
    """Wakings by the innermost function of the program, where its line is right."""
    counts: Counter[str] = Counter()
    for row in rows:
        named = [frame["function"] or "" for frame in row["stack"] if "(sleepers.py:" in (frame["function"] or "")]
        if named:
            counts[labels.get(named[0], named[0])] += row["wakings_count"]
    return counts


def test_wakeups_have_python_functions(attribute: Callable[..., Attributed], tmp_path: Path) -> None:
    with sleeping(need("/usr/bin/python3", "python3"), tmp_path / "notes") as running:
        found = attribute(running.pid, duration=3)
        noted = running.noted(found)
    counts = wakings(found.rows, {label(function): function for function, _ in FUNCTIONS})
    assert len(noted) == len(FUNCTIONS)
    for function in noted:
        # One may lie on an edge of the window; on a busy host a thread also waits for the interpreter's lock there.
        missing = noted[function] - counts[function]
        assert -3 - 0.1 * noted[function] <= missing <= 1 + 0.01 * noted[function], (function, counts, noted)
    others = counts.total() - sum(counts[function] for function in noted)
    assert others <= 0.01 * noted.total() + 2, counts


def test_saved_run_has_python_functions(
    attribute: Callable[..., Attributed], tmp_path: Path, powerprof_cli: Cli
) -> None:
    with sleeping(need("/usr/bin/python3", "python3"), tmp_path / "notes") as running:
        found = attribute(running.pid, duration=1)
    again = powerprof_cli(["attribute", "--from", str(found.run), "--json", "-"])
    assert again.code == 0, again.err
    record = json.loads(again.out)
    rows = [*record["wakeups"], *record["wakings_without_exit"]]
    assert wakings(rows, {}) == wakings(found.rows, {}) and label("second_twin") in wakings(rows, {})
