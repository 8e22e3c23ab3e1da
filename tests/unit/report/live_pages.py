# SPDX-License-Identifier: Apache-2.0
"""Pages of what is measured on live servers and of studies: for the browser, beside those of `sample_pages`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from powerprof.queries.comparison import compare_queries
from powerprof.report.exports import render_html
from powerprof.report.html.page import Extras
from tests.unit.cure.test_judge import cure
from tests.unit.experiment.test_studies import study_run
from tests.unit.queries import test_comparison as compared
from tests.unit.queries import test_comparison as history
from tests.unit.queries.test_report import waiting


def _queries_comparison() -> msgspec.Struct:
    before = compared.window(*(compared.of(text, 1.0) for text in ("SELECT slow", "SELECT same", "SELECT old")))
    after = compared.window(*(compared.of(text, each) for text, each in (("SELECT slow", 1.5), ("SELECT same", 1.0))))
    return compare_queries(before, after, "2026-01-01T00:00:00.000Z")


def _study() -> msgspec.Struct:
    return msgspec.structs.replace(study_run(), started_at="2026-11-27T10:00:00.000Z")


LIVE_PAGES: dict[str, Callable[[], msgspec.Struct]] = {
    "queries": waiting,
    "querieshistory": lambda: history.kept(
        history.watched(0, ("SELECT a", 0.2)), history.watched(1, ("SELECT a", 0.4))
    ),
    "queriescomparison": _queries_comparison,
    "cure": cure,
    "study": _study,
}


def live_html_of(kind: str) -> str:
    return render_html(LIVE_PAGES[kind](), extras=Extras())
