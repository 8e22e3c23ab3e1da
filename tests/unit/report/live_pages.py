# SPDX-License-Identifier: Apache-2.0
"""Pages of what is measured on live servers and of studies: for the browser, beside those of `sample_pages`."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from powerprof.cure.judge import judge_blocks
from powerprof.cure.records import Cure, CureVerdict, Remedy
from powerprof.model.attribution import TargetInfo
from powerprof.queries.comparison import compare_queries
from powerprof.queries.records import Latency
from powerprof.report.cure import word_cure
from powerprof.report.document import Extras
from powerprof.report.exports import render_html
from tests.unit.cure.test_judge import blocks
from tests.unit.experiment.test_studies import study_run
from tests.unit.queries import test_comparison as compared
from tests.unit.queries.test_report import waiting

_SAME = {"SELECT same": 1.0, "SELECT a": 0.99, "SELECT b": 1.0, "SELECT c": 1.01, "SELECT d": 1.02}


def _queries_comparison() -> msgspec.Struct:
    before = compared.window(*(compared.of(text, 1.0) for text in ("SELECT slow", *_SAME, "SELECT old")))
    after = compared.window(*(compared.of(text, each) for text, each in {"SELECT slow": 1.5, **_SAME}.items()))
    return compare_queries(before, after, "2026-01-01T00:00:00.000Z")


def _cure() -> msgspec.Struct:
    made = []
    for number, block in enumerate(blocks(random.Random(1), 98.0, 18.0)):
        took_ms = Latency(p50=1.9, p95=4.6 + 0.01 * number, p99=9.0)
        counted = {"statements_count": 250, "statements_s": 5.0, "latency_ms": took_ms}
        made.append(msgspec.structs.replace(block, **counted, commits_count=250, commit_latency_ms=took_ms))
    record = Cure(
        id=None, started_at="2026-01-01T00:00:00.000Z", window_s=5.0, blocks_count=len(made), reverted=True,
        target=TargetInfo(pid=1, executable="mysqld", build_id=None, label="mysqld"),
        remedy=Remedy(kind="timer_slack", name="timer slack of t", from_value="50000", to_value="50000000"),
        order=[block.arm for block in made], metrics=judge_blocks(made, "thread_wakings_hz", 1), read_back="50000",
        verdict=CureVerdict(metric="thread_wakings_hz", max_p95_percent=10.0), blocks=made,
    )  # fmt: skip
    return word_cure(record)


def _study() -> msgspec.Struct:
    return msgspec.structs.replace(study_run(), started_at="2026-11-27T10:00:00.000Z")


LIVE_PAGES: dict[str, Callable[[], msgspec.Struct]] = {
    "queries": waiting,
    "queriescomparison": _queries_comparison,
    "cure": _cure,
    "study": _study,
}


def live_html_of(kind: str) -> str:
    return render_html(LIVE_PAGES[kind](), extras=Extras())
