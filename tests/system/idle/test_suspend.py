# SPDX-License-Identifier: Apache-2.0
"""A host that was suspended within a window: each command says so, and no figure counts the time asleep."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.programs.suspended import HOUR_S, suspended_while_it_sleeps
from tests.system.live.test_export import compile_sleeper, exporter, scrape, total

SAID = "the host was suspended for 3600.0 s within this window"


@pytest.fixture
def asleep(tmp_path: Path) -> dict[str, str]:
    return suspended_while_it_sleeps(tmp_path)


def test_a_window_of_residency(powerprof_cli: Cli, asleep: dict[str, str]) -> None:
    done = powerprof_cli(["residency", "--duration", "2", "--json", "-", "--no-save"], env=asleep)
    assert done.code == 0, done.err
    run = json.loads(done.out)
    (window,) = run["phases"]
    assert any(SAID in note for note in (*run["notes"], *window["notes"]))
    assert 1.9 <= window["window_s"] < 60
    assert window["c0_percent"] + window["idle_percent"] == pytest.approx(100.0, abs=0.1)


def test_an_attribution_and_its_energy(powerprof_cli: Cli, root_bpf: None, asleep: dict[str, str]) -> None:
    done = powerprof_cli(["attribute", "--duration", "2", "--system", "--json", "-", "--no-save"], env=asleep)
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert sum(SAID in note for note in record["notes"]) == 1
    assert 1.9 <= record["window_s"] < 60
    # None on a host that others keep from idling.
    assert record["conservation"]["coverage_percent"] in (None, pytest.approx(100.0, abs=1.0))
    for reading in record["energy"]:
        if reading["kind"] == "estimated" and reading["joules"] is not None:
            assert reading["joules"] == pytest.approx(reading["watts"] * record["window_s"], rel=0.1)


def test_samples_and_calls(powerprof_cli: Cli, root_bpf: None, asleep: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "sleeper"
    compile_sleeper(program)
    with subprocess.Popen([program]) as process:
        try:
            for words in (("profile", "--max-cost", "none"), ("functions", "doze")):
                words = (*words, "--pid", str(process.pid), "--duration", "1", "--json", "-", "--no-save")
                done = powerprof_cli(words, env=asleep)
                assert done.code == 0, done.err
                record = json.loads(done.out)
                assert any(SAID in note for note in record["notes"]), words
                assert record["window_s"] < 60
        finally:
            process.kill()


def test_intervals_of_watch(powerprof_cli: Cli, root_bpf: None, asleep: dict[str, str]) -> None:
    done = powerprof_cli(
        ["watch", "--system", "--json-lines", "--interval", "1", "--count", "2", "--no-ask"], env=asleep
    )
    assert done.code == 0, done.err
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert (round(first["suspended_s"]), second["suspended_s"]) == (HOUR_S, 0.0)
    for one in (first, second):
        assert one["window_s"] < 60
        assert sum(state["idle_s"] for state in one["states"]) <= one["window_s"] * one["cpus"] * 1.01


def test_counters_of_the_exporter(
    powerprof_cli: Cli, root_bpf: None, asleep: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in asleep.items():
        monkeypatch.setenv(name, value)
    with exporter(powerprof_cli, "--interval", "1", "--no-ask") as (port, _):
        samples = scrape(port)
    assert total(samples, "powerprof_suspended_seconds_total") == pytest.approx(HOUR_S, abs=1.0)
    measured_s = total(samples, "powerprof_measured_seconds_total")
    assert measured_s < HOUR_S / 10
    cpus = total(samples, "powerprof_online_cpus")
    assert total(samples, "powerprof_idle_seconds_total") <= measured_s * cpus * 1.01
    assert sum(value for (name, _), value in samples.items() if name == "powerprof_host_energy_joules_total") < (
        1000.0 * measured_s
    )
