# SPDX-License-Identifier: Apache-2.0
"""Recorded idle counters: both layouts, and every kind of damage refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.measure.cpuidle import check_pair, parse_dump, read_dump, zero_counters
from powerprof.measure.residency import compute_residency
from powerprof.system.errors import DataError
from tests.unit.measure.fake_cpu import C1, C6, POLL, FakeCpus


@pytest.fixture
def cpus(tmp_path: Path) -> FakeCpus:
    cpus = FakeCpus(tmp_path / "sys", [[POLL, C1, C6]] * 2)
    for cpu in (0, 1):
        cpus.add(cpu, 1, us=1000, usage=10)
        cpus.add(cpu, 2, us=5000, usage=5)
    return cpus


@pytest.mark.parametrize("bar", [False, True])
def test_both_layouts_say_the_same(cpus: FakeCpus, bar: bool) -> None:
    dump = parse_dump(cpus.dump(bar), Path("dump"))
    assert dump.driver == "intel_idle"
    assert dump.snapshot.cpus[1].usage == (0, 10, 5)
    assert [state.polling for state in dump.snapshot.cpus[0].states] == [True, False, False]
    line = cpus.dump(bar).splitlines()[dump.lines[1, 2, "usage"] - 1]
    assert line.endswith("5")


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


def test_one_dump_is_since_boot(cpus: FakeCpus) -> None:
    dump = parse_dump(cpus.dump(), Path("dump"))
    window = compute_residency(zero_counters(dump), dump.snapshot, started_at="")
    assert [state.time_us for state in window.states] == [0, 2000, 10000]


def without(text: str, line_part: str, count: int = 1) -> str:
    """The text without the first line that has this in it and the `count` - 1 lines after it."""
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if line_part in line)
    return "\n".join(lines[:at] + lines[at + count :]) + "\n"


def test_a_missing_value_is_refused_with_its_line(cpus: FakeCpus) -> None:
    text = cpus.dump()
    lines = text.splitlines()
    at = lines.index("/sys/devices/system/cpu/cpu1/cpuidle/state2/time:")
    del lines[at + 1]
    with pytest.raises(DataError) as error:
        parse_dump("\n".join(lines), Path("dump"))
    assert error.value.message == f"dump:{at + 1}: cpu1/cpuidle/state2/time has no value"


@pytest.mark.parametrize("value", ["abc", "-5", "1e9", "0x10", "18446744073709551616", "12 13", "nan"])
def test_a_counter_that_is_no_number_is_refused_with_its_line(cpus: FakeCpus, value: str) -> None:
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
        ("hello\n", "dump:1: neither a sysfs path nor its value .'hello'."),
        ("\x00\x01\n", "dump:1: neither a sysfs path"),
        ("/sys/a/cpu0/cpuidle/state0/time\n", "dump:1: a path without a value"),
        ("/sys/a/cpu0/cpuidle/state0/time|1\n/sys/a/cpu0/cpuidle/state0/time|2\n", "dump:2: .* appears twice"),
        ("/sys/a/cpu0/cpuidle/state0/time|1\n", "dump:1: cpu0/cpuidle/state0 has no name"),
        ("/sys/a/cpu0/cpuidle/state0/name|\x1b[2J\n", r"dump:1: .*/name is not text \('.x1b\[2J'\)"),
        ("/" + "x" * 5000 + "\n", "dump:1: line too long"),
    ],
)
def test_what_is_no_dump_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_dump(text, Path("dump"))


def test_other_files_of_the_tree_are_passed_over(cpus: FakeCpus) -> None:
    extra = "/sys/devices/system/cpu/cpu0/cpuidle/state1/s2idle/time|9\n/sys/devices/system/cpu/cpu0/topology/x|\n"
    assert parse_dump(extra + cpus.dump(bar=True), Path("dump")).snapshot.cpus[0].time_us == (0, 1000, 5000)


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
