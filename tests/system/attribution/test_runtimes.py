# SPDX-License-Identifier: Apache-2.0
"""Wakings of a runtime's own scheduler are never given to a function of the program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import ground_truth
from tests.system.attribution.conftest import Attributed

_SCHEDULER = {"runtime.findRunnable", "runtime.findrunnable", "runtime.stopm", "runtime.sysmon"}


@pytest.mark.parametrize("program", ["goroutines", "goroutines-stripped"])
def test_idle_go_thread_belongs_to_the_scheduler(
    attribute: Callable[..., Attributed], built: Callable[[str], Path], program: str
) -> None:
    with ground_truth.running(built(program)) as truth:
        found = attribute(truth["pid"], duration=2)
    rows = [row for row in found.rows if row["wakings_count"]]
    scheduler = [row for row in rows if _SCHEDULER & {frame["function"] for frame in row["stack"]}]
    in_all, at_scheduler = (sum(row["wakings_count"] for row in some) for some in (rows, scheduler))
    # The timer wakes a thread each period, which may wake others.
    rate = truth["rate_hz"]
    assert isinstance(rate, float | int)
    assert at_scheduler >= 0.95 * rate * found.record["wakings_window_s"]
    # What the runtime waits for beside it: locks, a collection.
    assert at_scheduler >= 0.9 * in_all
    named = {frame["function"] for row in rows for frame in row["stack"]}
    assert None not in named
    assert not {name for name in named if name and name.startswith("main.")} - {"main.main"}
    hints = [note for note in found.record["notes"] if note.startswith("Go: ")]
    assert len(hints) == 1
    assert "the next goroutine is" in hints[0]


_NODE = """
const word = new Int32Array(new SharedArrayBuffer(4));
function nap() { Atomics.wait(word, 0, 0, 1); }
function work(n) { return JSON.stringify(Array.from({length: n}, (_, i) => ({x: Math.sin(i)}))).length; }
console.log(process.pid);
function loop() { for (let i = 0; i < 50; i++) { work(5 + Math.random() * 20 | 0); nap(); } setTimeout(loop, 1); }
loop();
"""


@pytest.mark.nightly  # only the packages of the soak include Node
def test_the_heap_of_v8_makes_no_new_call_paths(attribute: Callable[..., Attributed], tmp_path: Path) -> None:
    """Each waking had a path of its own, and after 2,048 of them its functions were lost."""
    script = tmp_path / "naps.js"
    script.write_text(_NODE)
    process = subprocess.Popen(["node", "--perf-basic-prof", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    try:
        pid = int(process.stdout.readline())
        found = attribute(pid, duration=6)
    finally:
        process.kill()
        process.communicate()
        Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    naps = [row for row in found.rows if any("AtomicsWait" in (frame["function"] or "") for frame in row["stack"])]
    count = sum(row["wakings_count"] for row in naps)
    assert count > 1500
    assert count >= 0.9 * sum(row["wakings_count"] for row in found.rows if row["thread"]["tid"] == pid)
    assert found.record["stacks"]["captured_count"] < count / 2
    named = [row for row in naps if {"nap", "loop"} & {frame["function"] for frame in row["stack"]}]
    assert sum(row["wakings_count"] for row in named) >= 0.95 * count
