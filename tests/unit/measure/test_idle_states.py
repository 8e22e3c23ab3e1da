# SPDX-License-Identifier: Apache-2.0
"""Tables of idle states of known CPUs, and of dumps of other hosts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from powerprof.measure import cpuidle
from powerprof.measure.cpuidle import read_state_table
from powerprof.system.errors import DataError, UsageError

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
