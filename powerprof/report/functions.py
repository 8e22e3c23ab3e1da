# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof functions`: calls and self time of the probed functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from powerprof.attribution.profile import FunctionProfile, FunctionRow
from powerprof.model import text
from powerprof.report import labels
from powerprof.report.document import Document, Part, Section, Sentence, Shown, View
from powerprof.report.layouts import named_rows
from powerprof.report.profile import count_rows
from powerprof.report.table import Cell, Places, Table, TableRow, Words, field_lines, figure_columns, word_columns


def answer_of(profile: FunctionProfile) -> str:
    """Return how many functions were called how often."""
    calls = sum(row.calls_count for row in profile.functions)
    who = profile.label or "the target"
    if not calls:
        return f"{who} called no function of {profile.pattern} in {text.number(profile.window_s, 1)} s."
    several = len(profile.functions) != 1
    what = f"{len(profile.functions)} functions of {profile.pattern}" if several else profile.functions[0].function
    return f"{who} called {what} {text.plural(calls, 'time')} in {text.number(profile.window_s, 1)} s."


def probed_table(profile: FunctionProfile, view: View) -> Table:
    """Return one row per probed function, the most self CPU time first."""
    places, rows = Places(profile), []
    for index, row in enumerate(profile.functions[: count_rows(view)]):
        at = f"/functions/{index}"
        cells: dict[str, Cell] = {
            "calls": places.figure(f"{at}/calls_count", 0),
            "rate": places.figure(f"{at}/calls_hz", 1),
            "cpu": places.figure(f"{at}/self_cpu_ms", 2, "ms"),
            "wall": places.figure(f"{at}/self_wall_ms", 1, "ms"),
            "function": Words(row.function),
        }
        if row.self_cpu_percent is not None:
            cells["share"] = places.figure(f"{at}/self_cpu_percent", 1)
        rows.append(TableRow(cells))
    headings = {"calls": "calls", "rate": "calls/s", "cpu": "self CPU", "wall": "self wall", "share": "% CPU"}
    columns = [*figure_columns(**headings), *word_columns("function")]
    return Table(columns, rows, "functions", left_count=len(profile.functions) - len(rows))


def _probe_cost(profile: FunctionProfile) -> str:
    if profile.probe_cost_ms is None or profile.probe_cost_percent is None:
        return f"{profile.hits_count:,} probe hits ({profile.method}) of unknown cost."
    each = "" if profile.probe_call_us is None else f", {text.number(profile.probe_call_us, 1)} µs per call"
    return (
        f"{profile.hits_count:,} probe hits ({profile.method}) cost about {text.number(profile.probe_cost_ms, 1)} ms, "
        f"{text.number(profile.probe_cost_percent, 1)} % of one CPU{each}: no energy figure comes from this window."
    )


def document(profile: FunctionProfile, view: View) -> Document:
    """Return the report of probed functions: calls and self time, and the cost of the probes."""
    return Document(
        views=("top",),
        record=profile,
        answer=answer_of(profile),
        parts=partial(_list_parts, profile, view),
        rows=partial(field_lines, profile.functions, FunctionRow.__struct_fields__),
        setup=(("Host", "/host"),),
        derived=view.extras.derived,
    )


def _list_parts(profile: FunctionProfile, view: View) -> Iterator[Part]:
    table = Shown(probed_table(profile, view), named_rows, what="functions", names=False)
    yield Section("By function", [table], name="functions")
    cost = labels.describe_cost(profile.bound, profile.tool_cpu_s, profile.window_s, profile.label)
    sentences = [Sentence(_probe_cost(profile)), Sentence(cost)]
    if profile.never_called_count:
        were = "was" if profile.never_called_count == 1 else "were"
        never = text.plural(profile.never_called_count, "probed function")
        sentences.append(Sentence(f"{never} {were} never called."))
    lost = (
        f"Returns without entry {profile.unmatched_returns_count:,}, calls too deep {profile.too_deep_count:,}, "
        f"lost {profile.lost_count:,}."
    )
    sentences.append(Sentence(lost))
    sentences += [Sentence(f"{name} was not probed ({why}).") for name, why in profile.refused[:5]]
    sentences += [Sentence(f"{'; '.join(profile.limits)}.", "Limitations")] if profile.limits else []
    yield Section("Probes", sentences, name="probes")
