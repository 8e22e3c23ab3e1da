# SPDX-License-Identifier: Apache-2.0
"""Statements that `export` serves: their sum is the server, their number is bounded, and probes stay within 3 %."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.live import statements as module
from powerprof.live.metrics import Ranking, SharedTotals, StatementTotals, Totals, render_metrics
from powerprof.live.statements import ServedServer, format_label
from powerprof.queries.probes import ProbeTrial
from powerprof.queries.target import TracedServer
from powerprof.system.errors import CapabilityError, PowerprofError
from tests.unit.live.intervals import interval, row, served, statement
from tests.unit.live.test_metrics import OPEN, values

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def shared(top: int = 20) -> SharedTotals:
    return SharedTotals(Totals(statements=StatementTotals(Ranking(top))), {"version": "1"})


def page(shown: SharedTotals, accept: str = "") -> Found:
    return values(render_metrics(shown, accept)[0].decode(), accept)


def by_statement(found: Found, name: str) -> dict[str, float]:
    return {dict(labels)["statement"]: value for (own, labels), value in found.items() if own == name}


def test_each_statement_counts_from_when_its_zero_was_read() -> None:
    shown = shared()
    for _ in range(3):
        shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0, 4), statement("bb", 0.25))))
        found = page(shown)
    assert by_statement(found, "powerprof_statement_cpu_seconds_total") == {"aa": 2.0, "bb": 0.5, "other": 2.75}
    assert by_statement(found, "powerprof_statement_wakeups_total") == {"aa": 8.0, "bb": 4.0, "other": 9.0}
    assert by_statement(found, "powerprof_statement_joules_total") == {"aa": 4.0, "bb": 1.0, "other": 5.5}
    assert by_statement(found, "powerprof_statement_info") == {"aa": 1.0, "bb": 1.0}
    server = ("server", "mariadbd:3306")
    assert found["powerprof_statements_measured_seconds_total", frozenset({server, ("method", "probes")})] == 30.0
    assert found["powerprof_statements_up", frozenset({server})] == 1.0
    assert page(shown, OPEN) == found


def test_without_the_option_there_is_no_such_series() -> None:
    shown = SharedTotals(Totals(), {"version": "1"})
    shown.add(interval(row("a", 1)))
    assert not [name for name, _ in page(shown) if "statement" in name]


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 50)), max_size=6), st.integers(1, 4)),
        max_size=12,
    ),
    st.integers(0, 5),
)
def test_the_increase_of_all_series_is_the_servers_whichever_come_and_go(
    story: list[tuple[list[tuple[int, int]], int]], top: int
) -> None:
    totals = StatementTotals(Ranking(top, 45.0))

    def read() -> dict[str, tuple[float, float]]:
        seen = {id: (place.c0_s, place.joules) for id, place in totals.places().items()}
        totals.mark_read()
        return seen

    before, since = read(), 0.0
    totals.up = True
    for turn, (rows, every) in enumerate(story, 1):
        made = served(*(statement(f"{id:06x}", float(used)) for id, used in rows))
        totals.add(made)
        since += made.c0_s
        assert len(totals.places()) <= top + 1
        if turn % every == 0:
            after = read()
            grown = [
                (c0_s - before[id][0], joules - before[id][1]) for id, (c0_s, joules) in after.items() if id in before
            ]
            assert all(c0_s >= -1e-9 and joules >= -1e-9 for c0_s, joules in grown)
            assert sum(c0_s for c0_s, _ in grown) == pytest.approx(since)
            assert sum(joules for _, joules in grown) == pytest.approx(2 * since)
            before, since = after, 0.0


def test_statements_that_never_repeat_have_no_more_series_and_fill_no_memory() -> None:
    shown = shared(5)
    totals = shown.totals.statements
    assert totals is not None
    for number in range(300):
        rows = [statement(f"{number:03}{place:03}", 1.0) for place in range(20)]
        shown.add(interval(row("a", 1), statements=served(*rows)))
        found = page(shown)
        assert len(by_statement(found, "powerprof_statement_cpu_seconds_total")) <= 6
        assert len(by_statement(found, "powerprof_statement_info")) <= 5
    assert len(totals.texts) <= 20 * 5 + 20


def test_a_series_of_a_statement_that_left_the_top_ends() -> None:
    shown = shared(1)
    for _ in range(3):
        shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0))))
        page(shown)
    for _ in range(20):
        shown.add(interval(row("a", 1), statements=served(statement("bb", 9.0), statement("aa", 0.01))))
        found = page(shown)
    assert set(by_statement(found, "powerprof_statement_cpu_seconds_total")) == {"bb", "other"}
    assert set(by_statement(found, "powerprof_statement_info")) == {"bb"}


def test_wake_ups_of_samples_and_figures_of_a_server_that_is_away_are_absent() -> None:
    shown = shared()
    for _ in range(2):
        shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0))))
        page(shown)
    sampled = served(statement("aa", 1.0, 0), method="samples", wakeups_count=None)
    shown.add(interval(row("a", 1), statements=sampled))
    found = page(shown)
    assert not by_statement(found, "powerprof_statement_wakeups_total")
    assert by_statement(found, "powerprof_statement_cpu_seconds_total")["aa"] == 2.0
    shown.add(interval(row("a", 1), statements=served(statement("new", 5.0))))
    shown.add(interval(row("a", 1), statements=msgspec.structs.replace(served(), method=None)))
    found = page(shown)
    assert {name for name, _ in found if "statement" in name} == {
        "powerprof_statements_up",
        "powerprof_statements_measured_seconds_total",
    }
    assert found["powerprof_statements_up", frozenset({("server", "mariadbd:3306")})] == 0.0
    shown.add(interval(row("a", 1), statements=served(statement("new", 5.0))))
    # Nobody has seen its 0 yet.
    assert by_statement(page(shown), "powerprof_statement_cpu_seconds_total")["new"] == 0.0


def test_measured_and_estimated_joules_are_never_added() -> None:
    shown = shared()
    for kind in ("measured", "measured", "estimated", None, "measured"):
        shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0), kind=kind)))
        found = page(shown)
    joules = {key: value for key, value in found.items() if key[0] == "powerprof_statement_joules_total"}
    assert {dict(labels)["kind"] for _, labels in joules} == {"measured"}
    assert by_statement(found, "powerprof_statement_joules_total") == {"aa": 4.0, "other": 5.0}


def test_a_text_is_one_short_line_that_a_reader_gets_back() -> None:
    hostile = 'SELECT `a"b\\c`,\n\t\x1b[31m\u202eé FROM t WHERE id = ?'
    text = format_label(hostile)
    assert text == 'SELECT `a"b\\c`, ?[31m?é FROM t WHERE id = ?'
    assert len(format_label("SELECT " + "column, " * 10_000)) == 120
    shown = shared()
    shown.add(interval(row("a", 1), statements=served(statement("aa", 1.0, text=text))))
    for accept in ("", OPEN):
        info = [labels for (name, labels) in page(shown, accept) if name == "powerprof_statement_info"]
        assert [dict(labels)["text"] for labels in info] == [text]


CHEAP = ProbeTrial(0.5, 0.4, 0.01, 5_000)


@dataclass
class Ways:
    """What the server lets itself be asked by, and what the next windows cost."""

    server_s: float = 2.0
    cost_s: float = 0.01
    bpf_s: float | None = 0.01
    seen_count: int = 1000
    trial: ProbeTrial = CHEAP
    is_there: bool = True
    can_probe: bool = True
    can_sample: bool = True
    now_s: float = 1000.0


class _Way:
    method = "probes"
    parts: tuple[Any, ...] = ()

    def __init__(self, ways: Ways) -> None:
        self._ways = ways

    def ready(self) -> None: ...
    def close(self) -> None: ...

    def trial(self) -> ProbeTrial:
        return self._ways.trial

    def finish_window(self, _: object) -> Any:
        if not self._ways.is_there:
            raise PowerprofError("mysqld (10) ended within the window")
        return type("Taken", (), {"measured": _measured(self.method, self._ways)})


class _Sampled(_Way):
    method = "samples"


@dataclass
class _Measured:
    method: str
    bpf_s: float | None
    cost_s: float | None
    seen_count: int
    process_cpu_s: float
    window_s: float = 10.0


def _measured(method: str, ways: Ways) -> _Measured:
    return _Measured(method, ways.bpf_s, ways.cost_s, ways.seen_count, ways.server_s)


class _Record:
    def __init__(self, measured: _Measured) -> None:
        self.server_c0_s, self.method = measured.process_cpu_s, measured.method
        self.statements: list[Any] = []
        self.background: list[Any] = []
        self.connections = type("Share", (), {"wakeups_count": None})
        self.joules = self.kind = self.energy_split = None


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    found = Ways()

    def probes(*_: object, **__: object) -> _Way:
        if not found.can_probe:
            raise CapabilityError("no probe can be placed", None)
        return _Way(found)

    def samples(*_: object) -> _Way:
        if not found.can_sample:
            raise CapabilityError("no texts in its memory", None)
        return _Sampled(found)

    def reached(*_: object) -> TracedServer:
        if not found.is_there:
            raise PowerprofError("no process is called mysqld")
        return TracedServer(10, "mysqld (10)", None, None)

    monkeypatch.setattr(module, "Probes", probes)
    monkeypatch.setattr(module, "Samples", samples)
    monkeypatch.setattr(module, "find_server", reached)
    monkeypatch.setattr(module, "build_record", lambda _, measured, __: _Record(measured))
    monkeypatch.setattr(module, "replace", lambda measured, **_: measured)
    monkeypatch.setattr(module, "may_be_forged", lambda _: False)
    monkeypatch.setattr(module, "list_tcp_ports", lambda _: [3306])
    monkeypatch.setattr(module, "name_of", lambda _: "mysqld")
    monkeypatch.setattr("powerprof.live.statements.time.monotonic", lambda: found.now_s)
    return found


def method(server: ServedServer) -> str | None:
    """How the next interval was measured."""
    window: Any = type("Window", (), {"window_s": 10.0})
    energy: Any = type("Energy", (), {"complete": lambda _, window: window})()
    server.begin()
    server.end()
    return server.collect(window, energy).method


def test_probes_that_cost_too_much_make_way_for_samples_and_are_tried_again(ways: Ways) -> None:
    server = ServedServer("mysqld")
    assert method(server) == "probes"
    ways.cost_s = ways.bpf_s = 0.08
    assert method(server) == "probes"  # 4 % of what the server used were seen in it
    assert [method(server) for _ in range(3)] == ["samples"] * 3
    ways.now_s += 601
    ways.trial = ProbeTrial(0.5, 0.4, 0.02, 10_000)
    assert [method(server) for _ in range(2)] == ["samples"] * 2
    ways.server_s = 0.2  # hardly runs: what probes cost of it is nothing
    ways.cost_s = ways.bpf_s = 0.001
    ways.trial = ProbeTrial(0.5, 0.01, 0.001, 20)
    assert [method(server) for _ in range(3)] == ["samples", "probes", "probes"]


def test_where_programs_cannot_be_timed_the_trial_has_the_price(ways: Ways) -> None:
    ways.trial = ProbeTrial(0.5, 0.4, 0.004, 1_000)  # 4 µs each
    server = ServedServer("mysqld")
    ways.bpf_s = ways.cost_s = None
    ways.seen_count = 7_000
    assert [method(server) for _ in range(2)] == ["probes", "probes"]
    ways.seen_count = 20_000
    assert [method(server) for _ in range(2)] == ["probes", "samples"]


def test_without_probes_there_are_samples_and_without_both_an_error(ways: Ways) -> None:
    ways.can_probe = False
    server = ServedServer("mysqld")
    ways.server_s = 0.01
    assert [method(server) for _ in range(3)] == ["samples"] * 3
    ways.can_sample = False
    with pytest.raises(CapabilityError):
        ServedServer("mysqld")


def test_the_budget_holds_where_there_are_no_samples(ways: Ways) -> None:
    server = ServedServer("mysqld")
    ways.can_sample, ways.cost_s, ways.bpf_s = False, 0.1, 0.1
    assert method(server) == "probes"
    assert [method(server) for _ in range(3)] == [None] * 3
    assert server.trouble == "probes cost more than 3 % of the server, and samples: no texts in its memory"
    ways.now_s += 601
    ways.cost_s = ways.bpf_s = 0.001
    assert method(server) == "probes"
    assert server.trouble == ""


def test_a_server_that_ended_is_looked_for_again(ways: Ways) -> None:
    server = ServedServer("mysqld")
    assert method(server) == "probes"
    ways.is_there = False
    assert [method(server) for _ in range(3)] == [None] * 3
    assert server.trouble == "no process is called mysqld"
    ways.is_there = True
    assert method(server) == "probes"
    ways.is_there = False
    with pytest.raises(PowerprofError):
        ServedServer("mysqld")
