# SPDX-License-Identifier: Apache-2.0
"""`queries` on a server that sysbench asks at a known rate, by each way: shares are those of each
statement alone, calls those that sysbench made."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from powerprof.database.private_server import PrivateServer
from powerprof.energy.request import NO_METER
from powerprof.model.statements import make_key
from powerprof.queries import session
from powerprof.queries.records import Queries
from tests.programs.mixes import ALONE, MIX, TIMES, Known, mix_on

pytestmark = pytest.mark.usefixtures("root_bpf", "mariadbd", "sysbench")
_WINDOW_S, _LOAD_S, _EVENTS_HZ = 40, 34, 12


def measured(method: str) -> tuple[Queries, Known]:
    """A window, and what was known: sysbench begins when it does, and ends before it."""
    with (
        PrivateServer(settings={"performance_schema": "ON"}) as server,
        mix_on(server) as mix,
        ThreadPoolExecutor(1) as pool,
    ):
        mix.run("--events=5", "--time=0")
        runs: list[Future[Known]] = []

        def say(text: str) -> None:
            if text.startswith(("tracing the statements", "sampling ")):
                runs.append(pool.submit(mix.run, "--events=0", f"--time={_LOAD_S}", f"--rate={_EVENTS_HZ}"))

        request = session.QueriesRequest(pid=str(server.pid), method=method, duration_s=_WINDOW_S, energy=NO_METER)
        found = session.run(request, say, lambda what: None)
        return found.record, runs[0].result()


def test_calls_are_exact_and_shares_are_known_by_probes() -> None:
    record, known = measured("probes")
    rows = {one.text: one for one in record.statements}
    # sysbench's arrivals are random: their number has a standard deviation of its root. A full host executes fewer.
    assert 0 < known.events <= _LOAD_S * _EVENTS_HZ + 5 * (_LOAD_S * _EVENTS_HZ) ** 0.5
    for texts in (ALONE, MIX):
        assert [rows[text].calls_count for text in texts] == [known.events * times for times in TIMES]
    assert rows[MIX[0]].calls_hz == pytest.approx(known.events * TIMES[0] / record.window_s)
    reading_s = record.connections_c0_s / record.calls_count
    spent = [rows[text].c0_s + reading_s * times * known.events for text, times in zip(MIX, TIMES, strict=True)]
    shares = [100 * one / sum(spent) for one in spent]
    print(f"\nprobes: {[round(one, 2) for one in shares]} of known {[round(one, 2) for one in known.percent]} %")
    assert shares == pytest.approx(known.percent, abs=3)
    assert abs(record.residual_c0_s) <= 0.01 * record.server_c0_s


def test_samples_have_the_known_shares_within_their_intervals() -> None:
    record, known = measured("samples")
    rows = {make_key(one.text): one for one in record.statements}
    told = sum(one.c0_percent or 0.0 for one in record.statements)
    known_ns = [*known.alone_ns, *(known.mix_ns * percent / 100 for percent in known.percent)]
    for text, spent_ns in zip([*ALONE, *MIX], known_ns, strict=True):
        # A statement alone was measured with the reading of its requests, a part of its own in the report.
        one, percent = rows[make_key(text)], told * spent_ns / sum(known_ns)
        assert one.low_percent is not None
        assert one.high_percent is not None
        print(
            f"\nsamples: {one.c0_percent:.1f} [{one.low_percent:.1f}, {one.high_percent:.1f}], {percent:.1f} %: {text}"
        )
        # The interval is of 95 %, and eight are looked at; what the clocks are apart comes besides.
        assert one.low_percent - 2 <= percent <= one.high_percent + 2
