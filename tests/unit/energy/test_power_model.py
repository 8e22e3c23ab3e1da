# SPDX-License-Identifier: Apache-2.0
"""The estimate: the right table for the CPU, an interval that widens with ignorance, hostile files refused."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.energy.families import (
    delivered_excess,
    delivered_ratio,
    published_deviations,
    published_results,
    shipped_models,
)
from powerprof.energy.model import ChosenModel, choose_model, describe_estimate, estimate, load_models
from powerprof.energy.models_file import (
    CpuIdentity,
    CpuMatch,
    PowerModel,
    StateWatts,
    WakeupJoules,
    encode_model,
    parse_cpuinfo,
    parse_models,
)
from powerprof.energy.replay import replay
from powerprof.energy.results import PowerResult, Spread, group_by_kind, predict_new_kind
from powerprof.energy.windows import estimate_doubts, estimate_window
from powerprof.model.records import StateResidency, Window
from powerprof.system.errors import DataError

Predict = Callable[[Sequence[PowerResult]], Spread]


def measure_coverage(results: Sequence[PowerResult], what: str, predict: Predict) -> float:
    """Return the share of results, in percent, inside the interval that the other results predict."""
    inside = [
        predict([*results[:i], *results[i + 1 :]]).holds(result.per_cpu(what)) for i, result in enumerate(results)
    ]
    return 100 * sum(inside) / len(inside)


def measure_new_kind_coverage(results: Sequence[PowerResult], what: str, predict: Predict) -> float:
    """Return the share of results, in percent, inside the interval that the other kinds of CPU predict."""
    inside = 0
    for name, kind in group_by_kind(results).items():
        predicted = predict([result for result in results if result.cpu != name])
        inside += sum(predicted.holds(result.per_cpu(what)) for result in kind)
    return 100 * inside / len(results)


GENOA = CpuIdentity("AuthenticAMD", 25, 17, 1)
SHIPPED = shipped_models()


def state(name: str, percent: float, entries_hz: float = 0.0, polling: bool = False) -> StateResidency:
    return StateResidency(
        name=name, residency_percent=percent, average_residency_ms=None, entries_hz=entries_hz, polling=polling
    )


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "title"),
    [
        ("GenuineIntel", 6, 85, 4, "Intel Skylake"),
        ("GenuineIntel", 6, 85, 7, "Intel Cascade Lake"),
        ("GenuineIntel", 6, 106, 6, "Intel Ice Lake"),
        ("GenuineIntel", 6, 143, 8, "Intel Sapphire Rapids"),
        ("GenuineIntel", 6, 85, 11, "Intel Cooper Lake"),
        ("GenuineIntel", 6, 207, 2, "Intel Emerald Rapids"),
        ("GenuineIntel", 6, 173, 1, "Intel Granite Rapids"),
        ("GenuineIntel", 6, 151, 2, "Intel Raptor Lake, nearest to Alder Lake"),
        ("AuthenticAMD", 23, 49, 0, "AMD EPYC Rome"),
        ("AuthenticAMD", 25, 1, 1, "AMD EPYC Milan"),
        ("AuthenticAMD", 25, 17, 1, "AMD EPYC Genoa"),
        ("AuthenticAMD", 26, 2, 1, "AMD EPYC Turin"),
        ("AuthenticAMD", 26, 68, 0, "AMD EPYC 4004 and 4005"),
        ("AuthenticAMD", 26, 96, 0, "AMD EPYC Turin, nearest to another Zen 5 CPU"),
        ("0x41", None, 0xD0C, 1, "Ampere Altra"),
        ("0x41", None, 0xD4F, 1, "Ampere Altra, nearest to Neoverse V1, N2, V2 or V3"),
        ("GenuineIntel", 6, 9999, 1, "generic"),
        (None, None, None, None, "generic"),
    ],
)
def test_cpus_find_their_generation(
    vendor: str | None, family: int | None, model: int | None, stepping: int | None, title: str
) -> None:
    chosen = choose_model(SHIPPED, CpuIdentity(vendor, family, model, stepping))
    assert chosen.title == title
    assert chosen.doubts


def test_cpuinfo_of_a_guest_that_hides_its_name() -> None:
    cpu = parse_cpuinfo(
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
        "model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\n\nprocessor\t: 1\nmodel : 3\n"
    )
    assert cpu == CpuIdentity("GenuineIntel", 6, 207, 2, "Intel(R) Xeon(R) Processor")
    arm = parse_cpuinfo("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n")
    assert (arm.vendor, arm.model) == ("0x41", 0xD0C)
    assert str(parse_cpuinfo("nothing")) == "an unknown CPU"


def test_recorded_machines_have_models(recordings: Path) -> None:
    titles = {}
    for name in ("genoa0", "bdwup0", "adl0"):
        cpu = parse_cpuinfo((recordings / name / "proc_cpuinfo.after.raw.txt").read_text())
        titles[name] = choose_model(SHIPPED, cpu).title
    assert titles == {
        "genoa0": "AMD EPYC Genoa",
        "bdwup0": "Intel Broadwell",
        "adl0": "Intel Raptor Lake, nearest to Alder Lake",
    }


# Generations of which ccf-coefficients' own means are of the same results; in others it takes fewer models.
_SAME = {"EPYC 1st Gen": "AMD EPYC Naples", "EPYC 2nd Gen": "AMD EPYC Rome", "Sky Lake": "Intel Skylake"}


def test_the_results_agree_with_the_published_means(recordings: Path) -> None:
    with (recordings / "power-models/ccf-aws-use.csv").open() as file:
        rows = {row["Architecture"]: row for row in csv.DictReader(file)}
    for theirs, ours in _SAME.items():
        results = published_results()[ours]
        idle = statistics.fmean(one.per_cpu("idle") for one in results)
        full = statistics.fmean(one.per_cpu("full") for one in results)
        # Their list ends in 2021 or 2022 and is of the models that a cloud offers.
        assert idle == pytest.approx(float(rows[theirs]["Min Watts"]), rel=0.15)
        assert full == pytest.approx(float(rows[theirs]["Max Watts"]), rel=0.08)


def test_there_are_results_for_every_generation() -> None:
    results = published_results()
    assert sum(map(len, results.values())) == 784
    assert {model.name for model in SHIPPED[:-1]} == set(results)
    # Threads, not cores, where SMT is on: 8 chips of EPYC 7763 have 1,024.
    assert max(one.cpus for one in results["AMD EPYC Milan"]) == 1024
    assert max(one.cpus for one in results["Ampere Altra"]) == 256


@pytest.mark.parametrize("what", ["idle", "slope", "odds"])
def test_each_result_lies_in_the_interval_of_the_others(what: str) -> None:
    known = published_deviations()
    shares = {
        name: measure_coverage(results, what, lambda others: predict_new_kind(others, what, known))
        for name, results in published_results().items()
        if len(results) >= 10
    }
    assert len(shares) == 20
    assert min(shares.values()) >= 90, shares


@pytest.mark.parametrize("what", ["slope", "odds"])
def test_a_kind_that_was_left_out_lies_in_the_interval_of_the_others(what: str) -> None:
    # With an interval of results alone Kaby Lake's slope was covered to 75 %, Broadwell's to 88 %.
    known = published_deviations()
    for name in ("Intel Kaby Lake and Coffee Lake", "Intel Broadwell"):
        share = measure_new_kind_coverage(
            published_results()[name], what, lambda rest: predict_new_kind(rest, what, known)
        )
        assert share >= 90, name


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model.name)
def test_the_interval_grows_with_the_load(model: PowerModel) -> None:
    chosen = ChosenModel(model, model.name, ())
    before = 0.0
    for c0 in range(0, 101, 5):
        reading = estimate(chosen, 1, 1.0, float(c0), [])
        low, high = reading.low_watts or 0.0, reading.high_watts or 0.0
        assert low <= (reading.watts or 0.0) <= high
        assert high - low >= before - 1e-9
        before = high - low
    # What a CPU is worth when it runs is known better than what it draws.
    assert reading.range is not None
    assert reading.range.slope_low_watts < reading.range.slope_watts < reading.range.slope_high_watts


def test_servers_as_delivered_lie_in_the_interval() -> None:
    # genoa0 idles at 314 W over 128 CPUs, bdwup0 at 16 W over 8 (recordings of intel/stats-collect).
    by_name = {model.name: model for model in SHIPPED}
    assert delivered_ratio() == pytest.approx(7.17, abs=0.01)
    # Beside published servers of as many chips: 314 for 123 W, and 16 for 14.6 W.
    assert delivered_excess() == pytest.approx(2.55, abs=0.01)
    for name, watts in (("AMD EPYC Genoa", 314 / 128), ("Intel Broadwell", 16 / 8)):
        low, high = by_name[name].idle_range_watts
        assert low <= watts <= high * 1.000001


def test_the_recorded_servers_interval_covers_its_wall_meter(recordings: Path) -> None:
    wall = replay([recordings / "genoa0/acpower.raw.txt"]).total.watts or 0.0
    # 99 % in C2 through the recording.
    reading = estimate(choose_model(SHIPPED, GENOA), 128, 1.0, 1.0, [])
    assert (reading.low_watts or 0.0) < wall < (reading.high_watts or 0.0)


def test_between_idle_and_full_by_c0() -> None:
    chosen = choose_model(SHIPPED, GENOA)
    model = chosen.model
    reading = estimate(chosen, 2, 10.0, 50.0, [])
    # The geometric means of 20 results.
    assert (model.idle_watts, model.full_watts) == (pytest.approx(0.34, abs=0.01), pytest.approx(1.87, abs=0.01))
    assert "AMD EPYC Genoa" in describe_estimate(chosen, reading)


CALIBRATED = PowerModel(
    name="mine",
    idle_watts=0.5,
    full_watts=6.0,
    idle_range_watts=(0.4, 0.6),
    full_range_watts=(5.9, 6.1),
    range_from="fit",
    source="calibrated",
    cpus=[CpuMatch(vendor="AuthenticAMD", family=25, models=[17])],
    states=[
        StateWatts(name="C1", watts=2.0, range_watts=(1.9, 2.1)),
        StateWatts(name="C2", watts=0.5, range_watts=(0.4, 0.6)),
    ],
    wakeup=WakeupJoules(joules=1e-4, range_joules=(0.0, 2e-4)),
)


def test_states_that_it_does_not_know_fall_back_to_c0() -> None:
    chosen = choose_model([CALIBRATED, *SHIPPED], GENOA)
    reading = estimate(chosen, 1, 1.0, 10.0, [state("C1", 30.0), state("C9", 60.0)])
    assert reading.watts == pytest.approx(0.5 + 0.1 * 5.5)
    # In a guest, which sees haltpoll where the host sleeps in C1 or C2: the bounds are those of both.
    guest = estimate(chosen, 1, 1.0, 10.0, [state("haltpoll idle", 90.0)])
    assert guest.watts == reading.watts
    assert (guest.low_watts, guest.high_watts) == (
        pytest.approx(0.9 * 0.4 + 0.1 * 5.9),
        pytest.approx(0.9 * 2.1 + 0.61),
    )


def test_stolen_time_is_not_charged() -> None:
    window = Window(
        started_at="",
        window_s=10.0,
        cpus=2,
        c0_percent=30.0,
        idle_percent=70.0,
        wakeups_hz=1.0,
        states=[],
        steal_percent=10.0,
    )
    chosen = choose_model(SHIPPED, GENOA)
    reading = estimate_window(chosen, window)
    assert reading.watts == estimate(chosen, 2, 10.0, 20.0, []).watts
    with_estimate = msgspec.structs.replace(window, energy=[reading])
    assert any("stolen by other guests" in note for note in estimate_doubts(chosen, with_estimate))


def test_a_model_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_models(encode_model(CALIBRATED), "mine") == [CALIBRATED]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "powerprof/models"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(encode_model(CALIBRATED))
    assert load_models()[0] == CALIBRATED


@given(name=st.text(min_size=1, max_size=120), source=st.text(max_size=100))
def test_any_name_survives_its_file(name: str, source: str) -> None:
    model = msgspec.structs.replace(CALIBRATED, name=name, source=source)
    assert parse_models(encode_model(model), "mine") == [model]


HEAD = 'schema = "powerprof.model/1"\n[[model]]\nname = "x"\nsource = "s"\n'
GOOD = "idle_watts = 1\nfull_watts = 2\nidle_range_watts = [0.5, 2]\nfull_range_watts = [1, 3]\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("schema = ", 1, "not TOML"),
        (HEAD + "idle_watts = [\n", 5, "not TOML"),
        ("a = 1\n", None, "unknown field"),
        ('schema = "powerprof.model/2"\nmodel = []\n', None, "schema"),
        (HEAD + GOOD.replace("= 2\n", '= "2"\n'), None, "model[0].full_watts"),
        (HEAD + GOOD + "colour = 1\n", None, "unknown field `colour`"),
        (HEAD + GOOD.replace("[0.5, 2]", "[1.5, 2]"), None, "model[0] (x).idle_range_watts: 1 is not within [1.5, 2]"),
        (HEAD + GOOD.replace("[0.5, 2]", "[nan, 2]"), None, "idle_range_watts"),
        (HEAD + GOOD.replace("full_watts = 2", "full_watts = -2"), None, "model[0].full_watts"),
        (HEAD + GOOD.replace("full_watts = 2", "full_watts = 1e9"), None, "model[0].full_watts"),
        (
            HEAD + GOOD.replace("idle_watts = 1", "idle_watts = 3").replace("[0.5, 2]", "[0.5, 4]"),
            None,
            "full_watts: below idle_watts",
        ),
        ("x = " + "[" * 20_000, None, "nested too deeply"),
    ],
)
def test_wrong_model_files_are_refused(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_models(text, "mine.toml")
    assert reason in caught.value.reason
    if line is not None:
        assert caught.value.line == line


def test_a_damaged_user_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "powerprof/models"
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("schema = \n")
    with pytest.raises(DataError, match=r"bad\.toml:1: not TOML"):
        load_models()
