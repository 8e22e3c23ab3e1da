# SPDX-License-Identifier: Apache-2.0
"""The page of two sweeps: both drawn over the values of the parameter, and what differs with them."""

from __future__ import annotations

from powerprof.experiment.records import Side
from powerprof.experiment.sweepcomparison import SweepComparison
from powerprof.report.documents.kinds import answer_and_context
from powerprof.report.html.charts import Ends, charts
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.html.tables import without_empty
from powerprof.report.tables.metrics import parted_table, points_table
from powerprof.report.tables.sweepfunctions import parting_functions_table
from powerprof.report.tables.table import Places

_DRAWN = ("queries_hz", "latency_p95_ms", "c0_percent", "c0_ms_per_query_server", "joules_per_query")
_MOST_DRAWN = 10


def _names(record: SweepComparison) -> list[str]:
    """The judged metric, those of a sweep's page, and the figures that differ significantly with them."""
    sure = [metric.name for metric in record.parted_with if metric.verdict != "inconclusive"]
    return list(dict.fromkeys((record.metric, *_DRAWN, *sure)))[:_MOST_DRAWN]


def _ends(side: Side) -> Ends:
    return (side.mean, *(side.ci95 or (None, None)))


def render(record: SweepComparison, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    answer, context = answer_and_context(record)
    return page(
        "sweepcomparison.html.j2",
        record,
        places,
        title=clean(answer),
        answer=answer,
        context=context,
        charts=charts(
            _names(record),
            [(str(point.value), point.metrics) for point in record.points],
            lambda metric: [_ends(metric.a), _ends(metric.b)],
        ),
        points=without_empty(points_table(record, places)),
        parted=parted_table(record, places),
        functions=parting_functions_table(record, places),
    )
