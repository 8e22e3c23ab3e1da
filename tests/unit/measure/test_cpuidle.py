# SPDX-License-Identifier: Apache-2.0
"""The reader of idle counters, live and from recorded dumps, and the tables of idle states."""

from __future__ import annotations

import errno
import os
import resource
import struct
import tomllib
from pathlib import Path

import pytest

from powerprof.measure import cpuidle, idle_edges
from powerprof.measure.cpuidle import CpuidleReader, format_cpu_list, online_cpus, parse_cpu_list, read_driver
from powerprof.measure.cpuidle_dumps import check_pair, parse_dump, read_dump, read_state_table, zero_counters
from powerprof.measure.idle_counters import StateInfo
from powerprof.measure.idle_edges import read_edge
from powerprof.measure.residency import compute_residency
from powerprof.system import paths
from powerprof.system.errors import DataError, PowerprofError, UsageError
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


def test_polling_is_known_by_name_or_description_and_never_by_index(tmp_path: Path) -> None:
    """`haltpoll idle` halts although its name has "poll" in it, and a polling state may come last."""
    FakeCpus(tmp_path, [[HALTPOLL, ("S0", "CPUIDLE CORE POLL IDLE"), ("snooze", "snooze"), POLL]])
    states = CpuidleReader(tmp_path).states(0)
    assert [state.polling for state in states] == [False, True, True, True]


def test_cpus_may_have_different_states(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[POLL, C1], [POLL, C1, C6]])
    reader = CpuidleReader(tmp_path)
    assert [len(reader.states(cpu)) for cpu in reader.cpus] == [2, 3]


def test_counters_that_the_kernel_made_anew_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the idle governor removes the files of all states and adds them again."""
    cpus = FakeCpus(tmp_path, [[POLL, C1]])
    cpus.add(0, 1, us=1500, usage=3)
    real, seen, removed = os.pread, set[int](), set[int]()

    def pread(handle: int, size: int, offset: int) -> bytes:
        seen.add(handle)
        if handle in removed:
            removed.discard(handle)
            raise OSError(errno.ENODEV, "No such device")
        return real(handle, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    with CpuidleReader(tmp_path) as reader:
        reader.snapshot()
        removed |= seen
        reading = reader.snapshot().cpus[0]
        assert not removed
        assert (reading.time_us, reading.usage) == ((0, 1500), (0, 3))
        assert reader.snapshot().cpus[0].usage == (0, 3)


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


def test_cpus_without_states_are_noted(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[POLL, C1], []])
    assert CpuidleReader(tmp_path).notes == ["no idle states for CPU 1: left out"]


def test_no_driver(tmp_path: Path) -> None:
    FakeCpus(tmp_path, [[]], driver="none")
    assert CpuidleReader(tmp_path).cpus == []
    assert read_driver(tmp_path) is None


def test_no_tree_at_all(tmp_path: Path) -> None:
    assert CpuidleReader(tmp_path).cpus == []


@pytest.mark.parametrize(("text", "reason"), [("junk", "not a number: b'junk'"), ("", "not a number: b''")])
def test_the_error_names_a_damaged_counter(tmp_path: Path, text: str, reason: str) -> None:
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


@pytest.fixture
def cpus(tmp_path: Path) -> FakeCpus:
    cpus = FakeCpus(tmp_path / "sys", [[POLL, C1, C6]] * 2)
    for cpu in (0, 1):
        cpus.add(cpu, 1, us=1000, usage=10)
        cpus.add(cpu, 2, us=5000, usage=5)
    return cpus


@pytest.mark.parametrize("bar", [False, True])
def test_shares_between_two_dumps(cpus: FakeCpus, bar: bool) -> None:
    before = parse_dump(cpus.dump(bar), Path("before"))
    cpus.add(0, 1, us=250, usage=1)
    cpus.add(1, 2, us=750, usage=1)
    after = parse_dump(cpus.dump(bar), Path("after"))
    check_pair(before, after)
    window = compute_residency(before.snapshot, after.snapshot, started_at="")
    assert [state.residency_percent for state in window.states] == [0.0, 25.0, 75.0]
    assert window.c0_percent is None


@pytest.mark.parametrize("value", ["abc", "-5", "1e9", "0x10", "18446744073709551616", "12 13", "nan"])
def test_a_damaged_counter_is_refused_with_its_line(cpus: FakeCpus, value: str) -> None:
    lines = cpus.dump(bar=True).splitlines()
    at = next(index for index, line in enumerate(lines) if "cpu0/cpuidle/state1/usage|" in line)
    lines[at] = f"/sys/devices/system/cpu/cpu0/cpuidle/state1/usage|{value}"
    with pytest.raises(DataError) as error:
        parse_dump("\n".join(lines), Path("dump"))
    assert error.value.message == f"dump:{at + 1}: cpu0/cpuidle/state1/usage is not a counter ({value!r})"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no cpuidle counters in it"),
        ("hello\n", "dump: no cpuidle counters in it"),
        ("\x00\x01\n", "dump: no cpuidle counters in it"),
        ("/sys/a/cpu0/cpuidle/state0/time\n", "dump:1: cpu0/cpuidle/state0/time has no value"),
        ("/sys/a/cpu0/cpuidle/state0/time\n/sys/a/cpu0/cpuidle/state0/usage\n1\n", "dump:1: .*/time has no value"),
        ("==> /sys/a/cpu0/cpuidle/state0/time <==\n\n==> /sys/a/cpu0 <==\n1\n", "dump:1: .*/time has no value"),
        ("/sys/a/cpu0/cpuidle/state0/time:1:x5\n", "dump:1: .*/time is not a counter .'x5'."),
        ("cpu0/cpuidle/state0/name:C1\ncpu0/cpuidle/state0/usage:4\n", "dump:1: cpu0/cpuidle/state0 has no time"),
        ("/sys/a/cpu0/cpuidle/state0/time|1\n/sys/a/cpu0/cpuidle/state0/time|2\n", "dump:2: .* appears twice"),
        ("/sys/a/cpu0/cpuidle/state0/time|1\n", "dump:1: cpu0/cpuidle/state0 has no name"),
        ("/sys/a/cpu0/cpuidle/state0/name|\x1b[2J\n", r"dump:1: .*/name is not text \('.x1b\[2J'\)"),
        ("/" + "x" * 5000 + "\n", "dump:1: line too long"),
    ],
)
def test_another_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_dump(text, Path("dump"))


def test_pairs_that_do_not_belong_together_are_refused(cpus: FakeCpus) -> None:
    before = parse_dump(cpus.dump(), Path("before"))
    cpus.add(0, 1, us=-1)
    backwards = parse_dump(cpus.dump(), Path("after"))
    with pytest.raises(DataError) as error:
        check_pair(before, backwards)
    line = cpus.dump().splitlines().index("999") + 1
    assert error.value.message == f"after:{line}: cpu0/cpuidle/C1/time went backwards (999 after 1000)"
    cpus.add(0, 1, us=1)
    (cpus.state(1, 2) / "name").write_text("C7\n")
    with pytest.raises(DataError, match=r"after:\d+: CPU 1 has other idle states \(POLL, C1, C7\) than before"):
        check_pair(before, parse_dump(cpus.dump(), Path("after")))
    fewer = "".join(block for block in cpus.dump(bar=True).splitlines(keepends=True) if "/cpu1/" not in block)
    with pytest.raises(DataError, match="after: CPU 1 is missing, but before has it"):
        check_pair(before, parse_dump(fewer, Path("after")))


@pytest.mark.parametrize("name", ["dell-9360-kbl", "lnl0"])
def test_recorded_laptops_since_boot(recordings: Path, name: str) -> None:
    dump = read_dump(recordings / f"sysfs-trees/{name}-cpuidle.txt")
    window = compute_residency(zero_counters(dump), dump.snapshot, started_at="")
    deepest = max(window.states, key=lambda state: state.residency_percent or 0.0)
    assert deepest.name == {"dell-9360-kbl": "C10", "lnl0": "C3_ACPI"}[name]
    assert sum(state.residency_percent or 0.0 for state in window.states) == pytest.approx(100.0)


# A line of `find`, `grep` and others for a path and its value; a dump is all of them.
LAYOUTS = {
    "path:value of grep -r": "{path}:{value}\n",
    "path:1:value of grep -n": "{path}:1:{value}\n",
    "find -exec cat": "{path}\n{value}\n",
    "tail -n +1": "==> {path} <==\n{value}\n\n",
    "path|value": "{path}|{value}\n",
    "path:, value below": "{path}:\n{value}\n\n",
    "path=value": "{path}={value}\n",
    "path value": "{path} {value}\n",
    "path, tab, value": "{path}\t{value}\n",
    "more": "::::::::::::::\n{path}\n::::::::::::::\n{value}\n",
    "with the ends of lines of Windows": "{path}:{value}\r\n",
    "indented": "  {path} : {value}\n",
    "value below, indented": "{path}\n\t{value}\n",
}
ROOTS = ("/sys/devices/system/cpu/", "", "./", "sys/devices/system/cpu/")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dump_of_every_layout_has_the_same_figures(cpus: FakeCpus, layout: str) -> None:
    cpus.add(0, 1, us=5000, usage=10, above=2)
    want = parse_dump(cpus.dump(), Path("dump"))
    (cpus.state(1, 2) / "s2idle").mkdir()
    (cpus.state(1, 2) / "s2idle/time").write_text("77\n")
    files = sorted(path for path in cpus.folder.glob("cpu*/**/*") if path.is_file())
    for root in ROOTS:
        text = "".join(
            LAYOUTS[layout].format(path=f"{root}{path.relative_to(cpus.folder)}", value=path.read_text().strip())
            for path in files
        )
        noise = "grep: /sys/devices/system/cpu/cpu0/cpuidle/state0/power: Permission denied\n"
        for printed in (text, noise + text, "\ufeff" + text):
            dump = parse_dump(printed, Path("dump"))
            assert (dump.snapshot, dump.driver) == (want.snapshot, "intel_idle")


TABLES = tomllib.loads(Path(cpuidle.__file__).with_name("idle_states.toml").read_text())


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_a_source_and_ever_slower_states(name: str) -> None:
    row = TABLES[name]
    assert row["cpus"] and row["source"]
    states = read_state_table(name)
    assert states == read_state_table(name.upper())
    assert len({state.name for state in states}) == len(states)
    latencies = [state.latency_us or 0 for state in states]
    targets = [state.target_us or 0 for state in states]
    assert latencies == sorted(latencies) and targets == sorted(targets)
    assert all(value > 0 for value in latencies + targets)


def test_two_tables_by_value() -> None:
    spr, gnr = read_state_table("sapphire-rapids"), read_state_table("granite-rapids")
    assert [(state.name, state.latency_us, state.target_us) for state in spr] == [
        ("C1", 1, 1),
        ("C1E", 2, 4),
        ("C6", 290, 800),
    ]
    assert [state.target_us for state in gnr] == [1, 4, 650, 1000]


@pytest.mark.parametrize("name", ["", "pentium", "sapphire rapids", "x" * 300, "/no/such/file", "\x1b[31m"])
def test_an_unknown_cpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="no such CPU and no such file") as caught:
        read_state_table(name)
    assert all(known in (caught.value.hint or "") for known in TABLES)
    assert caught.value.message.isprintable() and len(caught.value.message) < 120


def _dump(*cpus: dict[str, tuple[int, int]]) -> str:
    lines = []
    for cpu, states in enumerate(cpus):
        for number, (name, (latency, target)) in enumerate(states.items()):
            leaves = {"name": name, "time": cpu, "usage": 1, "latency": latency, "residency": target, "disable": cpu}
            lines += [f"cpu{cpu}/cpuidle/state{number}/{leaf}:{value}" for leaf, value in leaves.items()]
    return "\n".join(lines) + "\n"


def test_a_dump_of_cpus_of_two_kinds_has_no_single_table(tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    fast, slow = {"C1": (1, 1), "C6": (220, 600)}, {"C1": (1, 1), "C6": (170, 500)}
    dump.write_text(_dump(fast, fast))
    assert [state.target_us for state in read_state_table(str(dump))] == [1, 600]
    dump.write_text(_dump(fast, fast, slow))
    with pytest.raises(DataError, match="CPU 2 has other idle states than CPU 0"):
        read_state_table(str(dump))
    with pytest.raises(DataError, match="not a regular file"):
        read_state_table(str(tmp_path))


def test_exits_that_a_reading_forces_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving to CPU 0 wakes it: its counters grow between the reading just before and the one on it."""
    cpus = FakeCpus(tmp_path, [[POLL, C1, C6]])
    cpus.add(0, 1, us=100, usage=5)

    def pin(cpu: int) -> bool:
        cpus.add(cpu, 1, us=10, usage=2)
        cpus.add(cpu, 2, us=70, usage=3)
        return True

    monkeypatch.setattr(idle_edges, "pin_to_cpu", pin)
    monkeypatch.setattr(paths, "is_this_host", lambda: True)
    with CpuidleReader(tmp_path) as reader:
        reading = read_edge(reader).cpus[0]
    assert (reading.usage, reading.forced, reading.resolved) == ((0, 7, 3), (0, 2, 3), True)


def test_each_field_of_a_dump_is_read_from_its_own_file(tmp_path: Path) -> None:
    leaves = {"name": "C6", "desc": "MWAIT 0x20", "latency": 133, "residency": 600, "time": 9001, "usage": 71}
    leaves |= {"above": 5, "below": 8, "rejected": 3, "disable": 1}
    text = "".join(f"/sys/devices/system/cpu/cpu4/cpuidle/state3/{leaf}|{value}\n" for leaf, value in leaves.items())
    reading = parse_dump(text, tmp_path).snapshot.cpus[4]
    assert reading.states == (StateInfo("C6", False, True, 133, 600),)
    assert (reading.time_us, reading.usage) == ((9001,), (71,))
    assert (reading.above, reading.below, reading.rejected) == ((5,), (8,), (3,))
    zeros = zero_counters(parse_dump(text, tmp_path)).cpus[4]
    assert (zeros.time_us, zeros.usage, zeros.above, zeros.below, zeros.rejected) == ((0,),) * 5


@pytest.mark.parametrize(("value", "limit_us"), [(0, 0), (37, 37), (1_999_999_999, 1_999_999_999), (2 * 10**9, None)])
def test_the_latency_limit_of_the_host(tmp_path: Path, value: int, limit_us: int | None) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(struct.pack("i", value))
    assert cpuidle.read_latency_us(device) == limit_us
