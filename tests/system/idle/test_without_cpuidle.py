# SPDX-License-Identifier: Apache-2.0
"""A host without a cpuidle driver: the driver's folders are hidden from powerprof, so that only traces can tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.measure.cpuidle import online_cpus
from powerprof.measure.idle_events import IdleEvents

RATE_HZ = 31
# tmpfs over each folder, in a mount namespace of the command's own.
_HIDDEN = """
for folder in /sys/devices/system/cpu/cpu[0-9]*/cpuidle /sys/devices/system/cpu/cpuidle; do
    [ ! -d "$folder" ] || mount -t tmpfs none "$folder" || exit 99
done
exec "$@"
"""
_SOURCE = r"""
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static void doze(struct timespec *next)
{
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, 0);
}
int main(void)
{
    struct timespec next;
    prctl(PR_SET_TIMERSLACK, 1);
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        next.tv_nsec += 1000000000 / 31;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        doze(&next);
    }
}
"""


@pytest.fixture
def dozer(tmp_path: Path) -> Iterator[int]:
    source, program = tmp_path / "dozer.c", tmp_path / "dozer"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-O1", "-g", "-o", program, source], check=True, timeout=60)
    process = subprocess.Popen([program])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def powerprof(*arguments: str) -> dict[str, Any]:
    command = ["unshare", "--mount", "sh", "-c", _HIDDEN, "sh", sys.executable, "-m", "powerprof", *arguments]
    done = subprocess.run([*command, "--json", "-", "--no-save"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_wakeups_are_attributed_from_the_tracepoints_alone(root_bpf: None, dozer: int) -> None:
    record = powerprof("attribute", "--max-cost", "none", "--pid", str(dozer), "--duration", "5")
    balance = record["conservation"]
    assert balance["cpuidle_usage_delta_count"] is None
    parts = balance["classified_count"] + balance["unknown_count"] + balance["lost_count"]
    assert parts == balance["idle_exits_count"] > 0
    assert balance["coverage_percent"] >= 99.0
    assert balance["checked_against"] in ("perf", None)
    if balance["checked_against"]:
        assert abs(balance["reference_count"] - parts) <= 0.01 * parts + 2 * record["cpus"]
    named = [row for row in record["wakeups"] if row["stack"] and any(f["function"] == "doze" for f in row["stack"])]
    without = [row for row in record["wakings_without_exit"] if any(f["function"] == "doze" for f in row["stack"])]
    wakings = sum(row["wakings_count"] for row in [*named, *without])
    assert wakings == pytest.approx(RATE_HZ * record["wakings_window_s"], rel=0.03)
    assert set().union(*(row["states"] for row in named)) <= {"idle", "poll"}
    assert record["c0_percent"] == pytest.approx(100.0 - balance["idle_percent"], abs=10.0)
    assert any("no cpuidle driver" in note for note in record["notes"])


def test_residency_says_what_it_cannot_know(root_bpf: None) -> None:
    window = powerprof("residency", "--duration", "1")["phases"][0]
    assert window["states"] == []
    assert any("no cpuidle driver: idle states are unknown" in note for note in window["notes"])
    counted = any("wake-ups are counted by perf" in note for note in window["notes"])
    assert (window["wakeups_hz"] is not None) == counted


def test_a_signal_while_counting_is_tried_leaves_no_counter_open(
    root_bpf: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        IdleEvents(online_cpus())
    assert sorted(os.listdir("/proc/self/fd")) == before
