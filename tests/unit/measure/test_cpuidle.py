# SPDX-License-Identifier: Apache-2.0
"""Reading the idle counters of trees that real machines have, and of broken ones."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from powerprof.measure.clock import CpuReading, StateInfo
from powerprof.measure.cpuidle import CpuidleReader, format_cpu_list, online_cpus, parse_cpu_list, read_driver
from powerprof.system.errors import PowerprofError
from tests.unit.measure.fake_cpu import C1, C6, HALTPOLL, POLL, FakeCpus


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("0,2-2", [0, 2])])
def test_cpu_lists_are_the_kernels(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text, "online") == cpus
    assert parse_cpu_list(format_cpu_list(cpus), "online") == cpus


@pytest.mark.parametrize("text", ["a", "3-1", "0-", "1;2", "-1", "99999999999"])
def test_a_damaged_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(PowerprofError, match="not a list of CPUs"):
        parse_cpu_list(text, "online")


def test_counters_of_a_cpu(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    cpus.add(0, 1, us=1500, usage=3, above=2, below=1)
    with CpuidleReader(tmp_path) as reader:
        reading = reader.snapshot().cpus[0]
    assert [state.name for state in reading.states] == ["POLL", "C1"]
    assert (reading.time_us, reading.usage) == ((0, 1500), (0, 3))
    assert (reading.above, reading.below, reading.rejected) == ((0, 2), (0, 1), (0, 0))
    assert read_driver(tmp_path) == "intel_idle"


def test_an_entry_that_the_driver_turned_down_is_an_idle_exit_too(tmp_path: Path) -> None:
    """The tracepoint fires for it, `usage` does not count it (cpuidle_enter_state): the balance of exits has both."""
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6]])
    cpus.add(0, 0, usage=2)
    cpus.add(0, 2, us=900, usage=4)
    (cpus.state(0, 1) / "rejected").write_text("5\n")
    with CpuidleReader(tmp_path) as reader:
        reading = reader.snapshot().cpus[0]
    assert (sum(reading.usage), reading.entries_count) == (6, 11)


def test_polling_is_known_by_name_or_description_and_never_by_index(tmp_path: Path) -> None:
    """`haltpoll idle` halts although its name has "poll" in it, and a polling state may come last."""
    FakeCpus(tmp_path, [[HALTPOLL, ("S0", "CPUIDLE CORE POLL IDLE"), ("snooze", "snooze"), POLL]])
    states = CpuidleReader(tmp_path).states(0)
    assert [state.polling for state in states] == [False, True, True, True]


def test_cpus_may_have_different_states(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[POLL, C1], [POLL, C1, C6]])
    reader = CpuidleReader(tmp_path)
    assert [len(reader.states(cpu)) for cpu in reader.cpus] == [2, 3]


def test_an_offline_cpu_is_not_read(tmp_path: Path) -> None:
    """Its folder stays and its counters stand still: it would look busy."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]] * 3)
    reader = CpuidleReader(tmp_path)
    cpus.online([0, 2])
    assert list(reader.snapshot().cpus) == [0, 2]
    assert online_cpus(tmp_path) == [0, 2]


def test_an_older_kernel_without_above_below_rejected(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[POLL, C1]], counters=("time", "usage"))
    reading = CpuidleReader(tmp_path).snapshot().cpus[0]
    assert (reading.above, reading.rejected) == ((None, None), (None, None))


def test_cpus_without_states_are_said(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[POLL, C1], []])
    assert CpuidleReader(tmp_path).notes == ["no idle states for CPU 1: left out"]


def test_no_driver(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[]], driver="none")
    assert CpuidleReader(tmp_path).cpus == []
    assert read_driver(tmp_path) is None


def test_no_tree_at_all(tmp_path: Path) -> None:
    assert CpuidleReader(tmp_path).cpus == []


@pytest.mark.parametrize(("text", "reason"), [("junk", "not a number: b'junk'"), ("", "not a number: b''")])
def test_a_counter_that_is_no_number_is_named(tmp_path: Path, text: str, reason: str) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    (cpus.state(0, 1) / "time").write_text(text)
    with pytest.raises(PowerprofError) as error:
        CpuidleReader(tmp_path).snapshot()
    assert error.value.message == f"cannot read {cpus.state(0, 1)}/time ({reason})"


def test_an_unreadable_counter_is_named(tmp_path: Path) -> None:
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    path = cpus.state(0, 1) / "usage"
    path.unlink()
    path.mkdir()  # root may read any file, but not a directory
    with pytest.raises(PowerprofError, match=r"cannot read .*/state1/usage \(is a directory\)"):
        CpuidleReader(tmp_path).snapshot()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_256_cpus_within_half_of_the_open_files(tmp_path: Path) -> None:
    """256 CPUs × 3 states × 5 counters are 3,840 files, more than the usual limit of 1,024 allows to keep open."""
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6]] * 256)
    cpus.add(255, 2, us=77, usage=1)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, limit[0]), limit[1]))
    before = open_files()
    try:
        with CpuidleReader(tmp_path) as reader:
            first, second = reader.snapshot(), reader.snapshot()
            assert open_files() - before <= 512
        assert open_files() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert len(first.cpus) == 256
    assert second.cpus[255].time_us == (0, 0, 77)


def test_entries_are_those_that_the_driver_turned_down_too() -> None:
    """An idle period is traced for each; a kernel before 5.9 does not count them."""
    states = (StateInfo("POLL", polling=True), StateInfo("C1", polling=False))
    reading = CpuReading(0, 1, states, (0, 0), (7, 100), (0, 0), (0, 0), (None, 12))
    assert reading.entries_count == 119
