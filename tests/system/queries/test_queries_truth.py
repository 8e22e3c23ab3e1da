# SPDX-License-Identifier: Apache-2.0
"""`queries` against sysbench's mix of statements whose CPU time is known from running each alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.database.performance import ServerReport
from powerprof.database.private_server import PrivateServer
from powerprof.queries.join import join_trace
from powerprof.tracing.statements import QueryTracer
from tests.programs.mixes import ALONE, MIX, TIMES, mix_on

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "counts_statements")
_EVENTS = 100


def test_a_mix_has_the_shares_of_its_statements_alone(sysbench: Path) -> None:
    with PrivateServer(settings={"performance_schema": "OFF"}) as server, mix_on(server) as mix:
        assert server.pid is not None
        mix.run("--events=5", "--time=0")
        with QueryTracer(server.pid) as tracer:
            tracer.attach()
            tracer.begin(timed=False)
            known = mix.run(f"--events={_EVENTS}", "--time=0")
            tracer.end()
            trace = tracer.collect()
    parts = join_trace(trace, ServerReport())
    found = {one.text: one for one in parts.statements}
    assert [found[text].calls_count for text in MIX] == [_EVENTS * times for times in TIMES]
    assert [found[text].calls_count for text in ALONE] == [_EVENTS * times for times in TIMES]
    # A statement alone was measured with the reading of its requests, which the report has in a part of its own.
    reading_s = parts.connections.c0_s / sum(one.calls_count or 0 for one in parts.statements)
    alone, mixture = (
        [found[text].c0_s + reading_s * (found[text].calls_count or 0) for text in texts] for texts in (ALONE, MIX)
    )
    # Of the same executions, so that neighbours who change a CPU's speed change both figures.
    for known_ns, one in zip(known.alone_ns, alone, strict=True):
        assert 100 * abs(one - known_ns / 1e9) / sum(alone) < 3
    assert sum(mixture) == pytest.approx(known.mix_ns / 1e9, rel=0.05)
    # Of other executions, each after another statement, whose data a busy neighbour has put out of the caches.
    for percent, one in zip(known.percent, mixture, strict=True):
        assert 100 * one / sum(mixture) == pytest.approx(percent, abs=6)
    # Two counts of the scheduler, read a moment apart.
    assert trace.process_cpu_ns is not None
    assert sum(thread.cpu_ns for thread in trace.threads) == pytest.approx(trace.process_cpu_ns, rel=0.01)
    explained_s = sum(one.c0_s for one in [*parts.statements, *parts.background, parts.connections])
    assert explained_s == pytest.approx(trace.process_cpu_ns / 1e9, rel=0.01)
