# SPDX-License-Identifier: Apache-2.0
"""Patterns of functions, places of probes, and calls that are open at the end of a window."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerprof.stacks.elf import Elf, Segment
from powerprof.stacks.image import snapshot
from powerprof.stacks.store import TableStore
from powerprof.system.errors import UsageError
from powerprof.tracing import functions
from powerprof.tracing.bpf import probe_cost
from powerprof.tracing.bpf.probe_cost import measure_cost
from powerprof.tracing.functions import FIELDS, sum_open_calls
from powerprof.tracing.symbols import (
    find_file_offset,
    find_functions,
    is_stepped,
    matches_symbol,
    split_pattern,
    strip_parameters,
)
from tests.unit.stacks.elves import with_symbols


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("handle_slave*", (None, "handle_slave*")),
        ("libc.so*:mem*", ("libc.so*", "mem*")),
        ("std::sort*", (None, "std::sort*")),
        ("ha_spider:ns::f", ("ha_spider", "ns::f")),
    ],
)
def test_a_module_is_what_stands_before_a_single_colon(pattern: str, expected: tuple[str | None, str]) -> None:
    assert split_pattern(pattern) == expected


@pytest.mark.parametrize("pattern", ["", "  ", "x" * 300, "a\x00b"])
def test_impossible_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        split_pattern(pattern)


def test_globs_match_raw_readable_and_bare_names() -> None:
    raw = "_Z15handle_slave_ioPv"  # handle_slave_io(void*)
    assert matches_symbol("handle_slave*", raw) and matches_symbol("handle_slave_io", raw) and matches_symbol(raw, raw)
    assert not matches_symbol("handle_slave", raw)
    assert strip_parameters("foo(int (*)(char), long) const") == "foo"
    assert strip_parameters("ns::(anonymous namespace)::f(int)") == "ns::(anonymous namespace)::f"
    assert strip_parameters("main") == "main"


@pytest.mark.parametrize(
    ("code", "stepped"),
    [
        ("5589e5", False),
        ("4157", False),
        ("0f1f44", False),
        ("e900", False),
        ("7402", False),
        ("4883ec", True),
        ("f30f1e", True),
        ("31c0", True),
        ("89f8", True),
        ("c3cc", True),
    ],
)
def test_which_first_instructions_the_kernel_emulates(code: str, stepped: bool) -> None:
    assert is_stepped(bytes.fromhex(code)) is stepped


def packed(kind: np.dtype[Any], *rows: tuple[int, ...]) -> bytes:
    made = np.zeros(len(rows), dtype=kind)
    for one, row in zip(made, rows, strict=True):
        for name, value in zip(kind.names or (), row, strict=True):
            one[name] = value
    return made.tobytes()


# Off the CPU for 100 ns and again since 900 ns; f calls g, which calls f again; another thread has no open call.
THREADS = (np.array([5, 6], "<u4").tobytes(), packed(functions._THREAD, (100, 900, 0, 3, 3), (0, 0, 0, 0, 2)))
FRAMES = (
    packed(functions._PLACE, (5, 0), (5, 1), (5, 2), (6, 0)),
    packed(
        functions._FRAME,
        (1, 100, 90, 50, 30, 1, 1, 2, 1),
        (2, 400, 350, 20, 10, 2, 0, 1, 0),
        (3, 700, 600, 0, 0, 1, 1, 0, 0),
        (4, 1, 1, 0, 0, 9, 0, 0, 0),
    ),
)


def test_calls_that_are_open_at_the_end() -> None:
    """At 1,000 ns the thread has run for 800 ns. Outermost calls have the time of inner ones, self times exclude it."""
    calls = sum_open_calls(THREADS, FRAMES, 1_000)
    assert {number: {name: value for name, value in sums.items() if value} for number, sums in calls.items()} == {
        1: {
            "unfinished": 2,
            "wall_ns": 900,
            "cpu_ns": 710,
            "self_wall_ns": 300 + (900 - 50 - 600),
            "self_cpu_ns": 200 + (710 - 30 - 450),
            "children": 3,
            "stepped_children": 1,
        },
        2: {
            "unfinished": 1,
            "wall_ns": 600,
            "cpu_ns": 450,
            "self_wall_ns": 600 - 20 - 300,
            "self_cpu_ns": 450 - 10 - 200,
            "children": 2,
            "stepped_children": 1,
        },
    }
    assert all(tuple(sums) == FIELDS for sums in calls.values())


def test_file_offsets_are_those_of_code() -> None:
    """Data of the same addresses as the code's, which the file has elsewhere."""
    segments = (Segment(1, 6, 0x3000, 0x5000, 0x100, 0x100, 4096), Segment(1, 5, 0x1000, 0x5000, 0x40, 0x80, 4096))
    elf = Elf("x", 0x4000, 3, 0, segments, (), None, -1, bytes(0x4000))
    assert [find_file_offset(elf, vaddr) for vaddr in (0x4FFF, 0x5000, 0x503F, 0x5040)] == [None, 0x1000, 0x103F, None]


def test_symbols_of_two_functions_name_none(tmp_path: Path) -> None:
    """DTrace needs a symbol that one function has alone."""
    path = tmp_path / "crafted.so"
    path.write_bytes(
        with_symbols(
            [("work", 0x40, 8, 0x12), ("work", 0x50, 8, 0x02), ("worker", 0x60, 9, 0x12), ("rest", 0x70, 8, 0x12)]
        )
    )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC):
        found = find_functions(snapshot(os.getpid()), "crafted*:work*", TableStore(use_cache=False, downloads=False))
    (module,) = found.modules
    assert [(each.name, each.symbol, each.vaddr, each.offset, each.size_bytes) for each in module.functions] == [
        ("work", None, 0x40, 0x40, 8),
        ("work", None, 0x50, 0x50, 8),
        ("worker", "worker", 0x60, 0x60, 9),
    ]
    assert module.starts == {0x40, 0x50, 0x60, 0x70} and found.count == 3


class NoProbes:
    """Probes that are never placed."""

    def attach(self, *rest: object) -> list[object]:
        return []

    def close(self) -> None:
        """Do nothing."""


def test_cost_of_a_probe_is_that_of_the_fastest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions, first without and then with probes. Of the second one's rounds the mean is 2,500 ns."""
    rounds = iter([[12.0, 10.0], [25.0, 20.0], [1_010.0, 1_500.0], [2_020.0, 2_980.0]])
    monkeypatch.setattr(probe_cost, "_time_rounds", lambda function: next(rounds))
    calls = probe_cost._CALLS * probe_cost._ROUNDS
    costs = measure_cost(NoProbes(), (7, 8), lambda cookie: (calls, calls * 50 * cookie), by_exits=False)  # type: ignore[arg-type]
    assert costs is not None
    assert [cost.call_ns for cost in costs] == [1_000.0, 2_000.0]
    assert [cost.inside_ns for cost in costs] == [
        pytest.approx(350 * 1_010 / 1_255),
        pytest.approx(400 * 2_020 / 2_500),
    ]
    rounds = iter([[12.0], [25.0], [1_010.0], [2_020.0]])
    assert measure_cost(NoProbes(), (7, 8), lambda cookie: (calls - 1, 5), by_exits=True) is None  # type: ignore[arg-type]


ELSEWHERE = 0x2000
