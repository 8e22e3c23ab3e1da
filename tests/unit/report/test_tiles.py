# SPDX-License-Identifier: Apache-2.0
"""The tiles above the fold, terms explained in place, and what is derived from a price and a grid."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.model.records import Estimate, ServerExits
from powerprof.report import energy
from powerprof.report.html.page import Extras, build_tiles, explain_terms
from powerprof.report.kinds import kind_of
from powerprof.report.labels import TERMS, split_terms
from powerprof.report.table import Places
from powerprof.system.errors import UsageError
from tests.contract.docs import glossary_page
from tests.unit.report.sample_records import attribution, comparison, idle_run, load_run


def test_a_comparison_has_energy_latency_and_confidence() -> None:
    record = comparison()
    headline, cost, speed, sure = build_tiles(record, Places(record))
    assert record.verdict.metric == "c0_ms_per_query_server" and headline.heading == "C0 per query, server"
    assert (cost.heading, cost.look) == ("energy per query, estimated", "worse")
    assert "+14.3" in cost.value
    assert speed.heading == "latency, p95"
    assert sure.value == "12 pairs"
    doubtful = replace(record, verdict=replace(record.verdict, doubts=["steal 9 %"]))
    assert build_tiles(doubtful, Places(doubtful))[-1].note == "1 reason to doubt it, below"


def test_a_difference_that_is_not_sure_is_no_verdict() -> None:
    record = comparison()
    unsure = replace(record, metrics=[replace(metric, verdict="inconclusive") for metric in record.metrics])
    tile = build_tiles(unsure, Places(unsure))[0]
    assert tile.note == "B compared with A: no measurable difference"
    assert tile.look == "inconclusive"
    bounds = [replace(metric.difference, less_than=0.1 * (metric.a.mean or 0.0)) for metric in record.metrics]
    bounded = [replace(m, difference=bound) for m, bound in zip(unsure.metrics, bounds, strict=True)]
    tile = build_tiles(replace(unsure, metrics=bounded), Places(unsure))[0]
    assert tile.note == "B compared with A: no measurable difference: less than 10.0 %"


def test_an_interval_ten_times_as_wide_as_the_figure_bounds_nothing() -> None:
    record = comparison()
    metrics = [
        replace(
            metric,
            verdict="inconclusive",
            difference=replace(metric.difference, less_than=50_000.0 * (metric.a.mean or 0.0)),
        )
        for metric in record.metrics
    ]
    wide = replace(record, metrics=metrics)
    assert (
        build_tiles(wide, Places(wide))[0].note
        == "B compared with A: inconclusive: the interval is too wide for a bound"
    )


def test_a_count_is_grey_where_the_headline_is_that_there_is_no_answer() -> None:
    counted = ServerExits(count=9, window_s=3.0, wakeups_hz=Estimate(mean=3.0, low=2.0, high=4.0))
    run = idle_run()
    phases = [replace(phase, c0_percent=2.0, server_exits=counted, conservation=None) for phase in run.phases]
    idle = replace(run, phases=phases)
    busy = replace(idle, phases=[replace(phase, c0_percent=98.0) for phase in idle.phases])
    heading = "Idle periods ended by the server"
    looks = [[tile.look for tile in build_tiles(run, Places(run)) if tile.heading == heading] for run in (idle, busy)]
    assert looks == [[""], ["inconclusive"]]


def test_an_idle_run_says_what_was_added_and_whether_that_is_sure() -> None:
    record = idle_run()
    wakeups, running, sure = build_tiles(record, Places(record))
    assert "+7.0" in wakeups.value and wakeups.note.startswith("± 0.5, ")
    assert "points" in running.value
    assert sure.value == "5 windows"
    none = replace(
        record,
        phases=[replace(phase, windows=[]) for phase in record.phases],
        deltas=[replace(one, difference=replace(one.difference, low=-1.0)) for one in record.deltas],
    )
    assert build_tiles(none, Places(none))[0].note.endswith("which may be nothing")


def test_an_attribution_says_how_often_who_and_at_what_cost() -> None:
    record = attribution()
    own, most, *_, counted = build_tiles(record, Places(record))
    assert (own.value, own.note) == ("6.8/s", "17.8 % of all idle exits")
    assert (most.value, most.note) == ("2.5/s", "mysys/statement_timer in timer_handler")
    assert counted.heading == "Idle exits with a cause" and "lost" in counted.note
    assert build_tiles(replace(record, wakeups=[]), Places(record)) == []


def test_a_record_without_a_figure_of_cost_has_no_tiles() -> None:
    record = load_run()
    assert len(build_tiles(record, Places(record))) >= 2


def test_terms_are_explained_where_they_stand_and_not_within_words() -> None:
    assert split_terms("C0 per query") == [("C0", TERMS["C0"]), (" per query", None)]
    assert split_terms("C01, xC0, wake-upset") == [("C01, xC0, wake-upset", None)]
    assert 'title="The state of a CPU' in explain_terms("C0 <b>")
    assert "&lt;b&gt;" in explain_terms("C0 <b>")
    assert glossary_page.PAGE.read_text(encoding="utf-8") == glossary_page.render(), glossary_page.COMMAND


def test_a_year_is_derived_from_what_was_stated_and_says_so() -> None:
    record = comparison()
    metric = next(one for one in record.metrics if one.name == "watts")
    assert metric.verdict != "inconclusive"
    # 1 W all year is 8.76 kWh.
    watt = replace(metric, difference=replace(metric.difference, b_minus_a=-1.0), verdict="b_lower")
    sample = replace(record, metrics=[watt])
    said = energy.yearly_sentence(sample, energy.parse_terms("0.5EUR", 400))
    assert said == (
        "Derived, not measured: no-index draws 1 W (estimated) less than index; all year round that is 8.76 kWh, "
        "4.38 EUR at 0.5 EUR/kWh and 3.5 kg CO2 at 400 g/kWh."
    )
    unsure = replace(record, metrics=[replace(watt, verdict="inconclusive")])
    assert energy.yearly_sentence(unsure, energy.parse_terms(None, 400)).startswith("No yearly figure")
    assert "the host draws" in energy.yearly_sentence(load_run(), energy.parse_terms("1USD", None)) or not [
        one for one in load_run().metrics if one.name == "watts"
    ]
    kind = kind_of(sample)
    assert kind is not None and kind.html is not None
    page = kind.html(record, Extras(derived=said))
    assert 'class="derived"' in page and "Derived, not measured" in page


@pytest.mark.parametrize("price", ["0.3", "EUR", "-1EUR", "0EUR", "1e9EUR", "0.3 euros"])
def test_what_is_no_price_is_refused(price: str) -> None:
    with pytest.raises(UsageError, match="is not a price per kWh"):
        energy.parse_terms(price, None)


@pytest.mark.parametrize("grid", [-1.0, float("nan"), 1e9])
def test_what_is_no_grid_is_refused(grid: float) -> None:
    with pytest.raises(UsageError, match="is not a grid intensity"):
        energy.parse_terms(None, grid)
