# SPDX-License-Identifier: Apache-2.0
"""The live screen of `queries --watch`: a screen of any size, or a line per window."""

from __future__ import annotations

from powerprof.energy.total import host_energy
from powerprof.live.statements import StatementHistory, StatementTrend
from powerprof.model import text
from powerprof.queries.records import Queries
from powerprof.report.queries import EXPENSIVE_PERCENT
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

QUERIES_SORTS = ("CPU", "calls", "ms a call", "p95", "name")
_KEYS = "q quit  ? help  s sort  / filter  ⏎ text  space pause  w save"
_MEANINGS = (
    ("CPU %", "CPU time of the statement, in percent of one CPU"),
    ("trend", "the same in the last windows, the newest at the right"),
    ("calls/s", "executions per second"),
    ("ms CPU", "CPU time per execution"),
    ("p95 ms", "95 % of its executions were faster than this"),
)
_QUERIES_TREND, _TEXT_LINES = 8, 8
# Narrower screens have no trend and no times.
_WIDE_QUERIES = 74
AWAY = "the server is away: waiting for it"


def draw_queries_screen(history: StatementHistory, view: ScreenView, title: str, width: int, height: int) -> list[str]:
    """Return the whole screen, `height` lines of at most `width`: figures, rows, doubts, keys and cost."""
    newest = history.last
    away = [f"! {AWAY}"] if history.is_away else []
    if newest is None:
        waiting = "" if away else "waiting for the first window …"
        return fill_screen([title, "", waiting], [*away, *last_lines(view, _KEYS, "", width, height)], width, height)
    if view.help:
        top = [title, "", *help_lines(_MEANINGS, "show the text of the chosen statement", width)]
        return fill_screen(top, [], width, height)
    lines = queries_chosen_lines(history, view)
    left_out = "" if width >= _WIDE_QUERIES else "trend, ms CPU, p95 ms"
    order = order_line(view, len(lines), len(newest.statements), ", ".join(QUERIES_SORTS), left_out)
    head = [*_queries_head(history, newest, view, title, width), order, _queries_columns(width)]
    foot = [
        *away,
        *text.fit_lines(_queries_trouble(newest), width),
        *last_lines(view, _KEYS, _cost(newest), width, height),
    ]
    room = max(1, height - len(head) - len(foot))
    return fill_screen([*head, *_queries_rows(lines, view, width, room)], foot, width, height)


def _queries_head(history: StatementHistory, newest: Queries, view: ScreenView, title: str, width: int) -> list[str]:
    when = newest.started_at[11:19] + (" PAUSED" if view.paused else "")
    first = f"{title} · {newest.server.label} · {newest.window_s:.0f} s"
    wide = 12 if width >= 100 else 8
    used = history.series(_cpu_percent)
    calls = history.series(_calls_hz)
    power = history.series(_watts)
    estimated = " est." if newest.kind == "estimated" else ""
    parts = [
        f"CPU {text.number(used[-1], 1)} % of one {draw_bars(used, wide)}",
        f"{format_rate(calls[-1])} statements/s {draw_bars(calls, wide)}",
        f"{text.number(power[-1], 2)} W{estimated} {draw_bars(power, wide)}"
        if power[-1] is not None
        else "no power figure",
    ]
    if newest.gap_before_s is not None:
        parts.append(f"{1e3 * newest.gap_before_s:.0f} ms not measured before it")
    return [*two_ends(first, when, width), *text.fit_lines(["  ".join(parts), _balance(newest)], width)]


def _cpu_percent(window: Queries) -> float:
    return 100.0 * window.server_c0_s / window.window_s


def _watts(window: Queries) -> float | None:
    """Return the power of the server above the idle floor."""
    return None if window.joules is None else window.joules / window.window_s


def _balance(newest: Queries) -> str:
    """Return the parts of the server's CPU time, which add up to all of it."""
    whole = newest.server_c0_s
    if whole <= 0:
        return "it used no CPU time"
    parts = {
        "statements": sum(statement.c0_s for statement in newest.statements),
        "background": sum(background.c0_s for background in newest.background),
        "connections": newest.connections_c0_s,
        "unexplained": newest.residual_c0_s,
    }
    return " + ".join(f"{name} {text.number(100.0 * used / whole, 1)} %" for name, used in parts.items())


def _calls_hz(window: Queries) -> float | None:
    return None if window.calls_count is None else window.calls_count / window.window_s


def _queries_columns(width: int) -> str:
    if width < _WIDE_QUERIES:
        return f"{'CPU %':>7}  {'calls/s':>9}  statement"
    return f"{'CPU %':>7}  {'trend':<{_QUERIES_TREND}}  {'calls/s':>9}  {'ms CPU':>8}  {'p95 ms':>8}  statement"


def queries_chosen_lines(history: StatementHistory, view: ScreenView) -> list[StatementTrend]:
    """Return the rows that the filter selects, in their order."""
    wanted = view.wanted.casefold()
    lines = [line for line in history.lines() if wanted in line.statement.text.casefold()]
    order = {
        "calls": lambda line: -(line.statement.calls_hz or 0.0),
        "ms a call": lambda line: -(line.statement.c0_ms_per_call or 0.0),
        "p95": lambda line: -(line.statement.latency_ms.p95 if line.statement.latency_ms else 0.0),
        "name": lambda line: line.statement.text.casefold(),
    }.get(view.sort)
    return sorted(lines, key=order) if order else lines


def _queries_rows(lines: list[StatementTrend], view: ScreenView, width: int, room: int) -> list[str]:
    if not lines:
        return [f"no statement contains “{view.wanted}”" if view.wanted else "no statement was executed"]
    return scroll_rows(
        lines,
        view,
        room,
        row=lambda line: _row(line, width),
        details=lambda line: text.wrap(line.statement.text, width, " " * 8)[:_TEXT_LINES],
        rest=lambda left: f"{text.number(sum(line.cpu_percent for line in left), 1):>7}",
    )


def _row(line: StatementTrend, width: int) -> str:
    statement = line.statement
    p95 = statement.latency_ms.p95 if statement.latency_ms else None
    if width < _WIDE_QUERIES:
        figures = f"{line.cpu_percent:>7.1f}  {format_rate(statement.calls_hz):>9}  "
        return text.shorten(figures + statement.text, width)
    figures = (
        f"{line.cpu_percent:>7.1f}  {draw_bars(line.before, _QUERIES_TREND)}  "
        f"{format_rate(statement.calls_hz):>9}  "
        f"{text.number(statement.c0_ms_per_call, 3):>8}  {text.number(p95, 2):>8}  "
    )
    return text.shorten(figures + statement.text, width)


def _queries_trouble(newest: Queries) -> list[str]:
    """Return the reasons to doubt the figures, and the cost of tracing if it is high."""
    troubles = []
    if newest.lost_count:
        troubles.append(f"! {newest.lost_count:,} updates lost: figures are too low")
    share = _share_of_tracing(newest)
    if share is not None and share > EXPENSIVE_PERCENT:
        troubles.append(f"! tracing takes {text.number(share, 1)} % of the server's CPU time")
    return troubles


def _share_of_tracing(newest: Queries) -> float | None:
    spent = newest.tracing.probes_ms
    return None if spent is None or newest.server_c0_s <= 0 else spent / 10.0 / newest.server_c0_s


def _cost(newest: Queries) -> str:
    each = newest.tracing.per_call_us
    return "" if each is None else f"itself: {text.number(each, 1)} µs per statement"


QUERIES_PLAIN_HEAD = f"{'time':<8} {'CPU %':>6} {'calls/s':>8} {'watts':>7} {'lost':>5}  most, % of one CPU"


def queries_plain_line(newest: Queries | None, width: int = 100) -> str:
    """Return a window as one line, for a log."""
    if newest is None:
        return AWAY
    watts = host_energy(newest.energy).watts
    most = ", ".join(
        f"{100.0 * statement.c0_s / newest.window_s:.1f} {text.shorten(statement.text, 50)}"
        for statement in newest.statements[:3]
    )
    return text.shorten(
        f"{newest.started_at[11:19]:<8} {_cpu_percent(newest):>6.1f} "
        f"{format_rate(_calls_hz(newest)):>8} "
        f"{text.number(watts, 2):>7} {newest.lost_count:>5}  {most}",
        width,
    )
