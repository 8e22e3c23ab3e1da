# SPDX-License-Identifier: Apache-2.0
"""Every tracing command in a nested pid namespace: /proc and the kernel's tracepoints number processes differently."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from powerprof.system.pid_namespaces import is_in_pid_namespace
from powerprof.system.tasks import OUTSIDE, OUTSIDE_PROCESSES
from tests.conftest import REPOSITORY
from tests.programs.balance import check_balance
from tests.programs.ground_truth import build

pytestmark = pytest.mark.usefixtures("root_bpf")
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# A program with a thread that sleeps 50 times a second, one that uses a CPU, and powerprof; PID and BUSY are their ids.
_WITH_PROGRAMS = """
import json, subprocess, sys
program, *words = sys.argv[1:]
sleeper = subprocess.Popen([program, "90", "nanosleep=50"], stdout=subprocess.PIPE, text=True)
busy = subprocess.Popen(["sha256sum", "/dev/zero"]) if "BUSY" in words else None
pid = json.loads(sleeper.stdout.readline())["pid"]
ids = {"PID": str(pid), "BUSY": str(busy.pid) if busy else ""}
sys.exit(subprocess.run([sys.executable, "-m", "powerprof", *(ids.get(word, word) for word in words)]).returncode)
"""
_POWERPROF = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-m", "powerprof", *sys.argv[1:]]).returncode)
"""
_WITH_SERVER = """
import subprocess, sys, threading
from powerprof.database.private_server import PrivateServer
from powerprof.database.server_options import ServerOptions
with PrivateServer(ServerOptions()) as server:
    words = [str(server.pid) if word == "PID" else word for word in sys.argv[1:]]
    with server.connect() as connection:
        stop = threading.Event()
        def load():
            while not stop.is_set():
                connection.query("SELECT BENCHMARK(20000, MD5(1)) AS heavy")
        thread = threading.Thread(target=load)
        thread.start()
        code = subprocess.run([sys.executable, "-m", "powerprof", *words]).returncode
        stop.set()
        thread.join()
sys.exit(code)
"""


def _run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*_APART, sys.executable, "-c", script, *words]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=180)


@pytest.fixture
def program(tmp_path: Path, compilers: Sequence[str]) -> str:
    return str(build("sleepers", tmp_path))


def _record(script: str, *words: str) -> Any:
    done = _run(script, *words, "--no-save", "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_this_host_s_own_numbers_are_the_kernel_s() -> None:
    assert not is_in_pid_namespace()


@pytest.mark.parametrize("target", [["--pid", "PID"], ["--system"]], ids=" ".join)
def test_attribute_names_a_sleeper_with_its_function(program: str, target: list[str]) -> None:
    record = _record(
        _WITH_PROGRAMS, program, "attribute", "--max-cost", "none", *target, "--duration", "2", "--meter", "none"
    )
    check_balance(record["conservation"])
    rows = [*record["wakeups"], *record["wakings_without_exit"]]
    assert all(row["thread"]["tid"] < OUTSIDE and (row["thread"]["pid"] or 0) < OUTSIDE for row in rows)
    assert all(row["waker"] is None or row["waker"]["tid"] < OUTSIDE for row in rows)
    own = [row for row in rows if any(frame["function"] == "wait_nanosleep" for frame in row["stack"])]
    assert {row["thread"]["comm"] for row in own} == {"nanosleep"}
    assert 70 <= sum(row["wakings_count"] for row in own) <= 106
    # No process outside is part of the target, and each of them is named as such.
    assert not [row for row in rows if row["thread"]["process"] == OUTSIDE_PROCESSES]
    processes = {cause["process"] for cause in record["other_causes"]}
    assert processes <= {"kernel", "powerprof", OUTSIDE_PROCESSES, "sh", "python", "python3", "sleepers"}


def test_offcpu_counts_its_sleeps_and_names_the_waker(program: str) -> None:
    record = _record(_WITH_PROGRAMS, program, "offcpu", "--pid", "PID", "--duration", "2")
    (row,) = [row for row in record["threads"] if row["thread"] == "nanosleep"]
    assert 70 <= row["sleeps_count"] <= 106
    assert ("pipe", "pipe_waker") in {(row["thread"], row["waker_comm"]) for row in record["wakers"]}


def test_syscalls_counts_its_calls(program: str) -> None:
    record = _record(_WITH_PROGRAMS, program, "syscalls", "--pid", "PID", "--duration", "2")
    (row,) = [row for row in record["calls"] if (row["thread"], row["name"]) == ("nanosleep", "clock_nanosleep")]
    assert 70 <= row["count"] <= 106


def test_functions_counts_its_calls(program: str) -> None:
    record = _record(_WITH_PROGRAMS, program, "functions", "wait_nanosleep", "--pid", "PID", "--duration", "2")
    (row,) = record["functions"]
    assert 70 <= row["calls_count"] <= 106


def test_profile_names_the_functions_of_a_busy_program(program: str) -> None:
    record = _record(_WITH_PROGRAMS, program, "profile", "--pid", "BUSY", "--duration", "2")
    assert record["target_count"] >= 20
    assert any("sha256" in function["module"] or "crypto" in function["module"] for function in record["functions"])


def test_watch_names_it_and_the_processes_outside(program: str) -> None:
    words = (
        "watch",
        "--max-cost",
        "none",
        "--pid",
        "PID",
        "--count",
        "2",
        "--interval",
        "1",
        "--json-lines",
        "--no-ask",
        "--meter",
        "none",
    )
    done = _run(_WITH_PROGRAMS, program, *words)
    assert done.returncode == 0, done.stderr
    intervals = [json.loads(line) for line in done.stdout.splitlines()]
    names = {row["process"] for interval in intervals for row in interval["rows"]}
    assert names <= {"sleepers", "kernel", "powerprof", OUTSIDE_PROCESSES, "python", "python3"}


def test_queries_and_diagnose_name_the_costly_statement() -> None:
    record = _record(_WITH_SERVER, "queries", "--pid", "PID", "--duration", "2", "--meter", "none")
    first = max(record["statements"], key=lambda row: row["c0_s"] or 0)
    assert "BENCHMARK" in first["text"].upper()
    done = _run(_WITH_SERVER, "diagnose", "--pid", "PID", "--no-save")
    assert done.returncode in (0, 1), done.stderr
    assert "BENCHMARK" in done.stdout.upper()


@pytest.mark.nightly
def test_an_idle_run_knows_its_causes() -> None:
    record = _record(_POWERPROF, *("idle", "--clients", "0", "--duration", "0.5", "--repeat", "2"))
    assert not [note for note in record["notes"] if "causes unknown" in str(note)]
    assert any(phase["causes"] for phase in record["phases"])  # A busy host may have a phase without idle exits.


def test_proc_of_the_outer_namespace_is_refused() -> None:
    argv = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "powerprof"]
    done = subprocess.run(
        [*argv, "attribute", "--max-cost", "none", "--system", "--duration", "1", "--no-save"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "error: /proc shows the process ids of another pid namespace",
        "hint: mount this namespace's own: unshare --pid --fork --mount-proc",
    ]


def test_doctor_says_that_ids_are_translated() -> None:
    done = _run(_POWERPROF, "doctor")
    assert "process ids are those of this pid namespace" in " ".join(done.stdout.split())
