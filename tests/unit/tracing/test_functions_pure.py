# SPDX-License-Identifier: Apache-2.0
"""Patterns, probe classes and the arithmetic of function profiles and samples, without a kernel."""

from __future__ import annotations

import pytest

from powerprof.attribution.profile import build_function_profile, build_on_cpu_profile
from powerprof.report.exports import render_csv
from powerprof.system.errors import UsageError
from powerprof.tracing.bpf.uprobes import ProbeCost
from powerprof.tracing.captures import FunctionCounts, FunctionTrace, OnCpuCapture, SampleRow
from powerprof.tracing.symbols import is_stepped, matches_symbol, split_pattern, strip_parameters


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


def counts(name: str, calls: int, self_ns: int, **more: int | bool) -> FunctionCounts:
    values = {
        "returns": calls,
        "abandoned": 0,
        "unfinished": 0,
        "wall_ns": self_ns,
        "cpu_ns": self_ns,
        "self_wall_ns": self_ns,
        "children": 0,
        "stepped_children": 0,
        "stepped": False,
        **more,
    }
    return FunctionCounts(name=name, module="m", vaddr=0, calls=calls, self_cpu_ns=self_ns, **values)  # type: ignore[arg-type]


def test_the_probes_own_time_is_taken_off_and_told() -> None:
    trace = FunctionTrace(
        pattern="*",
        pids=[1],
        window_s=2.0,
        hits_count=311,
        functions=[
            counts("outer", 10, 5_000_000, children=300, stepped_children=100),
            counts("leaf", 200, 1_000_000),
            counts("dear", 100, 2_100_000, stepped=True),
            counts("tiny", 1, 100),
            counts("never", 0, 0),
        ],
        cost=ProbeCost(call_ns=1000, inside_ns=400),
        stepped_cost=ProbeCost(call_ns=21_000, inside_ns=20_000),
        process_cpu_s=0.01,
        unmatched_count=0,
        too_deep_count=0,
        lost_count=0,
        refused=[],
        notes=[],
        method="test",
        tool_cpu_s=0.0,
    )
    profile = build_function_profile(trace)
    rows = {row.function: row for row in profile.functions}
    # 10 × 0.4 µs inside, and of its children 200 × 0.6 µs and 100 × 1 µs outside of their own times.
    assert rows["outer"].self_cpu_ms == pytest.approx(5 - 0.004 - 0.120 - 0.100)
    assert rows["leaf"].self_cpu_ms == pytest.approx(1 - 0.080)
    assert rows["dear"].self_cpu_ms == pytest.approx(2.1 - 2.0)
    assert rows["tiny"].self_cpu_ms == 0
    assert profile.never_called_count == 1
    assert profile.probe_cost_ms == pytest.approx(10 * 0.001 + 200 * 0.001 + 100 * 0.021 + 0.001)
    assert profile.probe_cost_percent == pytest.approx(100 * profile.probe_cost_ms / 2000)
    assert rows["outer"].self_cpu_percent == pytest.approx(47.76)
    assert [row.function for row in profile.functions] == ["outer", "leaf", "dear", "tiny"]
    head, *lines = render_csv(profile).splitlines()
    assert head.startswith("function,module,calls_count,")
    assert [line.partition(",")[0] for line in lines] == ["outer", "leaf", "dear", "tiny"]


def capture(rows: list[SampleRow], **more: object) -> OnCpuCapture:
    values = {
        "event": "cpu-clock",
        "pids": [1],
        "window_s": 10.0,
        "cpus": 2,
        "period_ms": 10.0,
        "users": [],
        "images": [],
        "kernel": {7: [0x1010, 0x2020]},
        "kernel_names": {0x1010: ("clear_page", "vmlinux", 0x1000)},
        "comms": {1: "one", 2: "two"},
        "events_count": 1000,
        "idle_count": 900,
        "target_count": 50,
        "missed_count": 0,
        "stacks_count": 1,
        "lost_stacks_count": 0,
        "lost_rows_count": 0,
        "notes": [],
        "tool_cpu_s": 0.0,
        **more,
    }
    return OnCpuCapture(rows=rows, **values)  # type: ignore[arg-type]


def test_samples_are_shares_of_c0_and_conserved() -> None:
    profile = build_on_cpu_profile(capture([SampleRow(0, 7, 2, 2, 20), SampleRow(99, 7, 1, 1, 30)]))
    assert (profile.c0_percent, profile.target_percent, profile.target_c0_ms) == (10.0, 50.0, 500.0)
    assert (profile.complete_count, profile.lost_count) == (20, 30)
    clear = profile.functions[0]
    assert profile.percent_of == "target"
    assert (clear.function, clear.kernel, clear.self_count, clear.self_percent) == ("clear_page", True, 50, 100.0)
