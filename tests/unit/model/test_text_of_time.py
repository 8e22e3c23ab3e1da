# SPDX-License-Identifier: Apache-2.0
"""How long something takes."""

from __future__ import annotations

import pytest

from powerprof.model.text import approximate_time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "10 s"), (31, "40 s"), (89.9, "90 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_a_time_is_round(seconds: float, text: str) -> None:
    assert approximate_time(seconds) == f"about {text}"
