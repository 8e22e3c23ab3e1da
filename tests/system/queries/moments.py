# SPDX-License-Identifier: Apache-2.0
"""Samples of the texts in a server's memory while known work is done."""

from __future__ import annotations

import time
from collections.abc import Callable

from powerprof.database.server_report import merge_reports
from powerprof.queries.join import Parts
from powerprof.queries.samples import join_moments
from powerprof.queries.target import TracedServer, ask_server
from powerprof.tracing.server_processes import ServerProcesses
from powerprof.tracing.statement_samples import MomentSampler, StatementSamples

_HZ = 4999  # 33 times the usual, so that the tests need as much less time


def sampled(server: TracedServer, work: Callable[[], object]) -> tuple[StatementSamples, Parts]:
    """What threads were met at while `work` ran."""
    members = ServerProcesses(server.pid, is_family=server.family == "postgresql")
    with MomentSampler(server.pid, server.family) as sampler:
        asked_before = ask_server(server, running=False)
        before = members.cpu_ns()
        sampler.begin(_HZ)
        started_s = time.monotonic()
        work()
        sampler.end()
        after, window_s = members.cpu_ns(), time.monotonic() - started_s
        moments = sampler.collect()
    assert before is not None
    assert after is not None
    known = merge_reports(asked_before, ask_server(server, running=False))
    return moments, join_moments(moments, known, (after - before) / 1e9, window_s)[0]


def percents(parts: Parts) -> dict[str, float]:
    """Of the CPU time in statements."""
    whole = sum(one.c0_s for one in parts.statements)
    return {one.text: 100 * one.c0_s / whole for one in parts.statements}
