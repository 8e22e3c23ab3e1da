# SPDX-License-Identifier: Apache-2.0
"""Timer slack in words."""

from __future__ import annotations

import pytest

from powerprof.cure.remedies import parse_slack
from powerprof.cure.slack import slack_text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(1_500_000_000, "1.5s"), (2_500_000, "2.5ms"), (7_300, "7.3us"), (12, "12ns"), (0, "0ns"), (999_999, "999.999us")],
)
def test_slack_is_printed_in_its_largest_unit(nanoseconds: int, text: str) -> None:
    assert slack_text(nanoseconds) == text
    assert nanoseconds == 0 or parse_slack(text) == nanoseconds
