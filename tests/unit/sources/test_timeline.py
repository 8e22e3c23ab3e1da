"""The sampler's grid of deadlines, its gaps, and recorded timelines played back."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from powerprof.errors import DataError, PowerprofError
from powerprof.sources.base import Column
from powerprof.sources.cpuidle import CpuidleReader
from powerprof.sources.replay import read_replay, timeline_csv
from powerprof.sources.series import CpuidleSource, ProcessSource, StatSource
from powerprof.timeline import Gap, Sampler
from tests.unit.sources.fake_cpu import C1, C6, POLL, FakeCpus, fake_stat


class FakeClock:
    """Time that passes only in sleep; `late` and `asleep` say how much more passes in which sleep."""

    def __init__(self, late: dict[int, float] | None = None, asleep: dict[int, float] | None = None) -> None:
        self.time_s, self.slept, self.suspended = 1000.0, 0, 0.0
        self.late, self.asleep = late or {}, asleep or {}

    def now_s(self) -> float:
        return self.time_s

    def suspended_s(self) -> float:
        return self.suspended

    def sleep_until(self, when_s: float, stop: threading.Event | None) -> bool:
        self.slept += 1
        self.time_s = max(self.time_s, when_s) + self.late.get(self.slept, 0.0)
        self.suspended += self.asleep.get(self.slept, 0.0)
        return False


class Ramp:
    """A counter that grows by 10 a reading, and breaks after `breaks` of them."""

    name = "ramp"
    columns: Sequence[Column] = (Column("count", True), Column("level_watts"))

    def __init__(self, breaks: int = 10**6) -> None:
        self.reads, self.breaks = 0, breaks

    def read(self) -> list[float]:
        self.reads += 1
        if self.reads > self.breaks:
            raise PowerprofError("cannot read the ramp (gone)")
        return [self.reads * 10.0, math.nan if self.reads == 2 else 5.0]


def test_samples_lie_on_the_grid_and_counters_become_rates() -> None:
    timeline = Sampler([Ramp()], 0.5, FakeClock()).run(2.0)
    assert timeline.time_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert timeline.rate("ramp.count").tolist() == [20.0] * 4
    assert timeline.cumulative == {"ramp.count"}
    assert np.isnan(timeline.columns["ramp.level_watts"]).tolist() == [False, True, False, False, False]
    assert timeline.gaps == ()


def test_more_samples_than_were_allocated() -> None:
    timeline = Sampler([Ramp()], 1.0, FakeClock()).run(1000.0)
    assert timeline.columns["ramp.count"][-1] == 10010.0
    assert len(timeline.time_s) == 1001


def test_missed_deadlines_are_a_gap_and_the_grid_stays() -> None:
    """The second sleep ends 2.3 periods late: two deadlines are missed, the next sample is on the grid again."""
    timeline = Sampler([Ramp()], 1.0, FakeClock(late={2: 2.3})).run(7.0)
    assert timeline.time_s.tolist() == pytest.approx([0.0, 1.0, 4.3, 5.0, 6.0, 7.0])
    assert timeline.gaps == (Gap(1.0, pytest.approx(4.3), "late", 2),)
    assert timeline.rate("ramp.count")[1] == pytest.approx(10 / 3.3)


def test_a_suspend_is_a_gap_that_monotonic_time_does_not_show() -> None:
    timeline = Sampler([Ramp()], 1.0, FakeClock(asleep={3: 3600.0})).run(5.0)
    assert timeline.gaps == (Gap(2.0, 3.0, "suspended", 3600),)
    assert len(timeline.time_s) == 6


def test_a_source_that_fails_is_unknown_from_then_on() -> None:
    timeline = Sampler([Ramp(breaks=2)], 1.0, FakeClock()).run(4.0)
    assert timeline.columns["ramp.count"].tolist()[:2] == [10.0, 20.0]
    assert np.isnan(timeline.columns["ramp.count"][2:]).all()
    assert timeline.notes == ("ramp stopped: cannot read the ramp (gone)",)


def test_stop_ends_it() -> None:
    stop = threading.Event()
    threading.Timer(0.06, stop.set).start()
    timeline = Sampler([Ramp()], 0.02).run(None, stop)
    assert 1 <= len(timeline.time_s) <= 5


def test_the_hosts_sources(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6], [POLL, C1]])
    cpus.add(0, 1, us=10, usage=1)
    cpus.add(1, 1, us=5, usage=2)
    cpus.add(0, 2, us=100, usage=4)
    fake_stat(tmp_path / "proc", [(50, 100), (0, 200)])
    idle, stat = CpuidleSource(CpuidleReader(tmp_path)), StatSource(tmp_path / "proc")
    timeline = Sampler([idle, stat, ProcessSource({"self": [os.getpid()]})], 1.0, FakeClock()).run(0.0)
    assert {name: values[0] for name, values in timeline.columns.items() if not name.startswith("processes")} == {
        "cpuidle.POLL_us": 0.0,
        "cpuidle.POLL_entries_count": 0.0,
        "cpuidle.C1_us": 15.0,
        "cpuidle.C1_entries_count": 3.0,
        "cpuidle.C6_us": 100.0,
        "cpuidle.C6_entries_count": 4.0,
        "procfs.user_s": 0.5,
        "procfs.system_s": 0.0,
        "procfs.irq_s": 0.0,
        "procfs.steal_s": 0.0,
        "procfs.idle_s": 3.0,
        "procfs.interrupts_count": 10.0,
        "procfs.context_switches_count": 20.0,
    }
    assert timeline.columns["processes.self_cpu_s"][0] > 0.0


def test_a_timeline_played_back_is_the_same(tmp_path: Path) -> None:
    recorded = Sampler([Ramp()], 0.5, FakeClock(late={3: 1.7})).run(5.0)
    path = tmp_path / "timeline.csv"
    path.write_text(timeline_csv(recorded))
    replay = read_replay(path)
    played = Sampler([replay], 0.5, replay).run(None)
    assert timeline_csv(played) == timeline_csv(recorded)
    assert [gap.missed_count for gap in played.gaps] == [gap.missed_count for gap in recorded.gaps] == [3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a timeline"),
        ("a,b\n1,2\n", "not a timeline"),
        ("time_s\n1\n", "not a timeline"),
        ("time_s,a,a\n1,2,3\n", ":1: a column is there twice"),
        ("time_s,a\n", "no samples in it"),
        ("time_s,a\n0,1\n1\n", ":3: 1 figures under 2 columns"),
        ("time_s,a\n0,1\n0,1\n", ":3: time does not go forward"),
        ("time_s,a\n,1\n", ":2: time does not go forward"),
        ("time_s,a\n0,x\n", ":2: not a figure"),
        ("time_s,a\n0,inf\n", ":2: not a figure"),
    ],
)
def test_damaged_timelines_are_refused_with_their_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "timeline.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        read_replay(path)
