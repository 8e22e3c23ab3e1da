"""The page of an attribution."""

from __future__ import annotations

from powerprof.attribution.records import Attribution, Wakeup
from powerprof.report import text
from powerprof.report.attribution import headline
from powerprof.report.flamegraph import flame
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import Figures, clean
from powerprof.report.html.flames import flame_view
from powerprof.report.html.lanes import MECHANISMS, lanes
from powerprof.report.html.page import page
from powerprof.report.stacks import modules_of, stacks_of

MAX_ROWS = 200
_ORIGINS = {
    "own_timer": "its own timer", "other_thread": "another thread", "other_process": "another process",
    "device": "a device", "kernel": "the kernel",
}  # fmt: skip
_STACK_LIMIT = 40


def why(wakeup: Wakeup) -> str:
    """Origin in words, with who woke it or which device or timer it was."""
    words = _ORIGINS.get(wakeup.origin, wakeup.origin)
    if wakeup.waker is not None and wakeup.origin in ("other_thread", "other_process"):
        name = (wakeup.waker.server_name or wakeup.waker.comm).removeprefix("thread/")
        return f"{words}, {clean(name, 60)} ({wakeup.waker.pid})"
    return f"{words}, {clean(wakeup.detail, 60)}" if wakeup.detail else words


def chain(wakeup: Wakeup) -> str:
    """The stack in one line, innermost first."""
    names = [clean(frame.label, 160) for frame in wakeup.stack[:_STACK_LIMIT]]
    more = len(wakeup.stack) - len(names)
    tail = f" ← … {more} more" if more else "" if wakeup.stack_complete or not names else " ← …"
    return " ← ".join(names) + tail if names else "no user stack"


def render(record: Attribution, extras: Extras) -> str:
    """The page."""
    figures = Figures(record)
    modules = modules_of(record.wakeups)
    exits, c0 = (stacks_of(record.wakeups, by) for by in ("count", "c0_ms"))
    views = [
        flame_view(flame(exits, unit="idle exits", root=clean(record.target.label, 80)), "Idle exits", modules),
        flame_view(flame(c0, unit="ms of C0", root=clean(record.target.label, 80)), "C0 time that followed", modules),
    ]
    return page(
        "attribution.html.j2", record, figures, title=clean(headline(record)), answer=headline(record),
        wakeups=[(index, wakeup, why(wakeup), chain(wakeup), text.period(wakeup.period_ms))
                 for index, wakeup in enumerate(record.wakeups[:MAX_ROWS])],
        left=record.wakeups[MAX_ROWS:], flames=[view for view in views if view], lanes=lanes(extras.timeline),
        mechanisms=MECHANISMS, period=text.period,
    )  # fmt: skip
