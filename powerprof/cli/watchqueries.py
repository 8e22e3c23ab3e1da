# SPDX-License-Identifier: Apache-2.0
"""`powerprof queries --watch`: the statements of one server, window after window."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import msgspec

from powerprof.cli.live import Live, print_lines, width
from powerprof.cli.output import progress
from powerprof.errors import PowerprofError
from powerprof.live.statements import StatementHistory, StatementMonitor
from powerprof.queries.records import Queries
from powerprof.queries.session import Request
from powerprof.report.watchqueries import PLAIN_HEAD, SORTS, plain_line, screen
from powerprof.runs import RunStore


def watch(request: Request, json_lines: bool, plain: bool, count: int | None, runs_dir: Path | None) -> None:
    """Measure and show until q, an interrupt or `count` windows."""
    on_screen = not plain and not json_lines and sys.stdout.isatty() and sys.stdin.isatty()
    with StatementMonitor(request, progress) as monitor:
        windows = islice(monitor.intervals(), count)
        if json_lines:
            print_lines((window for window in windows if window is not None), None, _document)
        elif not on_screen:
            print_lines(windows, PLAIN_HEAD, lambda window: plain_line(window, width()))
        else:
            history, title = StatementHistory(), "powerprof queries"
            Live(
                history,
                lambda kept, view, wide, high: screen(kept, view, title, wide, high),
                SORTS,
                lambda: _saved(history.last, runs_dir),
            ).run(windows)


def _document(window: Queries) -> str:
    return json.dumps(msgspec.to_builtins(window), ensure_ascii=True)


def _saved(window: Queries | None, runs_dir: Path | None) -> str:
    """Save the newest window as a run; what to say of it."""
    if window is None:
        return "nothing to save yet"
    try:
        return f"saved as {RunStore(runs_dir).save('queries', window).id}"
    except PowerprofError as error:
        return error.message
