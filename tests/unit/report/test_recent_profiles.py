# SPDX-License-Identifier: Apache-2.0
"""Tests for the last intervals of the exporter as pprof."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import msgspec
import pytest

from powerprof.live.intervals import LiveInterval
from powerprof.report.recent_profiles import PROFILES, RecentProfiles
from tests.unit.live.intervals import interval, row
from tests.unit.report.test_pprof import decoded, fields


def at(second: int, one: LiveInterval) -> LiveInterval:
    stamp = f"2026-11-22T08:{second // 60:02}:{second % 60:02}.500Z"
    return msgspec.structs.replace(one, ended_at=stamp)


def of_recent(profiles: RecentProfiles, name: str, seconds: float = 0) -> dict[tuple[str, ...], int]:
    """Return the values of a profile by stack, innermost first."""
    data = profiles.render(name, seconds)
    assert data is not None
    types, samples = decoded(data)
    assert types == [PROFILES[name]]
    return {frames: value for frames, (value,) in samples}


def test_profiles_of_an_interval_add_up_to_the_host() -> None:
    deep = msgspec.structs.replace(row("poll", 3, 0.5), stack=("poll", "wait_for_data", "handle_connection"))
    profiles = RecentProfiles()
    assert profiles.render("wakeups", 0) is None
    profiles.add(at(10, interval(deep, row("page_cleaner", 2, 0.25), untraced=4, c0_s=1.5)))
    exits, c0_ns = of_recent(profiles, "wakeups"), of_recent(profiles, "c0")
    key = deep.key
    stack = ("poll", "wait_for_data", "handle_connection", key.thread, key.process)
    kernel = ("page_cleaner", "page_cleaner", "mariadbd")
    assert exits == {stack: 3, kernel: 2, ("other",): 4}
    assert c0_ns == {stack: 5 * 10**8, kernel: 25 * 10**7, ("other",): 75 * 10**7}
    data = profiles.render("wakeups", 0)
    assert data is not None
    times = {field: value for field, value in fields(gzip.decompress(data)) if field in (9, 10)}
    begun_ns = round(datetime(2026, 11, 22, 8, 0, 0, 500_000, tzinfo=UTC).timestamp() * 1e9)
    assert times == {9: begun_ns, 10: 10 * 10**9}


# Alloy requests one second less than its scrape interval, Parca the scrape interval. Intervals are not exact.
@pytest.mark.parametrize(
    ("seconds", "count"), [(0, 1), (9, 1), (10, 1), (14.9, 1), (19, 2), (20, 2), (29, 3), (30, 3), (59, 6), (10**9, 6)]
)
def test_seconds_are_rounded_to_whole_intervals(seconds: float, count: int) -> None:
    profiles = RecentProfiles()
    for exits in range(1, 7):
        profiles.add(at(10 * exits, interval(row("poll", exits), window_s=9.98 if exits % 2 else 10.02)))
    newest = sum(range(7 - count, 7))
    assert sum(of_recent(profiles, "wakeups", seconds).values()) == newest


def test_recent_profiles_are_bounded() -> None:
    """The time, the stacks and the profiles. Stacks beyond the limit are summed, the cheapest first."""
    profiles = RecentProfiles(kept_s=40.0, most_stacks=11)
    for exits in range(1, 10):
        profiles.add(at(10 * exits, interval(row("poll", exits))))
    assert sum(of_recent(profiles, "wakeups", 1000).values()) == 9 + 8 + 7 + 6
    profiles.add(at(100, interval(*(row(f"f{cost}", cost) for cost in range(1, 9)))))
    assert sum(of_recent(profiles, "wakeups", 1000).values()) == 36 + 9
    profiles.add(at(110, interval(*(row(f"f{cost}", cost) for cost in range(1, 31)))))
    exits = of_recent(profiles, "wakeups", 1000)
    assert (len(exits), exits["f30", "page_cleaner", "mariadbd"], exits[("other",)]) == (11, 30, 210)
    assert sum(exits.values()) == sum(range(1, 31))


def test_a_profile_is_made_once_per_interval() -> None:
    profiles = RecentProfiles()
    profiles.add(at(10, interval(row("poll", 1))))
    first = profiles.render("wakeups", 5)
    assert profiles.render("wakeups", 14) is first
    assert profiles.render("c0", 14) != first
    profiles.add(at(20, interval(row("poll", 1))))
    assert profiles.render("wakeups", 5) != first
