# SPDX-License-Identifier: Apache-2.0
"""The window of statements: own statements, costs, shares of scans, and joined windows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.diagnosis.diagnose import list_coverage
from powerprof.diagnosis.evidence import StatementCpu, StatementWindow
from powerprof.diagnosis.server_queries import list_own_statements
from powerprof.diagnosis.statement_window import (
    WINDOW_S,
    build_window,
    describe_share,
    describe_use,
    is_contradiction,
    is_costly,
    join_windows,
    list_unknown_scans,
    measure_statements,
    measure_work,
)
from powerprof.model.statements import normalise
from powerprof.queries.records import Asker, Queries, SampledStack, Statement
from powerprof.queries.session import QueriesRequest
from powerprof.queries.target import TracedServer
from tests.unit.diagnosis.examples import evidence
from tests.unit.queries.test_report import record


def statement(text: str, c0_s: float = 1.0, **fields: object) -> Statement:
    return msgspec.structs.replace(Statement(text=normalise(text), c0_s=c0_s), **fields)


@pytest.mark.parametrize("own", list_own_statements())
def test_statements_of_another_diagnosis_are_in_no_row(own: str) -> None:
    rows = [
        statement(own, 2.0),
        statement("SELECT * FROM orders", 0.5, askers=[Asker(user="app", host=None, c0_s=0.5)]),
    ]
    window = build_window(msgspec.structs.replace(record(), window_s=2.0, server_c0_s=2.6, statements=rows))
    assert [(use.text, use.percent, use.account) for use in window.statements] == [
        ("SELECT * FROM orders", 25.0, "app@localhost")
    ]
    assert (window.percent, window.own_percent) == (130.0, 100.0)


def measured(*stacks: SampledStack) -> dict[str, float | None]:
    modules = {
        "LLVMBuildCall2": "/usr/lib/libLLVM-14.so.1",
        "llvm_compile_expr": "/usr/lib/postgresql/15/lib/llvmjit.so",
    }
    return measure_work(statement("SELECT 1", stacks=list(stacks)), modules)


def test_work_of_a_statement_is_a_share_of_its_samples() -> None:
    scan = SampledStack(["main", "ExecScan", "heap_getnextslot", "memcpy"], 90)
    rest = SampledStack(["main", "index_getnext_slot"], 10)
    assert measured(scan, rest) == {"scan_percent": 90.0, "jit_percent": 0.0, "sort_percent": 0.0}
    assert measured() == dict.fromkeys(("scan_percent", "jit_percent", "sort_percent"))
    compiled = [SampledStack(["main", frame], 30) for frame in ("LLVMBuildCall2", "llvm_compile_expr")]
    assert measured(*compiled, SampledStack(["main", "tuplesort_performsort"], 40)) == {
        "scan_percent": 0.0,
        "jit_percent": 60.0,
        "sort_percent": 40.0,
    }
    # Five samples are enough for a share, also with the suffix of a clone or an argument list.
    for count, percent in ((4, None), (5, 20.0)):
        few = [SampledStack(["main", "heapgettup.constprop.0"], 1), SampledStack(["main", "SeqNextX(int)"], count - 1)]
        assert measured(*few)["scan_percent"] == percent


@pytest.mark.parametrize(
    ("before", "percent", "contradicts"),
    [
        (None, 90.0, False),
        (1.0, 4.0, False),  # 3 points
        (1.0, 4.1, True),
        (4.1, 1.0, True),
        (20.0, 40.0, False),  # half of the larger
        (19.9, 40.0, True),
        (100.0, 0.0, True),
    ],
)
def test_windows_contradict_by_points_and_by_share(before: float | None, percent: float, contradicts: bool) -> None:
    assert is_contradiction(before, percent) is contradicts


def test_costly_statements_without_enough_stacks_are_listed_as_unknown() -> None:
    uses = [
        StatementCpu(text=normalise(text), percent=percent, scan_percent=scan_percent)
        for text, percent, scan_percent in (
            ("SELECT * FROM orders WHERE note = 5", 0.3, None),
            ("SELECT * FROM customers", 0.3, 10.0),
            ("SELECT * FROM pg_stat_database", 0.3, None),
            ("SELECT 1", 0.1, None),
        )
    ]
    window = StatementWindow(window_s=2.0, method="probes", percent=1.0, statements=uses)
    assert [use.text for use in list_unknown_scans(window)] == [uses[0].text]
    coverage = list_coverage(evidence(family="postgresql", asked=False, statement_window=window, starts_span_s=2.0))
    assert "scans of whole tables by 1 costly statement (too few stacks)" in coverage.not_visible


def test_short_windows_are_joined() -> None:
    """Windows of `watch` have at least the length of those of `diagnose`; shares and rates are those of all."""

    def window(seconds: float, percent: float, calls_hz: float | None, method: str = "probes") -> StatementWindow:
        use = StatementCpu(text=normalise("SELECT 1"), percent=percent, calls_hz=calls_hz, account=None)
        other = StatementCpu(text=normalise(f"SELECT {calls_hz} FROM t"), percent=1.0, calls_hz=1.0, account="a@b")
        uses = [use, other] if percent > 0 else [other]
        return StatementWindow(window_s=seconds, method=method, percent=percent + 1.0, statements=uses)

    assert join_windows([]) is None
    assert join_windows([window(0.5, 1.0, 2.0)] * 3) is None
    assert join_windows([window(5.0, 1.0, 2.0), window(1.0, 1.0, 2.0)]) is not None
    assert join_windows([window(1.0, 1.0, 2.0, "samples"), window(1.0, 1.0, 2.0)]) is None
    assert join_windows([window(9.0, 50.0, 99.0), window(2.0, 1.0, 2.0)]) == window(2.0, 1.0, 2.0)
    joined = join_windows(
        [window(9.0, 50.0, 99.0), window(1.0, 4.0, 8.0), window(1.0, 0.0, None), window(2.0, 1.0, 1.0)]
    )
    assert joined == window(2.0, 1.0, 1.0)
    joined = join_windows([window(1.5, 4.0, 8.0), window(0.5, 0.0, None)])
    assert joined is not None
    assert (joined.window_s, joined.percent) == (2.0, pytest.approx(4.0))
    first = joined.statements[0]
    assert (first.percent, first.calls_hz) == (pytest.approx(3.0), pytest.approx(6.0))
    assert sum(use.percent for use in joined.statements) == pytest.approx(joined.percent)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 90.0), st.one_of(st.none(), st.floats(0.0, 50.0))),
        min_size=1,
        max_size=5,
    )
)
def test_a_joined_window_has_the_seconds_and_calls_of_its_parts(parts: list[tuple[float, float, float | None]]) -> None:
    text = normalise("SELECT 1")
    windows = [
        StatementWindow(
            window_s=seconds,
            method="probes",
            percent=percent + 5.0,
            own_percent=percent / 2,
            statements=[StatementCpu(text=text, percent=percent, calls_hz=hertz, account="a@b")],
        )
        for seconds, percent, hertz in parts
    ]
    used: list[tuple[float, float, float | None]] = []
    for part in reversed(parts):
        if sum(seconds for seconds, _, _ in used) < WINDOW_S:
            used.append(part)
    whole_s = sum(seconds for seconds, _, _ in used)
    joined = join_windows(windows)
    if whole_s < WINDOW_S:
        assert joined is None
        return
    assert joined is not None
    assert joined.window_s == pytest.approx(whole_s)
    assert joined.percent * whole_s == pytest.approx(sum(seconds * (percent + 5) for seconds, percent, _ in used))
    assert joined.own_percent * whole_s == pytest.approx(sum(seconds * percent / 2 for seconds, percent, _ in used))
    (use,) = joined.statements
    assert use.percent * whole_s == pytest.approx(sum(seconds * percent for seconds, percent, _ in used))
    known = [seconds * hertz for seconds, _, hertz in used if hertz is not None]
    assert (use.calls_hz is None) == (not known)
    assert (use.calls_hz or 0.0) * whole_s == pytest.approx(sum(known))


@pytest.mark.parametrize(
    ("percent", "server", "costly"),
    [(0.2, 1.0, True), (0.19, 1.0, False), (0.2, 2.0, True), (0.4, 4.1, False), (0.42, 4.1, True), (None, 1.0, False)],
)
def test_work_is_costly_from_a_tenth_of_the_server_and_a_fifth_of_a_percent(
    percent: float | None, server: float, costly: bool
) -> None:
    window = StatementWindow(window_s=2.0, method="probes", percent=server)
    assert is_costly(percent, evidence(statement_window=window, cpu_percent=99.0)) is costly
    assert is_costly(percent, evidence(cpu_percent=server)) is costly


def test_a_share_is_of_the_server_and_of_one_cpu() -> None:
    def shown(percent: float, server: float | None) -> str:
        return describe_share(percent, evidence(cpu_percent=server))

    assert shown(0.7, 2.6) == "27 % of this server's CPU time (0.7 % of one CPU)"
    assert shown(42.4, 40.0) == "100 % of this server's CPU time (42 % of one CPU)"
    assert shown(9.96, None) == shown(9.96, 0.0) == "10.0 % of one CPU"
    use = StatementCpu(text=normalise("COMMIT"), percent=0.5, calls_hz=2.25, account="a@b")
    assert describe_use(use, evidence(cpu_percent=2.0)).startswith("COMMIT 2.2 times/s, a@b: 25 % of this")


@pytest.mark.parametrize(
    ("before", "percents", "durations_s", "found"),
    [
        (50.0, [45.0], [WINDOW_S], 45.0),
        (50.0, [1.0, 30.0], [WINDOW_S, 8.0], 30.0),
        (1.0, [60.0, 2.0], [WINDOW_S, 8.0], 2.0),
        (None, [60.0], [WINDOW_S], 60.0),
    ],
)
def test_windows_that_disagree_are_followed_by_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, before: float | None, percents: list[float], durations_s: list[float], found: float
) -> None:
    asked: list[float] = []

    def measure(request: QueriesRequest, server: TracedServer, say: object) -> tuple[Queries, None]:
        percent = percents[len(asked)]
        asked.append(request.duration_s)
        used_s = request.duration_s * percent / 100
        return msgspec.structs.replace(record(), window_s=request.duration_s, server_c0_s=used_s, statements=[]), None

    monkeypatch.setattr("powerprof.queries.session.measure", measure)
    window = measure_statements(TracedServer(7, "mariadbd", None, None), before, 8.0, lambda line: None)
    assert asked == durations_s
    assert window.percent == pytest.approx(found)
