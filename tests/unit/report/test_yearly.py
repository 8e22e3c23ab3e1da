# SPDX-License-Identifier: Apache-2.0
"""Tests for the yearly cost of a power draw."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.report import yearly
from powerprof.report.document import Extras
from powerprof.report.exports import export
from powerprof.system.errors import UsageError
from tests.unit.report.sample_records import comparison, load_run


def test_yearly_cost_is_marked_as_derived() -> None:
    record = comparison()
    metric = next(one for one in record.metrics if one.name == "watts")
    assert metric.verdict != "inconclusive"
    # 1 W all year is 8.76 kWh.
    watt = replace(metric, difference=replace(metric.difference, b_minus_a=-1.0, ci95=(-1.2, -0.8)), verdict="b_lower")
    sample = replace(record, metrics=[watt])
    said = yearly.yearly_sentence(sample, yearly.parse_terms("0.5EUR", 400))
    assert said == (
        "Derived, not measured: no-index draws 1 W (estimated) less than index; over a year that is 8.76 kWh "
        "(7.01 to 10.5), 4.38 EUR (3.5 to 5.26) at 0.5 EUR/kWh and 3.5 kg CO2 (2.8 to 4.2) at 400 g/kWh. In brackets: "
        "95 % intervals."
    )
    bare = replace(watt, difference=replace(watt.difference, ci95=None))
    assert yearly.yearly_sentence(replace(record, metrics=[bare]), yearly.parse_terms(None, 400)).endswith(
        "over a year that is 8.76 kWh and 3.5 kg CO2 at 400 g/kWh."
    )
    unsure = replace(record, metrics=[replace(watt, verdict="inconclusive")])
    assert yearly.yearly_sentence(unsure, yearly.parse_terms(None, 400)).startswith("No yearly figure")
    assert "the host draws" in yearly.yearly_sentence(load_run(), yearly.parse_terms("1USD", None)) or not [
        one for one in load_run().metrics if one.name == "watts"
    ]
    page = export(record, "html", Extras(derived=said)).decode()
    assert 'class="derived"' in page and "Derived, not measured" in page


@pytest.mark.parametrize("price", ["0.3", "EUR", "-1EUR", "0EUR", "1e9EUR", "0.3 euros"])
def test_invalid_price_is_refused(price: str) -> None:
    with pytest.raises(UsageError, match="is not a price per kWh"):
        yearly.parse_terms(price, None)


@pytest.mark.parametrize("grid", [-1.0, float("nan"), 1e9])
def test_invalid_grid_intensity_is_refused(grid: float) -> None:
    with pytest.raises(UsageError, match="is not a grid intensity"):
        yearly.parse_terms(None, grid)
