# SPDX-License-Identifier: Apache-2.0
"""`powerprof queries --watch`: the statements of one server, window after window."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import msgspec

from powerprof.cli.live import Live, on_screen, print_lines, saved, width
from powerprof.cli.output import progress
from powerprof.live.statements import StatementHistory, StatementMonitor
from powerprof.queries.records import Queries
from powerprof.queries.session import QueriesRequest
from powerprof.report.screens.watchqueries import PLAIN_HEAD, SORTS, plain_line, screen


def watch(request: QueriesRequest, json_lines: bool, plain: bool, count: int | None, runs_dir: Path | None) -> None:
    """Measure and show until q, an interrupt or `count` windows."""
    with StatementMonitor(request, progress) as monitor:
        windows = islice(monitor.intervals(), count)
        if json_lines:
            print_lines((window for window in windows if window is not None), None, _document)
        elif not on_screen(plain, json_lines):
            print_lines(windows, PLAIN_HEAD, lambda window: plain_line(window, width()))
        else:
            history, title = StatementHistory(), "powerprof queries"
            Live(
                history,
                lambda kept, view, wide, high: screen(kept, view, title, wide, high),
                SORTS,
                lambda: saved(runs_dir, "queries", history.last) if history.last else "nothing to save yet",
            ).run(windows)


def _document(window: Queries) -> str:
    return json.dumps(msgspec.to_builtins(window), ensure_ascii=True)
