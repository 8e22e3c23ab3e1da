# SPDX-License-Identifier: Apache-2.0
"""PowerTOP's CSV: a report of our own, the recorded laptops, and damage."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from powerprof.energy.replay import replay
from powerprof.measure.powertop import PowertopReport, parse_powertop
from powerprof.measure.powertop_residency import make_powertop_window
from powerprof.measure.program_output import OUTPUT, Outcome, TimedProgram
from powerprof.measure.residency_recordings import read_recording
from powerprof.system.errors import CapabilityError, DataError

LINE = "_" * 68
REPORT = f"""{LINE}
			P o w e r T O P

{LINE}
 *  *  *   System Information   *  *  *

PowerTOP Version;2.14 ran at Fri Nov 20 10:49:56 2026

Target: 1 units/s;System:  32.8 wakeup/s;CPU:  98.7% usage;GPU: 0 ops/s;GFX: 0 wakeups/s;VFS: 0 ops/s;

{LINE}
 *  *  *   Processor Idle State Report   *  *  *

Package;0
C6 (pc6); 40.0%
;

;Core 0
C7 (cc7); 60.0%
;GPU 0
RC6; 98.9%

CPU;0;CPU;1
C0 active;  8.0%;  6.0%;
POLL;  1.0%;   0.1 ms;  0.0%;   0.0 ms
C1; 30.0%;   0.3 ms; 10.0%;   0.1 ms
C3; 60.0%;   2.0 ms; 84.0%;   4.0 ms
;
;;;

{LINE}
 *  *  *   Overview of Software Power Consumers   *  *  *

Usage;Wakeups/s;GPU ops/s;Disk IO/s;GFX Wakeups/s;Category;Description;PW Estimate
  5.7 ms/s;340.1;;;;Timer;tick_sched_timer; 3 mW
112.4 us/s;  3.0;;;;Process;[PID 15] [rcu_preempt]
  0.9 ms/s;;;;;Interrupt;[14] INT34C5:00

The battery reports a discharge rate of:  9.57  W;
{LINE}
 *  *  *   Device Power Report   *  *  *
"""


def test_a_report() -> None:
    report = parse_powertop(REPORT, "report")
    assert (report.version, report.wakeups_hz) == ("2.14", 32.8)
    assert report.cpus[1].states["C3"] == (84.0, 4.0)
    assert report.cpus[0].active_percent == 8.0
    assert report.hardware == {("package", "0"): {"C6 (pc6)": 40.0}, ("core", "0:0"): {"C7 (cc7)": 60.0}}


def test_its_window_sums_to_100_and_keeps_requested_and_achieved_apart() -> None:
    window = make_powertop_window(parse_powertop(REPORT, "report"), "", 2.0)
    assert window.c0_percent == pytest.approx(8.0)  # 100 − (30 + 60 + 10 + 84) / 2; polling is running
    assert [state.residency_percent for state in window.states] == [0.0, 20.0, 72.0]
    assert window.states[0].polling_percent == 0.5
    # C3: 60 % at 2 ms and 84 % at 4 ms are 300 and 210 entries a second: 1.44 s in 510 of them.
    assert window.states[2].average_residency_ms == pytest.approx(1440 / 510)
    assert [(item.scope, item.name, item.residency_percent) for item in window.achieved] == [
        ("package", "C6 (pc6)", 40.0),
        ("core", "C7 (cc7)", 60.0),
        ("cpu", "C0 active", 7.0),
    ]
    assert (window.wakeups_hz, window.residency_source) == (32.8, "powertop")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("C3; 60.0%", "C3; 60.0", "report:27: not a percentage"),
        ("C3; 60.0%", "C3; nan%", "report:27: not a figure from 0 to 110"),
        ("C3; 60.0%", "C3; -1.0%", "report:27: not a figure from 0 to 110"),
        ("C3; 60.0%", "C3; 600.0%", "report:27: not a figure from 0 to 110"),
        ("C3; 60.0%;   2.0 ms; 84.0%;   4.0 ms", "C3; 60.0%;   2.0 ms", "report:27: C3: 2 figures for 2 CPUs"),
        ("C1; 30.0%", "C3; 30.0%", "report:27: state C3 appears twice"),
        ("C1; 30.0%", "C\x1b[2J; 30.0%", "report:26: not the name of a state"),
        ("CPU;0;CPU;1", "CPU;0;CPU;0", "report:23: CPU 0 appears twice"),
        ("CPU;0;CPU;1", "CPU;0;XPU;1", "report:23: damaged CPU header"),
        ("CPU;0;CPU;1", "CPU;x", "report:23: damaged CPU header"),
        (REPORT, "", "no PowerTOP idle state report"),
        (REPORT, "a;b;c\n" * 5, "no PowerTOP idle state report"),
        ("C6 (pc6)", "C" * 70_000, "report:15: line too long"),
    ],
)
def test_damage_is_refused_with_its_line(old: str, new: str, reason: str) -> None:
    assert old in REPORT
    with pytest.raises(DataError, match=reason):
        parse_powertop(REPORT.replace(old, new, 1), "report")


def recorded(recordings: Path, name: str) -> PowertopReport:
    return parse_powertop((recordings / f"powertop/{name}.csv").read_text(), name)


def test_recorded_laptops(recordings: Path) -> None:
    first, second = recorded(recordings, "powertop-2.14-laptop"), recorded(recordings, "powertop-2.14-laptop-2")
    assert sorted(first.cpus) == sorted(second.cpus) == [0, 1, 2, 3]
    assert first.cpus[2].states["C1_ACPI"] == (40.2, 0.3)
    assert first.hardware["package", "0"]["C2 (pc2)"] == 7.0
    assert (first.wakeups_hz, second.wakeups_hz) == (871.4, 902.6)
    window = make_powertop_window(first, "", None)
    total = sum(state.residency_percent or 0.0 for state in window.states) + (window.c0_percent or 0.0)
    assert total == pytest.approx(100.0)


def test_a_missing_program_is_a_missing_capability() -> None:
    with pytest.raises(CapabilityError) as error:
        TimedProgram("powerprof-no-such-program", "powertop")
    assert (error.value.exit_code, error.value.hint) == (3, "apt install powertop")


def test_a_program_writes_into_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell stands in: what it says of itself is apart from its report, and nothing is in the folder meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = TimedProgram("sh", "dash")
    program.launch(["-c", f"echo old > {OUTPUT}; echo aside; echo wrong >&2; echo figures > {OUTPUT}"], 0.0)
    assert program.outcome() == Outcome(0, ["aside", "wrong"])
    assert program.report() == "figures\n"
    assert list(tmp_path.iterdir()) == []
    program.close()


def test_a_program_is_stopped_with_its_window() -> None:
    program = TimedProgram("sleep", "coreutils")
    program.launch(["60"], 60.0)
    assert program.outcome() is None
    window = program.unknown_window("")
    assert (window.c0_percent, window.notes) == (None, ["the window ended before sleep had measured: nothing is known"])
    program.close()


# PowerTOP 2.16, by src/report/report-formatter-csv.cpp: `# TITLE`, commas, quoted cells, empty cells kept.
NEW = """PowerTOP

# System Information

PowerTOP Version,2.16 ran at Fri Nov 20 10:49:56 2026
Kernel Version,Linux version 6.12.0
System Name,"ACME, Inc.board"
CPU Information,2Intel(R) Xeon(R)

Target:,1 units/s
System: , 32.8  wakeup/s
CPU: , 98.7%  usage
GPU:,  0.0  ops/s

# Top 10 Power Consumers

Usage,Events/s,Category,Description
"  0.6%","3.0",Process,"[PID 15] sh -c ""echo
# Processor Idle State Report
CPU,9 ""x"" z"

# Processor Idle State Report

Package,0
C6 (pc6), 40.0%
,
,

,Core 0
C7 (cc7), 60.0%
,GPU 0
RC6, 98.9%

,CPU,0,CPU,1
C0 active,  8.0%,,  6.0%,
POLL,  1.0%,   0.1 ms,  0.0%,   0.0 ms
C1, 30.0%,   0.3 ms, 10.0%,   0.1 ms
C3, 60.0%,   2.0 ms, 84.0%,   4.0 ms

# Device Power Report

The battery reports a discharge rate of: , 9.57  W
The energy consumed was : , 191 J
"""
# 2.16-rc1 has the titles of 2.15 and the empty cells of 2.16.
BETWEEN = (
    REPORT.replace("CPU;0;CPU;1", ";CPU;0;CPU;1")
    .replace("  8.0%;  6.0%;", "  8.0%;;  6.0%;")
    .replace("System:  32.8 wakeup/s", "System:   32.8  wakeup/s")
)
HTML = "<!DOCTYPE html PUBLIC '-//W3C//DTD HTML 4.01//EN'>\n<html><head><title>PowerTOP report</title></head></html>\n"
MARKDOWN = "_____\n\n# PowerTOP Report\n\n## System Information\n\n| PowerTOP Version | 2.16 ran at Fri Nov 20 |\n"


@pytest.mark.parametrize(
    "text",
    [NEW, BETWEEN, REPORT.replace(".", ","), NEW.replace("\n", "\r\n"), "\n" + NEW, REPORT.replace("2.14", "2.15")],
    ids=["2.16", "2.16-rc1", "decimal commas", "ends of lines of Windows", "empty line above", "2.15"],
)
def test_reports_of_every_version_have_the_same_figures(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_bytes(text.encode())
    want = make_powertop_window(parse_powertop(REPORT, "report"), "", None)
    found = read_recording(tmp_path / "report.csv", None, source=None, elapsed_s=None, read_at="").window
    assert found.c0_percent == pytest.approx(8.0)
    assert (found.states, found.achieved, found.wakeups_hz, found.cpus) == (
        want.states,
        want.achieved,
        want.wakeups_hz,
        want.cpus,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NEW.replace(" 84.0%,   4.0 ms", " 84.0%"), "C3: 3 figures for 2 CPUs"),
        (NEW.replace(" 84.0%", ""), "not a percentage"),
        (NEW.replace("  8.0%,,  6.0%,", "  8.0%"), "C0 active: 1 figures for 2 CPUs"),
        (NEW.replace(",CPU,0,CPU,1", ",CPU,0,CPU,0"), "CPU 0 appears twice"),
        (NEW.replace("\n\n# Processor Idle State Report", "\n\n# Idle"), "no PowerTOP idle state report"),
        (NEW.replace('x"" z"', 'x" z'), "damaged"),
    ],
)
def test_damage_of_the_new_form_is_refused(text: str, reason: str) -> None:
    assert text != NEW
    with pytest.raises(DataError, match=reason):
        parse_powertop(text, "report")


@pytest.mark.parametrize(("text", "form"), [(HTML, "HTML"), ("\ufeff\n" + HTML, "HTML"), (MARKDOWN, "Markdown")])
def test_other_forms_are_named_with_their_remedy(text: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "report").write_text(text)
    with pytest.raises(DataError) as caught:
        read_recording(tmp_path / "report", None, source=None, elapsed_s=None, read_at="")
    assert caught.value.reason == f"PowerTOP's {form} report"
    assert caught.value.hint == "write its report with powertop --csv=FILE"
    with pytest.raises(DataError, match="a report of PowerTOP, which --from does not read"):
        replay([tmp_path / "report"])


ODD = """PowerTOP Version;2.14 ran at Fri
 *  *  *   Processor Idle State Report   *  *  *
Package;0
C6 (pc6); 41.0%
C7 (pc7); 3.0%
Package;1
C6 (pc6); 17.0%
CPU;0;CPU;1;CPU;2
C0 active;  8.0%;  6.5%; 11.0%
C1; 30.0%;   0.3 ms; 10.0%;   0.5 ms; 0.0%; 0.0 ms
C3; 60.0%;   2.0 ms; 84.0%;   4.0 ms; 20.0%; 0.8 ms
CPU;3
C0 active; 2.5%
C3; 70.5%; 9.0 ms
C6; 40.0%; 0.0 ms
"""


def test_means_are_over_all_cpus_and_averages_over_entries() -> None:
    window = make_powertop_window(parse_powertop(ODD, "odd.csv"), "", 7.0)
    c1, c3, c6 = window.states
    assert (c1.residency_percent, c3.residency_percent, c6.residency_percent) == ((30 + 10) / 4, 234.5 / 4, 10.0)
    assert c1.average_residency_ms == pytest.approx(40 / (30 / 0.3 + 10 / 0.5))
    assert c3.average_residency_ms == pytest.approx(234.5 / (60 / 2 + 84 / 4 + 20 / 0.8 + 70.5 / 9))
    # A used state without an average leaves it unknown.
    assert c6.average_residency_ms is None
    (_, c3, *_) = make_powertop_window(parse_powertop(ODD.replace("4.0 ms", "0.0 ms"), "odd.csv"), "", 7.0).states
    assert c3.average_residency_ms is None
    assert (window.cpus, window.window_s) == (4, 7.0)
    assert window.c0_percent == pytest.approx(100 - 10 - 58.625 - 10)
    assert (window.idle_percent, window.residual_percent) == (pytest.approx(78.625), 0.0)
    achieved = {(a.scope, a.name): a.residency_percent for a in window.achieved}
    assert achieved == pytest.approx(
        {("package", "C6 (pc6)"): 29.0, ("package", "C7 (pc7)"): 3.0, ("cpu", "C0 active"): 28 / 4}
    )


def test_states_above_100_percent_are_a_residual() -> None:
    text = (
        ODD.replace("84.0%", "110.0%").replace("70.5%", "110.0%").replace("20.0%", "110.0%").replace("60.0%", "70.0%")
    )
    window = make_powertop_window(parse_powertop(text.replace("40.0%; 0.0", "9.0%; 0.0"), "odd.csv"), "", None)
    idle = (40 + 400 + 9) / 4
    assert (window.c0_percent, window.idle_percent) == (0.0, 100.0)
    assert (window.residual_percent, window.window_s) == (pytest.approx(idle - 100), None)
