# SPDX-License-Identifier: Apache-2.0
"""The `attribute` verb: trace one window of a target and blame its idle exits, or analyse a saved capture again.

A live run calls `trace_target` and `blame.build_attribution` in this order. This module imports only what the load of
the tracer needs. The rest of the window is imported during the load, and the analysis after the window: importing all
of it takes longer than the load.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerprof.attribution.requests import AttributeRequest, ReadThreadNames, choose_target, thread_name_reader
from powerprof.model.text import Say
from powerprof.system.errors import DataError
from powerprof.system.targets import ServerChoice, Target, TargetChoice
from powerprof.tracing.idle_program import EarlyLoad

if TYPE_CHECKING:
    from powerprof.attribution.capture import Capture
    from powerprof.attribution.deep_what_if import DeepRequest
    from powerprof.model.attribution import Attribution
    from powerprof.stacks.store import TableStore


class AttributionResult(msgspec.Struct, frozen=True):
    """A record and the capture that it was made from. `is_kept`: the capture is saved already."""

    record: Attribution
    capture: Capture
    is_kept: bool = False

    def files(self) -> dict[str, bytes] | None:
        """Return the files to save with the record, encoded on each call because they are large."""
        from powerprof.attribution import capture as captures

        return None if self.is_kept else {captures.FILE: captures.encode(self.capture)}


def attribute(
    chosen: TargetChoice,
    server: ServerChoice,
    request: AttributeRequest,
    say: Say,
    store: TableStore | None = None,
    deep: DeepRequest | None = None,
) -> AttributionResult:
    """Trace one window on this host and attribute its idle exits; `store` provides the symbols.

    Raises UsageError, CapabilityError, PowerprofError.
    """
    target = choose_target(chosen, server, say)
    capture = trace_target(target, request, thread_name_reader(server, target), say)
    from powerprof.attribution.blame import build_attribution
    from powerprof.attribution.merge import merge_equal_rows
    from powerprof.attribution.sites import SiteStacks
    from powerprof.stacks.remedies import missing_names

    stacks = SiteStacks(capture, store)
    record = _add_deep_idle(merge_equal_rows(build_attribution(capture, stacks)), capture, deep)
    named = stacks.export_names()
    # Free the unwind and symbol tables: the search for missing names reads as much again.
    del stacks
    frames = [
        (frame.module, frame.function is not None)
        for rows in (record.wakeups, record.wakings_without_exit)
        for row in rows
        for frame in row.stack
    ]
    missing = missing_names(frames, capture.images)
    if missing is not None:
        record = msgspec.structs.replace(record, notes=[*record.notes, missing])
        capture = msgspec.structs.replace(capture, notes=[*capture.notes, missing])
    return AttributionResult(record, msgspec.structs.replace(capture, named=named))


def _add_deep_idle(record: Attribution, capture: Capture, deep: DeepRequest | None) -> Attribution:
    if deep is None:
        return record
    from powerprof.attribution.deep_idle import build_deep_idle

    return msgspec.structs.replace(record, deep=build_deep_idle(capture, deep))


def replay(name: str, runs_dir: Path | None, deep: DeepRequest | None = None) -> AttributionResult:
    """Analyse a saved capture again. Raises UsageError, DataError."""
    from powerprof.attribution import capture as captures
    from powerprof.attribution.merge import merge_equal_rows
    from powerprof.model.runs import RunStore

    store = RunStore(runs_dir)
    path = store.find(name)
    file = path if path.name == captures.FILE else path.parent / captures.FILE
    if not file.is_file():
        raise DataError(path, "has no trace; only runs of attribute have one", hint=store.listing)
    capture = captures.load(file)
    run_id = path.parent.name if path.name != captures.FILE else None
    record = msgspec.structs.replace(merge_equal_rows(analyse(capture)), id=run_id)
    record = _add_deep_idle(record, capture, deep)
    return AttributionResult(record, capture, is_kept=True)


def analyse(capture: Capture) -> Attribution:
    """Unwind and name the stacks of a capture, and return its attribution."""
    from powerprof.attribution.blame import build_attribution
    from powerprof.attribution.sites import SiteStacks

    return build_attribution(capture, SiteStacks(capture))


def trace_target(target: Target, request: AttributeRequest, read_names: ReadThreadNames, say: Say) -> Capture:
    """Trace one window of the target and return its capture.

    Raises CapabilityError if this host cannot trace, PowerprofError if the target has ended.
    """
    say("loading the tracer")
    with EarlyLoad(target, request.stack_pages) as early:
        from powerprof.attribution.window import trace_window

        return trace_window(target, request, read_names, say, early)
