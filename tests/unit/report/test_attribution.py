# SPDX-License-Identifier: Apache-2.0
"""Tests for reports of `powerprof attribute`: suggestions, stacks, wakings without idle exits, and limits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from powerprof.model.attribution import Attribution, StackFrame, Waking
from powerprof.model.records import Cause, EnergySource, ended_by_signal
from powerprof.report.exports import render_csv, render_html, render_markdown
from powerprof.report.kinds import lines_of
from powerprof.report.notes import list_notes
from powerprof.report.suggestions import suggest_remedies
from tests.unit.report.sample_records import attribution

_WINDOW_S = 10.0


def polling(
    *functions: str, hertz: float = 100.0, module: str = "libc.so.6", period_ms: float | None = 10.0
) -> Attribution:
    """Return the sample with one thread that sleeps at that stack, and no other timer on the host."""
    sample = attribution()
    frames = [StackFrame(function=name, module=module, address="0x1") for name in functions]
    thread = replace(sample.wakeups[0].thread, tid=77, pid=70, comm="poller", server_name=None)
    count = round(hertz * _WINDOW_S)
    row = replace(
        sample.wakeups[0], thread=thread, stack=frames, count=count, wakings_count=count, rate_hz=hertz,
        period_ms=period_ms, origin="own_timer", mechanism="timer", waker=None,
    )  # fmt: skip
    return replace(sample, wakeups=[row], wakings_without_exit=[], other_causes=[], window_s=_WINDOW_S, cpus=1)


def test_suggestion_names_thread_prediction_and_command() -> None:
    (said,) = suggest_remedies(polling("poll", "loop"))
    # A period of 10 ms and a slack of 50 ms, if nothing else interrupts the CPU.
    assert said == (
        "poller: with 50 ms of timer slack 100.0 → 16.7 wake-ups/s (predicted); without the thread at most "
        "100.0 idle exits/s less. To try it: powerprof cure --pid 70 --thread 77 --slack 50ms"
    )


def test_irregular_sleeps_give_a_bound() -> None:
    (said,) = suggest_remedies(polling("poll", "loop", period_ms=None))
    assert "100.0 → at best 16.7 wake-ups/s" in said


@pytest.mark.parametrize(
    "record",
    [
        polling("timerfd_read", "loop"),
        polling("unknown", "loop"),
        polling("poll", "loop", hertz=1.0),
        polling("poll", "runtime.netpoll"),
        polling("poll", "loop", module="/usr/lib/jvm/lib/server/libjvm.so"),
        replace(polling("poll", "loop"), ended=ended_by_signal(True)),
        replace(polling("poll", "loop"), target=replace(attribution().target, system=True)),
    ],
    ids=["deaf", "unknown", "seldom", "Go", "Java", "interrupted", "system"],
)
def test_no_suggestion_without_a_valid_prediction(record: Attribution) -> None:
    assert suggest_remedies(record) == []
    assert "Most helpful changes" not in "\n".join(lines_of(record))


def test_idle_exits_are_no_bound_on_a_busy_host() -> None:
    record = polling("poll", "loop", period_ms=None)
    (said,) = suggest_remedies(replace(record, wakeups=[replace(record.wakeups[0], count=0, rate_hz=0.0)]))
    assert "wake-ups/s (predicted). To try it: " in said


def deep(count: int) -> list[StackFrame]:
    names = [f"a_function_with_a_long_name_{number:02}" for number in range(count)]
    return [StackFrame(function=name, module="mariadbd", address="0x10") for name in names]


def test_deep_stack_ends_with_the_number_of_hidden_frames() -> None:
    record = attribution()
    row = replace(record.wakeups[0], stack=deep(60), waker=None)
    shown = lines_of(replace(record, wakeups=[row]), 80)
    stack = [line for line in shown[3:] if "a_function_with_a_long_name" in line]
    assert len(stack) == 8 and stack[-1].endswith("_07 ← 52 more") and max(map(len, stack)) <= 80
    few = lines_of(replace(record, wakeups=[replace(row, stack=deep(8))]), 80)
    assert sum(line.endswith("a_function_with_a_long_name_07") for line in few) == 1  # the outermost of eight frames


def test_kernel_threads_of_a_whole_system_are_named_by_their_work() -> None:
    record = attribution()
    cause = Cause(
        mechanism="timer",
        name="delayed_work_timer_fn",
        process="kernel",
        pid=None,
        thread="kworker vmstat_update",
        wakeups_hz=2.0,
        percent=1.0,
        count=20,
    )
    target = replace(record.target, system=True)
    printed = lines_of(replace(record, target=target, other_causes=[cause]), 100)
    assert "Other causes: kernel kworker vmstat_update 2.0/s." in printed


def test_terminal_shows_one_doubt_of_an_estimate() -> None:
    source = EnergySource(metered=False, why="no meter on this host: rapl: none", doubts=["a", "b"])
    said = "\n".join(lines_of(replace(attribution(), energy_source=source, notes=["libx.so: no such file"])))
    assert said.count("Note: ") == 2
    assert "Note: estimated (no meter): a (powerprof energy).\nNote: libx.so: no such file." in said
    metered = replace(attribution(), energy_source=EnergySource(metered=True, why="rapl: package-0"))
    assert "energy: rapl: package-0" in list_notes(metered)
    # Older versions saved the doubts as notes.
    before = replace(attribution(), notes=["estimate: a", "estimate: b"])
    assert "Note: estimate: a.\nNote: estimate: b." in "\n".join(lines_of(before))


def test_sources_are_shown_on_request_after_long_names() -> None:
    record = attribution()
    long = StackFrame(function="f" * 200, module="m", address="0x1", source="/src/deep/main.rs:62")
    row = replace(record.wakeups[0], stack=[long])
    record = replace(record, wakeups=[row])
    assert "main.rs:62" not in "\n".join(lines_of(record))
    shown = "\n".join(lines_of(record, sources=True))
    assert "fff… (main.rs:62)" in shown
    assert "/src/deep" not in shown


def _busy(counts: Sequence[int]) -> Attribution:
    """Return the sample on a busy host: each waking of the target finds a CPU running."""
    record, window_s = attribution(), 10.0
    ended = record.wakeups[0]
    wakings = [
        Waking(
            origin=ended.origin,
            wakings_count=count,
            wakings_hz=count / window_s,
            thread=ended.thread,
            waker=None,
            stack=[*ended.stack, replace(ended.stack[-1], function=f"place_{number}")],
            stack_complete=True,
        )
        for number, count in enumerate(counts)
    ]
    return replace(record, wakeups=[], wakings_without_exit=wakings, wakings_window_s=window_s)


def test_target_without_idle_exits_is_shown_with_its_wakings() -> None:
    busy = _busy([250])
    printed = "\n".join(lines_of(busy))
    said = "was woken 25.0 times a second, while the CPUs were running: 25.0 by mysys/statement_timer in "
    assert said in " ".join(printed.split())
    assert re.search(r"^ *25\.0 +mysys/statement_timer · its own timer$", printed, re.MULTILINE), printed
    assert "timer_handler" in printed
    for text in (render_html(busy), render_markdown(busy)):
        assert "25.0" in text and "timer_handler" in text and "quieter host" in text
    assert "quieter host" not in "\n".join(lines_of(replace(busy, wakings_without_exit=[])))
    assert not any("more" in line for line in lines_of(busy))


def test_wakings_of_one_thread_and_stack_are_one_row() -> None:
    busy = _busy([250, 50])
    first, second = busy.wakings_without_exit
    twin = replace(second, stack=first.stack, origin="device", detail="virtio0")
    one = replace(busy, wakings_without_exit=[first, twin])
    printed = "\n".join(lines_of(one))
    assert re.search(r"^ *30\.0 +mysys/statement_timer · its own timer 83 %, a d", printed, re.MULTILINE), printed
    assert render_markdown(one).count("timer_handler") == 1
    other = replace(twin, thread=replace(twin.thread, tid=(first.thread.tid or 0) + 1))
    two = "\n".join(lines_of(replace(busy, wakings_without_exit=[first, other])))
    assert re.search(r"^ *30\.0 +2 × mysys/statement_timer · ", two, re.MULTILINE), two


@pytest.mark.parametrize(
    ("by", "label"), [("thread", "mysys/statement_timer"), ("unit", "mariadb.service"), ("function", "timer_handler")]
)
def test_wakings_are_grouped_as_requested_on_a_busy_host(by: str, label: str) -> None:
    busy = _busy([250])
    unit = replace(busy.wakings_without_exit[0].thread, unit="mariadb.service")
    busy = replace(busy, wakings_without_exit=[replace(busy.wakings_without_exit[0], thread=unit)])
    printed = lines_of(busy, 80, by=by)
    assert any(line.split() == ["25.0", "250", label] for line in printed), printed
    assert not any("←" in line for line in printed)


def test_rows_beyond_a_limit_are_counted() -> None:
    """Terminal, Markdown and page begin with the same rows. The rest is a sum there, and complete in JSON and CSV."""
    busy = _busy(range(300, 170, -1))
    left = f"{sum(range(171, 296)) / 10:,.1f}"
    assert any(re.fullmatch(rf" *{left} +125 more \(--all\)", line) for line in lines_of(busy))
    assert len(lines_of(busy, top=1000)) > 260
    assert "125 more rows with" in render_markdown(busy)
    assert f"The JSON has 30 more rows with {sum(range(171, 201)):,} wakings." in render_html(busy)
    record = attribution()
    first = record.wakeups[0]
    many = replace(
        record,
        wakeups=[
            replace(first, count=2, rate_hz=0.2, stack=[replace(first.stack[0], function=f"f{number}")])
            for number in range(101)
        ],
    )
    assert "96 more rows with 192 idle exits." in render_markdown(many)
    assert "The JSON has 1 more row with 2 idle exits." in render_html(many)
    assert len(render_csv(many).splitlines()) == 102
    grouped = lines_of(record, by="thread", top=1)
    assert any(re.search(r"^ *\d+\.\d +43 +\d more \(--all\)$", line) for line in grouped), grouped
