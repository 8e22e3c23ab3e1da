"""The estimate: the right table for the CPU, an interval that widens with ignorance, hostile files refused."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerprof.energy.cpu import CpuIdentity, parse_cpuinfo
from powerprof.energy.model import ChosenModel, choose_model, describe, estimate, load_models
from powerprof.energy.models_file import (
    CpuMatch,
    PowerModel,
    StateWatts,
    WakeupJoules,
    encode_model,
    parse_models,
    shipped_models,
)
from powerprof.energy.windows import estimate_doubts, estimate_window
from powerprof.errors import DataError
from powerprof.records import StateResidency, Window

GENOA = CpuIdentity("AuthenticAMD", 25, 17, 1)
SHIPPED = shipped_models()
EMERALD = CpuIdentity("GenuineIntel", 6, 207, 2)


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
        ("GenuineIntel", 6, 207, 2, "Intel Sapphire Rapids, nearest to Emerald Rapids"),
        ("AuthenticAMD", 23, 49, 0, "AMD EPYC Rome"),
        ("AuthenticAMD", 25, 1, 1, "AMD EPYC Milan"),
        ("AuthenticAMD", 25, 17, 1, "AMD EPYC Genoa"),
        ("AuthenticAMD", 26, 2, 1, "AMD EPYC Genoa, nearest to EPYC Turin or a later Zen 5 CPU"),
        ("0x41", None, 0xD0C, 1, "AWS Graviton2 (Neoverse N1), nearest to Neoverse N1"),
        ("GenuineIntel", 6, 9999, 1, "generic"),
        (None, None, None, None, "generic"),
    ],
)
def test_cpus_find_their_generation(
    vendor: str | None, family: int | None, model: int | None, stepping: int | None, title: str
) -> None:
    chosen = choose_model(shipped_models(), CpuIdentity(vendor, family, model, stepping))
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
        titles[name] = choose_model(shipped_models(), cpu).title
    assert titles == {
        "genoa0": "AMD EPYC Genoa",
        "bdwup0": "Intel Broadwell",
        "adl0": "Intel Coffee Lake, nearest to a later desktop or laptop CPU",
    }


def test_the_table_agrees_with_the_recorded_figures(recordings: Path) -> None:
    table = {m.name: m for m in shipped_models()}
    import csv

    names = {
        "Sandy Bridge": "Intel Sandy Bridge",
        "Ivy Bridge": "Intel Ivy Bridge",
        "Haswell": "Intel Haswell",
        "Broadwell": "Intel Broadwell",
        "Sky Lake": "Intel Skylake",
        "Cascade Lake": "Intel Cascade Lake",
        "Coffee Lake": "Intel Coffee Lake",
        "EPYC 1st Gen": "AMD EPYC Naples",
        "EPYC 2nd Gen": "AMD EPYC Rome",
    }
    with (recordings / "power-models/ccf-aws-use.csv").open() as file:
        rows = {row["Architecture"]: row for row in csv.DictReader(file)}
    for theirs, ours in names.items():
        assert table[ours].idle_watts == pytest.approx(float(rows[theirs]["Min Watts"]), abs=1e-4)
        assert table[ours].full_watts == pytest.approx(float(rows[theirs]["Max Watts"]), abs=1e-4)


def test_the_generic_entry_is_the_widest() -> None:
    models = shipped_models()
    generic = models[-1]
    x86 = [m for m in models[:-1] if not m.name.startswith("AWS")]
    assert generic.name == "generic"
    assert generic.idle_watts == statistics.median(m.idle_watts for m in x86)
    assert generic.full_watts == statistics.median(m.full_watts for m in x86)
    for model in models:
        assert generic.idle_range_watts[0] <= model.idle_range_watts[0]
        assert generic.idle_range_watts[1] >= model.idle_range_watts[1]
        assert generic.full_range_watts[0] <= model.full_range_watts[0]
        assert generic.full_range_watts[1] >= model.full_range_watts[1]


def test_between_idle_and_full_by_c0() -> None:
    chosen = choose_model(shipped_models(), GENOA)
    reading = estimate(chosen, 2, 10.0, 50.0, [])
    assert reading.kind == "estimated"
    assert reading.source == "model"
    assert reading.watts == pytest.approx(2 * (0.3278 + 1.8698) / 2)
    assert reading.joules == pytest.approx((reading.watts or 0) * 10)
    assert reading.low_watts == pytest.approx(2 * (0.2995 + 1.6406) / 2)
    assert reading.high_watts == pytest.approx(2 * (2.45 + 2.1536) / 2)
    assert "AMD EPYC Genoa" in describe(chosen, reading)


def test_a_neighbours_interval_is_twice_as_wide() -> None:
    own = estimate(choose_model(shipped_models(), CpuIdentity("GenuineIntel", 6, 143)), 2, 1.0, 0.0, [])
    near = estimate(choose_model(shipped_models(), EMERALD), 2, 1.0, 0.0, [])
    assert near.watts == own.watts
    assert near.low_watts == pytest.approx((own.low_watts or 0) / 2)
    assert near.high_watts == pytest.approx((own.high_watts or 0) * 2)


def test_unknown_c0_gives_only_the_interval() -> None:
    reading = estimate(choose_model(shipped_models(), GENOA), 2, 1.0, None, [])
    assert reading.joules is None
    assert reading.watts is None
    assert (reading.low_watts, reading.high_watts) == (pytest.approx(2 * 0.2995), pytest.approx(2 * 2.1536))


@settings(max_examples=30, deadline=None)
@given(c0=st.floats(-5, 105), cpus=st.integers(1, 512), window_s=st.floats(0.1, 1e5))
def test_the_estimate_lies_in_its_interval(c0: float, cpus: int, window_s: float) -> None:
    for model in SHIPPED:
        reading = estimate(ChosenModel(model, model.name, (), 2.0), cpus, window_s, c0, [])
        assert reading.low_watts is not None
        assert reading.high_watts is not None
        assert 0 <= reading.low_watts <= (reading.watts or 0) <= reading.high_watts


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


def test_a_calibrated_model_counts_states_and_wakeups() -> None:
    chosen = choose_model([CALIBRATED, *shipped_models()], GENOA)
    assert chosen.title == "mine"
    states = [state("POLL", 1.0, 10, polling=True), state("C1", 30.0, 1000), state("C2", 60.0, 1000)]
    reading = estimate(chosen, 2, 10.0, 10.0, states)
    assert reading.watts == pytest.approx(2 * (0.1 * 6 + 0.3 * 2 + 0.6 * 0.5 + 1000 * 1e-4))


def test_states_that_it_does_not_know_fall_back_to_c0() -> None:
    chosen = choose_model([CALIBRATED, *shipped_models()], GENOA)
    reading = estimate(chosen, 1, 1.0, 10.0, [state("C1", 30.0), state("C9", 60.0)])
    assert reading.watts == pytest.approx(0.5 + 0.1 * 5.5)


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
    chosen = choose_model(shipped_models(), GENOA)
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
        ("x = " + "[" * 20_000, None, "TOML"),
    ],
)
def test_hostile_model_files_are_refused(text: str, line: int | None, reason: str) -> None:
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
