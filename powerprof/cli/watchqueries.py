# SPDX-License-Identifier: Apache-2.0
"""`powerprof queries --watch`: the statements of one server, window after window."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from powerprof import interrupts
from powerprof.cli.live import Live, on_screen, print_lines, saved, width
from powerprof.cli.options import Saving
from powerprof.cli.output import leave_terminal, progress, say, say_to
from powerprof.errors import HungUp, PowerprofError
from powerprof.live.statements import StatementHistory, StatementMonitor
from powerprof.queries.history import HistoryKeeper
from powerprof.queries.records import Queries
from powerprof.queries.session import QueriesRequest
from powerprof.report.documents.history import about
from powerprof.report.screens.watchqueries import PLAIN_HEAD, SORTS, plain_line, screen
from powerprof.runs import RunStore


def watch(request: QueriesRequest, json_lines: bool, plain: bool, count: int | None, saving: Saving) -> None:
    """Measure and show until q, an interrupt or `count` windows; then save all windows as one run."""
    keeper = HistoryKeeper()
    try:
        with StatementMonitor(request, progress) as monitor:
            windows = _kept(keeper, islice(monitor.intervals(), count))
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
                    lambda: saved(saving.runs_dir, "queries", history.last) if history.last else "nothing to save yet",
                ).run(windows)
    finally:
        _save(keeper, saving)


def _kept(keeper: HistoryKeeper, windows: Iterable[Queries | None]) -> Iterator[Queries | None]:
    for window in windows:
        keeper.add(window)
        yield window


def _save(keeper: HistoryKeeper, saving: Saving) -> None:
    """The run of all windows, however the watching ended."""
    record = keeper.record()
    if record is None or saving.no_save:
        return
    interrupts.hold()
    if isinstance(sys.exc_info()[1], HungUp):
        leave_terminal()
    try:
        run = RunStore(saving.runs_dir).save("queries", record, None, about(record, saving.label or ()))
    except PowerprofError as error:
        say(f"not saved: {error.message}", error=True)
    else:
        say_to(saving)(f"saved as {run.id}: powerprof report {run.id} --html FILE has its timeline")


def _document(window: Queries) -> str:
    return json.dumps(msgspec.to_builtins(window), ensure_ascii=True)
