# SPDX-License-Identifier: Apache-2.0
"""The page of a sweep: each metric over the values of the parameter."""

from __future__ import annotations

from markupsafe import Markup

from powerprof.experiment.sweep_record import Sweep
from powerprof.report.documents.kinds import answer_and_context
from powerprof.report.html.charts import charts, one_curve
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import clean
from powerprof.report.html.page import page
from powerprof.report.html.tradeoff import TradeoffPoint, tradeoff
from powerprof.report.tables.metrics import paces_table, sweep_table
from powerprof.report.tables.table import Places

_DRAWN = (
    "joules_per_query",
    "queries_hz",
    "latency_p95_ms",
    "c0_percent",
    "c0_ms_per_query_server",
    "watts",
    "wakeups_per_query",
    "server_wakings_hz",
)
_ERROR_LIMIT = 300


def render(record: Sweep, extras: Extras) -> str:
    """The page."""
    places = Places(record)
    answer, context = answer_and_context(record)
    return page(
        "sweep.html.j2",
        record,
        places,
        derived=extras.derived,
        title=clean(answer),
        answer=answer,
        context=context,
        charts=charts(
            (
                name
                for name in dict.fromkeys(metric.name for point in record.points for metric in point.metrics)
                if name in _DRAWN
            ),
            [(str(point.value), point.metrics) for point in record.points],
            one_curve,
            record.parameter,
        ),
        tradeoff=_tradeoff(record),
        metrics=sweep_table(record, places),
        paces=paces_table(record, places) if any(point.paces for point in record.points) else None,
        errors=[(clean(point.value, 20), clean(point.error, _ERROR_LIMIT)) for point in record.points if point.error],
    )


def _tradeoff(record: Sweep) -> Markup:
    """Energy over throughput, of the points that have both."""
    settings, kind = [], "estimated"
    for point in record.points:
        known = {metric.name: metric for metric in point.metrics}
        joules, queries = known.get("joules_per_query"), known.get("queries_hz")
        if joules is None or queries is None or joules.estimate.mean is None or queries.estimate.mean is None:
            continue
        kind = joules.kind
        settings.append(TradeoffPoint(clean(point.value, 20), queries.estimate.mean, joules.estimate.mean))
    return tradeoff(settings, clean(record.parameter, 60), kind)
