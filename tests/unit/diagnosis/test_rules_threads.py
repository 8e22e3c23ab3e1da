# SPDX-License-Identifier: Apache-2.0
"""The rules on threads of the server: polling waits, scheduled events and CPU time."""

from __future__ import annotations

import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.evidence import Evidence, LiveRemedy, ScheduledEvent, ThreadCpu
from powerprof.diagnosis.rules_threads import describe_periodic_threads, find_event_scheduler, find_polling_waits
from tests.unit.diagnosis.examples import counted, evidence, fault_rules, faults, read_recorded, row

CLEANER = "thread/innodb/page_cleaner_thread"


def test_polling_wait_is_a_fault_and_a_slow_timer_a_note() -> None:
    (fault,) = find_polling_waits(evidence(wakeups=[row("thread/innodb/log_writer_thread", 900.0)]))
    assert "innodb_log_writer_threads=OFF" in fault.remedy[0]
    slow = evidence(wakeups=[row(CLEANER, 1.0, period_ms=1000.0)])
    assert find_polling_waits(slow) == []
    (note,) = describe_periodic_threads(slow)
    assert note.text == "innodb/page_cleaner_thread wakes every 1 s (1.0 times/s): it writes dirty pages."
    assert find_polling_waits(evidence(wakeups=[row(CLEANER, 5.0)])) != []


def test_unknown_polling_thread_has_its_functions() -> None:
    stack = ["nanosleep", "plugin_loop", "start_thread"]
    (fault,) = find_polling_waits(evidence(wakeups=[row(None, 50.0, stack=stack)]))
    assert fault.stack == stack


def test_timer_on_busy_cpus_still_polls() -> None:
    (fault,) = faults(evidence(wakeups=[row(CLEANER, 0.0, wakings_hz=40.0)]))
    assert fault.rate_hz == 40.0
    assert fault.evidence == ["it ended no idle period: other programs kept the CPUs busy"]


def test_work_of_a_busy_server_is_not_polling() -> None:
    assert faults(evidence(wakeups=[row(CLEANER, 0.0, wakings_hz=40.0)], **counted(Questions=5000))) == []


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


@pytest.mark.parametrize(("interval_s", "severity"), [(1.0, "fault"), (60.0, "note")])
def test_event_scheduler_is_a_fault_if_events_run_often(interval_s: float, severity: str) -> None:
    events = [ScheduledEvent(name="shop.refresh", interval_s=interval_s, enabled=True)]
    (finding,) = find_event_scheduler(evidence(events=events, variables={"event_scheduler": "ON"}))
    assert finding.severity == severity
    assert finding.tries == [LiveRemedy(variable="event_scheduler", value="OFF")]
    assert find_event_scheduler(evidence(events=events, variables={"event_scheduler": "OFF"})) == []


def test_event_name_is_quoted_in_statements() -> None:
    name = "x` ENABLE; DROP DATABASE shop; -- \x1b[2J"
    event = ScheduledEvent(name="shop.x", interval_s=1.0, enabled=True, database="shop", event=name)
    (finding,) = find_event_scheduler(evidence(events=[event], variables={"event_scheduler": "ON"}, pid=4711))
    assert finding.tries[0] == LiveRemedy(database="shop", event=name)
    assert "ALTER EVENT `shop`.`x`` ENABLE; DROP DATABASE shop; -- ?[2J` ON SCHEDULE" in finding.remedy[0]
    assert finding.remedy[-1] == "to try it live: powerprof cure --pid 4711 --finding event_scheduler"


def event(last: str) -> ScheduledEvent:
    return ScheduledEvent(name="d.burn", interval_s=60.0, enabled=True, last_executed=last)


def with_event(cpu_percent: float, ended_percent: float, **connections: int) -> Evidence:
    return evidence(
        events=[event("10:00:00")],
        events_after=[event("10:01:00")],
        cpu_percent=cpu_percent,
        ended_cpu_percent=ended_percent,
        **counted(**connections),
    )


def test_event_with_a_high_cpu_time_is_named() -> None:
    (fault,) = faults(with_event(43.0, 42.0))
    assert (fault.rule, fault.text) == ("event_cpu", "The event d.burn uses 42 % of a CPU.")
    assert faults(with_event(0.2, 0.1)) == []


def test_ended_connections_are_not_events() -> None:
    assert "event_cpu" not in fault_rules(with_event(43.0, 42.0, Connections=500, Questions=9000))


def test_running_event_is_known_by_its_worker() -> None:
    worker = ThreadCpu(tid=9, comm="ib_ev", name="thread/sql/event_worker", percent=99.0)
    (fault,) = faults(evidence(events=[event("10:00:00")], cpu_percent=99.5, threads_cpu=[worker]))
    assert fault.text == "The event d.burn uses 99 % of a CPU."
