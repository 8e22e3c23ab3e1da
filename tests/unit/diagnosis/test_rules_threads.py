# SPDX-License-Identifier: Apache-2.0
"""The rules on threads of the server: polling waits, scheduled events and CPU time."""

from __future__ import annotations

import msgspec
import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import LiveRemedy, ScheduledEvent, ThreadCpu
from powerprof.diagnosis.rules_threads import (
    describe_cpu_time,
    describe_internal_wakeups,
    describe_periodic_threads,
    describe_replication_threads,
    find_event_cpu,
    find_event_scheduler,
    find_polling_waits,
    predict_most_helpful,
)
from tests.unit.diagnosis.examples import client, counted, evidence, faults, read_recorded, row

CLEANER = "thread/innodb/page_cleaner_thread"


def test_timer_on_busy_cpus_still_polls() -> None:
    (fault,) = faults(evidence(wakeups=[row(CLEANER, 0.0, wakings_hz=40.0)]))
    assert fault.rate_hz == 40.0
    assert fault.evidence == ["it ended no idle period: other programs kept the CPUs busy"]


def polling_remedies(name: str) -> dict[str, list[str]]:
    """Return the remedies of the polling threads of a recorded server by the text of the finding."""
    return {one.text: one.remedy for one in diagnose(read_recorded(name)) if one.rule == "polling_wait"}


def test_governor_of_an_idle_9_7_has_no_setting() -> None:
    remedies = polling_remedies("mysql-9.7.4-idle")
    governor = next(lines for text, lines in remedies.items() if "innodb/log_files_governor_thread" in text)
    assert governor[0] == "no known setting stops it"
    assert governor[1].startswith("to report this to MySQL (bugs.mysql.com), send: version MySQL 9.7.4; 97 times/s")
    assert not any("innodb_log_writer_threads" in line for lines in remedies.values() for line in lines)


def test_named_setting_ends_the_log_writer_threads_of_9_7() -> None:
    """One server was recorded before and after the remedy: the governor is the only remaining log thread."""
    before, after = polling_remedies("mysql-9.7.4-log-writer-threads-on"), polling_remedies("mysql-9.7.4-idle")
    (writers,) = before.keys() - after.keys() - {text for text in before if "governor" in text or "GTID" in text}
    assert writers.startswith("4 threads (innodb/log_")
    assert "together" in writers
    assert before[writers][:-1] == ["innodb_log_writer_threads=OFF on a server with few commits (it is ON)"]
    assert before[writers][-1].startswith("to try it live: powerprof cure --thread ")
    assert not any("log_writer" in text or "log_flusher" in text for text in after)


def test_eight_io_threads_share_one_fault_with_their_settings() -> None:
    rows = [row("thread/innodb/io_read_thread", 2.0, tid=number) for number in range(4)]
    rows += [row("thread/innodb/io_write_thread", 2.0, tid=number) for number in range(4, 8)]
    variables = {"innodb_use_native_aio": "ON", "innodb_read_io_threads": "4", "innodb_write_io_threads": "4"}
    (fault,) = faults(evidence(wakeups=rows, variables=variables))
    assert fault.text.startswith("8 threads (innodb/io_read_thread, innodb/io_write_thread)")
    assert fault.rate_hz == pytest.approx(16.0)
    assert fault.remedy == [
        "innodb_read_io_threads=1 after a restart (it is 4)",
        "innodb_write_io_threads=1 after a restart (it is 4)",
    ]
    assert faults(evidence(wakeups=rows[:3])) == []


def test_event_name_is_quoted_in_statements() -> None:
    name = "x` ENABLE; DROP DATABASE shop; -- \x1b[2J"
    event = ScheduledEvent(name="shop.x", interval_s=1.0, enabled=True, database="shop", event=name)
    (finding,) = find_event_scheduler(evidence(events=[event], variables={"event_scheduler": "ON"}, pid=4711))
    assert finding.tries == [LiveRemedy(variable="event_scheduler", value="OFF")]
    assert "ALTER EVENT `shop`.`x`` ENABLE; DROP DATABASE shop; -- ?[2J` ON SCHEDULE" in finding.remedy[0]
    assert finding.remedy[-1] == "to try it live: powerprof cure --pid 4711 --finding event_scheduler"


def event(last: str) -> ScheduledEvent:
    return ScheduledEvent(name="d.burn", interval_s=60.0, enabled=True, last_executed=last)


def test_running_event_is_known_by_its_worker() -> None:
    worker = ThreadCpu(tid=9, comm="ib_ev", name="thread/sql/event_worker", percent=99.0)
    (fault,) = faults(evidence(events=[event("10:00:00")], cpu_percent=99.5, threads_cpu=[worker]))
    assert fault.text == "The event d.burn uses 99 % of a CPU."


@pytest.mark.parametrize(
    ("threads", "each_hz", "found"), [(3, 9.9, 0), (4, 2.4, 0), (4, 2.5, 1), (1, 9.9, 0), (1, 10.0, 1)]
)
def test_four_slow_threads_of_one_kind_poll_as_one_fast_thread(threads: int, each_hz: float, found: int) -> None:
    rows = [row("thread/innodb/io_read_thread", each_hz, tid=number) for number in range(1, threads + 1)]
    findings = find_polling_waits(evidence(wakeups=rows))
    assert [one.rate_hz for one in findings] == [pytest.approx(threads * each_hz)] * found
    notes = describe_periodic_threads(evidence(wakeups=rows))
    assert [one.rate_hz for one in notes] == [each_hz] * (0 if found else threads)


@pytest.mark.parametrize(("questions", "rate_hz"), [(159, 40.0), (160, 12.0)])
def test_on_a_busy_server_idle_exits_alone_count(questions: int, rate_hz: float) -> None:
    """20 statements per second in 8 s."""
    here = evidence(wakeups=[row(CLEANER, 12.0, wakings_hz=40.0)], window_s=8.0, **counted(Questions=questions))
    (fault,) = find_polling_waits(here)
    assert fault.rate_hz == rate_hz
    assert fault.evidence[0] == "12.0 idle periods/s ended by its own timers"


def test_a_wait_that_times_out_has_its_pace() -> None:
    regular = row("x", 40.0, stack=["poll", "loop"], period_ms=25.0)
    irregular = row("x", 20.0, stack=["poll", "other"], period_ms=None)
    (fault,) = find_polling_waits(evidence(wakeups=[irregular, regular]))
    assert fault.evidence[1] == "its wait times out regularly, every 25 ms, without an event"
    assert "every 25 ms (60 times/s)" in fault.text
    (fault,) = find_polling_waits(evidence(wakeups=[irregular]))
    assert fault.evidence[1] == "its wait times out irregularly, without an event"
    busy = row("x", 0.5, stack=["poll"], wakings_hz=33.0)
    (fault,) = find_polling_waits(evidence(wakeups=[busy]))
    assert fault.evidence[1] == "its wait times out 33 times/s, without an event"


@pytest.mark.parametrize(("interval_s", "severity"), [(4.0, "fault"), (4.1, "note")])
def test_the_rate_of_events_is_that_of_all_enabled_ones(interval_s: float, severity: str) -> None:
    events = [
        ScheduledEvent(name="d.slow", interval_s=interval_s, enabled=True),
        ScheduledEvent(name="d.fast", interval_s=4.0, enabled=True),
        ScheduledEvent(name="d.off", interval_s=0.5, enabled=False),
        ScheduledEvent(name="d.odd", interval_s=0.0, enabled=True),
    ]
    (finding,) = find_event_scheduler(evidence(events=events, variables={"event_scheduler": "1"}))
    assert (finding.severity, finding.rate_hz) == (severity, pytest.approx(1 / 4 + 1 / interval_s))
    assert finding.text.endswith("every 4 s, and 1 more.")
    assert finding.tries == [LiveRemedy(variable="event_scheduler", value="OFF")]
    assert find_event_scheduler(evidence(events=events, variables={"event_scheduler": "OFF"})) == []


def test_the_time_of_events_is_that_of_their_workers_once() -> None:
    """Thread 9 is a worker by its name and in the list of processes; thread 12 is a worker by the list alone."""
    threads = [
        ThreadCpu(tid=9, comm="ib_ev", name="thread/sql/event_worker", percent=12.5),
        ThreadCpu(tid=12, comm="mariadbd", name=None, percent=3.25),
        ThreadCpu(tid=13, comm="mariadbd", name=None, percent=40.0),
    ]
    running = [client(1, "Connect", tid=9), client(2, "Daemon", tid=12), client(3, "Query", tid=13)]
    running.append(client(4, "Daemon", tid=13, user="event_scheduler"))
    here = evidence(
        events=[event("10:00:00")],
        events_after=[event("10:00:00")],
        clients_before=running,
        threads_cpu=threads,
        cpu_percent=60.0,
        ended_cpu_percent=7.0,
        variables={"event_scheduler": "ON"},
    )
    (fault,) = find_event_cpu(here)
    assert fault.evidence[0] == "threads of events: 16 % of a CPU, of 60.0 % for the whole server"
    # Without the scheduler the list of processes shows no workers.
    (fault,) = find_event_cpu(msgspec.structs.replace(here, variables={"event_scheduler": "OFF"}))
    assert fault.evidence[0].startswith("threads of events: 12 % of a CPU")


@pytest.mark.parametrize(
    ("last", "percent", "connections", "found"),
    [
        ("10:01:00", 3.0, 0, 1),
        ("10:01:00", 2.9, 0, 0),
        ("10:00:00", 42.0, 0, 0),  # it did not start
        (None, 42.0, 0, 0),
        ("10:01:00", 42.0, 4, 1),
        ("10:01:00", 42.0, 5, 0),
    ],
)
def test_ended_threads_are_those_of_events_that_started(
    last: str | None, percent: float, connections: int, found: int
) -> None:
    """One event of 60 s in a window of 8 s uses at most 4 numbers of connections."""
    before = event("10:00:00")
    after = msgspec.structs.replace(before, last_executed=last)
    counts = counted(Connections=connections)
    result = find_event_cpu(
        evidence(events=[before], events_after=[after], ended_cpu_percent=percent, window_s=8.0, **counts)
    )
    assert [one.rate_hz for one in result] == [pytest.approx(1 / 60)] * found
    # An event that was created in the window has no earlier start.
    new = msgspec.structs.replace(after, name="d.new", last_executed="10:01:00")
    assert find_event_cpu(evidence(events=[], events_after=[new], ended_cpu_percent=42.0)) == []


def test_cpu_time_is_noted_from_a_tenth_of_a_cpu_with_its_threads() -> None:
    threads = [
        ThreadCpu(tid=7, comm="mariadbd", name="thread/sql/main", percent=8.25),
        ThreadCpu(tid=8, comm="ib_io", name=None, percent=1.0),
        ThreadCpu(tid=9, comm="x", name=None, percent=0.9),
    ]
    (note,) = describe_cpu_time(evidence(cpu_percent=12.5, threads_cpu=threads, ended_cpu_percent=2.25))
    assert note.evidence == ["sql/main (7): 8.2 %", "ib_io (8): 1.0 %", "threads that ended during the window: 2.2 %"]
    assert describe_cpu_time(evidence(cpu_percent=9.9)) == describe_cpu_time(evidence()) == []


def test_wakers_and_roles_have_the_sums_of_their_rows() -> None:
    rows = [
        row("thread/sql/b", 4.0, origin="other_thread", waker="thread/sql/a", wakings_hz=9.0),
        row("thread/sql/b", 6.5, origin="other_thread", waker="thread/sql/a", wakings_hz=None, tid=8),
        row("thread/sql/c", 2.0, origin="other_thread", waker="thread/sql/a", wakings_hz=1.0),
        row("thread/sql/c", 90.0, origin="other_process", waker="cron"),
        row("thread/sql/slave_io", 3.5),
        row("thread/sql/slave_io", 1.25, origin="device"),
        row("thread/sql/slave_sql", 0.0, wakings_hz=50.0),
    ]
    (note,) = describe_internal_wakeups(evidence(wakeups=rows))
    assert note.rate_hz == 17.5
    assert note.evidence == ["sql/a wakes sql/b 15.5 times/s", "sql/a wakes sql/c 2.0 times/s"]
    (role,) = describe_replication_threads(evidence(wakeups=rows))
    assert (role.rate_hz, role.evidence) == (4.75, ["it ended 4.8 idle periods/s"])
    assert describe_internal_wakeups(evidence(wakeups=rows[:1])) == []


def test_the_most_helpful_change_saves_two_wakeups_per_second_in_all() -> None:
    rows = [
        row(f"t{hertz}", hertz, tid=number, stack=["poll"], period_ms=1e3 / hertz)
        for number, hertz in ((1, 20.0), (2, 4.0), (3, 8.0))
    ]
    (note,) = predict_most_helpful(evidence(wakeups=rows))
    # With 49.95 ms more, 50 ms become 99.95 ms, and 125 ms become 174.95 ms. 4 per second would save 0.7.
    saved = (20 - 1 / 0.09995) + (8 - 1 / 0.17495)
    assert note.rate_hz == pytest.approx(saved, rel=1e-3)
    assert note.evidence == ["t20.0: 20.0 → 10.0/s", "t8.0: 8.0 → 5.7/s"]
    assert [one.tid for one in note.tries] == [1, 3]
    assert {one.slack_ns for one in note.tries} == {50_000_000}
    assert predict_most_helpful(evidence(wakeups=rows, **counted(Questions=200))) == []


@pytest.mark.parametrize(
    ("name", "function", "variables", "severity"),
    [
        # A variable or 50 ms of slack slows the thread down.
        ("thread/innodb/log_files_governor_thread", "pthread_cond_timedwait", {}, "fault"),
        ("thread/innodb/page_cleaner_thread", "timerfd_read", {"innodb_max_dirty_pages_pct_lwm": "10"}, "fault"),
        # Nothing does: this is how an idle server of the release is.
        ("thread/innodb/log_files_governor_thread", "timerfd_read", {}, "note"),
        ("thread/innodb/page_cleaner_thread", "timerfd_read", {"innodb_max_dirty_pages_pct_lwm": "0"}, "note"),
        # An unknown thread is not known to be normal.
        ("thread/other/worker", "timerfd_read", {}, "fault"),
    ],
)
def test_a_known_thread_is_a_fault_only_with_a_remedy(
    name: str, function: str, variables: dict[str, str], severity: str
) -> None:
    waits = row(name, 97.0, stack=[function, "loop"])
    (finding,) = find_polling_waits(evidence(wakeups=[waits], variables={"version": "9.7.4", **variables}))
    assert finding.severity == severity
