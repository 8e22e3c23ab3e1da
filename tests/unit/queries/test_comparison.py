# SPDX-License-Identifier: Apache-2.0
"""Two windows of statements: changes and unknown figures."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.model.records import Note
from powerprof.queries.comparison import StatementChange, compare_queries, select_changes
from powerprof.queries.records import Latency, Queries, QueryServer, Statement
from powerprof.report.kinds import lines_of
from powerprof.report.wording import word_record
from powerprof.system.errors import UsageError
from tests.unit.queries.test_report import record


def window(*statements: Statement, **changes: object) -> Queries:
    return msgspec.structs.replace(record(), statements=list(statements), **changes)


def of(text: str, each_ms: float, calls: int = 400, deviation: float | None = 0.1, **more: Any) -> Statement:
    return Statement(
        text=text,
        id=text[-6:],
        c0_s=each_ms * calls / 1e3,
        calls_count=calls,
        calls_hz=calls / 2,
        c0_ms_per_call=each_ms,
        c0_ms_deviation=deviation,
        **more,
    )


def changed(a: Queries, b: Queries) -> dict[str, StatementChange]:
    return {one.text: one for one in compare_queries(a, b, "2026-01-01T00:00:00.000Z").statements}


def test_each_statement_is_what_it_became() -> None:
    before = window(of("slow", 1.0), of("same", 1.0), of("quick", 1.0), of("old", 0.5), of("rare", 1.0, 3))
    after = window(of("slow", 1.5), of("same", 1.001), of("quick", 0.5), of("added", 0.5), of("rare", 9.0, 3))
    found = changed(before, after)
    assert {text: one.became for text, one in found.items()} == {
        "slow": "more expensive",
        "same": "unchanged",
        "quick": "cheaper",
        "old": "gone",
        "added": "new",
        "rare": "unknown",
    }
    slow = found["slow"]
    assert (slow.ratio, slow.change_percent_of_cpu) == (1.5, pytest.approx(10.0))
    error = 0.1 * math.hypot(1 / 1.0, 1 / 1.5) / 20
    assert slow.low is not None
    assert slow.high is not None
    assert math.log(slow.high / slow.low) == pytest.approx(2 * 1.96 * error, rel=1e-3)
    assert (found["rare"].ratio, found["rare"].low) == (9.0, None)
    assert (found["added"].a, found["old"].b) == (None, None)


def test_of_statements_that_did_not_change_few_are_said_to_have() -> None:
    """40 in each of 100 comparisons: of all comparisons at most one in twenty says so of any, but for chance."""
    chance, wrong = random.Random(7), 0
    for _ in range(100):
        pair = []
        for _ in range(2):
            pair.append(window(*(of(f"s{at}", 1 + chance.gauss(0, 0.5) / 20, 400, 0.5) for at in range(40))))
        wrong += any(one.became not in ("unchanged",) for one in changed(*pair).values())
    assert wrong <= 11


def test_samples_have_the_ratio_of_their_shares() -> None:
    one = Statement(text="s", c0_s=0.4, c0_percent=40.0, low_percent=36.0, high_percent=44.0)
    other = msgspec.structs.replace(one, c0_s=0.8, c0_percent=80.0, low_percent=76.0, high_percent=84.0)
    found = changed(window(one, method="samples"), window(other, method="samples"))["s"]
    assert (found.ratio, found.became) == (2.0, "more expensive")


def test_a_host_that_is_busier_is_said_and_kinds_of_servers_are_not_mixed() -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(5)))
    after = window(*(of(f"s{at}", 1.3) for at in range(5)))
    compared = word_record(compare_queries(before, after, "2026-01-01T00:00:00.000Z"))
    assert compared.common_ratio == pytest.approx(1.3)
    assert "the host or the server changed, not one statement" in " ".join(lines_of(compared, 400))
    assert len(select_changes(compared, "more expensive")) == 5
    other = window(of("s", 1.0), server=QueryServer(pid=1, label="postgres", family="postgresql"))
    with pytest.raises(UsageError, match="two kinds of servers"):
        compare_queries(before, other, "")


def test_each_side_has_its_rates_by_its_own_window() -> None:
    a = window(of("s", 1.0, latency_ms=Latency(p50=0.5, p95=1.5), joules_per_call=0.25), window_s=2.0, server_c0_s=1.2)
    b = window(of("s", 1.5, calls=700), window_s=5.0, server_c0_s=2.0, calls_count=None, id="queries-0002")
    compared = compare_queries(a, b, "2026-01-01T00:00:00.000Z")
    assert (compared.a.percent_of_cpu, compared.a.calls_hz, compared.a.window_s) == (60.0, 208.5, 2.0)
    assert (compared.b.percent_of_cpu, compared.b.calls_hz, compared.b.window_s) == (40.0, None, 5.0)
    assert (compared.a.name, compared.b.name, compared.b.server) == ("", "queries-0002", "mysqld (10)")
    (one,) = compared.statements
    assert one.a is not None and one.b is not None
    assert (one.a.percent_of_cpu, one.b.percent_of_cpu) == (pytest.approx(20.0), pytest.approx(21.0))
    assert one.change_percent_of_cpu == pytest.approx(1.0)
    assert (one.a.c0_ms_per_call, one.a.latency_p95_ms, one.a.joules_per_call) == (1.0, 1.5, 0.25)
    assert (one.b.c0_ms_per_call, one.b.latency_p95_ms, one.b.joules_per_call) == (1.5, None, None)
    with pytest.raises(UsageError, match="without a window"):
        compare_queries(a, window(window_s=0.0), "")


COSTS = st.floats(0.05, 50.0)
SPREADS = st.one_of(st.none(), st.floats(0.01, 30.0))
OPPOSITE = {
    "more expensive": "cheaper",
    "cheaper": "more expensive",
    "new": "gone",
    "gone": "new",
    "unchanged": "unchanged",
    "unknown": "unknown",
}


@given(
    st.lists(st.tuples(COSTS, st.integers(1, 900), SPREADS, st.sampled_from("abcdef")), max_size=5),
    st.lists(st.tuples(COSTS, st.integers(1, 900), SPREADS, st.sampled_from("abcdef")), max_size=5),
    st.floats(0.5, 20.0),
    st.floats(0.5, 20.0),
)
def test_swapping_the_windows_inverts_each_change(
    first: list[tuple[float, int, float | None, str]],
    second: list[tuple[float, int, float | None, str]],
    first_s: float,
    second_s: float,
) -> None:
    a, b = (
        window(*{text: of(text, *figures) for *figures, text in rows}.values(), window_s=seconds)  # type: ignore[misc]
        for rows, seconds in ((first, first_s), (second, second_s))
    )
    forth, back = changed(a, b), changed(b, a)
    assert set(forth) == set(back)
    for text, one in forth.items():
        other = back[text]
        assert other.change_percent_of_cpu == pytest.approx(-one.change_percent_of_cpu)
        assert other.became == OPPOSITE[one.became]
        assert (one.a, one.b) == (other.b, other.a)
        assert (one.ratio is None) == (one.a is None or one.b is None)
        assert (one.low is None) == (one.high is None) == (one.became in ("unknown", "new", "gone"))
        if one.ratio is not None:
            assert other.ratio == pytest.approx(1 / one.ratio)
        if one.low is not None and one.high is not None and one.ratio is not None:
            assert one.low <= one.ratio <= one.high
            assert (other.low, other.high) == (pytest.approx(1 / one.high), pytest.approx(1 / one.low))


def test_the_error_of_a_ratio_is_that_of_both_sides() -> None:
    """The relative error of a mean is its deviation by the root of the finished calls."""

    def spread(a: Statement, b: Statement) -> float | None:
        one = changed(window(a), window(b))["s"]
        return None if one.low is None or one.high is None else math.log(one.high / one.low) / 2 / 1.959964

    wide, narrow = of("s", 2.0, 100, 0.8), of("s", 3.0, 900, 0.3)
    expected = math.hypot(0.8 / 2.0 / 10, 0.3 / 3.0 / 30)
    assert spread(wide, narrow) == pytest.approx(expected)
    assert spread(narrow, wide) == pytest.approx(expected)
    unfinished = of("s", 2.0, 119, 0.8, unfinished_count=19)
    assert spread(unfinished, narrow) == pytest.approx(expected)
    # Five finished calls are enough for an error, and both sides need one.
    assert spread(of("s", 2.0, 5, 0.8), narrow) is not None
    for few in (of("s", 2.0, 4, 0.8), of("s", 2.0, 9, 0.8, unfinished_count=5), of("s", 2.0, 100, None)):
        assert spread(few, narrow) is spread(narrow, few) is None
    sampled = [
        Statement(text="s", c0_s=c0_s, c0_percent=percent, low_percent=percent - 3, high_percent=percent + 5)
        for c0_s, percent in ((0.4, 40.0), (0.9, 64.0))
    ]
    both = math.hypot(8 / 2 / 1.96 / 40, 8 / 2 / 1.96 / 64)
    assert spread(*sampled) == pytest.approx(both, rel=1e-4)
    idle = msgspec.structs.replace(sampled[0], c0_s=0.0)
    assert changed(window(idle), window(sampled[1]))["s"].ratio is None


@pytest.mark.parametrize(
    ("others", "gone", "became"), [(0, 9, "more expensive"), (1, 0, "unchanged"), (9, 0, "unchanged")]
)
def test_the_more_statements_both_windows_have_the_larger_a_change_must_be(others: int, gone: int, became: str) -> None:
    """A change of 2 standard errors is one in twenty; of two statements it has to be 2.24. New ones do not count."""
    ratio = math.exp(2.05 * 0.5 * math.sqrt(2) / 20)
    same, lost = [of(f"o{at}", 1.0) for at in range(others)], [of(f"g{at}", 1.0) for at in range(gone)]
    before = window(of("s", 1.0, 400, 0.5), *same, *lost)
    after = window(of("s", ratio, 400, 0.5 * ratio), *same)
    assert changed(before, after)["s"].became == became


def test_statements_that_began_before_a_window_are_not_compared() -> None:
    before = window(of("s", 1.0, began_before=True), of("t", 1.0))
    assert set(changed(before, window(of("t", 1.0)))) == {"t"}


@pytest.mark.parametrize(("ratio", "noted"), [(1.3, True), (1 / 1.3, True), (1.09, False), (1 / 1.09, False)])
def test_a_common_change_is_noted_in_both_directions(ratio: float, noted: bool) -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(3)))
    after = window(*(of(f"s{at}", ratio) for at in range(3)))
    compared = compare_queries(before, after, "")
    assert compared.common_ratio == pytest.approx(ratio)
    notes = {note.name: note.values for note in compared.notes if isinstance(note, Note)}
    assert ("all_changed" in notes) is noted
    if noted:
        assert notes["all_changed"] == {"ratio": pytest.approx(ratio), "count": 3}
    alone = compare_queries(window(of("s", 1.0)), window(of("s", 9.0)), "")
    assert "all_changed" not in {note.name for note in alone.notes if isinstance(note, Note)}


def test_windows_that_differ_are_noted() -> None:
    def names(a: Queries, b: Queries) -> dict[str, dict[str, object]]:
        return {note.name: dict(note.values) for note in compare_queries(a, b, "").notes if isinstance(note, Note)}

    plain = window(of("s", 1.0))
    server = QueryServer(pid=10, label="mysqld", version=None)
    assert set(names(plain, plain)) == {"windows_apart"}
    assert names(plain, window(of("s", 1.0), server=server))["servers_differ"] == {"a": "MySQL 8.0.40", "b": "?"}
    assert names(plain, window(of("s", 1.0), method="samples"))["methods_differ"] == {"a": "probes", "b": "samples"}
    assert "spread_unknown" in names(plain, window(of("s", 1.0, 3, None)))
    assert "spread_unknown" not in names(plain, window(of("s", 1.0, 3, None), method="samples"))
