# SPDX-License-Identifier: Apache-2.0
"""The watch of started processes: each is counted once, with the span of those that stay; rates decide a finding."""

from __future__ import annotations

import itertools
import random

import pytest

from powerprof.diagnosis import process_starts, rules_processes
from powerprof.diagnosis.evidence import StatementWindow
from powerprof.diagnosis.process_starts import watch_starts
from powerprof.diagnosis.statement_window import WINDOW_S, join_windows


@pytest.mark.parametrize("seed", range(5))
def test_the_watch_counts_drawn_processes(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Backends start at known times, and some end again: the others are the lasting ones."""
    draw, clock = random.Random(seed), [100.0]
    begins = {pid: 100.0 + draw.uniform(0.0, 1.8) for pid in range(10, 30)}
    ends = {pid: begin + draw.choice((0.2, 99.0)) for pid, begin in begins.items()}

    def list_children(pid: int) -> list[int]:
        return [7, *(pid for pid, begin in begins.items() if begin <= clock[0] < ends[pid])]

    def sleep(seconds: float) -> None:
        clock[0] += max(seconds, 0.01)

    title = "postgres: web shop 127.0.0.1(4{}) idle"
    monkeypatch.setattr(process_starts, "list_children", list_children)
    monkeypatch.setattr(process_starts, "read_roles", lambda pids: dict.fromkeys(pids, "checkpointer"))
    monkeypatch.setattr(process_starts, "read_titles", lambda pids: {pid: title.format(pid) for pid in pids})
    monkeypatch.setattr(process_starts.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(process_starts.time, "sleep", sleep)
    found = watch_starts(1, 2.0)
    (one,) = found.starts
    lasting = [begins[pid] for pid, end in ends.items() if end > clock[0]]
    assert (one.role, one.count, one.lasting_count) == ("backend of", 20, len(lasting))
    assert one.lasting_spread_s == pytest.approx(max(lasting) - min(lasting), abs=0.03)
    assert found.starts_span_s == pytest.approx(2.0, abs=0.03)


@pytest.mark.parametrize("kind", rules_processes._KINDS, ids=lambda kind: kind.pattern[:20] or "other")
def test_a_kind_of_worker_is_a_fault_with_a_text_or_normal(kind: rules_processes._WorkerKind) -> None:
    found = rules_processes._report_kind(kind, "some role", 7.0, "seen")
    assert (found.severity, found.rule, found.rate_hz) == ("fault", kind.rule, 7.0)
    assert kind.is_normal != ("at least 7.0 times/s" in found.text)
    assert kind.is_normal != bool(found.remedy)


def _window(draw: random.Random) -> StatementWindow:
    percent = draw.uniform(1.0, 90.0)
    return StatementWindow(
        window_s=draw.uniform(0.2, WINDOW_S),
        method="probes",
        percent=percent,
        own_percent=percent * draw.random(),
        connecting_percent=percent * draw.random(),
        roles=[],
        statements=[],
    )


@pytest.mark.parametrize("seed", range(20))
def test_joined_windows_have_the_cpu_time_of_their_parts(seed: int) -> None:
    draw = random.Random(seed)
    windows = [_window(draw) for _ in range(12)]
    newest = list(
        itertools.takewhile(lambda n: sum(w.window_s for w in windows[12 - n + 1 :]) < WINDOW_S, range(1, 13))
    )
    parts, joined = windows[12 - len(newest) :], join_windows(windows)
    assert joined is not None and joined.window_s == pytest.approx(sum(part.window_s for part in parts))
    for name in ("percent", "own_percent", "connecting_percent"):
        whole = sum(getattr(part, name) * part.window_s for part in parts)
        assert getattr(joined, name) * joined.window_s == pytest.approx(whole), name
    assert joined.connecting_percent <= joined.percent
