# SPDX-License-Identifier: Apache-2.0
"""The output of the D scripts as records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.attribution.offcpu import build_dtrace_profile
from powerprof.attribution.profile import build_function_profile
from powerprof.system.errors import DataError
from powerprof.tracing.dtrace import DtraceRun
from powerprof.tracing.dtrace_output import parse_frame, parse_functions, parse_latency, parse_wakeups

FUNCTIONS = """\
begin\t5000000000

calls\tmysqld\thandle_slave_sql\t2
calls\tmysqld\thandle_slave_io\t14220
returns\tmysqld\thandle_slave_io\t14219
self_wall_ns\tmysqld\thandle_slave_io\t2400000000
self_cpu_ns\tmysqld\thandle_slave_io\t1200000000
mismatch\treturns that do not belong to the innermost call\t3
end\t15000000000
"""

WAKEUPS = """\
begin\t5000000000
wakeup\t12\t4711\tmysqld\t11\t5

              libc.so.1`__lwp_cond_signal+0xa
              libc.so.1`cond_signal+0x1c
              mysqld`os_event_set(os_event_struct*)+0x41
              mysqld+0x1a2b3c
              0x7f001234
end of stack
wakeup\t13\t0\tsched\t1\t970

end of stack
end\t15000000000
"""


def run(stdout: str, losses: tuple[str, ...] = (), *, whole: bool = True) -> DtraceRun:
    """A run of 10 s; `whole` False: without its first and last lines where `stdout` has none."""
    if whole and not stdout.startswith("begin"):
        stdout = f"begin\t5000000000\n{stdout}end\t15000000000\n"
    return DtraceRun(4711, stdout, losses, 5 * len(losses), tool_cpu_s=1.25)


def test_the_function_profile_becomes_the_same_record_as_the_probes() -> None:
    profile = build_function_profile(parse_functions(run(FUNCTIONS, ("dtrace: 5 drops on CPU 1",)), "handle_slave*"))
    first, second = profile.functions
    assert (first.function, first.module, first.calls_count, first.calls_hz) == (
        "handle_slave_io",
        "mysqld",
        14220,
        1422.0,
    )
    assert (first.self_cpu_ms, first.self_wall_ms, first.unfinished_count) == (1200.0, 2400.0, 1)
    assert first.self_cpu_mean_us == pytest.approx(84.388, abs=0.001)
    assert (first.cpu_ms, first.probe_ms, profile.probe_cost_ms) == (None, None, None)
    assert (first.abandoned_count, profile.tool_cpu_s) == (None, 1.25)

    assert (second.function, second.calls_count, second.self_cpu_ms) == ("handle_slave_sql", 2, None)
    assert (profile.unmatched_returns_count, profile.lost_count, profile.method) == (3, 5, "dtrace")
    assert profile.notes == ["DTrace lost data: dtrace: 5 drops on CPU 1"]


def test_what_dtrace_cost_and_what_happened_to_the_window_are_told() -> None:
    asleep = replace(run("sleep\t101\t10\t5000000\t900000\n"), notes=("the host was suspended",))
    sleeps, wakings = parse_latency(asleep), parse_wakeups(replace(asleep, stdout="begin\t1\nend\t2\n"))
    profile = build_dtrace_profile(sleeps, wakings, {})
    assert (profile.tool_cpu_s, profile.notes) == (2.5, ["the host was suspended"] * 2)
    assert build_dtrace_profile(sleeps, None, {}).tool_cpu_s == 1.25


def test_wakeups_keep_their_stacks() -> None:
    found = parse_wakeups(run(WAKEUPS))
    often, seldom = found.wakeups
    assert found.window_s == 10.0
    assert (often.sleeper_tid, often.waker_comm, often.count, often.stack) == (13, "sched", 970, [])
    assert (seldom.sleeper_tid, seldom.waker_pid, seldom.waker_tid, seldom.count) == (12, 4711, 11, 5)
    assert [(one.function, one.module, one.offset) for one in seldom.stack] == [
        ("__lwp_cond_signal", "libc.so.1", 0xA),
        ("cond_signal", "libc.so.1", 0x1C),
        ("os_event_set(os_event_struct*)", "mysqld", 0x41),
        (None, "mysqld", 0x1A2B3C),
        (None, None, None),
    ]


def test_frames_of_cxx_names_with_plus_signs() -> None:
    frame = parse_frame("mysqld`operator+(String const&, int)+0x10")
    assert (frame.function, frame.offset) == ("operator+(String const&, int)", 0x10)


def test_latencies() -> None:
    rows = parse_latency(
        run("sleep\t7\t4\t8000000\t3000000\nsleep\t9\t5\t5000000\t1000000\nlatency\t7\t3\t30000\t20000\n")
    ).threads
    assert [row.tid for row in rows] == [9, 7]
    assert (rows[0].wait_mean_ms, rows[1].wait_mean_ms, rows[1].sleep_max_ms) == (None, 0.01, 3.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends before its end"),
        ("calls\tm\tf\t1\n", "it ends before its end"),
        ("begin\t5\ncalls\tm\tf\t1\n", "it ends before its end"),
        ("begin\t5\nend\t5\n", "its window ends before it begins"),
        ("begin\t5\nend\tlate\n", "not a number"),
        ("calls\tm\tf\tmany\nend\n", "2: not a number"),
        ("calls\tm\tf\t" + "9" * 30 + "\nend\n", "not a number"),
        ("calls\tm\tf\nend\n", "not a line of the function profile"),
        ("\x1b[31m\nend\n", "not a line of the function profile"),
    ],
)
def test_damaged_function_profiles_are_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_functions(run(text.removesuffix("end\n"), whole=text.endswith("end\n")), "x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("wakeup\t1\t2\tx\t3\t4\n  a`b+0x1\nend\n", "its last stack is cut"),
        ("wakeup\t1\t2\tx\t3\nend\n", "not a line of the wake-ups"),
    ],
)
def test_damaged_wakeups_are_refused(text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_wakeups(run(text.removesuffix("end\n")))


def test_control_characters_do_not_reach_a_terminal() -> None:
    (row,) = parse_functions(run("calls\tm\tf\x1b[2Jx\t1\n"), "f*").functions
    assert row.name == "f?[2Jx"


def test_sums_that_cannot_be_are_unknown_not_zero() -> None:
    text = "calls\tm\tf\t1\nreturns\tm\tf\t1\nself_cpu_ns\tm\tf\t-5\nself_wall_ns\tm\tf\t7000\n"
    (row,) = build_function_profile(parse_functions(run(text), "f")).functions
    assert (row.self_cpu_ms, row.self_cpu_mean_us, row.self_wall_ms) == (None, None, 0.007)


def test_mangled_names_become_readable() -> None:
    (row,) = parse_functions(run("calls\tm\t_Z15handle_slave_ioPv\t1\n"), "*handle*").functions
    assert row.name == "handle_slave_io(void*)"
