# SPDX-License-Identifier: Apache-2.0
"""The promises of `powerprof energy`: JSON, exit codes, one line per error, 80 columns."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from powerprof.energy.total import EnergyResult
from tests.conftest import Cli
from tests.programs.in_window import until_in_window
from tests.unit.energy.meter_trees import Tree
from tests.unit.measure.fake_cpu import C1, POLL, FakeCpus

READING = {
    "source",
    "domain",
    "kind",
    "joules",
    "watts",
    "contained_in",
    "low_watts",
    "high_watts",
    "model",
    "dropped_samples_count",
    "scope",
    "range",
    "unsummed",
}


def energy_of(text: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(text)
    assert result["schema"] == "powerprof.energy/1"
    assert set(result) == set(EnergyResult.__struct_fields__)
    for meter in result["meters"]:
        assert set(meter) == READING
        assert meter["kind"] in ("measured", "estimated")
    assert {"source", "domains", "joules", "watts", "kind"} <= set(result["total"])
    return result


@pytest.fixture
def bare(fake_tree: Callable[[dict[str, str]], Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Tree, dict[str, str]]:
    """A machine of files without any meter: an EPYC Genoa with two CPUs, and the environment that names it."""
    host = fake_tree(
        {
            "proc/cpuinfo": "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nstepping : 1\n",
            "proc/stat": "cpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 10 0 0 90 0 0 0 0 0 0\nintr 1\nctxt 1\n",
        }
    )
    FakeCpus(host / "sys", [[POLL, C1]] * 2)
    environment = {name: os.environ[name] for name in ("POWERPROF_SYSFS", "POWERPROF_PROCFS")}
    return Tree(host / "sys"), environment


def test_no_meter_at_all_is_an_estimate_with_model_and_interval(
    powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]
) -> None:
    tree, environment = bare
    cpus = tree.root / "devices/system/cpu"
    process = powerprof_cli.start(["energy", "--duration", "5", "--json", "-"], env=environment)
    until_in_window(process, 5)
    for cpu in (0, 1):
        for counter, value in (("time", 1_000_000), ("usage", 50)):
            (cpus / f"cpu{cpu}/cpuidle/state1/{counter}").write_text(f"{value}\n")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    found = energy_of(out)
    (meter,) = found["meters"]
    assert (meter["source"], meter["kind"], meter["model"]) == ("model", "estimated", "AMD EPYC Genoa")
    assert meter["low_watts"] < meter["watts"] < meter["high_watts"]
    assert found["total"]["kind"] == "estimated"
    assert found["notes"][0].startswith("energy source: no meter on this host: rapl: ")
    assert any(note.startswith("doubt: ") for note in found["notes"])


def test_unknown_c0_leaves_only_the_interval(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]) -> None:
    text = powerprof_cli(["energy", "--duration", "0.2"], env=bare[1])
    assert text.code == 0
    assert re.match(r"[0-9.]+ to [0-9.]+ W possible over 0\.[0-9] s \(estimate\): the running time", text.out)
    # A long path is not broken: it is to be copied.
    assert max(len(line) for line in text.out.splitlines() if str(tree_of(bare)) not in line) <= 80


def tree_of(bare: tuple[Tree, dict[str, str]]) -> Path:
    return bare[0].root


@pytest.mark.parametrize("name", ["rapl", "hwmon", "battery"])
def test_an_absent_meter_by_name_ends_with_3(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]], name: str) -> None:
    result = powerprof_cli(["energy", "--duration", "0.2", "--meter", name], env=bare[1])
    assert (result.code, result.out) == (3, "")
    error, hint = result.err.splitlines()
    assert error.startswith(f"error: {name}: ")
    assert hint.startswith("hint: ")


def test_a_counter_that_stands_still_is_never_0_watts(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]) -> None:
    bare[0].zone("intel-rapl:0", "package-0", 77)
    named = powerprof_cli(["energy", "--duration", "0.2", "--meter", "rapl"], env=bare[1])
    assert named.code == 3
    assert "rapl: package-0 is present but does not count (reads 0)" in named.err
    chosen = powerprof_cli(["energy", "--duration", "0.2", "--json", "-"], env=bare[1])
    assert chosen.code == 0
    rapl, model = energy_of(chosen.out)["meters"]
    assert (rapl["source"], rapl["joules"], rapl["watts"]) == ("rapl", None, None)
    assert model["kind"] == "estimated"


def test_a_counter_that_moves_is_measured(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]) -> None:
    tree, environment = bare
    first, modulus, begin_s = 262_143_328_850 - 2_000_000, 262_143_328_851, time.monotonic()
    tree.zone("intel-rapl:0", "package-0", first)
    process = powerprof_cli.start(["energy", "--duration", "5", "--json", "-"], env=environment)
    # One watt all along, by the clock: a counter that moved once and stood still would be refused.
    while process.poll() is None:
        # The file is replaced, so that no reader finds it empty.
        text = f"{(first + round(1e6 * (time.monotonic() - begin_s))) % modulus}\n"
        made = tree.write("energy_uj.new", text.strip())
        made.replace(tree.root / "class/powercap/intel-rapl:0/energy_uj")
        time.sleep(0.02)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    found = energy_of(out)
    # On a busy host the counter is written late, by up to some tenths of a second.
    assert found["meters"][0]["joules"] == pytest.approx(5.0, rel=0.1)
    assert found["total"] | {"watts": None} == {
        "source": "rapl",
        "domains": ["package-0"],
        "joules": found["meters"][0]["joules"],
        "watts": None,
        "kind": "measured",
        "low_watts": None,
        "high_watts": None,
        "reason": None,
        "packages": None,
    }


def test_an_interrupt_keeps_what_was_measured(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]) -> None:
    process = powerprof_cli.start(["energy", "--duration", "60", "--json", "-"], env=bare[1])
    until_in_window(process, 60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("error: interrupted\n")
    assert 0 < energy_of(out)["window_s"] < 30


@pytest.mark.parametrize(
    ("text", "title", "remedy"),
    [
        ("Timestamp | 1764000000\nPwr Consumption  | 77h | ok  |  7.1 | 98 Watts\n", "ipmitool", "time,watts"),
        ("/sys/class/powercap/intel-rapl:0/energy_uj|5\n", "powercap", "turbostat --enable"),
        ("scaph_host_power_microwatts 5e6\n", "Scaphandre", "time,watts"),
        ("PowerTOP Version;v2.14 ran at Fri\n", "PowerTOP", "turbostat --enable"),
        ("entity_id,state,last_changed\nsensor.rack,100,2026-11-24T16:00:00Z\n", "Home Assistant", "time,watts"),
    ],
)
def test_the_files_of_other_tools_are_refused_by_name(
    powerprof_cli: Cli, tmp_path: Path, text: str, title: str, remedy: str
) -> None:
    path = tmp_path / "recording"
    path.write_text(text)
    result = powerprof_cli(["energy", "--from", str(path)])
    assert (result.code, result.out) == (1, "")
    error, hint = result.err.splitlines()
    assert error.startswith(f"error: --from {path}") and title in error
    assert remedy in hint


def test_recorded_server(powerprof_cli: Cli, recordings: Path) -> None:
    folder = recordings / "genoa0"
    files = [str(folder / name) for name in ("turbostat.raw.txt", "acpower.raw.txt")]
    result = powerprof_cli(["energy", "--from", *files])
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == "290.4 W over 115.2 s, measured: wall by meter_log."
    assert max(len(line) for line in result.out.splitlines() if str(folder) not in line) <= 80


def test_a_damaged_recording_is_refused_with_line_and_reason(powerprof_cli: Cli, recordings: Path) -> None:
    path = recordings / "corrupted/turbostat.raw.txt"
    result = powerprof_cli(["energy", "--from", str(path)])
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: --from {path}:64: damaged table header")


@pytest.mark.parametrize(
    "arguments",
    [
        ["some.txt"],
        ["--from", "x", "--meter", "rapl"],
        ["--meter", "rapol"],
        ["--meter", "model:EPYC 7764"],
        ["--meter", "rapl,model:EPYC 7763"],
        ["--meter", "model@socket"],
        ["--from", "x", "--meter", "model:EPYC 7763"],
        ["--duration", "0"],
    ],
)
def test_what_makes_no_sense_is_usage(powerprof_cli: Cli, arguments: list[str]) -> None:
    result = powerprof_cli(["energy", *arguments])
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")


def test_calibrate_needs_a_meter(powerprof_cli: Cli, bare: tuple[Tree, dict[str, str]]) -> None:
    result = powerprof_cli(["energy", "--calibrate"], env=bare[1])
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: energy --calibrate needs a meter: no meter on this host: ")
    assert "--meter FILE" in result.err.splitlines()[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["energy", "--step", "2"],
            "error: --step has no effect without --calibrate\nhint: add --calibrate, or leave it out\n",
        ),
        (
            ["energy", "--calibrate", "--duration", "3", "--json", "-"],
            "error: --duration and --json have no effect with --calibrate\nhint: leave them out\n",
        ),
    ],
)
def test_options_of_a_calibration_and_of_a_window_exclude_each_other(
    powerprof_cli: Cli, arguments: list[str], message: str
) -> None:
    result = powerprof_cli(arguments)
    assert (result.code, result.out, result.err) == (2, "", message)
