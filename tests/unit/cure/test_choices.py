# SPDX-License-Identifier: Apache-2.0
"""What may be chosen to be tried, and what is refused before anything is looked at."""

from __future__ import annotations

import pytest

from powerprof.cure.candidates import of_findings, of_threads
from powerprof.cure.choices import SlackChoice, VariableChoice, choice_of, slack_ns
from powerprof.cure.remedies import slack_text
from powerprof.diagnosis.evidence import ThreadWakeups
from powerprof.diagnosis.findings import Finding
from powerprof.errors import UsageError
from powerprof.reversible.journal import same_value


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("50ms", 50_000_000), ("1s", 1_000_000_000), ("0.5 ms", 500_000), ("50us", 50_000), ("50µs", 50_000), ("1ns", 1)],
)
def test_slack_is_a_number_with_its_unit(text: str, nanoseconds: int) -> None:
    assert slack_ns(text) == nanoseconds
    assert slack_ns(slack_text(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "50", "ms", "-1ms", "1e3ms", "nanms", "infs", "٣ms", "1min", "0ms", "0.1ns", "10.1s", "9" * 400 + "s"]
)
def test_what_is_no_slack_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        slack_ns(text)


def test_one_remedy_is_chosen_or_none() -> None:
    assert choice_of(None, None, None) is None
    assert choice_of("a", "1ms", None) == SlackChoice("a", 1_000_000)
    assert choice_of(None, None, "sync_binlog=0") == VariableChoice("sync_binlog", "0")
    assert choice_of(None, None, "init_connect=") == VariableChoice("init_connect", "")


@pytest.mark.parametrize(
    ("thread", "slack", "variable"),
    [
        ("a", None, None),
        (None, "1ms", None),
        ("a", None, "b=1"),
        ("a", "1ms", "b=1"),
        (" ", "1ms", None),
        ("a\n", "1ms", None),
        ("a" * 200, "1ms", None),
        (None, None, "b"),
        (None, None, "=1"),
        (None, None, "b c=1"),
        (None, None, "b, GLOBAL c=1"),
        (None, None, "b=1\x1b[31m"),
        (None, None, "b=" + "1" * 600),
    ],
)
def test_choices_that_make_no_sense(thread: str | None, slack: str | None, variable: str | None) -> None:
    with pytest.raises(UsageError):
        choice_of(thread, slack, variable)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "ON", True),
        ("0", "off", True),
        ("0.500000", "0.5", True),
        ("ROW", "row", True),
        ("7", "8", False),
        ("", "0", False),
        ("ON", "2", False),
    ],
)
def test_two_ways_to_write_a_value(one: str, other: str, same: bool) -> None:
    assert same_value(one, other) is same


def test_variables_that_a_finding_sets_are_candidates() -> None:
    finding = Finding(
        rule="x",
        severity="fault",
        text="It polls.",
        evidence=[],
        remedy=["SET GLOBAL innodb_a = 7 (until the restart)", "or SET GLOBAL b='x y'; then wait", "KILL 7"],
    )
    assert [one.options for one in of_findings(3, [finding])] == ["--set innodb_a=7", "--set 'b=x y'"]


def test_threads_that_wake_often_by_their_own_timers_are_candidates() -> None:
    def row(tid: int, origin: str, rate_hz: float, wakings_hz: float | None = None) -> ThreadWakeups:
        return ThreadWakeups(
            tid=tid, comm=f"t{tid}", name=None, origin=origin, rate_hz=rate_hz, wakings_hz=wakings_hz,
            period_ms=None, stack=[], waker=None,
        )  # fmt: skip

    rows = [row(1, "own_timer", 1.0), row(2, "own_timer", 3.0), row(3, "device", 99.0), row(4, "own_timer", 0.0, 90.0)]
    assert [one.options for one in of_threads(9, rows)] == ["--thread 4 --slack 50ms", "--thread 2 --slack 50ms"]
