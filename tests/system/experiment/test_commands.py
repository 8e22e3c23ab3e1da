# SPDX-License-Identifier: Apache-2.0
"""Any command as a workload: what it used, how it ended, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from powerprof.energy.meters import ipmi
from powerprof.energy.request import EnergyRequest
from powerprof.experiment.compare import compare_commands
from powerprof.experiment.options import ExperimentOptions
from powerprof.experiment.records import LoadRun
from powerprof.experiment.run import run_command
from powerprof.model.records import Note
from powerprof.report.notes import word_notes
from powerprof.system import programs
from powerprof.system.errors import PowerprofError
from powerprof.system.tasks import has_ended
from tests.programs.balance import counts_idle_exits

SPIN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"
SHORT = ExperimentOptions(pairs=3, window_s=0.3, turn_s=0.0, baseline_windows=2)
ONE_WINDOW = msgspec.structs.replace(SHORT, pairs=1, baseline_windows=0)


def _spin(seconds: float) -> list[str]:
    return [sys.executable, "-S", "-c", SPIN.format(seconds)]


def _quiet(_: str) -> None:
    pass


def _run(argv: list[str], options: ExperimentOptions = ONE_WINDOW, *, may_fail: bool = False) -> LoadRun:
    return run_command(argv, options, _quiet, may_fail=may_fail)


def test_the_cost_of_an_execution_is_its_cpu_time() -> None:
    found = _run(_spin(0.2), SHORT)
    metrics = {metric.name: metric for metric in found.metrics}
    # The interpreter's start and our fork are in it.
    assert 0.2 <= metrics["cpu_s_per_execution"].estimate.mean <= 0.4
    assert metrics["time_s_per_execution"].estimate.mean >= 0.2
    # On a busy host no CPU may have slept meanwhile; without a driver it is unknown where perf counts no idle exits.
    woken = metrics.get("wakeups_per_execution")
    assert woken is None or woken.estimate.mean >= 0
    assert (woken is not None) == any(block.window.wakeups_hz is not None for block in found.blocks)
    assert woken is not None or not counts_idle_exits()
    assert found.metrics[0].name == found.options.primary_metric
    assert [phase.name for phase in found.phases] == ["baseline", "command"]
    assert all(block.executions_count and block.exit_codes == [0] for block in found.blocks)
    assert found.condition.workload == "command"


def test_the_cpu_time_of_a_meters_program_is_not_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of ipmitool takes 0.3 s of CPU time here. It is made while the command sleeps."""
    folder = tmp_path / "bin"
    folder.mkdir()
    readings = tmp_path / "readings"
    (folder / "ipmitool").write_text(
        f"#!/bin/sh\n{shlex.join(_spin(0.3))}\necho >> {readings}\n"
        "echo '    Instantaneous power reading:     220 Watts'\n"
    )
    (folder / "ipmitool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(ipmi, "DEVICES", (folder,))
    monkeypatch.setattr(ipmi.IpmiMeter, "max_interval_s", 0.1)
    options = msgspec.structs.replace(ONE_WINDOW, energy=EnergyRequest(source="ipmi"))
    found = run_command(["sleep", "0.7"], options, _quiet, may_fail=False)
    # One to see whether it works, two at the ends of the window, the others within it.
    assert len(readings.read_text()) > 3
    (block,) = found.blocks
    assert block.executions_count == 1 and block.client_cpu_s is not None
    assert 0 < block.client_cpu_s < 0.1


def test_the_cpu_time_of_orphans_is_the_commands(tmp_path: Path) -> None:
    done = tmp_path / "done"
    orphan = f"({shlex.join(_spin(0.3))}; touch {done}) &"
    found = _run(["sh", "-c", f"({orphan}); until [ -e {done} ]; do sleep 0.1; done; rm {done}"])
    metrics = {metric.name: metric for metric in found.metrics}
    assert 0.3 <= metrics["cpu_s_per_execution"].estimate.mean <= 0.6


def test_the_more_expensive_of_two_commands_is_found() -> None:
    # Three pairs of 0.3 s can be too few next to other tests.
    options = ExperimentOptions(pairs=5, window_s=0.3, turn_s=0.0, baseline_windows=2)
    found = compare_commands(_spin(0.1), _spin(0.4), options, _quiet, may_fail=False)
    cpu_time = next(metric for metric in found.metrics if metric.name == "cpu_s_per_execution")
    assert cpu_time.verdict == "b_higher"
    assert cpu_time.ratio is not None and 2 < cpu_time.ratio.b_over_a < 4.5
    # Pairs in which other programs ran more than in the others are left out, and counted.
    notes = [note for note in found.notes if isinstance(note, Note) and note.name == "pairs_left_out"]
    assert found.blocks_count == 10 - 2 * sum(int(note.values["count"]) for note in notes)
    assert found.baseline and found.baseline_after
    assert found.design == "work"


def test_a_failing_command_is_measured_only_on_request() -> None:
    with pytest.raises(PowerprofError, match="sh ended with exit code 3: no luck"):
        _run(["sh", "-c", "echo no luck >&2; exit 3"])
    found = _run(["sh", "-c", "exit 3"], may_fail=True)
    assert {code for block in found.blocks for code in block.exit_codes} == {3}
    assert any("exit code 3" in note for note in word_notes(found.notes))
    with pytest.raises(PowerprofError, match="cannot run 'no-such-program-here'"):
        _run(["no-such-program-here"])


def test_leftover_processes_are_ended(tmp_path: Path) -> None:
    found = _run(["sh", "-c", f"sleep 600 & echo $! >> {tmp_path}/pids; sleep 0.3"])
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) >= 2
    # Who inherits them may be slow to bury them.
    assert all(has_ended(int(pid)) for pid in pids)
    assert any("left processes running" in note for note in word_notes(found.notes))


_DAEMON = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as file:
    print(os.getpid(), file=file)
time.sleep(600)
"""


@pytest.mark.parametrize("by", ["setsid", "a daemon that ignores SIGTERM"])
def test_leftover_sessions_are_ended(tmp_path: Path, by: str) -> None:
    pids = tmp_path / "pids"
    words = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & sleep 0.3"
    if by != "setsid":
        (tmp_path / "daemon.py").write_text(_DAEMON)
        words = f"{sys.executable} -I -S {tmp_path}/daemon.py {pids}; sleep 0.3"
    kept = programs.start(["sleep", "600"])
    try:
        with (tmp_path / "said").open("wb") as said:
            process = programs.start_typed(["sh", "-c", words], stderr=said)
            process.wait()
            assert programs.end_session(process, patience_s=0.5).were_running
        (left,) = pids.read_text().split()
        assert has_ended(int(left))
        # What powerprof itself started, a meter for one, goes on.
        assert kept.poll() is None
    finally:
        programs.stop(kept)


def test_an_interrupt_ends_all_processes_of_a_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    words = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & echo $$ >> {pids}; exec sleep 600"
    with (tmp_path / "said").open("wb") as said:
        process = programs.start_typed(["sh", "-c", words], stderr=said)
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s and (not pids.exists() or len(pids.read_text().split()) < 2):
            time.sleep(0.05)
        assert programs.end_session(process).were_running
    assert all(has_ended(int(pid)) for pid in pids.read_text().split())
    assert process.returncode is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else under sudo")
def test_under_sudo_the_command_runs_as_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setenv("SUDO_UID", str(nobody.pw_uid))
    monkeypatch.setenv("SUDO_GID", str(nobody.pw_gid))
    monkeypatch.setenv("POWERPROF_SEEN", "yes")
    monkeypatch.chdir("/usr")
    said = tmp_path / "said"
    # What it says goes to stderr, which is the one that is kept.
    words = ("sh", "-c", "exec 1>&2; id -u; id -G; pwd; echo $HOME $SUDO_UID $POWERPROF_SEEN")
    with said.open("wb") as file:
        assert programs.start_typed(words, stderr=file).wait() == 0
    lines = said.read_text().splitlines()
    assert lines[0] == str(nobody.pw_uid)
    assert "0" not in lines[1].split()
    assert lines[2] == "/usr"
    assert lines[3].split() == [nobody.pw_dir, "yes"]


def test_an_interrupt_saves_the_measured_windows(tmp_path: Path) -> None:
    words = ["--runs-dir", str(tmp_path / "runs"), "run", "--duration", "0.3", "--repeat", "500"]
    begun = tmp_path / "begun"
    typed = ["sh", "-c", f"echo $$ >> {begun}; sleep 0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", *words, "--", *typed], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline_s = time.monotonic() + 60
    # One to see how long it takes, two a window: by ten some windows are done.
    while time.monotonic() < deadline_s and (not begun.exists() or len(begun.read_text().split()) < 10):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"saved as run-0001" in err
    record = json.loads((tmp_path / "runs" / "run-0001" / "run.json").read_text())
    assert record["ended"] and record["blocks"]
    assert not [pid for pid in begun.read_text().split() if Path(f"/proc/{pid}").exists()]
    assert b"Interrupted: partial results." in out
