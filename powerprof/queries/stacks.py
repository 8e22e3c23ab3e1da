# SPDX-License-Identifier: Apache-2.0
"""Pure: samples that were taken beside the probes → the call paths of each statement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from powerprof.queries.records import SampledStack, Statement
from powerprof.statements.normal import key
from powerprof.tracing.oncpu_capture import OnCpuCapture
from powerprof.tracing.oncpu_names import PathNames

INCOMPLETE, OTHERS = "[incomplete]", "[other paths]"
_STATEMENTS, _PATHS = 20, 400


def with_stacks(
    statements: Sequence[Statement], capture: OnCpuCapture, name_of: Callable[[int, int], tuple[str, str | None]]
) -> tuple[list[Statement], dict[str, str], list[str]]:
    """The statements, those with most samples with their paths; the files of frames; and what is to be said of it."""
    paths = PathNames(capture, None)
    found: dict[tuple[str, str | None], Counter[tuple[str, ...]]] = defaultdict(Counter)
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
            found[key(text), schema][tuple(labels)] += row.count
    most = dict(sorted(found.items(), key=lambda one: -one[1].total())[:_STATEMENTS])
    told = [
        msgspec.structs.replace(one, stacks=_largest(most[name]))
        if (name := (key(one.text), one.schema_name)) in most and not one.began_before
        else one
        for one in statements
    ]
    used = {label for one in told for stack in one.stacks for label in stack.frames}
    inside = sum(one.total() for one in found.values())
    note = (
        f"{capture.target_count:,} samples of the server, {inside:,} of them in statements; each CPU was woken for "
        f"them {1e3 / (capture.period_ms or 1.0):.0f} times a second, which wake-ups and joules contain"
    )
    return told, {label: file for label, file in modules.items() if label in used}, [note, *capture.notes, *paths.notes]


def _largest(paths: Counter[tuple[str, ...]]) -> list[SampledStack]:
    rows = sorted(paths.items(), key=lambda one: (-one[1], one[0]))
    rest = sum(count for _, count in rows[_PATHS:])
    found = [SampledStack(list(frames), count) for frames, count in rows[:_PATHS]]
    return [*found, SampledStack([OTHERS], rest)] if rest else found
