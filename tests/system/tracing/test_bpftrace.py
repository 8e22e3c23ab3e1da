# SPDX-License-Identifier: Apache-2.0
"""The shipped bpftrace programs, run as their headers say, against known workloads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.measure.procfs import read_stat
from powerprof.system.paths import data_dir
from tests.programs.truth import TRUTH, compiled

PROBES = data_dir("probes") / "bpftrace"
SLEEPER = """
#include <time.h>
int main(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (;;) {
        t.tv_nsec += 1000000000 / 97;
        if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
    }
}
"""


@pytest.fixture(scope="module")
def bpftrace(root_bpf: None) -> str:
    for name in ("bpftrace", "gcc", "unshare"):
        if shutil.which(name) is None:
            pytest.skip(f"no capability: {name} (apt install {name})")
    return "bpftrace"


@pytest.fixture
def sleeper(bpftrace: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    source = tmp_path / "sleeper97.c"
    source.write_text(SLEEPER)
    subprocess.run(["gcc", "-O2", "-o", tmp_path / "sleeper97", source], check=True)
    process = subprocess.Popen([tmp_path / "sleeper97"])
    # Ahead of other work: a late sleep whose deadline has passed would be no sleep at all.
    os.setpriority(os.PRIO_PROCESS, process.pid, -19)
    yield process
    process.kill()
    process.wait()


def idle_time() -> float:
    """Seconds that all CPUs have idled since the host began."""
    return sum(cpu["idle"] for cpu in read_stat().cpus.values())


_WITH_TRACEFS = 'mount -t tracefs tracefs /sys/kernel/tracing && exec bpftrace "$@"'


def run_with_tracefs(script: Path, *arguments: str) -> str:
    """In a mount namespace of its own, so that tracefs is mounted for this program only."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", _WITH_TRACEFS, "sh", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_idle_wakeups_counts_a_97_hz_sleeper(sleeper: subprocess.Popen[bytes]) -> None:
    seconds = 3
    mounts, idle_s = Path("/proc/self/mounts").read_text(), -idle_time()
    out = run_with_tracefs(PROBES / "idle-wakeups.bt", str(seconds))
    idle_s += idle_time()
    wakings = int(re.search(rf"@wakings\[sleeper97, {sleeper.pid}\]: (\d+)", out)[1])  # type: ignore[index]
    assert wakings == pytest.approx(97 * seconds, rel=0.05)
    exits = re.findall(rf"@idle_exits\[sleeper97, {sleeper.pid}, ([^\]]+)\]: (\d+)", out)
    # The two probes are not attached and detached at the same moment: a tenth of a second of wake-ups may lie between.
    assert sum(int(count) for _, count in exits) <= wakings + 10
    # Where others leave its CPU no idle time it ends none. Its own timer wakes it: an interrupt, whoever ran then.
    assert exits or idle_s < 0.1 * seconds
    assert not exits or max(exits, key=lambda row: int(row[1]))[0] == "interrupt"
    assert Path("/proc/self/mounts").read_text() == mounts


def test_function_profile_counts_exactly(bpftrace: str, tmp_path: Path) -> None:
    target = compiled("gcc", "functions_truth.c", tmp_path)
    process = subprocess.Popen([target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        pid = process.stdout.readline().strip()
        text = (PROBES / "function-profile.bt").read_text()
        for name, value in (("BINARY", str(target)), ("FUNCTIONS", "truth_*"), ("SECONDS", "4")):
            text = text.replace(f"@{name}@", value)
        script = tmp_path / "profile.bt"
        script.write_text(text)
        trace = subprocess.Popen(["bpftrace", "-p", pid, script], stdout=subprocess.PIPE, text=True)

        def begin() -> None:
            process.stdin.write("\n")
            process.stdin.flush()

        assert trace.stdout is not None
        assert "Attaching" in trace.stdout.readline()
        time.sleep(1.0)  # the line comes before the probes are in place
        threading.Timer(0, begin).start()
        out = trace.stdout.read()
        assert trace.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    calls = {name: int(count) for name, count in re.findall(r"@calls\[uprobe:\S+:(\w+)\]: (\d+)", out)}
    others = {"truth_sleeper": 40, "truth_jumps": 60, "truth_jumper": 60, "truth_deep": 100}
    assert calls == {name: times for name, (times, _) in TRUTH.items()} | others
    own = {name: int(count) for name, count in re.findall(r"@self_ns\[uprobe:\S+:(\w+)\]: (\d+)", out)}
    # Wall time, other work included: never below the CPU time that the function used itself.
    assert own["truth_inner"] >= 150 * 150_000
    assert own["truth_recurse"] >= 400 * 50_000
    assert own["truth_sleeper"] >= 40 * 5_000_000
