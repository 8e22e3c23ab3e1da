# SPDX-License-Identifier: Apache-2.0
"""What stands above the fold of a page: the headline and its doubts, one axis for all ratios, the best of a sweep."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup
from msgspec.structs import replace

from powerprof.report.exports import render_html
from powerprof.report.html.charts import DrawnInterval, interval_axis
from powerprof.report.html.page import brief, qualified
from powerprof.report.sweep import TradeoffPoint, tradeoff
from tests.unit.report.sample_pages import html_of
from tests.unit.report.sample_records import comparison


@pytest.mark.parametrize(
    ("sentence", "headline", "below"),
    [
        (
            "b uses 12.1 times as much CPU time as a (9.53 – 15.2, 95 %).",
            "b uses 12.1 times as much CPU time as a.",
            "9.53 – 15.2, 95 %",
        ),
        (
            "0.4 of 0.5 J (estimated, 0.2 to 1.9 J possible): f(int) ran",
            "0.4 of 0.5 J: f(int) ran",
            "estimated, 0.2 to 1.9 J possible",
        ),
        ("mariadbd (8123) wakes 2 times (1.6 of them x)", "mariadbd (8123) wakes 2 times (1.6 of them x)", ""),
        ("a&lt;b (5 % of all) &amp; c", "a&lt;b &amp; c", "5 % of all"),
    ],
)
def test_intervals_stand_below_the_headline(sentence: str, headline: str, below: str) -> None:
    assert brief(Markup(sentence)) == headline
    assert qualified(Markup(sentence)) == below


def test_ratios_beyond_twenty_are_arrows() -> None:
    """339,833 % more rows would leave a difference of 10 % no room."""
    far = interval_axis([DrawnInterval(339_833, 339_000, 340_000, clear=True), DrawnInterval(10, 5, 15, clear=True)])
    assert (far.scale.low, far.scale.high) == (1 / 20, 20.0)
    assert [label for _, label in far.ticks] == ["÷\u00a020", "÷\u00a05", "= A", "×\u00a05", "×\u00a020"]
    assert interval_axis([DrawnInterval(300, 200, 400, clear=True)]).scale.high == 10.0


def test_what_is_neither_the_answer_nor_energy_nor_latency_is_folded() -> None:
    text = html_of("comparison")
    shown, _, folded = text.partition("more metrics</summary>")
    table = shown[shown.index('<table class="metrics"') :]
    assert 'class="primary"' in table and "energy per query" in table
    assert len(re.findall(r"<tr", table)) > 1 and '<table class="metrics"' in folded
    assert 'class="primary"' not in folded.split("</table>")[0]


def test_a_comparison_without_intervals_has_no_empty_column() -> None:
    record = comparison()
    bare = [
        replace(
            metric,
            minimum_detectable_percent=None,
            difference=replace(metric.difference, ci95=None, b_minus_a=None, percent=None),
            verdict="inconclusive",
        )
        for metric in record.metrics
    ]
    text = render_html(replace(record, metrics=bare))
    table = text[text.index('<table class="metrics"') :].split("</table>")[0]
    assert "smallest detectable" not in table and 'class="draw"' not in table and "B − A" not in table


def test_the_best_points_of_a_sweep_are_marked() -> None:
    settings = [TradeoffPoint("1", 100.0, 3e-3), TradeoffPoint("4", 300.0, 1e-3), TradeoffPoint("16", 400.0, 2e-3)]
    drawn = tradeoff(settings, "clients", "estimated")
    assert drawn.count('class="best"') == 2
    assert "4: least energy<" in drawn and "16: most queries<" in drawn
    assert "energy per query, mJ, estimated" in drawn and "queries per second" in drawn
    assert tradeoff(settings[:1], "clients", "estimated") == ""
