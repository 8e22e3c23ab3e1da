# SPDX-License-Identifier: Apache-2.0
"""Windows with probes, and the choice between probes and samples."""

from __future__ import annotations

from typing import Any

import pytest

from powerprof.database.server_report import ServerReport
from powerprof.model.records import Note, ended_by_signal
from powerprof.model.statements import normalise
from powerprof.queries import session
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.probes import Probes, ProbeTrial, _note_trace
from powerprof.queries.records import Statement
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer
from powerprof.queries.windows import TracedWindow
from powerprof.report.notes import word_notes
from powerprof.system.errors import CapabilityError
from powerprof.tracing.captures import StatementTrace, TraceCost
from powerprof.tracing.statement_tables import MOST_TEXT_BYTES
from tests.unit.queries.sample import trace
from tests.unit.queries.test_samples import CHEAP, COSTLY, NOTHING
from tests.unit.queries.windows import window


def test_the_cost_of_probes_has_their_traps_and_a_window_its_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = trace(lost_count=2, unreadable_count=3, cut_count=4, process_cpu_ns=1_250_000_000)

    class Traced:
        gap_before_s = 0.75
        dispatch = type("Dispatch", (), {"version": None})
        trace = traced

        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...
        def attach(self) -> None: ...
        def begin(self) -> None: ...
        def end(self) -> None: ...
        def collect(self) -> StatementTrace:
            return self.trace

    monkeypatch.setattr("powerprof.queries.probes.QueryTracer", Traced)
    monkeypatch.setattr("powerprof.queries.probes._TRIAL_S", 0.0)
    probes = Probes(TracedServer(10, "mysqld (10)", None, None))
    made = probes.finish_window(window(), ended=ended_by_signal(True)).measured
    assert (made.cost_s, made.bpf_s) == (pytest.approx(0.002 + 417e-6), 0.002)
    assert (made.process_cpu_s, made.seen_count, made.calls_count, made.gap_before_s) == (1.25, 417, 417, 0.75)
    assert (made.lost_count, made.unreadable_count, made.cut_count) == (2, 3, 4)
    assert (made.window_s, made.version, made.ended, made.method) == (2.0, None, ended_by_signal(True), "probes")
    assert {note.name: note.values for note in made.notes if isinstance(note, Note)} == {
        "prepared_before": {},
        "no_login": {},
        "texts_cut": {"count": 4, "bytes": MOST_TEXT_BYTES},
        "texts_unreadable": {"count": 3},
        "table_full": {"count": 2},
    }
    tried = probes.trial()
    assert tried == ProbeTrial(2.0, 1.25, pytest.approx(0.002 + 417e-6), 417, tried.switch_s)
    assert (tried.percent, tried.is_costly) == (pytest.approx(100 * 0.002417 / 1.25), False)
    # Without a time of the programs the cost is unknown.
    Traced.trace = trace(cost=TraceCost(bpf_s=None, trap_ns=417_000))
    assert probes.finish_window(window()).measured.cost_s is None


SERVER = TracedServer(10, "mysqld (10)", None, None)


def measured(method: Any) -> MeasuredStatements:
    return MeasuredStatements(
        method=method,
        parts=NOTHING,
        known=NOTHING,
        window=NOTHING,
        window_s=1.0,
        process_cpu_s=None,
        cost_s=None,
        bpf_s=None,
        seen_count=0,
        calls_count=0,
        notes=[],
    )


@pytest.mark.parametrize(
    ("method", "trial", "samples", "way"),
    [
        ("auto", COSTLY, True, "samples"),
        ("auto", CHEAP, True, "probes"),
        ("auto", COSTLY, False, "probes"),  # samples cannot be had
        ("probes", COSTLY, True, "probes"),
    ],
)
def test_the_way_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, method: str, trial: ProbeTrial, samples: bool, way: str
) -> None:
    class Probing:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Probing:
            return self

        def __exit__(self, *_: object) -> None: ...
        def trial(self) -> ProbeTrial:
            return trial

        def trace_window(self, *_: object) -> TracedWindow:
            return TracedWindow(measured("probes"))

    class Sampling(Probing):
        def __init__(self, *_: Any, **__: Any) -> None:
            if not samples:
                raise CapabilityError("no texts in its memory", None)

        def trace_window(self, *_: object) -> Any:
            return TracedWindow(measured("samples"))

    monkeypatch.setattr(session, "Probes", Probing)
    monkeypatch.setattr(session, "Samples", Sampling)
    request = QueriesRequest(pid="10", method=method, max_cost=0.02)
    taken = session._trace(request, SERVER, None, lambda _: None)  # type: ignore[arg-type]
    assert taken.measured.method == way
    notes = [one for one in taken.measured.notes if isinstance(one, Note)]
    assert [one.name for one in notes] == (["probes_costly"] if way == "samples" else [])
    if notes:
        (said,) = word_notes(notes)
        assert "probes used 5.0 % of the server's CPU time (2.0 µs per statement at 20,000 statements/s)" in said
        assert "--max-cost 2%" in said


def test_a_quiet_server_is_never_costly_and_the_bounds_are_exact() -> None:
    # More than 3 % of its CPU time, and more than a tenth of a CPU.
    assert ProbeTrial(0.5, 0.0501, 0.00151, 10).is_costly
    assert not ProbeTrial(0.5, 0.05, 0.0049, 10).is_costly
    assert not ProbeTrial(0.5, 0.4, 0.012, 10).is_costly
    assert ProbeTrial(4.0, 0.8, 0.032, 10).percent == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("server_s", "took_s", "duration_s", "enough"),
    [
        (1.0, 0.02, 1.0, True),  # within the bound
        (0.05, 0.04, 1.0, True),  # a quiet server
        # A slice costs 25 ms and 0.1 s × 28 % of a CPU: six of them fit into 8 s of 40 ms/s, and not into 7.9 s.
        (1.0, 0.14, 8.0, True),
        (1.0, 0.14, 7.9, False),
    ],
)
def test_slices_are_preferred_to_samples_if_six_fit(
    server_s: float, took_s: float, duration_s: float, enough: bool
) -> None:
    trial = ProbeTrial(0.5, server_s, took_s, 30_000, switch_s=0.0253)
    assert trial.are_slices_enough(0.02, duration_s) is enough


def test_without_a_bound_everything_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[float | None] = []

    class Probing:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Probing:
            return self

        def __exit__(self, *_: object) -> None: ...
        def trace_window(self, _: float, __: object, bound: float | None) -> TracedWindow:
            bounds.append(bound)
            return TracedWindow(measured("probes"))

    monkeypatch.setattr(session, "Probes", Probing)
    session._trace(QueriesRequest(pid="10"), SERVER, None, lambda _: None)  # type: ignore[arg-type]
    assert bounds == [None]


@pytest.mark.parametrize(
    ("text", "calls", "began", "unfinished", "count"),
    [("SELECT ?", 2, 2, 2, 1), ("CALL p(?)", 2, 2, 2, 0), ("SELECT ?", 3, 2, 2, 0), ("SELECT ?", 0, 0, 0, 0)],
)
def test_a_statement_longer_than_the_window_can_belong_to_a_call(
    text: str, calls: int, began: int, unfinished: int, count: int
) -> None:
    row = Statement(
        text=normalise(text), c0_s=1.0, calls_count=calls, began_before_count=began, unfinished_count=unfinished
    )
    server = TracedServer(10, "mysqld (10)", None, None)
    for hides in (True, False):
        notes = _note_trace(trace(), ServerReport(may_hide_calls=hides), server, [row])
        named = [note.values["count"] for note in notes if note.name == "call_unknown"]
        assert named == ([count] if count and hides else [])
