# SPDX-License-Identifier: Apache-2.0
"""What would help most, predicted from a traced window, on the page and in the terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from powerprof.model.attribution import Attribution, StackFrame
from powerprof.report.attribution import render_html, render_terminal, suggest_remedies
from powerprof.report.html.page import Extras
from tests.unit.report.sample_records import attribution

_WINDOW_S = 10.0


def polling(
    *functions: str, hertz: float = 100.0, module: str = "libc.so.6", period_ms: float | None = 10.0
) -> Attribution:
    """The sample with one thread that sleeps at that stack, and no other timer on the host."""
    sample = attribution()
    frames = [StackFrame(function=name, module=module, address="0x1") for name in functions]
    thread = replace(sample.wakeups[0].thread, tid=77, pid=70, comm="poller", server_name=None)
    count = round(hertz * _WINDOW_S)
    row = replace(
        sample.wakeups[0], thread=thread, stack=frames, count=count, wakings_count=count, rate_hz=hertz,
        period_ms=period_ms, origin="own_timer", mechanism="timer", waker=None,
    )  # fmt: skip
    return replace(sample, wakeups=[row], wakings_without_exit=[], other_causes=[], window_s=_WINDOW_S, cpus=1)


def test_a_poller_is_named_with_its_prediction_and_the_command() -> None:
    (said,) = suggest_remedies(polling("poll", "loop"))
    # 10 ms and 50 ms of slack, where nothing else interrupts the CPU.
    assert said == (
        "poller: with 50 ms of timer slack 100.0 → 16.7 wake-ups/s (predicted); without the thread at most "
        "100.0 idle exits/s less. To try it: powerprof cure --pid 70 --thread 77 --slack 50ms"
    )


def test_sleeps_that_are_not_regular_are_a_bound() -> None:
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
        replace(polling("poll", "loop"), interrupted=True),
        replace(polling("poll", "loop"), target=replace(attribution().target, system=True)),
    ],
    ids=["deaf", "unknown", "seldom", "Go", "Java", "interrupted", "system"],
)
def test_nothing_is_said_where_nothing_holds(record: Attribution) -> None:
    assert suggest_remedies(record) == []
    assert "What would help most" not in "\n".join(render_terminal(record))


def test_idle_exits_bound_nothing_where_others_kept_the_cpus_busy() -> None:
    record = polling("poll", "loop", period_ms=None)
    (said,) = suggest_remedies(replace(record, wakeups=[replace(record.wakeups[0], count=0, rate_hz=0.0)]))
    assert "wake-ups/s (predicted). To try it: " in said


def test_it_stands_in_the_report_and_on_the_page() -> None:
    record = polling("poll", "loop")
    printed = "\n".join(render_terminal(record))
    assert "\nWhat would help most\n  poller: with 50 ms of timer slack" in printed
    page = render_html(record, Extras())
    assert "<h2>What would help most</h2>" in page
    assert "--thread 77 --slack 50ms" in page.replace("\u2011", "-")
