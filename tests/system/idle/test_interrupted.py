# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM at any moment: what was measured is saved, nothing else is left."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence

import psutil
import pytest

from tests.programs.in_window import until_in_window
from tests.programs.waiting import wait_until
from tests.system.idle.ending import Idle, check_interrupted

Start = Callable[[Sequence[str]], Idle]
_RANDOM = random.Random(20261120)
# A whole run with these phases takes some nine seconds here; tests/nightly/test_random_kills.py has more moments.
MOMENTS = [(signal.SIGTERM, _RANDOM.uniform(0, 3)), (signal.SIGINT, _RANDOM.uniform(3, 6))]


@pytest.mark.parametrize(("number", "moment_s"), MOMENTS)
def test_a_signal_at_a_random_moment(root_bpf: None, idle: Start, number: int, moment_s: float) -> None:
    running = idle([])
    time.sleep(moment_s)
    running.send(number)
    check_interrupted(running, number, moment_s)


def test_a_signal_while_the_server_runs_saves_the_baseline(root_bpf: None, idle: Start) -> None:
    running = idle([])
    wait_until(lambda: "server" in running.children(), "a server")
    running.send(signal.SIGTERM)
    assert running.end() == 130
    (run,) = running.runs()
    assert run["ended"]["how"] == "interrupted"
    baseline = run["phases"][0]
    assert (baseline["name"], len(baseline["windows"])) == ("baseline", 2)
    # Beside other work no CPU may have slept in so short a window: what there was has its causes.
    assert baseline["traced_window_s"] > 0
    assert sum(cause["count"] for cause in baseline["causes"]) == baseline["conservation"]["idle_exits_count"]
    assert "Interrupted: partial results." in running.out
    assert running.err.splitlines() == ["error: interrupted", f"hint: the measured part is saved as {run['id']}"]


def test_a_signal_in_the_first_window_saves_what_there_is_of_it(idle: Start) -> None:
    running = idle(["--duration", "30", "--no-causes"])
    until_in_window(running.process, 30)
    time.sleep(1.0)
    running.send(signal.SIGINT)
    assert running.end() == 130
    (run,) = running.runs()
    (window,) = run["phases"][0]["windows"]
    assert 0.1 < window["window_s"] < 10
    assert window["c0_percent"] + window["idle_percent"] == pytest.approx(100)
    assert "interrupted: the window is shorter than asked" in window["notes"]


def test_a_signal_in_a_traced_window_keeps_its_causes(root_bpf: None, idle: Start) -> None:
    running = idle(["--duration", "4", "--repeat", "2"])
    running.wait_traced()
    until_in_window(running.process, 4)
    idle_s = psutil.cpu_times().idle
    time.sleep(1.5)
    idle_s = psutil.cpu_times().idle - idle_s
    running.send(signal.SIGTERM)
    assert running.end() == 130
    (run,) = running.runs()
    baseline = run["phases"][0]
    # Beside other work no CPU may have slept in it.
    assert baseline["causes"] or idle_s < 0.5
    assert 0 < baseline["traced_window_s"] < 4
    assert sum(cause["count"] for cause in baseline["causes"]) == baseline["conservation"]["idle_exits_count"]


def test_many_signals_break_nothing(idle: Start) -> None:
    """Somebody who presses Ctrl-C again and again: the clean-up goes on."""
    running = idle(["--no-causes"])
    wait_until(lambda: "server" in running.children(), "a server")
    for _ in range(20):
        if running.process.poll() is None:
            running.send(signal.SIGINT)
        time.sleep(0.02)
    assert running.end() == 130
    assert len(running.runs()) == 1
