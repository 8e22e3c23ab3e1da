# SPDX-License-Identifier: Apache-2.0
"""P-states of recorded trees, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from powerprof.measure import oslayer, pstates
from powerprof.measure.means import make_run
from powerprof.measure.pstates import FrequencyReading, Policy, compute_frequencies, join_frequencies
from powerprof.measure.sampling import WindowMeter
from powerprof.model.system_activity import CpuFrequency, Frequencies, FrequencyLimits, PState
from powerprof.report.kinds import lines_of
from powerprof.report.pstates import frequency_sentences
from tests.unit.measure.fake_cpu import C1, POLL, FakeCpus, fake_stat


class Tree:
    """A sysfs tree with cpufreq policies."""

    def __init__(self, root: Path) -> None:
        self.cpu = root / "devices/system/cpu"

    def policy(self, number: int, cpus: str, ticks: Mapping[int, int] | None = None, **files: str) -> None:
        folder = self.cpu / f"cpufreq/policy{number}"
        (folder / "stats").mkdir(parents=True, exist_ok=True)
        (folder / "affected_cpus").write_text(f"{cpus}\n")
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
        if ticks is not None:
            (folder / "stats/time_in_state").write_text("".join(f"{khz} {n}\n" for khz, n in ticks.items()))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path))
    return Tree(tmp_path)


def shares(states: list[PState]) -> dict[float, float]:
    return {state.mhz: state.residency_percent for state in states}


def test_residency_is_exact_over_policies_of_unlike_size(tree: Tree) -> None:
    tree.policy(0, "0 1 2", {1500000: 1000, 2400000: 5000, 3600000: 7})
    tree.policy(12, "3", {1500000: 0, 2400000: 0, 3600000: 800})
    before = pstates.read_frequencies()
    tree.policy(0, "0 1 2", {1500000: 1750, 2400000: 5250, 3600000: 7})
    tree.policy(12, "3", {1500000: 500, 2400000: 0, 3600000: 1300})
    found = compute_frequencies(before, pstates.read_frequencies())
    assert found is not None
    assert [cpu.cpu for cpu in found.cpus] == [0, 1, 2, 3]
    assert shares(found.cpus[1].states) == {1500.0: 75.0, 2400.0: 25.0, 3600.0: 0.0}
    assert shares(found.cpus[3].states) == {1500.0: 50.0, 2400.0: 0.0, 3600.0: 50.0}
    # Three CPUs of the one policy, one of the other.
    assert shares(found.states) == {1500.0: 68.75, 2400.0: 18.75, 3600.0: 12.5}
    assert sum(shares(found.states).values()) == 100.0
    assert found.busy_mhz is None


def test_reset_counters_give_no_residency(tree: Tree) -> None:
    tree.policy(0, "0", {1500000: 1000, 2400000: 5000})
    before = pstates.read_frequencies()
    tree.policy(0, "0", {1500000: 10, 2400000: 20})
    found = compute_frequencies(before, pstates.read_frequencies())
    assert found is not None and found.states == [] and found.cpus == []


@pytest.mark.parametrize(
    ("folder", "driver", "status"),
    [("intel_pstate", "intel_pstate", "active"), ("amd_pstate", "amd-pstate-epp", "active")],
)
def test_a_driver_without_counters_shows_its_limits(tree: Tree, folder: str, driver: str, status: str) -> None:
    files = {
        "scaling_driver": driver,
        "scaling_governor": "powersave",
        "energy_performance_preference": "balance_performance",
        "scaling_min_freq": "800000",
        "scaling_max_freq": "3100000",
        "cpuinfo_min_freq": "400000",
        "cpuinfo_max_freq": "5200000",
        "base_frequency": "2100000",
    }
    tree.policy(0, "0 1", **files)
    tree.policy(2, "2", **files)
    tree.policy(3, "3", **{**files, "scaling_max_freq": "2000000"})
    (tree.cpu / folder).mkdir()
    (tree.cpu / folder / "status").write_text(f"{status}\n")
    (tree.cpu / folder / "no_turbo").write_text("0\n")
    found = compute_frequencies(pstates.read_frequencies(), pstates.read_frequencies())
    assert found is not None
    assert (found.states, found.cpus, found.status) == ([], [], status)
    assert found.turbo is (True if folder == "intel_pstate" else None)
    limits = FrequencyLimits(
        cpus="0-2",
        driver=driver,
        governor="powersave",
        preference="balance_performance",
        minimum_mhz=800.0,
        maximum_mhz=3100.0,
        hardware_minimum_mhz=400.0,
        hardware_maximum_mhz=5200.0,
        base_mhz=2100.0,
    )
    assert found.limits[0] == limits
    assert (found.limits[1].cpus, found.limits[1].maximum_mhz) == ("3", 2000.0)


def test_no_cpufreq_is_unknown(tree: Tree) -> None:
    tree.cpu.mkdir(parents=True)
    assert compute_frequencies(pstates.read_frequencies(), pstates.read_frequencies()) is None


def test_a_window_reports_p_states(tree: Tree) -> None:
    fake = FakeCpus(tree.cpu.parents[2], [[POLL, C1]] * 2, driver="acpi_idle")
    fake_stat(tree.cpu.parents[2], [(0, 100), (0, 100)])
    files = {"scaling_driver": "acpi-cpufreq", "scaling_min_freq": "1500000", "scaling_max_freq": "2400000"}
    tree.policy(0, "0", {1500000: 0, 2400000: 0}, **files)
    tree.policy(1, "1", {1500000: 0, 2400000: 0}, **files)
    with WindowMeter() as meter:
        meter.open_window()
        fake_stat(tree.cpu.parents[2], [(3, 101), (1, 103)])
        fake.add(0, 1, us=10, usage=1)
        tree.policy(0, "0", {1500000: 10, 2400000: 30}, **files)
        tree.policy(1, "1", {1500000: 40, 2400000: 0}, **files)
        window = meter.close_window()
    text = "\n".join(lines_of(make_run(window, host={}), 80))
    assert "  0     75.0  2,400 MHz 75.0 %, 1,500 MHz 25.0 %" in text
    assert "  1     25.0  1,500 MHz 100.0 %" in text
    assert "P-states: acpi-cpufreq, 1,500 to 2,400 MHz allowed." in text


@pytest.mark.parametrize(
    ("limits", "found", "sentence"),
    [
        (
            FrequencyLimits(
                cpus="0-7",
                driver="amd-pstate-epp",
                governor="powersave",
                preference="balance_power",
                minimum_mhz=400.0,
                maximum_mhz=3000.0,
                hardware_minimum_mhz=400.0,
                hardware_maximum_mhz=5700.0,
            ),
            Frequencies(status="active", turbo=True),
            "P-states: chosen by the hardware under amd-pstate-epp (active), which does not count them, 400 to "
            "3,000 MHz "
            "allowed of 400 to 5,700, governor powersave, preference balance_power, turbo on.",
        ),
        (
            FrequencyLimits(cpus="0", driver="cppc_cpufreq"),
            Frequencies(),
            "P-states: cppc_cpufreq, which does not count them (no stats/time_in_state).",
        ),
    ],
)
def test_limits_are_worded(limits: FrequencyLimits, found: Frequencies, sentence: str) -> None:
    assert frequency_sentences(msgspec.structs.replace(found, limits=[limits])) == [sentence]


def test_windows_carry_them(tree: Tree) -> None:
    tree.policy(0, "0", {1000000: 0})
    before = oslayer.read_counters()
    tree.policy(0, "0", {1000000: 10, 2000000: 30})
    rates = oslayer.compute_os_rates(before, oslayer.read_counters())
    assert rates.frequencies is not None and shares(rates.frequencies.states) == {1000.0: 25.0, 2000.0: 75.0}
    assert Policy((0,), {1000000: 10, 2000000: 30}) == pstates.read_frequencies().policies["policy0"]


def test_frequencies_of_unlike_cpus_are_weighted_by_their_running_time() -> None:
    """A TSC of 2.5 GHz over 4 s. CPU 0 ran for 2 s at 3.5 GHz, CPU 3 for 0.4 s at 1 GHz."""
    before = FrequencyReading(10.0, {"p": Policy((0,), {1_500_000: 7})}, {0: (5, 6, 7), 3: (1, 2, 3), 4: (9, 9, 9)})
    clocks = {
        0: (5 + 7 * 10**9, 6 + 5 * 10**9, 7 + 10 * 10**9),
        3: (1 + 4 * 10**8, 2 + 10**9, 3 + 10 * 10**9),
        4: (9, 9, 9 + 10 * 10**9),
    }
    after = FrequencyReading(14.0, {"p": Policy((0,), {1_500_000: 37, 2_500_000: 90})}, clocks)
    found = compute_frequencies(before, after)
    assert found is not None
    assert [(cpu.cpu, cpu.busy_mhz) for cpu in found.cpus] == [(0, pytest.approx(3500.0)), (3, pytest.approx(1000.0))]
    assert found.busy_mhz == pytest.approx((5 * 3500 + 1 * 1000) / 6)
    assert shares(found.cpus[0].states) == pytest.approx({1500.0: 25.0, 2500.0: 75.0})
    assert found.states == found.cpus[0].states and found.cpus[1].states == []


def odd_frequencies(start: float, cpus: Mapping[int, float | None], **fixed: object) -> Frequencies:
    def states(first: float, *mhz: float) -> list[PState]:
        return [PState(mhz=m, residency_percent=first + 10 * n) for n, m in enumerate(mhz)]

    values: dict[str, object] = {
        "states": states(start, 1000.0, 2000.0 + start),
        "cpus": [CpuFrequency(cpu=n, states=states(start + n, 1000.0), busy_mhz=mhz) for n, mhz in cpus.items()],
        "busy_mhz": 100 * start,
        "status": f"s{start:g}",
        "turbo": start > 20,
        **fixed,
    }
    return Frequencies(**values)  # type: ignore[arg-type]


def test_joined_frequencies_are_weighted_by_time() -> None:
    first = odd_frequencies(13.0, {0: 1300.0, 1: 700.0, 2: None, 5: 9.0})
    second = odd_frequencies(37.0, {0: 3700.0, 1: None, 2: 2900.0})
    joined = join_frequencies(first, 2.0, second, 6.0)
    expected = {1000.0: (13 * 2 + 37 * 6) / 8, 2013.0: 23 * 2 / 8, 2037.0: 47 * 6 / 8}
    assert shares(joined.states) == pytest.approx(expected)
    assert [cpu.cpu for cpu in joined.cpus] == [0, 1, 2]
    # A window in which a CPU did not run has no frequency of it.
    assert [cpu.busy_mhz for cpu in joined.cpus] == [(1300 * 2 + 3700 * 6) / 8, 700.0, 2900.0]
    assert shares(joined.cpus[1].states) == pytest.approx({1000.0: (14 * 2 + 38 * 6) / 8})
    assert (joined.busy_mhz, joined.status, joined.turbo) == ((1300 * 2 + 3700 * 6) / 8, "s37", True)
    only = join_frequencies(replace(first, busy_mhz=None, states=[]), 2.0, second, 6.0)
    assert (only.busy_mhz, only.states) == (3700.0, second.states)


@pytest.mark.parametrize(
    ("files", "turbo"),
    [
        ({}, None),
        ({"intel_pstate/no_turbo": 0}, True),
        ({"intel_pstate/no_turbo": 1}, False),
        ({"cpufreq/boost": 0}, False),
        ({"cpufreq/boost": 1}, True),
    ],
)
def test_turbo_by_driver(tree: Tree, files: Mapping[str, int], turbo: bool | None) -> None:
    for name, value in files.items():
        (tree.cpu / name).parent.mkdir(parents=True, exist_ok=True)
        (tree.cpu / name).write_text(f"{value}\n")
    assert pstates.read_turbo() is turbo
