# SPDX-License-Identifier: Apache-2.0
"""The live screen of `watch`: a screen of any size, a line or a JSON document per interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from powerprof.live.intervals import LiveFinding, LiveInterval, RowHistory, RowKey, RowTrend, merge_rows
from powerprof.model import text
from powerprof.report.notes import word_notes
from powerprof.report.screen import (
    ScreenView,
    draw_bars,
    fill_screen,
    format_rate,
    help_lines,
    last_lines,
    order_line,
    scroll_rows,
    two_ends,
)

SORTS = ("rate", "C0", "name")
_TREND = 8
_STACK = 8
_FINDINGS = 3
# Exits. Some are in the next interval, because their CPUs run across the edge.
_WORTH_SAYING = 20
KEYS = "q quit  ? help  a all  s sort  / filter  ⏎ stack  space pause  w save"
_ALL_KEY = (("a", "show the other processes too, or only the target"),)
# Narrower screens have rates, running time and names only.
_WIDE = 64
_COLUMNS = (
    ("/s", "idle periods ended by it, per second, all CPUs"),
    ("trend", "the same in the last intervals, the newest at the right"),
    ("C0 %", "share of CPU time spent running because of it"),
    ("every", "its period, if it is regular"),
    ("NEW, 30 s", "first seen 30 s ago, while this screen was open"),
)
# From this load on the busy processes are listed, because there are few idle periods left.
BUSY_PERCENT = 50.0
_BUSIEST = 4


def draw_screen(history: RowHistory, view: ScreenView, title: str, width: int, height: int) -> list[str]:
    """Return the whole screen, `height` lines of at most `width`: figures, rows, findings, keys and own cost."""
    newest = history.last
    if newest is None:
        return fill_screen(
            [title, "", "waiting for the first interval …"], _foot(None, view, width, height), width, height
        )
    if view.help:
        return fill_screen(
            [title, "", *help_lines(_COLUMNS, "show the stack of the chosen row", width, _ALL_KEY)], [], width, height
        )
    head = _head(history, newest, view, title, width)
    findings = [line for finding in newest.findings[:_FINDINGS] for line in _finding_lines(finding, newest, width)]
    others = [] if view.all else _others(history, width)
    trouble = text.fit_lines(_trouble(newest), width)
    foot = [*others, *findings, *trouble, *_foot(newest, view, width, height)]
    lines = chosen_lines(history, view)
    left_out = "" if width >= _WIDE else "trend, every"
    head += [order_line(view, len(lines), len(history.lines()), ", ".join(SORTS), left_out), _columns(width)]
    room = height - len(head) - len(foot)
    return fill_screen([*head, *_rows(lines, view, width, max(1, room), bool(others))], foot, width, height)


def _head(history: RowHistory, newest: LiveInterval, view: ScreenView, title: str, width: int) -> list[str]:
    when = newest.ended_at[11:19] + (" PAUSED" if view.paused else "")
    host = f"{newest.cpus} CPUs · {newest.window_s:.0f} s"
    busy, states = busy_line(newest), text.fit_lines([_states(newest)], width)
    if not newest.target:
        parts = "  ".join(_host_parts(history, newest, 12 if width >= 100 else 8))
        lines = [*two_ends(f"{title} · {host}", when, width), *text.fit_lines([parts], width), *states]
        return [*lines, *(text.fit_lines([busy], width) if busy else [])]
    lines = _target_lines(newest, title, when, width)
    if width < _WIDE:
        # Every line here is one row less.
        first, *others = _host_parts(history, newest, 0)
        lines += _fill_lines([f"host: {first}", *others], width)
        return [*lines, *([text.shorten(busy, width)] if busy else [])]
    shown = (f"host: {host}  {'  '.join(_host_parts(history, newest, bars))}" for bars in (12, 8, 0))
    lines.append(next((line for line in shown if len(line) <= width), f"host: {host}"))
    return [*lines, *states, *(text.fit_lines([busy], width) if busy else [])]


def _host_parts(history: RowHistory, newest: LiveInterval, bars: int) -> list[str]:
    """Return running time, wake-ups and power of the host, each with a trend of `bars` columns."""
    watts = newest.host_watts
    power = "no power figure" if not watts else f"{text.number(watts[0], 1)} W{' est.' * (watts[1] == 'estimated')}"
    series: tuple[tuple[str, Callable[[LiveInterval], float | None]], ...] = (
        (f"C0 {text.number(newest.c0_percent, 1)} %", lambda span: span.c0_percent),
        (f"wake-ups {text.number(newest.exits_hz, 0)}/s", lambda span: span.exits_hz),
        (power, lambda span: None if span.host_watts is None else span.host_watts[0]),
    )
    return [
        f"{words} {draw_bars(history.series(value), bars)}" if bars and words != "no power figure" else words
        for words, value in series
    ]


def _target_lines(newest: LiveInterval, title: str, when: str, width: int) -> list[str]:
    """Return the target with its CPU use, wake-ups and statements, on one line if it is wide enough."""
    parts = [
        f"{text.number(newest.target_percent, 1)} % of a CPU" if newest.target_percent is not None else "CPU unknown",
        f"{format_rate(newest.target_exits_hz)} wake-ups/s",
    ]
    if newest.statements is not None:
        known = newest.statements_hz
        parts.append("statements unknown" if known is None else f"{format_rate(known)} statements/s")
    whole = " · ".join([title, *parts])
    if len(whole) + len(when) < width:
        return two_ends(whole, when, width)
    return [*two_ends(title, when, width), *_fill_lines(parts, width)]


def _fill_lines(parts: Sequence[str], width: int) -> list[str]:
    """Return lines of as many whole parts as fit, with separators between them."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(text.shorten(part, width))
    return lines


def _others(history: RowHistory, width: int) -> list[str]:
    """Return one line with the processes that are not the target, the most wake-ups first. All rates are in it."""
    rates: dict[str, float] = {}
    for line in history.lines():
        if line.row.is_other and line.rate_hz:
            name = _other_name(line.row.key)
            rates[name] = rates.get(name, 0.0) + line.rate_hz
    ranked = sorted(rates.items(), key=lambda item: (-item[1], item[0]))
    for count in range(len(ranked), 0, -1):
        parts = [f"{name} {format_rate(rate)}/s" for name, rate in ranked[:count]]
        if left := ranked[count:]:
            parts.append(f"{len(left)} more {format_rate(sum(rate for _, rate in left))}/s")
        words = f"others: {', '.join(parts)}"
        if len(words) <= width or count == 1:
            return text.fit_lines([words], width)
    return []


def _other_name(key: RowKey) -> str:
    """Return the process; for the kernel its kind of thread, or its work."""
    if key.process != "kernel":
        return key.process
    return (key.thread if key.thread != "kernel" else key.function).partition("/")[0]


def busy_line(newest: LiveInterval) -> str:
    """Return the programs that use busy CPUs; nothing if the CPUs are not busy or the load is unknown."""
    used = newest.c0_percent
    if used is None or used < BUSY_PERCENT or newest.used is None:
        return ""
    wall_s = newest.window_s * newest.cpus
    parts = [
        f"{name}{f' ({each.processes})' if each.processes > 1 else ''} {text.number(100.0 * each.cpu_s / wall_s, 0)} %"
        for name, each in sorted(newest.used.items(), key=lambda item: (-item[1].cpu_s, item[0]))[:_BUSIEST]
        if each.cpu_s >= wall_s / 100
    ]
    rest_s = newest.c0_s - sum(each.cpu_s for each in newest.used.values())
    if rest_s >= wall_s / 20:
        parts.append(f"other processes, and interrupts {text.number(100.0 * rest_s / wall_s, 0)} %")
    return f"busy: {', '.join(parts)}" if parts else ""


def _states(newest: LiveInterval) -> str:
    """Return the time of the CPUs by idle state, and the causes of the idle exits."""
    wall_s = newest.window_s * max(1, newest.cpus)
    by_state: dict[str, float] = {}
    for (_, state), seconds in newest.idle_s.items():
        by_state[state] = by_state.get(state, 0.0) + seconds
    states = [
        f"{name} {text.number(100.0 * seconds / wall_s, 1)} %" for name, seconds in by_state.items() if wall_s > 0
    ]
    why = sorted(newest.mechanisms.items(), key=lambda item: -item[1])
    ended = [f"{name.replace('_', '-')} {format_rate(count / newest.window_s)}" for name, count in why if count]
    return f"{', '.join(states)} · by {', '.join(ended)}" if ended else ", ".join(states)


def _columns(width: int) -> str:
    if width < _WIDE:
        return f"{'/s':>7}  {'C0 %':>6}  process, thread, function"
    return f"{'/s':>8}  {'trend':<{_TREND}}  {'C0 %':>6}  {'every':>7}  process, thread, function"


def chosen_lines(history: RowHistory, view: ScreenView) -> list[RowTrend]:
    """Return the rows that the filter selects, in their order."""
    wanted = view.wanted.casefold()
    lines = [
        line
        for line in history.lines()
        if (view.all or not line.row.is_other)
        and wanted in f"{line.row.key.process} {line.row.key.thread} {line.row.key.function}".casefold()
    ]
    if view.sort == "C0":
        lines.sort(key=lambda line: (-line.c0_percent, line.row.key))
    elif view.sort == "name":
        lines.sort(key=lambda line: line.row.key)
    return lines


def _rows(lines: list[RowTrend], view: ScreenView, width: int, room: int, has_others: bool) -> list[str]:
    if not lines:
        if view.wanted:
            return [f"no row contains “{view.wanted}”"]
        return [
            "the target woke no CPU in this interval" if has_others else "no CPU left an idle state in this interval"
        ]
    return scroll_rows(
        lines,
        view,
        room,
        row=lambda line: row_line(line, width),
        details=lambda line: _stack(line, width),
        rest=lambda left: f"{text.number(sum(line.rate_hz for line in left), 1):>{8 if width >= _WIDE else 7}}",
    )


def _stack(line: RowTrend, width: int) -> list[str]:
    frames = line.row.stack or ("no user stack",)
    indent = 37 if width >= _WIDE else 17
    return [
        text.shorten(f"{'':>{indent}}{'← ' if at else ''}{frame}", width) for at, frame in enumerate(frames[:_STACK])
    ]


def row_line(line: RowTrend, width: int) -> str:
    """Return one row: rate, trend, C0, period and owner."""
    key = line.row.key
    every = text.period(line.row.period_ms).removeprefix("every ")
    if width < _WIDE:
        head = f"{text.number(line.rate_hz, 1):>7}  {line.c0_percent:>6.2f}  "
        return head + _who(key, line.new_s, max(1, width - len(head)))
    head = (
        f"{text.number(line.rate_hz, 1):>8}  {draw_bars(line.rates_hz, _TREND)}  {line.c0_percent:>6.2f}  {every:>7}  "
    )
    return head + _who(key, line.new_s, max(12, width - len(head)))


def _who(key: RowKey, new_s: float | None, room: int) -> str:
    """Return process, thread, function and age.

    If the room is too small, the age is dropped first, then the thread (for threads of the kernel the word kernel),
    then the end of the function.
    """
    process = "" if key.thread == key.process else f"{key.process} "
    # The thread identifies a thread of the kernel.
    owner = key.thread if key.process == "kernel" else key.process
    full, short = f"{process}{key.thread} · {key.function}", f"{owner} · {key.function}"
    ages = [""] if new_s is None else [f"  NEW, {new_s:.0f} s", "  NEW"]
    choices = [*(full + age for age in ages), *(short + age for age in ages), short]
    return next((words for words in choices if len(words) <= room), text.shorten(short, room))


def _trouble(newest: LiveInterval) -> list[str]:
    """Return the reasons to doubt the figures."""
    troubles = [] if newest.ended is None else [newest.ended.why]
    if newest.lost_count:
        troubles.append(f"{newest.lost_count:,} causes lost")
    if newest.balance_error is not None and newest.balance_error * newest.exits_count > _WORTH_SAYING:
        troubles.append(f"trace and kernel differ by {100 * newest.balance_error:.1f} %")
    if newest.suspended_s:
        troubles.append(f"the host was suspended for {newest.suspended_s:.1f} s (not in any figure)")
    return [f"! {', '.join(troubles)}"] if troubles else []


def _foot(newest: LiveInterval | None, view: ScreenView, width: int, height: int) -> list[str]:
    cost = "" if newest is None or newest.window_s <= 0 else f"itself: {own_cost(newest)}"
    return last_lines(view, KEYS, cost, width, height)


def own_cost(interval: LiveInterval) -> str:
    """Return the CPU time and the wake-ups of powerprof itself in the interval."""
    own, seconds = interval.own, interval.window_s
    percent = 100.0 * (own.cpu_s + (own.bpf_s or 0.0)) / seconds
    programs = "" if own.bpf_s is None else f" (programs {text.number(100.0 * own.bpf_s / seconds, 1)} %)"
    bound = interval.max_cost_percent
    limit = "" if bound is None else f", bound {text.number(bound, 1)} %"
    wakeups = f"{text.number(own.wakeups_count / seconds, 1)} wake-ups/s"
    cost = f"{text.number(percent, 1)} % of a CPU{programs}{limit}, {wakeups}"
    if interval.traced_percent >= _ALL_TRACED:
        return cost
    return f"{cost}; traced {text.number(interval.traced_percent, 0)} % of the time"


# A smaller part is printed.
_ALL_TRACED = 99.5
PLAIN_HEAD = f"{'time':<8} {'C0 %':>6} {'idle/s':>8} {'watts':>7} {'lost':>5} {'own %':>6}  most, /s"


def plain_line(interval: LiveInterval, width: int = 100) -> str:
    """Return an interval as one line, for a log."""
    watts = interval.host_watts
    own_percent = 100.0 * interval.own.cpu_s / interval.window_s if interval.window_s else None
    head = (
        f"{interval.ended_at[11:19]:<8} {text.number(interval.c0_percent, 2):>6} "
        f"{text.number(interval.exits_hz, 1):>8} "
        f"{text.number(watts[0] if watts else None, 2):>7} {interval.lost_count:>5} {text.number(own_percent, 2):>6}  "
    )
    top = merge_rows(interval.rows)[:3]
    most = ", ".join(f"{row.key.process} {row.key.function} {row.exits_count / interval.window_s:.1f}" for row in top)
    faults = "".join(f"  ! {finding.rule}" for finding in interval.findings)
    busy = busy_line(interval)
    busy = f"! {busy}  " if busy else ""
    slept = f"! suspended for {interval.suspended_s:.1f} s  " if interval.suspended_s else ""
    end = f"! {interval.ended.why}  " if interval.ended is not None else ""
    return text.shorten(head + end + slept + busy + most + faults, width)


def interval_document(interval: LiveInterval) -> dict[str, Any]:
    """Return an interval as a JSON document: `powerprof.interval/1`."""
    watts = interval.host_watts
    return {
        "schema": "powerprof.interval/1",
        "ended_at": interval.ended_at,
        "window_s": interval.window_s,
        "ended": interval.ended and msgspec.to_builtins(interval.ended),
        "cpus": interval.cpus,
        "c0_percent": interval.c0_percent,
        "wakeups_hz": interval.exits_hz,
        "idle_exits_count": interval.exits_count,
        "mechanisms_count": interval.mechanisms,
        "states": [
            {"cpu": cpu, "name": name, "idle_s": seconds} for (cpu, name), seconds in sorted(interval.idle_s.items())
        ],
        "rows": [
            {
                "process": row.key.process,
                "thread": row.key.thread,
                "function": row.key.function,
                "mechanism": row.mechanism,
                "count": row.exits_count,
                "c0_s": row.c0_s,
                "period_ms": row.period_ms,
                "stack": list(row.stack),
            }
            for row in interval.rows
        ],
        "used": None
        if interval.used is None
        else [
            {"process": name, "processes_count": each.processes, "cpu_s": each.cpu_s}
            for name, each in sorted(interval.used.items(), key=lambda item: (-item[1].cpu_s, item[0]))
        ],
        "energy": [
            {"source": reading.source, "domain": reading.domain, "kind": reading.kind, "joules": reading.joules}
            for reading in interval.energy
        ],
        "watts": watts[0] if watts else None,
        "kind": watts[1] if watts else None,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "text": finding.text,
                "remedy": list(finding.remedy),
                "server": finding.server,
                "account": finding.account,
                "program": finding.program,
            }
            for finding in interval.findings
        ],
        "lost_count": interval.lost_count,
        "unknown_count": interval.unknown_count,
        "traced_percent": interval.traced_percent,
        "max_cost_percent": interval.max_cost_percent,
        "balance_error_percent": None if interval.balance_error is None else 100.0 * interval.balance_error,
        "suspended_s": interval.suspended_s,
        "target": {
            "name": interval.target,
            "cpu_percent": interval.target_percent,
            "wakeups_hz": interval.target_exits_hz,
            "statements_hz": interval.statements_hz,
        }
        if interval.target
        else None,
        "tool": {
            "cpu_s": interval.own.cpu_s,
            "bpf_s": interval.own.bpf_s,
            "wakeups_count": interval.own.wakeups_count,
            "memory_bytes": interval.own.memory_bytes,
        },
        "notes": word_notes(interval.notes),
    }


def _finding_lines(finding: LiveFinding, newest: LiveInterval, width: int) -> list[str]:
    """Return at most two lines with the finding, and with its server if the whole host is watched."""
    of = f"{finding.server} of {finding.account}: " if finding.server and not newest.target else ""
    lines = text.wrap(f"! {of}{finding.text}", width)
    return lines if len(lines) <= 2 else [lines[0], text.shorten(f"{lines[1]} {lines[2]}", width)]
