# SPDX-License-Identifier: Apache-2.0
"""Names of metrics in records: one form, also for runs that release 0.1.0 saved."""

from __future__ import annotations

import pytest

from powerprof.model.records import Delta, Estimate, metric_name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("c0_percent", "c0_percent"),
        ("watts", "watts"),
        ("C1 residency_percent", "residency_percent:C1"),
        ("haltpoll idle residency_percent", "residency_percent:haltpoll idle"),
        ("rapl package-0 watts", "watts:rapl:package-0"),
        ("hwmon CPU power watts", "watts:hwmon:CPU power"),
        (metric_name("residency_percent", "haltpoll idle"), "residency_percent:haltpoll idle"),
        (metric_name("watts", "hwmon", "all watts"), "watts:hwmon:all watts"),
    ],
)
def test_a_change_has_one_name(written: str, name: str) -> None:
    difference = Estimate(mean=1.0, low=None, high=None)
    assert Delta(metric=written, from_phase="a", to_phase="b", difference=difference).name == name
