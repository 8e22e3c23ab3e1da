# SPDX-License-Identifier: Apache-2.0
"""Starts of servers: one per repetition if the server settles within a second, else one that is judged as a run."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.experiment import starts
from powerprof.experiment.bench import Bench, Node
from powerprof.experiment.bench_options import BenchOptions
from powerprof.experiment.claims import are_starts_repeated
from powerprof.experiment.starts import Starts
from powerprof.workloads.catalogue import find_one
from powerprof.workloads.reading import Case, resolve


def cases(name: str, key: str, *values: Any) -> list[Case]:
    workload, condition = find_one(name, [])
    return [resolve(workload, condition, {key: value}) for value in values]


BUFFERS = ("oltp:oltp-read-only", "server.my_cnf.innodb_buffer_pool_size", 16777216, 33554432)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the servers that were started again; nothing is started."""
    found: list[str] = []
    monkeypatch.setattr(Bench, "_replace", lambda bench, case: found.append(bench._key(case)))
    monkeypatch.setattr(Bench, "enter", lambda bench, case: None)
    monkeypatch.setattr(Bench, "leave", lambda bench, case: None)
    monkeypatch.setattr(starts, "run_load", lambda *_: nullcontext())
    monkeypatch.setattr(starts, "wait_and_read", lambda *_: None)
    monkeypatch.setattr(starts, "measure_capacity", lambda *_: 1.0)
    return found


def bench_of(some: list[Case]) -> Bench:
    bench = Bench(some, BenchOptions(), lambda _: None, apart=True)
    for case in some:
        server: Any = SimpleNamespace(private=True)
        bench._nodes[bench._key(case)] = Node(server, Any, {}, Any)  # type: ignore[arg-type]
    return bench


def test_a_repetition_has_a_start_of_each_server(replaced: list[str]) -> None:
    some = cases(*BUFFERS)
    bench = bench_of(some)
    counted = Starts(bench, some, lambda _: None)
    for number in range(3):
        counted.begin_repetition()
        for case in some:
            counted.renew(case, None)
        # The first repetition has the first starts.
        assert (counted.count, len(replaced)) == (number + 1, 2 * number)
    assert counted.seconds > 1 and are_starts_repeated(counted.count, 3)


def test_points_with_one_server_have_a_start_each(replaced: list[str]) -> None:
    first, second = cases(*BUFFERS)
    again = cases(*BUFFERS)[0]
    bench = bench_of([first, again, second])
    counted = Starts(bench, [first, again, second], lambda _: None)
    counted.begin_repetition()
    for case in (first, again, second):
        counted.renew(case, 10.0)
    assert replaced == [bench._key(first)]


def test_idle_servers_have_one_start_and_a_common_server_none(replaced: list[str]) -> None:
    idle = cases("idle-connections:no-clients", "server.my_cnf.innodb_buffer_pool_size", 16777216, 33554432)
    shared = cases("oltp:oltp-read-only", "load.clients", 1, 2)
    for some, count in ((idle, 1), (shared, 0)):
        counted = Starts(bench_of(some), some, lambda _: None)
        for _ in range(3):
            counted.begin_repetition()
            for case in some:
                counted.renew(case, None)
        assert (counted.count, counted.seconds, replaced) == (count, 0, [])
        assert are_starts_repeated(counted.count, 3) == (count == 0)
    # A continued sweep starts its servers once more.
    counted = Starts(bench_of(idle), idle, lambda _: None, count=1)
    counted.begin_repetition()
    counted.begin_repetition()
    assert counted.count == 2
