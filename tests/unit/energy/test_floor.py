# SPDX-License-Identifier: Apache-2.0
"""The idle floor of a host that is metered and was never calibrated: joules by part, with the model's doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.domains import EnergyRequest, Total
from powerprof.energy.windows import Consumer, WindowEnergy
from powerprof.model.records import EnergyPart, EnergySplit
from powerprof.queries.pricing import find_price

WHOLE = Total(source="rapl", domains=["package-0"], joules=1000.0, watts=100.0, kind="measured")
PARTS = [Consumer(name="server", c0_s=6.0), Consumer(name="rest", c0_s=4.0)]


def split_of(energy: WindowEnergy, **given: float) -> EnergySplit:
    split = energy.split(WHOLE, 10.0, 4, 25.0, PARTS, **given)  # type: ignore[arg-type]
    assert split is not None
    return split


@pytest.fixture
def energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WindowEnergy:
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    return WindowEnergy(EnergyRequest(source="auto"))


def test_a_metered_host_without_a_calibration_has_joules_by_part(energy: WindowEnergy) -> None:
    split = split_of(energy)
    assert split.kind == "estimated"
    assert split.idle_joules is not None
    assert split.active_joules is not None
    assert 0 < split.active_joules < 1000.0
    low, high = split.active_low_joules, split.active_high_joules
    assert low is not None
    assert high is not None
    assert 0 < low < split.active_joules < high < 1000.0
    parts: dict[str, EnergyPart] = {part.name: part for part in split.parts}
    assert parts["server"].joules == pytest.approx(0.6 * split.active_joules)
    assert split.idle_joules + sum(part.joules for part in split.parts) + split.residual_joules == pytest.approx(1000.0)
    assert split.notes[0].startswith("idle floor: ")
    assert "powerprof energy --calibrate measures it" in split.notes[0]
    price = find_price(split, "server", WHOLE, [])
    assert price is not None
    assert price.low == pytest.approx(low / split.active_joules)
    assert price.high == pytest.approx(high / split.active_joules)


def test_a_measured_idle_baseline_is_the_floor(energy: WindowEnergy) -> None:
    split = split_of(energy, idle_watts=40.0)
    assert (split.kind, split.idle_joules, split.active_joules) == ("measured", 400.0, 600.0)
    assert split.active_low_joules is None
    assert [part.joules for part in split.parts] == [pytest.approx(360.0), pytest.approx(240.0)]


def test_a_host_that_slept_all_along_has_nothing_above_its_floor(energy: WindowEnergy) -> None:
    split = energy.split(WHOLE, 10.0, 4, 0.0, [], idle_watts=None)
    assert split is not None
    assert split.active_joules == pytest.approx(0.0)
