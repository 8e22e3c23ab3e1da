# SPDX-License-Identifier: Apache-2.0
"""What `powerprof queries --watch` shows: a screen of any size, or a line a window. Pure."""

from __future__ import annotations

from powerprof import text
from powerprof.energy.domains import host_energy
from powerprof.live.statements import StatementHistory, StatementLine
from powerprof.queries.records import Queries
from powerprof.report.screens.screen import ScreenView, filled, help_lines, last_lines, order_line, scrolled, spark
from powerprof.report.terminal.queries import DEAR_PERCENT

SORTS = ("CPU", "calls", "ms a call", "p95", "name")
_KEYS = "q quit  ? help  s sort  / filter  ⏎ text  space pause  w save"
_MEANINGS = (
    ("CPU %", "CPU time of the statement, in percent of one CPU"),
    ("trend", "the same in the last windows, the newest at the right"),
    ("calls/s", "executions per second"),
    ("ms CPU", "CPU time per execution"),
    ("p95 ms", "the time that 95 % of its executions stayed below"),
)
_TREND, _TEXT_LINES = 8, 8
AWAY = "the server is away: waiting for it"


def screen(history: StatementHistory, view: ScreenView, title: str, width: int, height: int) -> list[str]:
    """The whole screen, `height` lines of at most `width`: figures, rows, doubts, keys and cost."""
    newest = history.last
    away = [f"! {AWAY}"] if history.is_away else []
    if newest is None:
        waiting = "" if away else "waiting for the first window …"
        return filled([title, "", waiting], [*away, *last_lines(view, _KEYS, "", width, height)], width, height)
    if view.help:
        top = [title, "", *help_lines(_MEANINGS, "show the text of the chosen statement", width)]
        return filled(top, [], width, height)
    lines = chosen_lines(history, view)
    order = order_line(view, len(lines), len(newest.statements), ", ".join(SORTS))
    head = [*_head(history, newest, view, title, width), order, _columns()]
    foot = [*away, *_trouble(newest), *last_lines(view, _KEYS, _cost(newest), width, height)]
    room = max(1, height - len(head) - len(foot))
    return filled([*head, *_rows(lines, view, width, room)], foot, width, height)


def _head(history: StatementHistory, newest: Queries, view: ScreenView, title: str, width: int) -> list[str]:
    when = newest.started_at[11:19] + (" PAUSED" if view.paused else "")
    first = f"{title} · {newest.server.label} · {newest.window_s:.0f} s"
    wide = 12 if width >= 100 else 8
    used = history.series(_cpu_percent)
    calls = history.series(lambda window: window.calls_count / window.window_s)
    power = history.series(_watts)
    estimated = " est." if newest.kind == "estimated" else ""
    parts = [
        f"CPU {text.number(used[-1], 1)} % of one {spark(used, wide)}",
        f"{_rate(calls[-1] or 0.0)} statements/s {spark(calls, wide)}",
        f"{text.number(power[-1], 2)} W{estimated} {spark(power, wide)}"
        if power[-1] is not None
        else "no power figure",
    ]
    if newest.gap_before_s is not None:
        parts.append(f"{1e3 * newest.gap_before_s:.0f} ms not measured before it")
    return [first + when.rjust(max(1, width - len(first))), "  ".join(parts), _balance(newest)]


def _cpu_percent(window: Queries) -> float:
    return 100.0 * window.server_c0_s / window.window_s


def _watts(window: Queries) -> float | None:
    """The server's, above the idle floor."""
    return None if window.joules is None else window.joules / window.window_s


def _balance(newest: Queries) -> str:
    """That the parts are the whole."""
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


def _rate(hertz: float) -> str:
    return f"{hertz:,.0f}" if hertz >= 10 else text.number(hertz, 1)


def _columns() -> str:
    return f"{'CPU %':>7}  {'trend':<{_TREND}}  {'calls/s':>9}  {'ms CPU':>8}  {'p95 ms':>8}  statement"


def chosen_lines(history: StatementHistory, view: ScreenView) -> list[StatementLine]:
    """The rows that are shown, in their order."""
    wanted = view.wanted.casefold()
    lines = [line for line in history.lines() if wanted in line.statement.text.casefold()]
    order = {
        "calls": lambda line: -(line.statement.calls_hz or 0.0),
        "ms a call": lambda line: -(line.statement.c0_ms_per_call or 0.0),
        "p95": lambda line: -(line.statement.latency_ms.p95 if line.statement.latency_ms else 0.0),
        "name": lambda line: line.statement.text.casefold(),
    }.get(view.sort)
    return sorted(lines, key=order) if order else lines


def _rows(lines: list[StatementLine], view: ScreenView, width: int, room: int) -> list[str]:
    if not lines:
        return [f"no statement contains “{view.wanted}”" if view.wanted else "no statement was executed"]
    return scrolled(
        lines,
        view,
        room,
        row=lambda line: _row(line, width),
        details=lambda line: text.wrap(line.statement.text, width, " " * 8)[:_TEXT_LINES],
        rest=lambda left: f"{text.number(sum(line.cpu_percent for line in left), 1):>7}",
    )


def _row(line: StatementLine, width: int) -> str:
    statement = line.statement
    p95 = statement.latency_ms.p95 if statement.latency_ms else None
    figures = (
        f"{line.cpu_percent:>7.1f}  {spark(line.before, _TREND)}  {_rate(statement.calls_hz or 0.0):>9}  "
        f"{text.number(statement.c0_ms_per_call, 3):>8}  {text.number(p95, 2):>8}  "
    )
    return text.cut(figures + statement.text, width)


def _trouble(newest: Queries) -> list[str]:
    """What makes the figures doubtful, or expensive."""
    troubles = []
    if newest.lost_count:
        troubles.append(f"! {newest.lost_count:,} updates lost: figures are too low")
    share = _share_of_tracing(newest)
    if share is not None and share > DEAR_PERCENT:
        troubles.append(f"! tracing takes {text.number(share, 1)} % of the server's CPU time")
    return troubles


def _share_of_tracing(newest: Queries) -> float | None:
    spent = newest.tracing.probes_ms
    return None if spent is None or newest.server_c0_s <= 0 else spent / 10.0 / newest.server_c0_s


def _cost(newest: Queries) -> str:
    each = newest.tracing.per_call_us
    return "" if each is None else f"itself: {text.number(each, 1)} µs a statement"


PLAIN_HEAD = f"{'time':<8} {'CPU %':>6} {'calls/s':>8} {'watts':>7} {'lost':>5}  most, % of one CPU"


def plain_line(newest: Queries | None, width: int = 100) -> str:
    """A window as one line, for a log."""
    if newest is None:
        return AWAY
    watts = host_energy(newest.energy).watts
    most = ", ".join(
        f"{100.0 * statement.c0_s / newest.window_s:.1f} {text.cut(statement.text, 50)}"
        for statement in newest.statements[:3]
    )
    return text.cut(
        f"{newest.started_at[11:19]:<8} {_cpu_percent(newest):>6.1f} {_rate(newest.calls_count / newest.window_s):>8} "
        f"{text.number(watts, 2):>7} {newest.lost_count:>5}  {most}",
        width,
    )
