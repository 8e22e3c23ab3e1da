# SPDX-License-Identifier: Apache-2.0
"""The rule of totals as properties: complete sets, counters that are one, channels that go, and unseen wraps."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from powerprof.energy.layout_flaws import find_flaws
from powerprof.energy.layouts import SUMMED, Topology, rapl_scope
from powerprof.energy.meters.hwmon_roles import find_roles
from powerprof.energy.meters.meter import DomainEnergy
from powerprof.energy.meters.rapl import Domain, Zone, zone_energies
from powerprof.energy.mirrors import compare_counters
from powerprof.energy.readings import make_readings
from powerprof.energy.total import host_energy
from powerprof.measure.counters import CounterSample
from powerprof.measure.energy_series import EnergySeries, PowerSample, counter_energy, find_absence, power_energy
from powerprof.model.records import Scope
from tools.pages import meters_page


def test_the_page_of_meters_has_the_table() -> None:
    assert meters_page.PAGE.read_text(encoding="utf-8") == meters_page.render(), meters_page.COMMAND


@st.composite
def recognised_sets(draw: st.DrawFn) -> tuple[list[str], Topology]:
    """Domains of RAPL as a kernel names them, and the CPUs that they belong to."""
    numbers = draw(st.sampled_from([[0], [0, 1], [0, 1, 2, 3], [0, 2], [1]]))
    dies = draw(st.sampled_from([1, 1, 2, 4]))
    names = [f"package-{n}" if dies == 1 else f"package-{n}-die-{die}" for n in numbers for die in range(dies)]
    if draw(st.booleans()):
        names += [f"{name}/dram" for name in list(names)]
    if draw(st.booleans()):
        names.append(draw(st.sampled_from(["psys", "psys-1"])))
    return names, Topology({n: frozenset(range(dies)) for n in numbers}, draw(st.sampled_from([None, "GenuineIntel"])))


def scoped(names: list[str]) -> list[tuple[str, Scope]]:
    return [(name, rapl_scope(name.rsplit("/", 1)[-1])) for name in names]


@settings(max_examples=200, deadline=None)
@given(drawn=recognised_sets(), source=st.sampled_from(["rapl", "perf_power", "turbostat"]), data=st.data())
def test_a_set_is_complete_or_has_no_total(drawn: tuple[list[str], Topology], source: str, data: st.DataObject) -> None:
    names, topology = drawn
    assert find_flaws(source, scoped(names), topology) == {}
    # Without any one of its domains, or with one more, the set is none of the table.
    lost = data.draw(st.sampled_from(names))
    rest = [name for name in names if name != lost]
    is_last = rapl_scope(lost.rsplit("/", 1)[-1]) not in {scope for _, scope in scoped(rest)}
    assume(not is_last)
    assert find_flaws(source, scoped(rest), topology) != {}
    more = data.draw(st.sampled_from(["package-9", "package-0-die-7", "psys-9", "package-9/dram"]))
    assume(rapl_scope(more.rsplit("/", 1)[-1]) in {scope for _, scope in scoped(names)})
    assert find_flaws(source, scoped([*names, more]), topology) != {}


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(
        st.tuples(
            st.sampled_from(["package-0", "package-1", "psys", "server", "supply", "x/supply", "BAT0", "wall", "soc"]),
            st.sampled_from(SUMMED),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda item: item[0],
    ),
    source=st.sampled_from(["rapl", "hwmon", "battery", "ipmi", "meter_log", "turbostat"]),
)
def test_no_total_is_summed_from_a_set_with_a_flaw(items: list[tuple[str, Scope]], source: str) -> None:
    energies = [DomainEnergy(name, scope, EnergySeries(10.0 + n, 0.0, 1.0)) for n, (name, scope) in enumerate(items)]
    readings, _ = make_readings(source, energies, 0.0, 1.0)
    total = host_energy(readings)
    flaws = find_flaws(source, items, Topology())
    chosen = {scope for name, scope in items if name in total.domains}
    assert (total.joules is None) == bool(chosen & set(flaws)) or not total.domains
    assert (total.joules is None) == (total.reason is not None)
    if total.joules is not None:
        by_name = {reading.domain: reading.joules or 0.0 for reading in readings}
        assert total.joules == math.fsum(by_name[name] for name in total.domains)


@settings(max_examples=200, deadline=None)
@given(
    labels=st.dictionaries(
        st.sampled_from("123456"), st.none() | st.sampled_from(["pin", "pin1", "pout1", "System", "VDD"]), min_size=1
    ),
    chip=st.sampled_from(["cffps2", "ibmpowernv", "macsmc_hwmon", "zenpower", "smpro_hwmon", "corsairpsu", "ina226"]),
)
def test_two_channels_never_share_a_domain_of_a_sum(labels: dict[str, str | None], chip: str) -> None:
    roles = find_roles(chip, labels)
    assert set(roles) == set(labels)
    summed = [role.domain for role in roles.values() if role.scope in SUMMED and role.inside is None]
    assert len(summed) == len(set(summed))


def count(
    watts: float, first_uj: int, late_s: float, seconds: int, range_uj: int = 262_143_328_850
) -> list[CounterSample]:
    return [
        CounterSample(100.0 + n, (first_uj + round(watts * (n + late_s) * 1e6)) % (range_uj + 1))
        for n in range(seconds + 1)
    ]


@settings(max_examples=200, deadline=None)
@given(
    watts=st.floats(5.0, 400.0),
    first_uj=st.integers(0, 262_143_328_850),
    late_s=st.floats(0.0, 40e-6),
    seconds=st.integers(1, 30),
    share=st.floats(0.03, 0.5),
)
def test_one_counter_is_one_and_a_near_one_is_two(
    watts: float, first_uj: int, late_s: float, seconds: int, share: float
) -> None:
    first = count(watts, first_uj, 0.0, seconds)
    assert (
        compare_counters(first, count(watts, first_uj, late_s, seconds), 1e-6, 262_143_328_851, is_absolute=True)
        != "two"
    )
    other = count(watts * (1 + share), first_uj, 0.0, seconds)
    assert compare_counters(first, other, 1e-6, 262_143_328_851, is_absolute=True) == "two"
    apart = count(watts, (first_uj + round(watts * 1e6)) % 262_143_328_851, 0.0, seconds)
    assert compare_counters(first, apart, 1e-6, 262_143_328_851, is_absolute=True) != "one"


@settings(max_examples=150, deadline=None)
@given(
    dies=st.integers(2, 12),
    watts=st.floats(10.0, 300.0),
    late_s=st.floats(0.0, 3e-3),
    vendor=st.sampled_from([None, "AuthenticAMD", "HygonGenuine", "GenuineIntel"]),
)
def test_the_dies_of_one_counter_are_never_summed(dies: int, watts: float, late_s: float, vendor: str | None) -> None:
    zones = [Zone(f"intel-rapl:{n}", f"package-0-die-{n}", None, 262_143_328_850) for n in range(dies)]
    domains = [Domain(zone, zone.name, None, 1000.0) for zone in zones]
    samples = [count(watts, 40_000_000, n * late_s / dies, 10) for n in range(dies)]
    topology = Topology({0: frozenset(range(dies))}, vendor)
    readings, _ = make_readings("rapl", zone_energies(domains, samples, 100.0, 110.0, topology), 100.0, 110.0, topology)
    total = host_energy(readings)
    assert total.watts is None or total.watts == pytest.approx(watts, rel=1e-3)
    assert vendor not in ("AuthenticAMD", "HygonGenuine") or total.watts is not None


@settings(max_examples=200, deadline=None)
@given(missing=st.lists(st.booleans(), min_size=3, max_size=20))
def test_a_channel_that_goes_or_comes_has_no_joules(missing: list[bool]) -> None:
    gauge = [PowerSample(float(n), None if lost else 50.0) for n, lost in enumerate(missing)]
    counter = [CounterSample(float(n), None if lost else 50_000_000 * n, "unreadable" if lost else None)
               for n, lost in enumerate(missing)]  # fmt: skip
    end_s = len(missing) - 1.0
    energies = [
        power_energy(gauge, 0.0, end_s),
        counter_energy(counter, 0.0, end_s, joules_per_unit=1e-6, modulus=None),
    ]
    pairs = itertools.pairwise(missing)
    is_moving = missing[0] or missing[-1] or any(a and b for a, b in pairs)
    for energy in energies:
        assert energy.joules is None or not is_moving
        assert energy.joules is None or energy.joules == pytest.approx(50.0 * end_s)
    assert (find_absence([(float(n), lost, False) for n, lost in enumerate(missing)], 0.0) is not None) == (
        is_moving and not all(missing)
    )


# Watts, the counter's range in µJ, the watts that its constraints state, seconds between two samples, and whether a
# figure is given.
_STEPS = [
    (300.0, 262_143_328_850, None, 400.0, True),
    (300.0, 262_143_328_850, None, 450.0, False),
    (218.0, 65_532_610_987, None, 60.0, True),
    (218.0, 65_532_610_987, None, 110.0, False),
    (12.0, 262_143_328_850, 15, 2400.0, True),
    (90.0, 65_532_610_987, 65, 200.0, True),
    (30.0, 999_999, None, 1.0, False),
    (400.0, 262_143_328_850, 350, 500.0, False),
]


@pytest.mark.parametrize(("watts", "range_uj", "stated", "step_s", "is_given"), _STEPS)
def test_a_step_longer_than_the_range_has_no_figure(
    watts: float, range_uj: int, stated: int | None, step_s: float, is_given: bool
) -> None:
    zone = Zone("intel-rapl:0", "package-0", None, range_uj, None if stated is None else stated * 1_000_000)
    end_uj = (123_456 + round(watts * step_s * 1e6)) % (range_uj + 1)
    samples = [[CounterSample(0.0, 123_456), CounterSample(step_s, end_uj)]]
    domain = Domain(zone, "package-0", None, zone.limit_watts)
    (energy,) = zone_energies([domain], samples, 0.0, step_s)
    assert energy.energy.watts == (pytest.approx(watts) if is_given else None)
    assert is_given or any("may wrap" in note for note in energy.energy.notes)


@settings(max_examples=200, deadline=None)
@given(watts=st.floats(1.0, 590.0), step_s=st.floats(1.0, 7200.0), first_uj=st.integers(0, 65_532_610_987))
def test_a_hidden_wrap_is_never_a_figure(watts: float, step_s: float, first_uj: int) -> None:
    zone = Zone("intel-rapl:0", "package-0", None, 65_532_610_987)
    end_uj = (first_uj + round(watts * step_s * 1e6)) % 65_532_610_988
    domain = Domain(zone, "package-0", None, zone.limit_watts)
    samples = [[CounterSample(0.0, first_uj), CounterSample(step_s, end_uj)]]
    (energy,) = zone_energies([domain], samples, 0.0, step_s)
    assert energy.energy.watts is None or energy.energy.watts == pytest.approx(watts, rel=1e-3)
