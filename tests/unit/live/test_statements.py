# SPDX-License-Identifier: Apache-2.0
"""Probes and samples of a served server: their cost is bounded, and a restarted server is found again."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from powerprof.live import statements
from powerprof.live.identity import ServerIdentity
from powerprof.live.statements import ServedServer, StatementHistory
from powerprof.queries.pricing import build_record
from powerprof.queries.probes import ProbeTrial
from powerprof.queries.records import Queries, Statement
from powerprof.queries.target import TracedServer
from powerprof.system.cgroups import UnitLabels
from powerprof.system.errors import CapabilityError, PowerprofError
from tests.unit.queries.test_report import record as sample_record
from tests.unit.queries.windows import KnownFloor, measured

CHEAP = ProbeTrial(0.5, 0.4, 0.01, 5_000)


@dataclass
class FakeServer:
    """The methods that a server allows, and the cost of the next windows."""

    server_s: float = 2.0
    cost_s: float = 0.01
    bpf_s: float | None = 0.01
    seen_count: int = 1000
    trial: ProbeTrial = CHEAP
    is_there: bool = True
    can_probe: bool = True
    can_sample: bool = True
    now_s: float = 1000.0
    used_s: float = 0.0
    pauses: int = 0


class _Method:
    parts: tuple[Any, ...] = ()

    def __init__(self, fake: FakeServer, method: str) -> None:
        self._fake, self.method = fake, method

    def ready(self) -> None: ...
    def close(self) -> None: ...
    def pause(self) -> None:
        self._fake.pauses += 1

    def trial(self) -> ProbeTrial:
        return self._fake.trial

    def finish_window(self, _: object) -> Any:
        fake = self._fake
        if not fake.is_there:
            raise PowerprofError("mysqld (10) ended within the window")
        cost = {"bpf_s": fake.bpf_s, "cost_s": fake.cost_s, "seen_count": fake.seen_count}
        measured = SimpleNamespace(method=self.method, process_cpu_s=fake.server_s, window_s=10.0, **cost)
        return SimpleNamespace(measured=measured)


def _record(_: object, measured: Any, __: object, host: object = None) -> Any:
    unknown = dict.fromkeys(("joules", "kind", "energy_split", "calls_count"))
    own = {"server_c0_s": measured.process_cpu_s, "method": measured.method, "window_s": measured.window_s}
    connections = SimpleNamespace(wakeups_count=None)
    own["other_c0_s"] = 0.0
    return SimpleNamespace(statements=[], background=[], connections=connections, ended=None, host={}, **own, **unknown)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    found = FakeServer()

    def probes(*_: object, **__: object) -> _Method:
        if not found.can_probe:
            raise CapabilityError("no probe can be placed", None)
        return _Method(found, "probes")

    def samples(*_: object) -> _Method:
        if not found.can_sample:
            raise CapabilityError("no texts in its memory", None)
        return _Method(found, "samples")

    def reached(*_: object) -> TracedServer:
        if not found.is_there:
            raise PowerprofError("no process is called mysqld")
        return TracedServer(10, "mysqld (10)", None, None)

    monkeypatch.setattr(statements, "Probes", probes)
    monkeypatch.setattr(statements, "Samples", samples)
    monkeypatch.setattr(statements, "find_server", reached)
    monkeypatch.setattr(statements, "build_record", _record)
    monkeypatch.setattr(statements, "replace", lambda measured, **_: measured)
    monkeypatch.setattr(statements, "UseClock", lambda _: SimpleNamespace(read_s=lambda: found.used_s))
    monkeypatch.setattr(statements, "may_be_forged", lambda _: False)
    monkeypatch.setattr(statements, "has_ended", lambda _: False)
    monkeypatch.setattr(statements, "identify_server", lambda *_: ServerIdentity("mysqld:3306", UnitLabels()))
    monkeypatch.setattr("powerprof.live.statements.time.monotonic", lambda: found.now_s)
    return found


def method(server: ServedServer) -> str | None:
    """Return the method of the next interval."""
    window: Any = SimpleNamespace(window_s=10.0)
    energy: Any = SimpleNamespace(complete=lambda window: window)
    server.begin()
    server.end()
    return server.collect(window, energy).method


def test_expensive_probes_are_replaced_by_samples_and_retried(fake: FakeServer) -> None:
    server = ServedServer("mysqld")
    assert method(server) == "probes"
    fake.cost_s = fake.bpf_s = 0.08
    assert method(server) == "probes"  # the interval showed a cost of 4 %
    assert [method(server) for _ in range(3)] == ["samples"] * 3
    fake.now_s += 601
    fake.trial = ProbeTrial(0.5, 0.4, 0.02, 10_000)
    assert [method(server) for _ in range(2)] == ["samples"] * 2
    fake.server_s = 0.2  # nearly idle, so probes are cheap
    fake.cost_s = fake.bpf_s = 0.001
    fake.trial = ProbeTrial(0.5, 0.01, 0.001, 20)
    assert [method(server) for _ in range(3)] == ["samples", "probes", "probes"]


def test_a_server_that_hardly_runs_has_no_probes(fake: FakeServer) -> None:
    """It rests after three intervals below 0.2 % of a CPU, and is measured again at once when it runs."""
    server, uses_s = ServedServer("mysqld", rests=True), [0.5, 0.019, 0.019, 0.019, 0.0, 0.021, 0.019]
    found = [method(server)]
    for used_s in uses_s:
        fake.used_s += used_s
        fake.now_s += 10.0
        found.append(method(server))
    assert found == ["probes", "probes", "probes", "probes", None, None, "probes", "probes"]
    assert fake.pauses == 2 and not server.is_resting
    # A server that is measured on request is never left out.
    asked = ServedServer("mysqld")
    assert [method(asked) for _ in range(5)] == ["probes"] * 5


def test_the_trial_gives_the_cost_if_programs_are_not_timed(fake: FakeServer) -> None:
    fake.trial = ProbeTrial(0.5, 0.4, 0.004, 1_000)  # 4 µs each
    server = ServedServer("mysqld")
    fake.bpf_s = fake.cost_s = None
    fake.seen_count = 7_000
    assert [method(server) for _ in range(2)] == ["probes", "probes"]
    fake.seen_count = 20_000
    assert [method(server) for _ in range(2)] == ["probes", "samples"]


def test_samples_are_used_without_probes_and_neither_is_an_error(fake: FakeServer) -> None:
    fake.can_probe = False
    server = ServedServer("mysqld")
    fake.server_s = 0.01
    assert [method(server) for _ in range(3)] == ["samples"] * 3
    fake.can_sample = False
    with pytest.raises(CapabilityError):
        ServedServer("mysqld")


def test_expensive_probes_stop_even_without_samples(fake: FakeServer) -> None:
    server = ServedServer("mysqld")
    fake.can_sample, fake.cost_s, fake.bpf_s = False, 0.1, 0.1
    assert method(server) == "probes"
    assert [method(server) for _ in range(3)] == [None] * 3
    assert server.trouble == "probes cost more than 3 % of the server, and samples failed: no texts in its memory"
    fake.now_s += 601
    fake.cost_s = fake.bpf_s = 0.001
    assert method(server) == "probes"
    assert server.trouble == ""


def test_a_server_is_found_again_after_its_end(fake: FakeServer) -> None:
    server = ServedServer("mysqld")
    assert method(server) == "probes"
    fake.is_there = False
    assert [method(server) for _ in range(3)] == [None] * 3
    assert server.trouble == "no process is called mysqld"
    fake.is_there = True
    assert method(server) == "probes"
    fake.is_there = False
    with pytest.raises(PowerprofError):
        ServedServer("mysqld")


def test_a_server_that_cannot_be_traced_yet_is_tried_again(fake: FakeServer) -> None:
    """`watch` opens without it, as with a stopped server. A missing capability of the host is reported once."""
    fake.is_there = False
    server = ServedServer("10", is_patient=True)
    assert (server.pid, method(server), server.trouble) == (None, None, "no process is called mysqld")
    fake.is_there = True
    assert (method(server), server.pid) == ("probes", 10)
    fake.can_probe = fake.can_sample = False
    with pytest.raises(CapabilityError):
        ServedServer("10", is_patient=True)


def test_an_interval_has_all_wakeups_of_a_server_and_the_seconds_that_were_traced() -> None:
    """The record covers the whole interval of 2.5 s, of which 2 s were traced."""
    taken = measured(window_s=2.0, calls_count=417)
    energy: Any = KnownFloor()
    record = build_record(TracedServer(10, "mysqld (10)", "MySQL 8.4.3", None), measured(window_s=2.5), energy)
    one = statements._build_served("mysqld:3306", record, taken)
    assert (one.window_s, one.c0_s, one.bpf_s, one.calls_count) == (2.0, 1.1, 0.015, 417)
    assert (one.wakeups_count, one.joules, one.kind) == (67, record.joules, "measured")
    assert [(row.id, row.c0_s, row.wakeups_count, row.joules) for row in one.statements] == [
        (row.id, row.c0_s, row.wakeups_count, row.joules) for row in record.statements
    ]
    assert sum(row.wakeups_count for row in one.statements) == 60
    assert one.by_cost is not None and one.by_cost.percent == pytest.approx(44.0)
    sampled = statements._build_served("x", msgspec.structs.replace(record, method="samples"), taken)
    assert sampled.wakeups_count is None
    unpriced = statements._build_served("x", msgspec.structs.replace(record, joules=None), taken)
    assert (unpriced.joules, unpriced.kind) == (None, None)


def test_trends_are_by_the_window_of_each_record() -> None:
    def record(window_s: float, **seconds: float) -> Queries:
        rows = [Statement(text=name, schema_name="shop", c0_s=c0_s) for name, c0_s in seconds.items()]
        return msgspec.structs.replace(sample_record(), window_s=window_s, statements=rows)

    history = StatementHistory()
    assert (history.last, history.lines()) == (None, [])
    history.add(record(2.0, a=0.5))
    history.add(None)
    assert history.is_away
    history.add(record(5.0, a=0.25, b=2.0))
    first, second = history.lines()
    assert (first.statement.text, first.cpu_percent, first.before) == ("a", 5.0, (25.0, 5.0))
    assert (second.statement.text, second.cpu_percent, second.before) == ("b", 40.0, (0.0, 40.0))
    assert (history.is_away, history.series(lambda one: one.window_s)) == (False, [2.0, 5.0])
