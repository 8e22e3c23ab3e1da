# SPDX-License-Identifier: Apache-2.0
"""Predictions of deep idle cover what follows: timer slack on MySQL's busiest thread, and a program that stops.

One capture has windows without and with the change, alternating, so that slow changes of the host's load are in both.
The prediction of a window without it is compared with the next window with it. The windows are as long as the
command's own: khugepaged and powerprof's own reading come every 10 s, and a shorter window can miss them. A pair
counts only if other processes ran for little of both windows: else their load, and no prediction, decides.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from powerprof.attribution.attribute import trace_target
from powerprof.attribution.capture import Capture
from powerprof.attribution.deep_idle import build_deep_idle
from powerprof.attribution.deep_what_if import DeepRequest
from powerprof.attribution.requests import AttributeRequest
from powerprof.database.builds import ServerBuild
from powerprof.database.private_server import PrivateServer
from powerprof.energy.request import NO_METER
from powerprof.measure.cpuidle_dumps import read_state_table
from powerprof.model.deep_idle import DeepIdle
from powerprof.system.targets import resolve
from powerprof.tracing.bpf.shared_numbers import Flag, WakeEvidence
from powerprof.tracing.idle_data import IDLE_EXIT
from tests.programs.truth import compiled
from tests.system.cure.test_cure import Truth

pytestmark = pytest.mark.usefixtures("root_bpf")
PAIRS = int(os.environ.get("POWERPROF_SOAK_PREDICTIONS", "30"))
STATES = read_state_table("icelake-server")
SLACK = DeepRequest(states=STATES, slack_ns={"ib_log_files_g": 50_000_000})
WINDOW_S, SETTLE_S = 10.0, 0.2
# A capture of at most this many pairs, and this many captures.
_PAIRS_PER_CAPTURE, _MOST_CAPTURES = 3, 20
_MOST_OTHERS = 0.05
# A longer burst is an event that the intervals omit: another window may have none.
_RARE = 0.002
Change = Callable[[bool], object]


def cut(whole: Capture, start_ns: int, end_ns: int) -> Capture:
    """Return a part of a capture without losses, as if its window had these edges."""
    parts, edges = [], []
    for edge in whole.edges:
        exits = whole.exit_records()
        exits = exits[exits["cpu"] == edge.cpu]
        exits = exits[np.argsort(exits["sequence"], kind="stable")]
        assert not np.any(np.diff(exits["sequence"].astype(np.int64)) != 1)
        inside = exits[(exits["exit_ns"] >= start_ns) & (exits["exit_ns"] <= end_ns)].copy()
        later = exits[(exits["exit_ns"] > end_ns) & (exits["enter_ns"] < end_ns)][:1]
        if len(later):
            # The end of a window wakes each CPU.
            last = np.zeros(1, dtype=IDLE_EXIT)
            for name in ("cpu", "state", "sequence", "enter_ns"):
                last[name] = later[name]
            last["exit_ns"], last["flags"], last["evidence"] = end_ns, Flag.OPEN | Flag.NO_TASK, WakeEvidence.NONE
            inside = np.concatenate([inside, last])
        elif len(inside):
            inside["flags"][-1] |= Flag.OPEN
        parts.append(inside)
        edges.append(msgspec.structs.replace(edge, start_ns=start_ns, end_ns=end_ns, traced_count=len(inside)))
    cpus = [msgspec.structs.replace(cpu, resolved=True) for cpu in whole.idle_cpus]
    return msgspec.structs.replace(whole, exits=np.concatenate(parts).tobytes(), edges=edges, idle_cpus=cpus)


def pair_windows(whole: Capture, changes: Sequence[tuple[int, bool]]) -> Iterator[tuple[Capture, Capture]]:
    """Yield windows before and after each change, long enough after the last one."""
    last = min(edge.end_ns for edge in whole.edges)
    length, settle = int(WINDOW_S * 1e9), int(SETTLE_S * 1e9)
    for (off_ns, is_on), (on_ns, _) in pairwise(changes):
        if not is_on and on_ns + settle + length < last:
            yield (
                cut(whole, off_ns + settle, off_ns + settle + length),
                cut(whole, on_ns + settle, on_ns + settle + length),
            )


def ran_by_others_s(window: Capture, pid: int) -> float:
    """Return the running time of bursts that another process began."""
    exits = window.exit_records()
    others = exits[(exits["next_tgid"] != pid) & (exits["next_tid"] != 0)]
    start = min(edge.start_ns for edge in window.edges)
    end = np.where(others["flags"] & Flag.OPEN != 0, window.edges[0].end_ns, others["next_ns"])
    return float((end.astype(np.int64) - np.maximum(others["exit_ns"].astype(np.int64), start)).sum()) / 1e9


def check(before: DeepIdle, after: DeepIdle) -> dict[str, bool]:
    """Return whether the interval of each figure holds the later window's value."""
    assert before.what_if is not None
    expected, scope = before.what_if.expected[0], after.scopes[0]
    values: dict[str, tuple[tuple[float, float], float]] = {
        "together": (expected.together_s, scope.ended_s + scope.open_s),
        "count": (expected.count, scope.count),
        "half": (expected.half_us, scope.half_us or 0.0),
    }
    for state in scope.states:
        values[state.name] = (expected.states_s[state.name], state.time_s or 0.0)
    print({name: f"{low:.5g} {value:.5g} {high:.5g}" for name, ((low, high), value) in values.items()}, flush=True)
    return {name: low <= value <= high for name, ((low, high), value) in values.items()}


def count_covered(pid: int, change: Change, request: DeepRequest) -> Counter[str]:
    """Return how many of PAIRS predictions held, by figure; the number of pairs under `pairs`."""
    covered: Counter[str] = Counter()
    duration_s = 2 * _PAIRS_PER_CAPTURE * (WINDOW_S + SETTLE_S + 0.1) + 1
    for _ in range(_MOST_CAPTURES):
        changes: list[tuple[int, bool]] = []
        stopped = threading.Event()

        def alternate() -> None:
            is_on = True
            while not stopped.wait(WINDOW_S + SETTLE_S + 0.1):
                is_on = not is_on
                change(is_on)
                changes.append((time.monotonic_ns(), is_on))

        thread = threading.Thread(target=alternate)
        thread.start()
        try:
            whole = trace_target(
                resolve([str(pid)]),
                AttributeRequest(duration_s=duration_s, energy=NO_METER, every_period=True),
                dict,
                lambda _: None,
            )
        finally:
            stopped.set()
            thread.join()
            change(False)
        assert whole.sample_lost_count == whole.lost_count == 0
        for parts in pair_windows(whole, changes):
            before, after = build_deep_idle(parts[0], request), build_deep_idle(parts[1], DeepRequest(states=STATES))
            if max(ran_by_others_s(part, pid) for part in parts) > _MOST_OTHERS * WINDOW_S or covered["pairs"] == PAIRS:
                continue
            held = check(before, after)
            is_calm = max(map(longest_burst_s, parts)) <= _RARE * WINDOW_S
            names = [name for name in held if is_calm or name in ("count", "half")]
            covered.update(["pairs", *["calm"] * is_calm, *(name for name in names if held[name])])
        if covered["pairs"] == PAIRS:
            return covered
    pytest.skip(f"the host was too busy: {covered['pairs']} of {PAIRS} pairs without other load")


def longest_burst_s(window: Capture) -> float:
    """Return the longest time that a CPU ran."""
    exits = window.exit_records()
    return float((exits["next_ns"].astype(np.int64) - exits["exit_ns"].astype(np.int64)).max(initial=0)) / 1e9


def check_coverage(covered: Counter[str]) -> None:
    """Assert that each figure was covered in at least 90 % of its pairs; times: of pairs without a long burst."""
    print(dict(covered))
    assert covered["pairs"] == PAIRS
    figures = dict.fromkeys(("count", "half"), PAIRS)
    figures |= dict.fromkeys(("together", *(state.name for state in STATES)), covered["calm"])
    assert {name: covered[name] for name, pairs in figures.items() if covered[name] < 0.9 * pairs} == {}


@pytest.mark.historical("mysql-9.7")
def test_slack_of_the_log_files_governor(historical_build: ServerBuild) -> None:
    with PrivateServer(build=historical_build) as server:
        time.sleep(5)  # its start leaves work for other threads
        (task,) = (
            task
            for task in Path(f"/proc/{server.pid}/task").iterdir()
            if (task / "comm").read_text().startswith("ib_log_files_g")
        )
        slack = Path(f"/proc/{task.name}/timerslack_ns")
        assert server.pid is not None
        covered = count_covered(server.pid, lambda is_on: slack.write_text("50000000" if is_on else "50000"), SLACK)
    check_coverage(covered)


def test_a_program_that_stops(compilers: Sequence[str], tmp_path: Path) -> None:
    program = compiled(compilers[0], "slack_truth.c", tmp_path)
    stays, stops = (Truth(program, tmp_path, poll_ms) for poll_ms in (23, 7))
    try:
        covered = count_covered(
            stays.pid,
            lambda is_on: stops.process.send_signal(signal.SIGSTOP if is_on else signal.SIGCONT),
            DeepRequest(states=STATES, without=(str(stops.tid),)),
        )
    finally:
        stops.end()
        stays.end()
    check_coverage(covered)
