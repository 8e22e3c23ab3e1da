# SPDX-License-Identifier: Apache-2.0
"""Drawn hosts with layers of meters: psys around packages around nothing, and one counter under many names.

A layer is complete, lacks a domain, or stands still. The truth is known by construction.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.layouts import Topology
from powerprof.energy.meters.rapl import Domain, Zone, zone_energies
from powerprof.energy.readings import make_readings
from powerprof.energy.total import host_energy
from powerprof.measure.counters import CounterSample
from powerprof.measure.energy_series import counter_energy
from powerprof.model.records import EnergyReading, Scope

_RANGE_UJ = 262_143_328_850
_SECONDS = 10


def count(watts: float, first_uj: int, read_late_s: float = 0.0) -> list[CounterSample]:
    values = [first_uj + round(watts * (second + read_late_s) * 1e6) for second in range(_SECONDS + 1)]
    return [CounterSample(100.0 + n, value % (_RANGE_UJ + 1)) for n, value in enumerate(values)]


def find_total(counters: dict[str, list[CounterSample]], topology: Topology) -> tuple[float | None, set[str]]:
    """Return the watts and the summed domains of these zones. A zone `A/dram` lies in zone A."""
    numbers = {name: f"intel-rapl:{n}" for n, name in enumerate(name for name in counters if "/" not in name)}
    domains = []
    for name in counters:
        outer, _, inner = name.partition("/")
        zone_id, parent = (f"{numbers[outer]}:0", numbers[outer]) if inner else (numbers[outer], None)
        domains.append(Domain(Zone(zone_id, inner or outer, parent, _RANGE_UJ), name, None, 5000.0))
    energies = zone_energies(domains, list(counters.values()), 100.0, 100.0 + _SECONDS, topology)
    readings, _ = make_readings("rapl", energies, 100.0, 100.0 + _SECONDS, topology)
    total = host_energy(readings)
    return total.watts, set(total.domains)


@st.composite
def layered_hosts(draw: st.DrawFn) -> tuple[dict[str, list[CounterSample]], Topology, dict[str, float], set[str]]:
    """Draw the counters of a host, its topology, the watts of the complete layers, and the flawed ones."""
    sockets = draw(st.integers(1, 8))
    has_dram = draw(st.booleans())
    counters: dict[str, list[CounterSample]] = {}
    watts = 0.0
    for socket in range(sockets):
        power = draw(st.floats(20.0, 300.0))
        counters[f"package-{socket}"] = count(power, draw(st.integers(0, 10**9)) * 100 + socket * 10**9)
        watts += power
        if has_dram:
            memory = draw(st.floats(2.0, 30.0))
            counters[f"package-{socket}/dram"] = count(memory, draw(st.integers(0, 10**9)) * 100 + socket * 10**9)
            watts += memory
    layers = {"package": watts}
    flawed: set[str] = set()
    psys = draw(st.sampled_from(["none", "one", "two", "still", "too small", "one of equal values"]))
    around = watts + draw(st.floats(20.0, 200.0))
    if psys != "none":
        shown = 0.01 * watts if psys == "too small" else 0.0 if psys == "still" else around
        master = draw(st.integers(0, sockets - 1))
        name = f"psys-{master}" if master else "psys"
        counters[name] = count(shown, 5_000_000)
        if psys == "two":
            counters["psys-9"] = count(around * 0.7, 9_000_000)
        if psys == "one of equal values":
            counters["psys-9"] = count(shown, 5_000_000)
        layers["psys"] = around
        if psys in ("two", "still", "too small"):
            flawed.add("psys")
    lost = draw(st.none() | st.integers(0, sockets - 1))
    if lost is not None and sockets > 1:
        del counters[f"package-{lost}"]
        counters.pop(f"package-{lost}/dram", None)
        flawed.add("package")
    return counters, Topology({n: frozenset({0}) for n in range(sockets)}, "GenuineIntel"), layers, flawed


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn=layered_hosts())
def test_a_flawed_layer_hides_no_complete_one_and_has_no_total(
    drawn: tuple[dict[str, list[CounterSample]], Topology, dict[str, float], set[str]],
) -> None:
    counters, topology, layers, flawed = drawn
    watts, domains = find_total(counters, topology)
    right = [layers[name] for name in ("psys", "package") if name in layers and name not in flawed]
    if not right:
        assert watts is None, domains
        return
    assert watts == pytest.approx(right[0], rel=1e-6), (domains, layers, flawed)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    sockets=st.integers(2, 32),
    real=st.integers(1, 2),
    watts=st.floats(10.0, 400.0),
    read_s=st.floats(0.0, 150e-6),
    has_dram=st.booleans(),
    is_shown=st.booleans(),
)
def test_equal_counters_of_any_topology_count_once(
    sockets: int, real: int, watts: float, read_s: float, has_dram: bool, is_shown: bool
) -> None:
    """A guest shows each of its CPUs as a socket, and the counters of the host's one or two sockets in each."""
    counters = {}
    for socket in range(sockets):
        first_uj = 40_000_000_000 + (socket % real) * 7_000_000_000
        counters[f"package-{socket}"] = count(watts + socket % real, first_uj, socket * read_s)
        if has_dram:
            counters[f"package-{socket}/dram"] = count(5.0 + socket % real, first_uj, socket * read_s)
    topology = Topology({n: frozenset({0}) for n in range(sockets)} if is_shown else {}, "GenuineIntel")
    truth = math.fsum(watts + n + (5.0 + n if has_dram else 0.0) for n in range(min(real, sockets)))
    total, domains = find_total(counters, topology)
    assert total == pytest.approx(truth, rel=1e-6), domains


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    watts=st.floats(200.0, 980.0),
    late_s=st.floats(0.05, 0.95),
    at=st.integers(1, _SECONDS - 1),
    swing=st.floats(0.0, 0.02),
)
def test_a_late_update_is_joined_and_the_interval_holds_the_truth(
    watts: float, late_s: float, at: int, swing: float
) -> None:
    """One sample lacks the last moments, and the next one has them: 900 W was 860 W without an interval."""
    limit_watts = 1000.0
    samples = [
        CounterSample(100.0 + n, 10**9 + round(watts * (n + swing * math.sin(n) - (late_s if n == at else 0.0)) * 1e6))
        for n in range(_SECONDS + 1)
    ]
    truth = (samples[-1].value - samples[0].value) * 1e-6 / _SECONDS  # type: ignore[operator]
    energy = counter_energy(
        samples, 100.0, 100.0 + _SECONDS, joules_per_unit=1e-6, modulus=1 << 50, limit_watts=limit_watts
    )
    assert energy.watts == pytest.approx(truth, rel=1e-6), energy.notes
    if watts * (1 + late_s - 2 * swing) > limit_watts:
        assert energy.edge_joules >= 0.9 * watts * late_s
        assert any("updated late" in note for note in energy.notes)


_LAYERS: tuple[tuple[str, Scope, str, tuple[str, ...]], ...] = (
    ("wall", "wall", "meter_log", ("wall",)),
    ("server", "server", "ipmi", ("server",)),
    ("supply", "supply", "hwmon", ("hwmon0/supply", "hwmon1/supply")),
    ("psys", "psys", "rapl", ("psys",)),
    ("package", "package", "rapl", ("package-0", "package-1")),
    ("rail", "rail", "hwmon", ("VDD_CPU",)),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(states=st.lists(st.sampled_from(["absent", "complete", "flawed", "lost"]), min_size=6, max_size=6))
def test_the_outermost_complete_meter_counts_whatever_is_around_it(states: list[str]) -> None:
    """Each layer draws 10 % more than the next one inside it. A rail counts only if no other layer has a figure."""
    readings: list[EnergyReading] = []
    right: float | None = None
    for depth, ((layer, scope, source, names), state) in enumerate(zip(_LAYERS, states, strict=True)):
        watts = 100.0 * 1.1 ** (len(_LAYERS) - depth)
        figures = [None if state == "lost" and name == names[-1] else watts / len(names) for name in names]
        is_silent = all(reading.joules is None for reading in readings)
        if state == "complete" and right is None and (layer != "rail" or is_silent):
            right = watts
        readings += [
            EnergyReading(
                source=source,
                domain=name,
                kind="measured",
                joules=figure,
                watts=figure,
                scope=scope,
                dropped_samples_count=5 if figure is None else 0,
                unsummed="it has a flaw" if state == "flawed" else None,
            )
            for name, figure in zip(names, figures, strict=True)
            if state != "absent"
        ]
    total = host_energy(readings)
    assert total.watts == (None if right is None else pytest.approx(right)), (states, total)
