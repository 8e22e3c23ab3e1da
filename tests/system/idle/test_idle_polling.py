# SPDX-License-Identifier: Apache-2.0
"""CPUs that poll before they halt: what ends a poll is a flag that somebody sets, or its limit, and no interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.tracing.idle import WindowTracer, trace_exits
from tests.conftest import REPOSITORY
from tools.matrix.inside import polls

pytestmark = pytest.mark.alone  # judges the idleness or the speed of this host

_LIMIT = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
# A poll lasts until the byte comes; ticks come in between.
_LIMIT_NS, _PAUSE_US = 200_000, 90
_WINDOWS, _WINDOW_S, _ENOUGH = 16, 4.0, 300


@pytest.fixture
def polling(root_bpf: None) -> Iterator[None]:
    """CPUs of this host poll for 200 µs before they halt."""
    before = _LIMIT.read_text()
    try:
        _LIMIT.write_text(str(_LIMIT_NS))
        yield
    finally:
        _LIMIT.write_text(before)


@pytest.mark.haltpoll
def test_who_is_woken_while_his_cpu_polls_was_not_woken_by_its_tick(polling: None) -> None:
    """The machine is given some windows in which others leave the CPU to poll."""
    cpus = sorted(os.sched_getaffinity(0))
    words = [sys.executable, "-m", "tests.programs.polled", cpus[-1], cpus[0], _PAUSE_US]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with trace_exits() as tracer, WindowTracer(tracer) as opened:
            remote = Counter[str]()
            for _ in range(_WINDOWS):
                found = polls.ended(opened.measure(_WINDOW_S))
                assert polls.wrong(found) == []
                remote += found["remote"]
                if remote.total() > _ENOUGH:
                    break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert remote.total() > _ENOUGH, "other programs left it no CPU that polls"
    # A CPU that polls is sent no interrupt; one that has just given up is.
    assert remote["no_ipi"] >= 0.95 * remote.total()
