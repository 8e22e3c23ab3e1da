# SPDX-License-Identifier: Apache-2.0
"""Periodic threads of any program: their settings, and the predicted effect of timer slack."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.diagnosis.diagnose import diagnose, list_coverage
from powerprof.diagnosis.evidence import Evidence, ThreadWakeups
from powerprof.diagnosis.thread_pace import (
    PERIODIC,
    TRIED_NS,
    PaceSetting,
    PeriodicThread,
    SlackPrediction,
    format_prediction,
    list_polling_remedies,
    list_settings,
    predict_slack,
    rank_by_saving,
    reacts_to_slack,
    sum_woken_hz,
)
from tests.unit.diagnosis.examples import evidence, faults

_SETTINGS = [(periodic, setting) for periodic in PERIODIC for setting in periodic.settings]
_SPELLINGS = {"ON": ("ON", "1"), "OFF": ("OFF", "0"), "0": ("0", "0.000000"), "1": ("1",)}


@pytest.mark.parametrize(("periodic", "setting"), _SETTINGS, ids=lambda value: getattr(value, "name", ""))
def test_setting_in_force_is_not_recommended(periodic: PeriodicThread, setting: PaceSetting) -> None:
    for now in _SPELLINGS.get(setting.value, ("500",)):
        here = evidence(variables={setting.name: now, "port": "3306"})
        assert f"{setting.name}={setting.value}" not in list_settings(periodic, here)
        if setting.value:
            assert f"{setting.name}={now} is already set" in list_polling_remedies(periodic, here, "20 times/s")
        else:
            assert list_settings(periodic, here) == [f"a longer {setting.name}, which is 500 {setting.unit}"]


@pytest.mark.parametrize(("periodic", "setting"), _SETTINGS, ids=lambda value: getattr(value, "name", ""))
def test_setting_unknown_to_the_release_is_not_recommended(periodic: PeriodicThread, setting: PaceSetting) -> None:
    lines = list_polling_remedies(periodic, evidence(variables={"port": "3306"}), "20 times/s")
    assert not any(setting.name in line for line in lines)
    assert lines[-1].startswith("to report this to MariaDB (jira.mariadb.org), send: version MariaDB")


EPOLL = ("epoll_wait", "redis-server+0x64da0", "aeMain", "main")


def timer(comm: str, hertz: float, stack: tuple[str, ...] = EPOLL, **more: Any) -> ThreadWakeups:
    given: dict[str, Any] = {"tid": 7, "name": None, "origin": "own_timer", "period_ms": 1e3 / hertz, **more}
    return ThreadWakeups(comm=comm, rate_hz=hertz, wakings_hz=hertz, stack=list(stack), **given)


def program(name: str, *rows: ThreadWakeups, **more: Any) -> Evidence:
    return evidence(version=name, family=name, asked=False, pid=4711, traced_s=5.0, wakeups=list(rows), **more)


def predict(rows: list[ThreadWakeups], *arguments: Any, **options: Any) -> SlackPrediction:
    prediction = predict_slack(rows, *arguments, **options)
    assert prediction is not None
    return prediction


@pytest.mark.parametrize(
    ("now", "advice"),
    [
        ("10", ", which is 10 ms: ALTER SYSTEM SET bgwriter_delay TO '200ms'; SELECT pg_catalog.pg_reload_conf()"),
        ("200", ", which is 200 ms"),
        (None, ""),
    ],
)
def test_a_short_delay_of_postgresql_has_the_statement_of_its_default(now: str | None, advice: str) -> None:
    writer = next(periodic for periodic in PERIODIC if periodic.name == "background writer")
    here = evidence(variables={} if now is None else {"bgwriter_delay": now})
    assert list_settings(writer, here) == [f"a longer bgwriter_delay{advice}"]


def test_redis_is_reported_with_its_setting() -> None:
    (fault,) = faults(program("redis-server", timer("redis-server", 9.9)))
    assert fault.text == (
        "The thread redis-server, which runs periodic maintenance (serverCron), wakes by its own timer every 101 ms "
        "(9.9 times/s)."
    )
    assert fault.remedy[0].startswith("hz=1 in redis.conf, or CONFIG SET hz")
    assert fault.remedy[-1] == "to try it live: powerprof cure --pid 4711 --thread 7 --slack 50ms"
    assert "its wait times out regularly, every 101 ms, without an event" in fault.evidence


def test_timers_of_any_program_are_judged() -> None:
    (fault,) = faults(program("thing", timer("worker", 50.0, ("clock_nanosleep", "loop"))))
    assert fault.text.startswith("The thread worker (7) wakes by its own timer every 20 ms (50 times/s)")
    (deaf,) = faults(program("thing", timer("worker", 50.0, ("timerfd_read", "read", "loop"))))
    assert deaf.remedy[0] == "timer slack does not change how long it waits"
    (go,) = faults(program("thing", timer("worker", 50.0), language="Go"))
    assert go.remedy[0].startswith("it is a program of Go: timer slack would delay")
    assert "its settings, clients and statements" in " ".join(list_coverage(program("thing")).not_examined)


@pytest.mark.parametrize(
    ("function", "reacts"),
    [
        ("poll", True),
        ("__poll", True),
        ("epoll_wait@@GLIBC_2.3.2", True),
        ("pthread_cond_timedwait", True),
        ("___pthread_cond_clockwait64", True),
        ("clock_nanosleep", True),
        ("timerfd_read", False),
        ("io_getevents", True),
        ("pollution", None),
        ("mysqld+0x1234", None),
    ],
)
def test_reaction_to_slack_depends_on_the_function(function: str, reacts: bool | None) -> None:
    assert reacts_to_slack([function, "main"]) is reacts


@pytest.mark.parametrize(
    ("slack_ms", "measured"), [(1, 89.5), (5, 70.0), (10, 52.0), (20, 39.0), (50, 18.5), (100, 10.0), (1000, 1.0)]
)
@pytest.mark.parametrize("others_hz", [50.0, 100.0, 1600.0])
def test_prediction_is_within_a_fifth_of_the_measurement(slack_ms: int, measured: float, others_hz: float) -> None:
    """The log_files_governor of MySQL 9.7 waits by the monotonic clock. Busy hosts had 16.8 wake-ups/s at 50 ms."""
    row = timer("ib_log_files_g", 97.0, ("pthread_cond_timedwait",))
    one = predict([row], slack_ms * 1_000_000, others_hz, wall_clock=False)
    assert one.then_hz == pytest.approx(measured, rel=0.2)
    assert not one.is_bound


def test_wait_by_the_wall_clock_ends_with_the_first_interrupt() -> None:
    row = timer("a", 50.0, ("pthread_cond_timedwait",))
    alone = predict([row], 50_000_000, 0.0, wall_clock=True)
    crowded = predict([row], 50_000_000, 1000.0, wall_clock=True)
    unknown = predict([row], 50_000_000, 1000.0)
    assert alone.then_hz == pytest.approx(1 / 0.06995, rel=0.01)
    assert crowded.then_hz == pytest.approx(1 / 0.02095, rel=0.01)
    assert not crowded.is_bound
    assert unknown.is_bound
    assert unknown.then_hz < crowded.then_hz
    # A poll waits by the monotonic clock, also if the thread waits for locks by the wall clock.
    polls = predict([timer("a", 50.0, ("poll",))], 50_000_000, 1000.0, wall_clock=True)
    assert polls.then_hz == pytest.approx(1 / 0.06995, rel=0.01)


def test_single_timers_of_others_end_a_sleep_early() -> None:
    """A poll of 1 ms with a slack of 200 ms woke 20 to 35 times/s next to programs that run alternately."""
    one = predict([timer("a", 942.0, ("poll",))], 200_000_000, 30.0)
    assert one.then_hz == pytest.approx(5.0, rel=0.05)
    assert one.most_hz == pytest.approx(1 / (0.001 + (1 - math.exp(-6)) / 30), rel=0.02)
    assert format_prediction(one.then_hz, one.most_hz, one.is_bound) == "5.0 to 29.2"
    alone = predict([timer("a", 942.0, ("poll",))], 200_000_000, 0.0)
    assert alone.most_hz == pytest.approx(alone.then_hz)
    assert format_prediction(alone.then_hz, alone.most_hz, alone.is_bound) == "5.0"


def cut_short(sleep_s: float, rest_hz: float) -> float:
    """Return the wake-ups per second of a thread with sleeps of this length that random events shorten."""
    generator = random.Random(1)
    sleeps = [min(sleep_s, generator.expovariate(rest_hz)) for _ in range(50_000)]
    return len(sleeps) / sum(sleeps)


@pytest.mark.parametrize(("slack_ms", "measured"), [(50, 27.4), (1000, 3.5)])
def test_work_after_a_sleep_becomes_rarer_with_the_sleeps(slack_ms: int, measured: float) -> None:
    """The ib_clone_gtid thread of MySQL 9.7 with 31 commits per second wakes, writes and waits for the disk."""
    rows = [
        timer("ib_clone_gtid", 9.25, ("pthread_cond_timedwait", "wait_time_low")),
        timer("ib_clone_gtid", 26.5, ("fdatasync", "os_file_flush_func"), origin="device"),
        timer("ib_clone_gtid", 2.5, ("pthread_cond_wait", "log_write_up_to"), origin="other_thread"),
    ]
    one = predict(rows, slack_ms * 1_000_000, 1600.0, wall_clock=False)
    assert one.then_hz == pytest.approx(measured, rel=0.1)
    assert one.is_bound


@pytest.mark.parametrize("rest_hz", [1.0, 30.0, 200.0])
def test_other_wakers_shorten_the_sleeps(rest_hz: float) -> None:
    """Sleeps of 20 ms become sleeps of 70 ms."""
    generator = random.Random(2)
    timers, others, slept_s = 0, 0, 0.0
    for _ in range(50_000):
        comes_s = generator.expovariate(rest_hz)
        timers, others = timers + (comes_s > 0.02), others + (comes_s <= 0.02)
        slept_s += min(comes_s, 0.02)
    rows = [
        timer("a", timers / slept_s, ("poll",), period_ms=None),
        timer("a", others / slept_s, ("poll",), origin="other_thread"),
    ]
    one = predict(rows, 50_000_000, 0.0)
    assert one.then_hz == pytest.approx(cut_short(0.07, rest_hz), rel=0.03)


def test_waits_without_reaction_save_nothing() -> None:
    assert predict_slack([timer("a", 50.0, ("timerfd_read",))], 50_000_000, 0.0) is None
    assert predict_slack([timer("a", 50.0, origin="device")], 50_000_000, 0.0) is None
    rows = [timer("a", 50.0, ("poll",)), timer("a", 8.0, ("recv",), origin="device")]
    one = predict(rows, 50_000_000, 0.0)
    assert one.now_hz == 58.0
    assert one.then_hz == pytest.approx(58 / 50 / 0.06995, rel=0.01)
    assert one.is_bound
    irregular = predict([timer("a", 50.0, ("poll",), period_ms=None)], 50_000_000, 0.0)
    assert irregular.is_bound


def test_largest_saving_is_reported_with_its_command() -> None:
    here = program("thing", timer("a", 50.0, ("poll",)), timer("b", 20.0, ("poll",), tid=8))
    assert [row.comm for row, _ in rank_by_saving(here)] == ["a", "b"]
    (note,) = [one for one in diagnose(here) if one.rule == "most_helpful"]
    assert note.text == "Most helpful change: 50 ms of timer slack, up to 46 times/s less in all (predicted)."
    assert note.evidence == ["a (7): 50.0 → 14.3/s", "b (8): 20.0 → 10.0/s"]
    assert note.remedy[0] == "powerprof cure --pid 4711 --thread 7 --slack 50ms"
    assert [
        one for one in diagnose(program("x", timer("a", 50.0), language="Java")) if one.rule == "most_helpful"
    ] == []


def test_ticks_end_a_wait_by_the_wall_clock_and_no_other_one() -> None:
    """Interrupts of 200 per second end a sleep after 5 ms on average, timers of others of 25 per second after 29 ms."""
    row = timer("a", 50.0, ("pthread_cond_timedwait",))
    few = -math.expm1(-25 * 0.05) / 25
    ticks = -math.expm1(-200 * 0.05) / 200
    now_s = 50e-6
    wall = predict([row], 50_000_000, 25.0, wall_clock=True, interrupts_hz=200.0)
    assert wall.then_hz == wall.most_hz == pytest.approx(1 / (0.02 + ticks - now_s), rel=1e-3)
    monotonic = predict([row], 50_000_000, 25.0, wall_clock=False, interrupts_hz=200.0)
    assert monotonic.then_hz == pytest.approx(1 / (0.02 + 0.05 - now_s), rel=1e-6)
    assert monotonic.most_hz == pytest.approx(1 / (0.02 + few - now_s), rel=1e-3)


def test_the_present_slack_is_part_of_the_present_sleep() -> None:
    one = predict([timer("a", 50.0, ("poll",))], 50_000_000, 0.0, now_slack_ns=30_000_000)
    assert (one.now_hz, one.then_hz, one.slack_ns) == (50.0, pytest.approx(25.0), 50_000_000)
    assert one.saved_hz == pytest.approx(25.0)
    same = predict([timer("a", 50.0, ("poll",))], 50_000_000, 70.0, now_slack_ns=50_000_000)
    assert (same.then_hz, same.most_hz, same.saved_hz) == (pytest.approx(50.0), pytest.approx(50.0), pytest.approx(0.0))


def test_timers_of_others_are_those_of_one_cpu_without_the_thread() -> None:
    """The thread's 40 timers per second are on 4 CPUs: 10 of the 90 of one CPU."""
    rows = [timer("a", 40.0, ("poll",)), timer("b", 6.0, ("poll",), tid=8), timer("c", 50.0, ("poll",), tid=0)]
    here = program("thing", *rows, timers_hz=90.0, cpus=4)
    ranked = {row.comm: prediction for row, prediction in rank_by_saving(here)}
    assert set(ranked) == {"a", "b"}
    assert ranked["a"] == predict_slack(rows[:1], TRIED_NS, 80.0)
    assert ranked["b"] == predict_slack(rows[1:2], TRIED_NS, 88.5)
    unknown = rank_by_saving(program("thing", rows[0]))
    assert unknown[0][1] == predict_slack(rows[:1], TRIED_NS, 0.0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.0, 90.0), st.one_of(st.none(), st.floats(0.0, 90.0))), max_size=7
    )
)
def test_rows_of_one_stack_share_one_count_of_wakings(rows: list[tuple[str, float, float | None]]) -> None:
    made = [
        ThreadWakeups(
            tid=7,
            comm="x",
            name=None,
            origin="own_timer",
            rate_hz=rate_hz,
            wakings_hz=wakings_hz,
            period_ms=None,
            stack=[stack],
        )
        for stack, rate_hz, wakings_hz in rows
    ]
    expected = 0.0
    for stack in {stack for stack, _, _ in rows}:
        same = [(rate_hz, wakings_hz or 0.0) for name, rate_hz, wakings_hz in rows if name == stack]
        expected += max(sum(rate_hz for rate_hz, _ in same), max(wakings_hz for _, wakings_hz in same))
    assert sum_woken_hz(made) == pytest.approx(expected)


@given(st.floats(0.5, 500.0), st.floats(0.0, 300.0), st.floats(0.0, 500.0), st.integers(50_000, 10**9))
def test_more_slack_never_adds_wakeups_and_the_range_is_ordered(
    hertz: float, others_hz: float, device_hz: float, slack_ns: int
) -> None:
    rows = [timer("a", hertz, ("poll",)), timer("a", device_hz + 0.01, ("recv",), origin="device")]
    one = predict(rows, slack_ns, others_hz)
    assert one.now_hz == pytest.approx(hertz + device_hz + 0.01)
    assert 0 < one.then_hz <= one.most_hz * (1 + 1e-9) <= one.now_hz * (1 + 2e-9)
    assert one.saved_hz == pytest.approx(one.now_hz - one.then_hz)
