# SPDX-License-Identifier: Apache-2.0
"""Estimates, splits and their bounds, computed by hand from odd models, and the threads of a core by cloud."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from powerprof.energy.model import (
    ChosenModel,
    choose_model,
    estimate,
    estimate_active_share,
    is_wide,
    load_models,
    model_for_this_host,
)
from powerprof.energy.models_file import CpuIdentity, CpuMatch, PowerModel, StateWatts, WakeupJoules, slope_range
from powerprof.energy.request import EnergyRequest
from powerprof.energy.split import Consumer, split_energy, split_host_energy
from powerprof.energy.total import Total
from powerprof.energy.uncertainty import bound_difference, bound_over_range, bound_ratio, find_corners
from powerprof.energy.windows import IdleFloor, WindowEnergy, estimate_window
from powerprof.experiment.metrics import note_below_idle
from powerprof.model.records import EstimateRange, StateResidency, Window
from powerprof.report.notes import word_notes

# A model of odd figures: 2 W idle, 7 W running, and intervals that are not symmetric.
PLAIN = PowerModel(
    name="odd",
    idle_watts=2.0,
    full_watts=7.0,
    idle_range_watts=(1.25, 3.5),
    full_range_watts=(5.5, 11.0),
    source="a test",
    slope_range_watts=(3.75, 8.0),
)
FITTED = replace(
    PLAIN,
    range_from="fit",
    slope_range_watts=None,
    states=[
        StateWatts(name="C1", watts=3.0, range_watts=(2.5, 4.5)),
        StateWatts(name="C6", watts=2.0, range_watts=(1.25, 3.5)),
    ],
    wakeup=WakeupJoules(joules=0.002, range_joules=(0.001, 0.005)),
)


def test_the_range_of_an_estimate_has_each_end_of_its_own() -> None:
    chosen = ChosenModel(PLAIN, "odd", (), widening=2.0, cores_per_cpu=3.0, scale=1.5)
    span = chosen.span(4)
    typical, low, high = 1.5 * 4, 1.5 * 4 / 2, 1.5 * 4 * 2 * 3
    assert (span.idle_watts, span.idle_low_watts, span.idle_high_watts) == (2 * typical, 1.25 * low, 3.5 * high)
    assert (span.slope_watts, span.slope_low_watts, span.slope_high_watts) == (5 * typical, 3.75 * low, 8 * high)
    assert (span.odds_low, span.odds_high) == (None, None)
    # Without a slope's interval it is the widest that the ends allow.
    assert slope_range(FITTED) == (5.5 - 3.5, 11.0 - 1.25)
    assert slope_range(replace(FITTED, full_range_watts=(3.0, 4.0)))[0] == 0.0


@pytest.mark.parametrize(("c0", "busy"), [(0.0, 0.0), (37.5, 0.375), (100.0, 1.0), (130.0, 1.0), (-4.0, 0.0)])
def test_an_estimate_by_load(c0: float, busy: float) -> None:
    reading = estimate(ChosenModel(PLAIN, "odd", (), widening=2.0), 3, 8.0, c0, [])
    watts = 3 * (2 + 5 * busy)
    assert (reading.watts, reading.joules) == (pytest.approx(watts), pytest.approx(8 * watts))
    assert reading.low_watts == pytest.approx(3 * (1.25 + (5.5 - 1.25) * busy) / 2)
    assert reading.high_watts == pytest.approx(3 * (3.5 + (11 - 3.5) * busy) * 2)
    assert (reading.source, reading.domain, reading.kind, reading.model) == ("model", "cpus", "estimated", "odd")


def test_an_estimate_without_c0_is_between_all_idle_and_all_running() -> None:
    reading = estimate(ChosenModel(PLAIN, "odd", (), cores_per_cpu=2.0), 3, 8.0, None, [])
    assert (reading.watts, reading.joules) == (None, None)
    assert (reading.low_watts, reading.high_watts) == (3 * 1.25, 3 * 11.0 * 2)
    assert estimate(ChosenModel(PLAIN, "odd", ()), 3, None, 10.0, []).joules is None


def state(name: str, percent: float | None, entries_hz: float | None, polling: bool = False) -> StateResidency:
    return StateResidency(
        name=name, residency_percent=percent, average_residency_ms=None, entries_hz=entries_hz, polling=polling
    )


def test_an_estimate_by_state_sums_states_and_wake_ups() -> None:
    states = [
        state("POLL", 0.0, 5000.0, True),
        state("C1", 18.0, 300.0),
        state("C6", 54.0, 600.0),
        state("C9", 4.0, 100.0),
    ]
    reading = estimate(ChosenModel(FITTED, "odd", ()), 4, 5.0, 20.0, states)
    # 80 % idle, a quarter of it in C1; the unknown C9 counts like the known ones; 1000 wake-ups over 4 CPUs.
    for figure, full, c1, c6, joules in (
        (reading.watts, 7.0, 3.0, 2.0, 0.002),
        (reading.low_watts, 5.5, 2.5, 1.25, 0.001),
        (reading.high_watts, 11.0, 4.5, 3.5, 0.005),
    ):
        assert figure == pytest.approx(4 * (0.2 * full + 0.8 * (0.25 * c1 + 0.75 * c6) + joules * 1000 / 4))
    # More than 5 % in unknown states: by load instead.
    unknown = [state("C1", 70.0, 1.0), state("C9", 6.0, 1.0)]
    assert estimate(ChosenModel(FITTED, "odd", ()), 4, 5.0, 20.0, unknown).watts == pytest.approx(4 * 3.0)
    assert estimate(ChosenModel(FITTED, "odd", ()), 4, 5.0, 20.0, []).high_watts == pytest.approx(
        4 * (4.5 + (11 - 4.5) * 0.2)
    )


SPAN = EstimateRange(
    idle_watts=10.0,
    idle_low_watts=6.0,
    idle_high_watts=15.0,
    slope_watts=20.0,
    slope_low_watts=12.0,
    slope_high_watts=35.0,
)


def test_the_doubts_of_differences_ratios_and_shares() -> None:
    assert bound_difference(-2.0, 4.0, SPAN) == (pytest.approx(-2 * 35 / 20), pytest.approx(4 * 35 / 20))
    assert bound_difference(2.0, 4.0, SPAN) == (pytest.approx(2 * 12 / 20), pytest.approx(4 * 35 / 20))
    # 14 W and 26 W are loads of 0.2 and 0.8 of the slope.
    ratios = [(idle + 0.8 * slope) / (idle + 0.2 * slope) for idle in (6, 15) for slope in (12, 35)]
    assert bound_ratio(14.0, 26.0, SPAN) == (pytest.approx(min(ratios)), pytest.approx(max(ratios)))
    assert bound_ratio(9.0, 26.0, SPAN) is None
    assert bound_ratio(14.0, 26.0, replace(SPAN, idle_low_watts=0.0)) is None
    chosen = ChosenModel(PLAIN, "odd", (), cores_per_cpu=2.0)
    shares = [slope * 0.3 / (slope * 0.3 + idle) for idle in (1.25, 3.5) for slope in (3.75, 8.0)]
    expected = (pytest.approx(1.5 / 3.5), pytest.approx(min(shares)), pytest.approx(max(shares)))
    assert estimate_active_share(chosen, 30.0) == expected
    assert estimate_active_share(chosen, 0.0) == (0.0, 0.0, 0.0)


def test_the_interval_of_the_ratio_cuts_the_corners() -> None:
    span = replace(SPAN, odds_low=0.25, odds_high=0.75)
    corners = find_corners(span)
    assert all(0.25 * slope - 1e-9 <= idle <= 0.75 * slope + 1e-9 for idle, slope in corners)
    assert all(6 - 1e-9 <= idle <= 15 + 1e-9 and 12 - 1e-9 <= slope <= 35 + 1e-9 for idle, slope in corners)
    # Full load: 6 + 12 W at least; the corner (15, 35) is within the ratio, and (6, 35) is not.
    assert bound_over_range(span, lambda idle, slope: idle + slope) == (pytest.approx(18.0), pytest.approx(50.0))
    assert bound_over_range(span, lambda idle, slope: slope - idle) == (pytest.approx(3.0), pytest.approx(35 - 8.75))
    assert bound_over_range(span, lambda idle, slope: idle - slope)[1] == pytest.approx(-3.0)
    # A ratio that no pair has leaves the box.
    assert len(find_corners(replace(SPAN, odds_low=9.0, odds_high=10.0))) == 4


positive = st.floats(0.5, 50.0)


@given(positive, positive, positive, positive, st.floats(1.05, 9.0))
def test_bounds_hold_the_typical_pair(idle: float, slope: float, down: float, up: float, factor: float) -> None:
    span = EstimateRange(
        idle_watts=idle,
        idle_low_watts=idle / (1 + down),
        idle_high_watts=idle * (1 + up),
        slope_watts=slope,
        slope_low_watts=slope / (1 + up),
        slope_high_watts=slope * (1 + down),
        odds_low=idle / slope / factor,
        odds_high=idle / slope * factor,
    )
    for of in (lambda i, s: i + s, lambda i, s: s / (i + s), lambda i, s: (i + s) / (i + 0.2 * s)):
        low, high = bound_over_range(span, of)
        assert low <= of(idle, slope) * (1 + 1e-9) and of(idle, slope) * (1 - 1e-9) <= high


@pytest.mark.parametrize(("stepping", "holds"), [(3, False), (4, True), (6, True), (7, False), (None, False)])
def test_a_match_by_stepping(stepping: int | None, holds: bool) -> None:
    match = CpuMatch(vendor="GenuineIntel", family=6, models=[85], steppings=(4, 6))
    assert match.holds(CpuIdentity("GenuineIntel", 6, 85, stepping)) is holds
    assert not match.holds(CpuIdentity("GenuineIntel", 6, 86, 5))
    assert not match.holds(CpuIdentity("GenuineIntel", 7, 85, 5))


def test_threads_and_cores_of_the_chosen_model() -> None:
    genoa = CpuIdentity("AuthenticAMD", 25, 17, 1)
    models = load_models()
    thread, unknown, core = (
        choose_model(models, genoa, smt=False, vcpu="thread"),
        choose_model(models, genoa, smt=False),
        choose_model(models, genoa, smt=False, vcpu="core"),
    )
    assert [(m.scale, m.cores_per_cpu) for m in (thread, unknown, core)] == [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    assert choose_model(models, genoa, smt=True).cores_per_cpu == 1.0
    watts = [estimate(m, 4, 1.0, 25.0, []).watts for m in (thread, unknown, core)]
    assert watts[0] == watts[1] and watts[2] == pytest.approx(2 * (watts[0] or 0.0))
    neighbour = next(match for m in models for match in m.cpus if match.nearest)
    chosen = choose_model(
        models, CpuIdentity(neighbour.vendor, neighbour.family, neighbour.models[0], (neighbour.steppings or (1,))[0])
    )
    assert chosen.widening == 2.0 and neighbour.nearest in chosen.title


# The split of energy by hand: 9 s of 4 CPUs, 45 % in C0 and a twelfth of all time stolen.


def split_odd(steal_percent: float | None = 25 / 3, **how: object) -> object:
    whole = Total(source="rapl", domains=["package-0"], joules=500.0, watts=500 / 9, kind="measured")
    parts = (Consumer(name="a function", c0_s=2.0, wakeups_count=30.0), Consumer(name="another", c0_s=1.0))
    consumers = [
        Consumer(name="server", c0_s=6.0, wakeups_count=100.0, children=parts),
        Consumer(name="rest", c0_s=4.2),
    ]
    values = {"idle_watts": 20.0, "wakeups_count": 400.0, "wakeup_joules": 0.05, **how}
    return split_host_energy(whole, 9.0, 45.0, 4, consumers, steal_percent=steal_percent, **values)  # type: ignore[arg-type]


def test_a_split_by_hand() -> None:
    split = split_odd()
    # 16.2 CPU seconds in C0, 3 of them stolen; 320 J above the floor, 20 J of them for wake-ups.
    price = (320 - 20) / (16.2 - 3.0)
    assert (split.idle_joules, split.active_joules, split.wakeup_joules) == (180.0, 320.0, 0.05)
    assert split.rate_watts == pytest.approx(price)
    server, rest, stolen = split.parts
    assert server.joules == pytest.approx(6 * price + 5)
    assert server.percent == pytest.approx(100 * (6 * price + 5) / 320)
    assert [c.joules for c in server.children] == [pytest.approx(2 * price + 1.5), pytest.approx(price)]
    assert server.residual_joules == pytest.approx(3 * price + 3.5)
    assert (rest.joules, rest.wakeups_count) == (pytest.approx(4.2 * price), 0.0)
    assert (stolen.name, stolen.joules, stolen.percent) == ("stolen by other guests", 0.0, 0.0)
    assert stolen.c0_s == pytest.approx(3.0)
    assert split.residual_joules == pytest.approx(500 - 180 - server.joules - rest.joules)
    assert split.total_joules == 500.0 and split.kind == "measured" and split.source == "rapl"


def test_stolen_time_raises_the_price_and_unknown_steal_is_none() -> None:
    with_steal, without = split_odd(), split_odd(None)
    assert without.rate_watts == pytest.approx(300 / 16.2) and len(without.parts) == 2
    assert with_steal.rate_watts > without.rate_watts
    cheap = split_odd(wakeup_joules=2.0)
    # 400 wake-ups at 2 J cost more than the 320 J: their price is lowered.
    assert (cheap.rate_watts, cheap.wakeup_joules) == (0.0, pytest.approx(0.8))
    assert "their price is lowered" in str(cheap.notes)
    assert split_odd(idle_watts=None).residual_joules == 500.0
    below = split_odd(idle_watts=60.0)
    assert (below.active_joules, below.rate_watts, below.parts[0].joules) == (pytest.approx(-40.0), None, 0.0)
    assert below.parts[0].percent is None


@given(st.floats(10.0, 900.0), st.floats(1.0, 60.0), st.floats(0.0, 3.0), st.lists(st.floats(0.0, 9.0), max_size=5))
def test_a_split_sums_to_its_total(total: float, window_s: float, steal_s: float, seconds: list[float]) -> None:
    consumers = [Consumer(name=str(n), c0_s=s, wakeups_count=7.0 * n) for n, s in enumerate(seconds)]
    split = split_energy(
        total,
        window_s,
        idle_watts=0.4 * total / window_s,
        c0_s=sum(seconds) + steal_s + 1.0,
        consumers=consumers,
        kind="measured",
        source="rapl",
        steal_s=steal_s,
    )
    parts = sum(part.joules for part in split.parts)
    assert (split.idle_joules or 0.0) + parts + split.residual_joules == pytest.approx(total)
    # Without a price of wake-ups the residual is the C0 time of nobody: one second.
    assert split.residual_joules == pytest.approx(0.6 * total / (sum(seconds) + 1.0))
    assert sum(part.percent or 0.0 for part in split.parts) == pytest.approx(100 * parts / (0.6 * total))


def energy_of(model: ChosenModel) -> WindowEnergy:
    made = WindowEnergy(EnergyRequest(source="none"))
    made._model = model
    return made


def test_the_floor_of_measured_watts_is_a_share_of_the_running_time() -> None:
    whole = Total(source="rapl", domains=["package-0"], joules=90.0, watts=30.0, kind="measured")
    energy = energy_of(ChosenModel(PLAIN, "odd", ()))
    floor = energy.floor(whole, 4, 50.0, 20.0)
    shares = estimate_active_share(ChosenModel(PLAIN, "odd", ()), 30.0)
    assert floor is not None
    assert floor.watts == pytest.approx(30 * (1 - shares[0]))
    assert (floor.active_low_watts, floor.active_high_watts) == (
        pytest.approx(30 * shares[1]),
        pytest.approx(30 * shares[2]),
    )
    assert floor.note is not None and floor.note.startswith("idle floor: 57 % of the measured power (")
    assert energy.floor(whole, 4, None) is None
    split = energy.split(whole, 3.0, 4, 50.0, [Consumer(name="server", c0_s=2.0)], steal_percent=20.0)
    assert split is not None
    assert (split.active_low_joules, split.active_high_joules) == (
        pytest.approx(90 * shares[1]),
        pytest.approx(90 * shares[2]),
    )
    assert split.idle_joules == pytest.approx(90 * (1 - shares[0])) and split.kind == "estimated"
    calibrated = energy_of(ChosenModel(FITTED, "fitted", ()))
    assert calibrated.floor(whole, 4, 50.0, 20.0) == IdleFloor(4 * 2.0)
    assert calibrated.wakeup_joules("measured") == 0.002 and energy.wakeup_joules("measured") is None
    given_floor = energy.split(whole, 3.0, 4, 50.0, [], idle_watts=11.0)
    assert given_floor is not None and (given_floor.idle_joules, given_floor.kind) == (33.0, "measured")


def test_a_window_is_estimated_over_all_cpus_without_stolen_time() -> None:
    model = ChosenModel(PLAIN, "odd", ())
    window = Window(
        started_at="",
        window_s=6.0,
        cpus=3,
        c0_percent=40.0,
        idle_percent=60.0,
        wakeups_hz=1.0,
        states=[],
        steal_percent=15.0,
    )
    reading = estimate_window(model, window)
    assert (reading.watts, reading.joules) == (pytest.approx(3 * (2 + 5 * 0.25)), pytest.approx(6 * 3 * 3.25))
    partly = estimate_window(model, replace(window, unknown_cpus_count=2))
    assert (partly.watts, partly.low_watts, partly.high_watts) == (None, 5 * 1.25, 5 * 11.0)
    assert estimate_window(model, replace(window, steal_percent=50.0)).watts == pytest.approx(6.0)
    assert estimate_window(model, replace(window, c0_percent=None)).watts is None


@pytest.mark.parametrize(("seconds", "is_noted"), [(10.09, False), (10.125, True)])
def test_parts_above_the_active_energy_are_noted_beyond_one_percent(seconds: float, is_noted: bool) -> None:
    """320 J above the floor over 10 s in C0: 32 J per second, and a hundredth of 320 J is 3.2 J."""
    consumers = [Consumer(name="server", c0_s=seconds)]
    split = split_energy(500.0, 9.0, idle_watts=20.0, c0_s=10.0, consumers=consumers, kind="measured", source="rapl")
    assert split.residual_joules == pytest.approx(320 - 32 * seconds)
    assert any("the parts sum to more" in str(note) for note in split.notes) is is_noted


@pytest.mark.parametrize(("high", "wide"), [(9.9, False), (10.1, True)])
def test_an_interval_of_more_than_five_times_is_wide(high: float, wide: bool) -> None:
    reading = estimate(ChosenModel(PLAIN, "odd", ()), 1, 1.0, 10.0, [])
    assert is_wide(replace(reading, low_watts=2.0, high_watts=high)) is wide
    assert not is_wide(replace(reading, kind="measured", low_watts=2.0, high_watts=high))


AZURE = "7783-7084-3265-9085-8269-3286-77"


def write_host(root: Path, *, smt: str | None, cpus: int, guest: bool, vendor: str | None, tag: str = "") -> None:
    """A Genoa host as /sys and /proc show it."""
    files = {
        "sys/devices/system/cpu/smt/active": smt,
        "sys/class/dmi/id/sys_vendor": vendor,
        "sys/class/dmi/id/chassis_asset_tag": tag,
    }
    for name, text in files.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{text}\n")
    flags = "fpu vme hypervisor lahf_lm" if guest else "fpu vme lahf_lm"
    numbers = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1"
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(
        "\n".join(f"processor\t: {cpu}\n{numbers}\nflags\t\t: {flags}\n" for cpu in range(cpus))
    )


# smt, CPUs, guest, vendor, asset tag: is one CPU a core (True), perhaps (None), or a thread (False)?
HOSTS = {
    "EC2, m7i: threads": (("1", 8, True, "Amazon EC2", ""), False),
    "EC2, m7a: cores": (("0", 8, True, "Amazon EC2", ""), True),
    "EC2, one thread per core chosen": (("0", 1, True, "Amazon EC2", ""), True),
    "EC2, metal": (("1", 96, False, "Amazon EC2", ""), False),
    "EC2 of the Xen kind": (("0", 2, True, "Xen", ""), None),
    "Google, n2: threads": (("1", 2, True, "Google", ""), False),
    "Google, t2d: cores": (("0", 2, True, "Google", ""), True),
    "Google, one CPU": (("0", 1, True, "Google", ""), None),
    "Azure, D4s v5: threads": (("1", 4, True, "Microsoft Corporation", AZURE), False),
    "Azure, F2: cores": (("0", 2, True, "Microsoft Corporation", AZURE), True),
    "Azure, one CPU": (("0", 1, True, "Microsoft Corporation", AZURE), None),
    "Hyper-V at home": (("0", 4, True, "Microsoft Corporation", "None"), None),
    "QEMU": (("0", 4, True, "QEMU", ""), None),
    "VMware": (("0", 4, True, "VMware, Inc.", ""), None),
    "a guest without DMI": (("0", 4, True, None, ""), None),
    "metal, threads switched off": (("0", 32, False, "Dell Inc.", ""), True),
    "metal with threads": (("1", 64, False, "Supermicro", ""), False),
    "metal without DMI": (("0", 4, False, None, ""), True),
    "a kernel without the file": ((None, 4, True, "Amazon EC2", ""), False),
    "a vendor with a line too many": (("0", 4, True, "Amazon EC2 \n", ""), True),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_cpu_is_a_core_only_where_that_is_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (smt, cpus, guest, vendor, tag), is_core = HOSTS[name]
    write_host(tmp_path, smt=smt, cpus=cpus, guest=guest, vendor=vendor, tag=tag)
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    chosen = model_for_this_host(EnergyRequest())
    assert chosen.scale == (2.0 if is_core else 1.0)
    assert chosen.cores_per_cpu == (2.0 if is_core is None else 1.0)
    # The user's answer counts before any evidence.
    assert model_for_this_host(EnergyRequest(vcpu="thread")).scale == 1.0


@pytest.mark.parametrize(
    ("ends", "noted"),
    [
        ([("joules_per_query_net", -0.1)], True),
        ([("joules_per_query_net", 0.0)], False),
        ([("joules_per_query_net", None)], False),
        ([("joules_per_query", 0.2), ("c0_ms_per_query_net", -1.0)], True),
        ([("watts:package-0", -1.0)], False),
        ([], False),
    ],
)
def test_an_interval_below_idle_has_a_note(ends: list[tuple[str, float | None]], noted: bool) -> None:
    assert bool(note_below_idle(ends)) == noted
    if noted:
        assert word_notes(note_below_idle(ends))[0].startswith("an interval net of idle starts below 0")
