# SPDX-License-Identifier: Apache-2.0
"""The choice between probes and samples by a trial of probes."""

from __future__ import annotations

from typing import Any

import pytest

from powerprof.model.records import Note
from powerprof.queries import session
from powerprof.queries.pricing import MeasuredStatements
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer
from powerprof.queries.windows import ProbeTrial, TracedWindow
from powerprof.report.labels import word_notes
from powerprof.system.errors import CapabilityError

SERVER = TracedServer(10, "mysqld (10)", None, None)
NOTHING: Any = None


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


COSTLY, CHEAP = ProbeTrial(0.5, 0.4, 0.02, 10_000), ProbeTrial(0.5, 0.4, 0.01, 5_000)


def test_more_than_three_percent_of_a_busy_server_is_costly() -> None:
    assert (COSTLY.percent, COSTLY.is_costly) == (pytest.approx(5.0), True)
    assert (CHEAP.percent, CHEAP.is_costly) == (pytest.approx(2.5), False)
    assert not ProbeTrial(0.5, 0.04, 0.004, 100).is_costly  # 10 % of a server that hardly runs
    assert not ProbeTrial(0.5, 0.0, 0.0, 0).is_costly


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
    request = QueriesRequest(pid="10", method=method)
    taken = session._trace(request, SERVER, None, lambda _: None)  # type: ignore[arg-type]
    assert taken.measured.method == way
    notes = [one for one in taken.measured.notes if isinstance(one, Note)]
    assert [one.name for one in notes] == (["probes_costly"] if way == "samples" else [])
    if notes:
        (said,) = word_notes(notes)
        assert "probes used 5.0 % of the server's CPU time (2.0 µs per statement at 20,000 statements/s)" in said


def test_a_quiet_server_is_never_costly_and_the_bounds_are_exact() -> None:
    # More than 3 % of its CPU time, and more than a tenth of a CPU.
    assert ProbeTrial(0.5, 0.0501, 0.00151, 10).is_costly
    assert not ProbeTrial(0.5, 0.05, 0.0049, 10).is_costly
    assert not ProbeTrial(0.5, 0.4, 0.012, 10).is_costly
    assert ProbeTrial(4.0, 0.8, 0.032, 10).percent == pytest.approx(4.0)
