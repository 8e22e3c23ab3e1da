# SPDX-License-Identifier: Apache-2.0
"""Join samples that were taken beside the probes with statements: the call paths of each one; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from powerprof.model.identities import Family
from powerprof.model.records import Notes
from powerprof.model.statements import make_key
from powerprof.queries.records import SampledStack, Statement
from powerprof.queries.same_statements import StatementKey, key_of
from powerprof.tracing.captures import OnCpuCapture
from powerprof.tracing.profile import PathNames

INCOMPLETE, OTHERS = "[incomplete]", "[other paths]"

_MAX_STATEMENTS, _MAX_PATHS = 20, 400


def add_stacks(
    statements: Sequence[Statement],
    capture: OnCpuCapture,
    name_of: Callable[[int, int], tuple[str, str | None]],
    family: Family = "mysql",
) -> tuple[list[Statement], dict[str, str], Notes]:
    """Return the statements, with call paths for those with most samples; the files of frames; and the notes."""
    paths = PathNames(capture)
    counters: dict[StatementKey, Counter[tuple[str, ...]]] = defaultdict(Counter)
    modules: dict[str, str] = {}
    for row in capture.rows:
        if row.what:
            text, schema = name_of(row.what, row.tid)
            frames, state = paths.of(row)
            labels = []
            for frame in reversed(frames):
                # flamegraph.pl uses this suffix for functions of the kernel.
                labels.append(f"{frame.label}_[k]" if frame.kernel else frame.label)
                modules[labels[-1]] = frame.module
            if state not in ("complete", "kernel"):
                labels.insert(0, INCOMPLETE)
            counters[make_key(text, family), schema][tuple(labels)] += row.count
    most = dict(sorted(counters.items(), key=lambda pair: -pair[1].total())[:_MAX_STATEMENTS])
    with_paths = [
        msgspec.structs.replace(statement, stacks=_keep_largest(most[name]))
        if (name := key_of(statement, family)) in most
        else statement
        for statement in statements
    ]
    used = {label for statement in with_paths for stack in statement.stacks for label in stack.frames}
    inside = sum(counter.total() for counter in counters.values())
    note = (
        f"{capture.target_count:,} samples of the server, {inside:,} of them in statements; each CPU was woken for "
        f"them {1e3 / (capture.period_ms or 1.0):.0f} times a second, which is included in wake-ups and joules"
    )
    return (
        with_paths,
        {label: file for label, file in modules.items() if label in used},
        [note, *capture.notes, *paths.notes],
    )


def _keep_largest(paths: Counter[tuple[str, ...]]) -> list[SampledStack]:
    rows = sorted(paths.items(), key=lambda stack: (-stack[1], stack[0]))
    rest = sum(count for _, count in rows[_MAX_PATHS:])
    stacks = [SampledStack(list(frames), count) for frames, count in rows[:_MAX_PATHS]]
    return [*stacks, SampledStack([OTHERS], rest)] if rest else stacks
