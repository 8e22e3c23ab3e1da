# SPDX-License-Identifier: Apache-2.0
"""What is recommended for a thread that polls: never what is in force, never what a release does not have."""

from __future__ import annotations

import pytest

from powerprof.diagnosis.diagnose import diagnose
from powerprof.diagnosis.thread_pace import PERIODIC, PaceSetting, PeriodicThread, list_polling_remedies, list_settings
from tests.unit.diagnosis.test_recorded_faults import evidence as recorded
from tests.unit.diagnosis.test_rules import evidence, row

_ALL = [(periodic, setting) for periodic in PERIODIC for setting in periodic.settings]
_SPELLINGS = {"ON": ("ON", "1"), "OFF": ("OFF", "0"), "0": ("0", "0.000000"), "1": ("1",)}


def polling(name: str) -> dict[str, list[str]]:
    """The remedies of a recorded server's polling threads, by the sentence that blames them."""
    return {one.text: one.remedy for one in diagnose(recorded(name)) if one.rule == "polling_wait"}


@pytest.mark.parametrize(("periodic", "setting"), _ALL, ids=lambda one: getattr(one, "name", ""))
def test_what_is_in_force_is_not_recommended(periodic: PeriodicThread, setting: PaceSetting) -> None:
    for now in _SPELLINGS.get(setting.value, ("500",)):
        given = evidence(variables={setting.name: now, "port": "3306"})
        assert f"{setting.name}={setting.value}" not in list_settings(periodic, given)
        if setting.value:
            assert f"{setting.name}={now} is in force already" in list_polling_remedies(periodic, given, "20 times/s")
        else:
            assert list_settings(periodic, given) == [f"a longer {setting.name}, which is 500 {setting.unit}"]


@pytest.mark.parametrize(("periodic", "setting"), _ALL, ids=lambda one: getattr(one, "name", ""))
def test_what_a_release_does_not_have_is_not_recommended(periodic: PeriodicThread, setting: PaceSetting) -> None:
    told = list_polling_remedies(periodic, evidence(variables={"port": "3306"}), "20 times/s")
    assert not any(setting.name in line for line in told)
    assert told[-1].startswith("to report it to MariaDB (jira.mariadb.org), send: version MariaDB")


def test_no_setting_ends_what_an_idle_9_7_wakes_for_most() -> None:
    told = polling("mysql-9.7.4-idle")
    governor = next(remedies for text, remedies in told.items() if "innodb/log_files_governor_thread" in text)
    assert governor[0] == "no setting is known that ends it"
    assert governor[1].startswith("to report it to MySQL (bugs.mysql.com), send: version MySQL 9.7.4; 97 times/s")
    assert not any("innodb_log_writer_threads" in line for remedies in told.values() for line in remedies)


def test_the_log_writer_threads_of_9_7_are_ended_by_the_setting_that_is_named() -> None:
    """Recorded before and after the remedy on one server: the four threads are gone, the governor stays."""
    before, after = polling("mysql-9.7.4-log-writer-threads-on"), polling("mysql-9.7.4-idle")
    (writers,) = before.keys() - after.keys() - {text for text in before if "governor" in text or "GTID" in text}
    assert writers.startswith("4 threads (innodb/log_")
    assert "together" in writers
    assert before[writers][:-1] == ["innodb_log_writer_threads=OFF on a server with few commits (it is ON)"]
    assert before[writers][-1].startswith("to try it live: powerprof cure --pid mysqld --thread ")
    assert not any("log_writer" in text or "log_flusher" in text for text in after)


def test_a_timer_that_fires_on_busy_cpus_polls_all_the_same() -> None:
    rows = [row("thread/innodb/page_cleaner_thread", 0.0, wakings_hz=40.0)]
    (fault,) = (one for one in diagnose(evidence(wakeups=rows)) if one.severity == "fault")
    assert fault.rate_hz == 40.0
    assert fault.evidence == ["no idle period ended with it: others kept the CPUs busy"]


def test_a_server_that_is_asked_is_not_blamed_for_its_work() -> None:
    rows = [row("thread/innodb/page_cleaner_thread", 0.0, wakings_hz=40.0)]
    busy = evidence(wakeups=rows, status_before={"Questions": 0}, status_after={"Questions": 5000})
    assert [one.rule for one in diagnose(busy) if one.severity == "fault"] == []
