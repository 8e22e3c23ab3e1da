# SPDX-License-Identifier: Apache-2.0
"""Pure: samples that were taken beside the probes → the call paths of each statement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from powerprof.queries.records import SampledStack, Statement
from powerprof.records import Notes
from powerprof.statements.identity import Family
from powerprof.statements.normal import key
from powerprof.tracing.captures.oncpu import OnCpuCapture
from powerprof.tracing.oncpu.names import PathNames

INCOMPLETE, OTHERS = "[incomplete]", "[other paths]"
_STATEMENTS, _PATHS = 20, 400


def with_stacks(
    statements: Sequence[Statement],
    capture: OnCpuCapture,
    name_of: Callable[[int, int], tuple[str, str | None]],
    family: Family = "mysql",
) -> tuple[list[Statement], dict[str, str], Notes]:
    """The statements, those with most samples with their paths; the files of frames; and the notes on them."""
    paths = PathNames(capture)
    counters: dict[tuple[str, str | None], Counter[tuple[str, ...]]] = defaultdict(Counter)
    modules: dict[str, str] = {}
    for row in capture.rows:
        if row.what:
            text, schema = name_of(row.what, row.tid)
            frames, state = paths.of(row)
            labels = []
            for frame in reversed(frames):
                # The suffix is flamegraph.pl's for the kernel's functions.
                labels.append(f"{frame.label}_[k]" if frame.kernel else frame.label)
                modules[labels[-1]] = frame.module
            if state not in ("complete", "kernel"):
                labels.insert(0, INCOMPLETE)
            counters[key(text, family), schema][tuple(labels)] += row.count
    most = dict(sorted(counters.items(), key=lambda pair: -pair[1].total())[:_STATEMENTS])
    with_paths = [
        msgspec.structs.replace(statement, stacks=_largest(most[name]))
        if (name := (key(statement.text, family), statement.schema_name)) in most and not statement.began_before
        else statement
        for statement in statements
    ]
    used = {label for statement in with_paths for stack in statement.stacks for label in stack.frames}
    inside = sum(counter.total() for counter in counters.values())
    note = (
        f"{capture.target_count:,} samples of the server, {inside:,} of them in statements; each CPU was woken for "
        f"them {1e3 / (capture.period_ms or 1.0):.0f} times a second, which wake-ups and joules contain"
    )
    return (
        with_paths,
        {label: file for label, file in modules.items() if label in used},
        [note, *capture.notes, *paths.notes],
    )


def _largest(paths: Counter[tuple[str, ...]]) -> list[SampledStack]:
    rows = sorted(paths.items(), key=lambda stack: (-stack[1], stack[0]))
    rest = sum(count for _, count in rows[_PATHS:])
    stacks = [SampledStack(list(frames), count) for frames, count in rows[:_PATHS]]
    return [*stacks, SampledStack([OTHERS], rest)] if rest else stacks
