# SPDX-License-Identifier: Apache-2.0
"""`powerprof cure` for a terminal: the answer, both arms side by side, that it is put back, and how to keep it."""

from __future__ import annotations

from powerprof import text
from powerprof.cure.records import Cure
from powerprof.experiment.judge.answer import metric_named
from powerprof.report.tables import columns
from powerprof.report.tables.metrics import cure_table
from powerprof.report.tables.table import Places
from powerprof.report.wording.cures import answer, delayed, predicted_line, shown_value
from powerprof.report.wording.notes import texts

_LETTERS = {"before": "A", "cured": "B"}


def lines(cure: Cure, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """The report, at most `width` columns."""
    printed = text.wrap(cure.verdict.text or answer(cure), width)
    printed += text.wrap(context(cure), width)
    if prediction := predicted_line(cure):
        printed += text.wrap(prediction, width)
    if cure.interrupted:
        printed += text.wrap("Ended early: this is what was measured until then.", width)
    if cure.metrics:
        printed += ["", *columns.metrics(cure_table(cure, Places(cure)), width)]
    printed.append("")
    metric = metric_named(cure.metrics, cure.verdict.metric)
    if metric is not None and metric.verdict == "b_lower" and cure.verdict.hurts is None:
        printed += text.wrap(f"To keep it: {cure.remedy.lasting}.", width)
    printed += text.wrap(f"{delayed(cure.remedy)}.", width)
    printed += text.wrap(f"Latency of the server's statements: {cure.latency}.", width)
    printed += text.wrap(f"Replication lag: {cure.replication}.", width)
    for note in texts(cure.notes):
        printed += text.wrap(f"Note: {note}", width)
    return printed


def context(cure: Cure) -> str:
    """What was tried, how often, and that it is put back."""
    order = "".join(_LETTERS[arm] for arm in cure.order[:4])
    remedy = cure.remedy
    before, then = (shown_value(remedy.kind, value) for value in (remedy.from_value, remedy.to_value))
    parts = [f"{remedy.name}: {before} → {then}"]
    if cure.order:
        parts.append(f"{cure.blocks_count} windows {order}… of {text.number(cure.window_s, 1)} s")
    parts.append(_put_back(cure))
    return " · ".join(parts)


def _put_back(cure: Cure) -> str:
    if cure.reverted is None:
        return "it ended with its thread"
    read_back = shown_value(cure.remedy.kind, cure.read_back)
    if cure.reverted:
        return f"put back, read back: {read_back}"
    return f"NOT PUT BACK: it reads {read_back}, which somebody else has set meanwhile"
