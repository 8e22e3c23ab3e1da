# SPDX-License-Identifier: Apache-2.0
"""Two windows of statements: changes and unknown figures."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

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


SAME = [of(f"same{at}", each_ms) for at, each_ms in enumerate((1.0, 1.01, 0.99, 1.005, 0.995))]


def test_each_statement_is_what_it_became() -> None:
    before = window(of("slow", 1.0), of("quick", 1.0), of("old", 0.5), of("rare", 1.0, 3), of("noisy", 1.0, 5), *SAME)
    after = window(
        of("slow", 1.5), of("quick", 0.5), of("added", 0.5), of("rare", 9.0, 3), of("noisy", 1.1, 5, 0.3),
        *(msgspec.structs.replace(one, c0_ms_per_call=1.0) for one in SAME),
    )  # fmt: skip
    found = changed(before, after)
    assert {text: one.became for text, one in found.items()} == {
        "slow": "more expensive",
        "quick": "cheaper",
        "old": "gone",
        "added": "new",
        "rare": "unknown",
        "noisy": "inconclusive",
        **{one.text: "unchanged" for one in SAME},
    }
    slow = found["slow"]
    assert (slow.ratio, slow.change_percent_of_cpu) == (1.5, pytest.approx(10.0))
    assert slow.low is not None and slow.high is not None
    # The log ratios of the eight compared statements; the median is 0.
    ratios = (1.5, 0.5, 1.1, 1.0, 1 / 1.01, 1 / 0.99, 1 / 1.005, 1 / 0.995)
    logs = [math.log(ratio) for ratio in ratios]
    errors = [0.1 * math.hypot(1.0, 1 / (ratio if ratio in (1.5, 0.5) else 1.0)) / 20 for ratio in ratios]
    errors[2] = math.hypot(0.1, 0.3 / 1.1) / math.sqrt(5)
    middle = statistics.median(logs)
    # Without the two that deviate most, the sixth one has the largest deviation beyond its own error.
    beyond = sorted(math.sqrt(max((log - middle) ** 2 - own**2, 0.0)) for log, own in zip(logs, errors, strict=True))
    deviation = 1.4826 * statistics.median(abs(log - middle) for log in logs)
    deviation = max(deviation, beyond[5] / stats.norm.ppf(0.5 + 0.5 * 5.625 / 8.25))
    error = math.hypot(deviation, 0.1 * math.hypot(1 / 1.0, 1 / 1.5) / 20)
    assert math.log(slow.high / slow.low) == pytest.approx(2 * stats.t.ppf(0.975, 0.6 * 7) * error, rel=1e-3)
    assert (found["rare"].ratio, found["rare"].low) == (9.0, None)
    assert (found["added"].a, found["old"].b) == (None, None)


@pytest.mark.parametrize("scatter", ["none", "normal", "uneven"])
@pytest.mark.parametrize("count", [3, 5, 8, 20, 40])
def test_an_unchanged_server_has_no_changed_statement(scatter: str, count: int) -> None:
    """Levels scatter between the windows by more than the calls show, and all change with the host."""
    chance, wrong = random.Random(f"{scatter}{count}"), 0
    for _ in range(100):
        sizes = [0.05 * math.exp(chance.gauss(0, 0.5)) if scatter == "uneven" else 0.05 for _ in range(count)]
        pair = []
        for _ in "ab":
            host = math.exp(chance.gauss(0, 0.2))
            levels = [0.0 if scatter == "none" else chance.gauss(0, size) for size in sizes]
            pair.append(
                window(
                    *(
                        of(f"s{at}", host * math.exp(level) * (1 + chance.gauss(0, 0.5) / 20), 400, 0.5)
                        for at, level in enumerate(levels)
                    )
                )
            )
        wrong += any(one.became in ("more expensive", "cheaper") for one in changed(*pair).values())
    assert wrong <= WRONG_AT_MOST[scatter]


@pytest.mark.parametrize(("share", "most"), [(0.3, 0.06), (0.45, 0.06), (0.04, 0.25)])
def test_one_disturbed_window_makes_few_false_verdicts(share: float, most: float) -> None:
    """Twelve windows; in one of them a part of the statements costs 1.5 times as much.

    All writes (0.3): 19 % of comparisons had a false verdict by the median deviation alone. One statement of 27 differs
    in 11 of the 66 comparisons of its window, and no two windows can show which one was disturbed.
    """
    chance, wrong, total = random.Random(f"{share}"), 0, 0
    for _ in range(6):
        sizes = [0.03 * math.exp(chance.gauss(0, 0.5)) for _ in range(27)]
        windows = []
        for number in range(12):
            shift = [0.4 if number == 5 and at < round(share * 27) else 0.0 for at in range(27)]
            levels = [chance.gauss(0, size) + more for size, more in zip(sizes, shift, strict=True)]
            windows.append(window(*(of(f"s{at}", math.exp(level), 400, 0.2) for at, level in enumerate(levels))))
        for a, b in itertools.combinations(windows, 2):
            wrong += any(one.became in ("more expensive", "cheaper") for one in changed(a, b).values())
            total += 1
    assert wrong / total <= most, wrong / total


@pytest.mark.parametrize(
    ("count", "factor", "least"), [(8, 1.65, 0.7), (8, 2.7, 0.95), (27, 1.65, 0.95), (4, 2.7, 0.6)]
)
def test_one_changed_statement_is_found_as_often_as_stated(count: int, factor: float, least: float) -> None:
    chance, seen = random.Random(f"{count} {factor}"), 0
    for _ in range(60):
        sizes = [0.03 * math.exp(chance.gauss(0, 0.5)) for _ in range(count)]
        pair = [
            window(
                *(
                    of(f"s{at}", math.exp(chance.gauss(0, size)) * (factor if side and not at else 1.0), 400, 0.2)
                    for at, size in enumerate(sizes)
                )
            )
            for side in (0, 1)
        ]
        seen += changed(*pair)["s0"].became == "more expensive"
    assert seen / 60 >= least, seen / 60


# Of 100 comparisons.
WRONG_AT_MOST = {"none": 2, "normal": 2, "uneven": 10}


@pytest.mark.parametrize("common", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("count", [3, 4, 8, 27])
def test_a_large_change_of_one_statement_is_found_beside_a_common_change(count: int, common: float) -> None:
    chance = random.Random(count)
    levels = [math.exp(chance.gauss(0, 0.02)) for _ in range(count)]
    before = window(*(of(f"s{at}", 1.0) for at in range(count)), of("s", 1.0))
    after = window(
        *(of(f"s{at}", common * level) for at, level in enumerate(levels)), of("s", common / 300, 400, 0.1 / 300)
    )
    found = changed(before, after)
    assert found["s"].became == "cheaper"
    assert all(one.became in ("unchanged", "inconclusive") for text, one in found.items() if text != "s")


@pytest.mark.parametrize("count", [1, 2])
def test_few_statements_do_not_show_the_scatter_between_windows(count: int) -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(count)))
    after = window(*(of(f"s{at}", 9.0) for at in range(count)), of("rare", 1.0, 3))
    compared = compare_queries(before, after, "")
    assert compared.common_ratio is None
    assert {(one.became, one.low) for one in compared.statements if one.a} == {("unknown", None)}
    assert "scatter_unknown" in {note.name for note in compared.notes if isinstance(note, Note)}
    assert lines_of(word_record(compared), 400)[0].startswith("Inconclusive")


def test_samples_have_the_ratio_of_their_shares() -> None:
    def sampled(text: str, percent: float) -> Statement:
        return Statement(
            text=text, c0_s=percent / 100, c0_percent=percent, low_percent=0.95 * percent, high_percent=1.05 * percent
        )

    before = [sampled("s", 40.0), *(sampled(f"o{at}", 10.0) for at in range(5))]
    after = [sampled("s", 120.0), *(sampled(f"o{at}", 10.0 + at / 10) for at in range(5))]
    found = changed(window(*before, method="samples"), window(*after, method="samples"))
    assert (found["s"].ratio, found["s"].became) == (pytest.approx(3.0), "more expensive")


def test_a_host_that_is_busier_is_said_and_kinds_of_servers_are_not_mixed() -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(5)))
    after = window(*(of(f"s{at}", 1.3) for at in range(5)))
    compared = word_record(compare_queries(before, after, "2026-01-01T00:00:00.000Z"))
    assert compared.common_ratio == pytest.approx(1.3)
    assert lines_of(compared, 400)[0].startswith("The CPU time per call of all statements changed by × 1.30")
    assert len(select_changes(compared, "unchanged")) == 5
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
    assert (one.ratio, one.became) == (1.5, "unknown")
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
    "inconclusive": "inconclusive",
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
        """Compare it with seven statements of one ratio, which is the median: the deviation of the median is 0."""
        others = [of(f"o{at}", 1.0) for at in range(7)]
        one = changed(window(a, *others), window(b, *others))["s"]
        usual = stats.t.ppf(0.975, 0.6 * (7 if one.low is not None else 6))
        return None if one.low is None or one.high is None else math.log(one.high / one.low) / 2 / usual

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


def test_the_scatter_is_that_of_statements_with_an_error() -> None:
    """Statements with few calls have a ratio, but it does not count for the median."""
    few = [of(f"few{at}", 1.0, 3) for at in range(9)]
    after = [of(f"few{at}", 9.0, 3) for at in range(9)]
    compared = compare_queries(window(*SAME, *few), window(*SAME, *after), "")
    assert compared.common_ratio == pytest.approx(1.0)
    assert compared.notes == [Note("windows_apart")]


@pytest.mark.parametrize(("others", "became"), [(9, "more expensive"), (199, "inconclusive")])
def test_the_more_statements_both_windows_have_the_larger_a_change_must_be(others: int, became: str) -> None:
    """A change of 7 standard errors is enough for one of ten statements and not for one of 200."""
    same = [of(f"o{at}", 1.0) for at in range(others)]
    error = 0.5 / 20
    ratio = math.exp(7.0 * error * math.sqrt(2))
    before, after = window(of("s", 1.0, 400, 0.5), *same), window(of("s", ratio, 400, 0.5 * ratio), *same)
    freedom = min(0.6 * others, 6)
    apart = stats.t.ppf(1 - 0.025 / (others + 1), freedom) < 7.0
    assert changed(before, after)["s"].became == ("more expensive" if apart else "inconclusive") == became


def test_a_statement_that_began_before_a_window_is_the_same_one() -> None:
    before, after = window(of("s", 1.0, began_before_count=1), of("t", 1.0)), window(of("t", 1.0), of("s", 1.0))
    assert {text: change.became for text, change in changed(before, after).items()} == {"s": "unknown", "t": "unknown"}


@pytest.mark.parametrize(("ratio", "common"), [(1.3, True), (1 / 1.3, True), (1.09, False), (1 / 1.09, False)])
def test_a_common_change_is_the_first_sentence_in_both_directions(ratio: float, common: bool) -> None:
    before = window(*(of(f"s{at}", 1.0) for at in range(3)))
    after = window(*(of(f"s{at}", ratio) for at in range(3)))
    compared = compare_queries(before, after, "")
    assert compared.common_ratio == pytest.approx(ratio)
    assert ("the host or the server changed" in lines_of(word_record(compared), 400)[0]) is common


def test_windows_that_differ_are_noted() -> None:
    def names(a: Queries, b: Queries) -> dict[str, dict[str, object]]:
        return {note.name: dict(note.values) for note in compare_queries(a, b, "").notes if isinstance(note, Note)}

    plain = window(of("s", 1.0))
    server = QueryServer(pid=10, label="mysqld", version=None)
    assert set(names(plain, plain)) == {"windows_apart", "scatter_unknown"}
    assert names(plain, window(of("s", 1.0), server=server))["servers_differ"] == {"a": "MySQL 8.0.40", "b": "?"}
    assert names(plain, window(of("s", 1.0), method="samples"))["methods_differ"] == {"a": "probes", "b": "samples"}
    assert "spread_unknown" in names(plain, window(of("s", 1.0, 3, None)))
    assert "spread_unknown" not in names(plain, window(of("s", 1.0, 3, None), method="samples"))
