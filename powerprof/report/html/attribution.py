"""The page of an attribution."""

from __future__ import annotations

from powerprof import text
from powerprof.attribution.records import Attribution, Wakeup
from powerprof.report.attribution import headline
from powerprof.report.flamegraph import flame
from powerprof.report.html.extras import Extras
from powerprof.report.html.figures import Figures, clean
from powerprof.report.html.flames import flame_view
from powerprof.report.html.lanes import MECHANISMS, lanes
from powerprof.report.html.page import page
from powerprof.report.stacks import modules_of, stacks_of

# The page has to stay below 6 MiB whatever the names are.
MAX_ROWS = 100
_FRAMES = 2000
_STACK_LIMIT = 2000
_ORIGINS = {
    "own_timer": "its own timer",
    "other_thread": "another thread",
    "other_process": "another process",
    "device": "a device",
    "kernel": "the kernel",
}
_OPEN_ROWS = 20
_OPEN_FRAMES = 9


def why(wakeup: Wakeup) -> str:
    """Origin in words, with who woke it or which device or timer it was."""
    words = _ORIGINS.get(wakeup.origin, wakeup.origin)
    if wakeup.waker is not None and wakeup.origin in ("other_thread", "other_process"):
        name = (wakeup.waker.server_name or wakeup.waker.comm).removeprefix("thread/")
        return f"{words}, {clean(name, 60)} ({wakeup.waker.pid})"
    return f"{words}, {clean(wakeup.detail, 60)}" if wakeup.detail else words


def chain(wakeup: Wakeup) -> tuple[str, str]:
    """The stack, innermost first: what is shown at once and what is behind it."""
    names = [clean(frame.label, 160) for frame in wakeup.stack]
    if not names:
        return "no user stack", ""
    if not wakeup.stack_complete:
        names.append("…")
    first = _OPEN_FRAMES if len(names) > _OPEN_FRAMES + 2 else len(names)
    return " ← ".join(names[:first]), clean(" ← ".join(names[first:]), _STACK_LIMIT)


def render(record: Attribution, extras: Extras) -> str:
    """The page."""
    figures = Figures(record)
    modules = modules_of(record.wakeups)
    exits, c0 = (stacks_of(record.wakeups, by) for by in ("count", "c0_ms"))
    root = clean(record.target.label, 80)
    views = [
        flame_view(flame(stacks, unit=unit, root=root, limit=_FRAMES), title, modules)
        for stacks, unit, title in ((exits, "idle exits", "Idle exits"), (c0, "ms of C0", "C0 time that followed"))
    ]
    rows = [
        (index, wakeup, why(wakeup), chain(wakeup), text.period(wakeup.period_ms))
        for index, wakeup in enumerate(record.wakeups[:MAX_ROWS])
    ]
    return page(
        "attribution.html.j2",
        record,
        figures,
        title=clean(headline(record)),
        answer=headline(record),
        groups=[rows[:_OPEN_ROWS], rows[_OPEN_ROWS:]],
        left=record.wakeups[MAX_ROWS:],
        flames=[view for view in views if view],
        lanes=lanes(extras.timeline),
        mechanisms=MECHANISMS,
        period=text.period,
    )
