# SPDX-License-Identifier: Apache-2.0
"""The words of the rules: rates, durations, stacks and terms of replication."""

from __future__ import annotations

import pytest

from powerprof.diagnosis.wording import format_event_rate, format_rate, format_seconds, has_replica_terms, select_stack
from tests.unit.diagnosis.examples import row


@pytest.mark.parametrize(
    ("hertz", "text"),
    [(320.4, "320"), (20.0, "20"), (19.94, "19.9"), (1.0, "1.0"), (0.994, "0.99"), (0.066, "0.07"), (0.0, "0.00")],
)
def test_a_rate_has_the_right_digits(hertz: float, text: str) -> None:
    assert format_rate(hertz) == f"{text} times/s"
    assert format_event_rate(hertz, "idle periods") == f"{text} idle periods/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.34, "0.3 s"), (9.94, "9.9 s"), (10.0, "10 s"), (119.4, "119 s"), (120.0, "2 min"), (600.0, "10 min")],
)
def test_a_duration_has_the_right_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_the_stack_is_that_of_most_wakings_then_of_most_exits() -> None:
    rows = [
        row("x", 90.0, wakings_hz=4.0, stack=["often_idle(THD*)"]),
        row("x", 1.0, wakings_hz=50.0, stack=["woken(THD*, bool)", "(anonymous)"]),
        row("x", 99.0, wakings_hz=200.0),
    ]
    assert select_stack(rows) == ["woken", "(anonymous)"]
    uncounted = [row("x", rate_hz, wakings_hz=None, stack=[f"f{rate_hz:.0f}"]) for rate_hz in (3.0, 8.0, 5.0)]
    assert select_stack(uncounted) == ["f8"]
    assert select_stack([row("x", 5.0)]) == []


@pytest.mark.parametrize(
    ("version", "is_new"),
    [
        ("MySQL 8.0.22", False),
        ("MySQL 8.0.23", True),
        ("MySQL 8.4.0", True),
        ("MySQL 5.7.44", False),
        ("MariaDB 11.8.2", False),
    ],
)
def test_new_terms_begin_with_8_0_23(version: str, is_new: bool) -> None:
    assert has_replica_terms(version) is is_new
