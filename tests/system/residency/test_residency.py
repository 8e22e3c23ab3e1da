# SPDX-License-Identifier: Apache-2.0
"""What `powerprof residency` promises: figures, JSON, exit codes, 80 columns."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.programs.balance import counts_idle_exits
from tests.programs.in_window import until_in_window
from tests.unit.measure.fake_cpu import C1, C6, POLL, FakeCpus, fake_stat


def only_phase(text: str) -> dict[str, Any]:
    run = json.loads(text)
    assert (run["schema"], run["command"]) == ("powerprof.run/1", "residency")
    (phase,) = run["phases"]
    assert phase["name"] == "residency"
    found: dict[str, Any] = phase
    return found


def two_dumps(folder: Path) -> list[str]:
    cpus = FakeCpus(folder / "sys", [[POLL, C1, C6]] * 2)
    names = []
    for name in ("before", "after"):
        path = folder / f"{name}.txt"
        path.write_text(cpus.dump())
        names.append(str(path))
        cpus.add(0, 1, us=100_000, usage=10)
        cpus.add(1, 2, us=900_000, usage=30)
    return names


def test_this_host_in_json(powerprof_cli: Cli) -> None:
    result = powerprof_cli(["residency", "--duration", "0.3", "--json", "-"])
    assert (result.code, result.err) == (0, "")
    phase = only_phase(result.out)
    assert phase["c0_percent"] is not None and 0.0 <= phase["c0_percent"] <= 100.0
    if phase["states"]:
        total = phase["c0_percent"] + sum(state["residency_percent"] for state in phase["states"])
        assert total == pytest.approx(100.0, abs=0.5)
        entries = sum(state["entries_hz"] for state in phase["states"])
        assert phase["wakeups_hz"] == pytest.approx(entries)
    assert json.loads(result.out)["id"] == "residency-0001"


def test_this_host_on_the_terminal(powerprof_cli: Cli) -> None:
    result = powerprof_cli(["residency", "--duration", "0.2"])
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("The CPUs ran ")
    assert max(len(line) for line in lines) <= 80
    assert lines[-1] == "Saved as residency-0001."


def test_it_can_be_silent_and_save_nothing(powerprof_cli: Cli, tmp_path: Path) -> None:
    result = powerprof_cli(["--quiet", "residency", "--duration", "0.1", "--no-save", "--json", str(tmp_path / "x")])
    assert (result.code, result.out, result.err) == (0, "", "")
    assert only_phase((tmp_path / "x").read_text())["windows"]
    assert not (powerprof_cli.home / "state").exists()


def test_two_dumps(powerprof_cli: Cli, tmp_path: Path) -> None:
    result = powerprof_cli(["residency", "--from", *two_dumps(tmp_path), "--json", "-"])
    assert (result.code, result.err) == (0, "")
    phase = only_phase(result.out)
    assert (phase["c0_percent"], phase["window_s"], phase["wakeups_hz"]) == (None, None, None)
    assert {state["name"]: state["residency_percent"] for state in phase["states"]} == {
        "POLL": 0.0,
        "C1": pytest.approx(10.0),
        "C6": pytest.approx(90.0),
    }
    assert phase["states"][2]["average_residency_ms"] == pytest.approx(30.0)


def test_two_dumps_with_their_wall_time(powerprof_cli: Cli, tmp_path: Path) -> None:
    result = powerprof_cli(["residency", "--from", *two_dumps(tmp_path), "--elapsed", "1", "--json", "-"])
    phase = only_phase(result.out)
    assert (phase["c0_percent"], phase["idle_percent"], phase["wakeups_hz"]) == (50.0, 50.0, 40.0)


def test_the_table_of_two_dumps(powerprof_cli: Cli, tmp_path: Path) -> None:
    result = powerprof_cli(["residency", "--from", *two_dumps(tmp_path)])
    assert result.out.splitlines() == [
        "90.00 % of the idle time was in C6.",
        "2 CPUs, driver intel_idle · states as requested by the kernel",
        "",
        "                of idle  average  entries",
        "POLL (polling)   0.00 %                 0",
        "C1              10.00 %    10 ms       10",
        "C6              90.00 %    30 ms       30",
        "Note: no wall time: percentages are shares of the idle time, C0 is unknown.",
        "Note: idle periods open at the edges of 2 CPUs are not resolved.",
    ]


def test_a_damaged_dump_is_refused_with_line_and_reason(powerprof_cli: Cli, tmp_path: Path) -> None:
    before, after = two_dumps(tmp_path)
    text = Path(after).read_text().replace("\n900000\n", "\n9e5\n")
    line = text.splitlines().index("9e5") + 1
    Path(after).write_text(text)
    result = powerprof_cli(["residency", "--from", before, after])
    assert (result.code, result.out) == (1, "")
    said, hint = result.err.splitlines()
    assert said == f"error: {after}:{line}: cpu1/cpuidle/state2/time is not a counter ('9e5')"
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--duration", "0"], 2, "must be at least 0.05 s"),
        (["--duration", "nan"], 2, "not a time"),
        (["--duration", "x"], 2, "duration"),
        (["--residency-source", "guess"], 2, "no residency source 'guess'"),
        (["--elapsed", "3"], 2, "--elapsed has no effect without --from"),
        (["after.txt"], 2, "after.txt needs --from BEFORE"),
        (["--from", "/no/such/dump"], 1, "/no/such/dump: no such file"),
        (["--from", "/dev/zero"], 1, "/dev/zero: not a regular file"),
        (["--from", "/proc/self/exe"], 1, "/proc/self/exe:1: not text"),
        (["--from", "a", "b", "--elapsed", "nan"], 2, "elapsed"),
        (["--from", "a", "b", "--elapsed", "-1"], 2, "elapsed"),
        (["--from", "a", "b", "--residency-source", "turbostat"], 2, "takes one recording"),
        (["--json", "/no/such/folder/x.json"], 2, "no such directory"),
    ],
)
def test_bad_input_is_one_line_and_the_documented_code(
    powerprof_cli: Cli, arguments: list[str], code: int, said: str
) -> None:
    result = powerprof_cli(["residency", *arguments])
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    lines = result.err.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:]) and len(lines) <= 2


def test_unreadable_counters_are_one_line(powerprof_cli: Cli, tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path / "sys", [[POLL, C1]])
    (cpus.state(0, 1) / "time").write_text("junk\n")
    result = powerprof_cli(["residency", "--duration", "0.1"], env={"POWERPROF_SYSFS": str(tmp_path / "sys")})
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        f"error: cannot read {cpus.state(0, 1)}/time (not a number: b'junk\\n')",
        "hint: a kernel never writes that: is POWERPROF_SYSFS or POWERPROF_PROCFS set?",
    ]


def test_a_place_that_cannot_be_written_is_refused_before_the_window(powerprof_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = powerprof_cli(["--runs-dir", str(tmp_path / "file/runs"), "residency", "--duration", "0.1"])
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: cannot create ")


def test_a_host_without_idle_states(powerprof_cli: Cli, tmp_path: Path) -> None:
    """A container without cpuidle in its sysfs, whose /proc/stat stands still: unknown, and it says so."""
    FakeCpus(tmp_path / "sys", [[], []], driver="none")
    fake_stat(tmp_path / "proc", [(10, 90), (10, 90)])
    moved = {"POWERPROF_SYSFS": str(tmp_path / "sys"), "POWERPROF_PROCFS": str(tmp_path / "proc")}
    result = powerprof_cli(["residency", "--duration", "0.1", "--json", "-"], env=moved)
    phase = only_phase(result.out)
    assert (result.code, phase["c0_percent"], phase["states"]) == (0, None, [])
    assert any("no cpuidle driver: idle states are unknown, C0 is /proc/stat's" in note for note in phase["notes"])


def test_a_cpu_with_impossible_counters_is_named_and_not_summed(powerprof_cli: Cli, tmp_path: Path) -> None:
    """A container whose /proc/stat shows an idle time of 1.6e17 s for one CPU."""
    FakeCpus(tmp_path / "sys", [[], []], driver="none")
    fake_stat(tmp_path / "proc", [(100, 1000), (100, 15910903933238771776)])
    moved = {"POWERPROF_SYSFS": str(tmp_path / "sys"), "POWERPROF_PROCFS": str(tmp_path / "proc")}
    process = powerprof_cli.start(["residency", "--duration", "2", "--residency-source", "procfs"], env=moved)
    until_in_window(process, 2)
    fake_stat(tmp_path / "proc", [(120, 1180), (200, 15910903933238771776)])
    out, _ = process.communicate(timeout=30)
    text = " ".join(out.split())
    assert text.startswith("1 of 2 CPUs ran 10.00 % of the time; the other is unknown. 1 CPU · ")
    assert "CPU 1: C0 is unknown, because in /proc/stat the idle time is impossible (1.59e+17 s)" in text
    assert "measure outside of it" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_as_interrupted(powerprof_cli: Cli, number: int) -> None:
    process = powerprof_cli.start(["residency", "--duration", "60", "--json", "-"])
    until_in_window(process, 60)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "error: interrupted\nhint: the measured part is saved as residency-0001\n"
    run = json.loads(out)
    assert run["ended"]["how"] == "interrupted"
    assert run["phases"][0]["window_s"] < 59
    saved = json.loads((powerprof_cli.home / "state/powerprof/runs/residency-0001/run.json").read_text())
    assert saved == run


def test_powertop_of_this_host_or_exit_3(powerprof_cli: Cli) -> None:
    """PowerTOP needs root: with it there are figures, without it the missing capability is named."""
    result = powerprof_cli(["residency", "--residency-source", "powertop", "--duration", "1", "--json", "-"])
    if os.geteuid() != 0:
        assert result.code == 3 and "powertop needs root" in result.err
        return
    assert result.code == 0, result.err
    phase = only_phase(result.out)
    assert phase["windows"][0]["residency_source"] == "powertop"
    if not counts_idle_exits():  # PowerTOP reads the same driver
        assert (phase["c0_percent"], phase["states"]) == (None, [])
        return
    total = phase["c0_percent"] + sum(state["residency_percent"] for state in phase["states"])
    assert total == pytest.approx(100.0, abs=0.5)
