# SPDX-License-Identifier: Apache-2.0
"""The part of `powerprof deep-idle`: time in which all CPUs idled together, its end by cause, and what-if."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from powerprof.model import text
from powerprof.model.deep_idle import Breaker, DeepIdle, DeepScope, DeepWhatIf, ExpectedScope, GovernorCheck
from powerprof.report.document import Drawing, Part, Sentence, Shown
from powerprof.report.html.svg import BarShare, draw_state_bar
from powerprof.report.table import Column, Line, Table, TableRow, Words, word_columns
from powerprof.system.next_steps import command_line

_MOST_MISSES = 3
_PARTS = ("ended", "open", "running", "unknown", "polling")


def list_parts(deep: DeepIdle, top: int) -> Iterator[Part]:
    """Yield the sentences and tables: the host, its packages, the governor, the what-if; `top` limits the breakers."""
    for scope in deep.scopes:
        yield Drawing(partial(draw_shares, scope))
        if scope is not deep.scopes[0]:  # its sentence is the answer of the report
            yield Sentence(_describe(scope))
        yield Sentence(_rest(scope), look="detail")
        if scope.count:
            yield Shown(_lengths_table(scope), names=False)
            yield Sentence(_states_text(scope, deep.table), look="detail")
        if scope is deep.scopes[0] and any(row.count for row in scope.breakers):
            yield Shown(_breakers_table(scope, top), names=False)
    if deep.lost_count:
        is_sample = deep.lost_count > deep.periods_count
        remedy = f"; to save all: {command_line('deep-idle')}" if is_sample else ""
        lost = text.plural(deep.lost_count, "idle period")
        yield Sentence(f"{lost} not saved, so this time is unknown{remedy}.")
    yield Sentence(_governor_text(deep.governor, deep.scopes[0].breakers))
    if deep.what_if is not None:
        yield from _predict(deep.what_if, deep.scopes, deep.lost_count)


def answer_of(deep: DeepIdle) -> str:
    """Return how long all CPUs of the host idled together."""
    return _describe(deep.scopes[0])


def draw_shares(scope: DeepScope) -> Markup:
    """Return a bar of the window: a CPU ran, unknown, and the stretches by length."""
    shares = [("a CPU ran", scope.running_s, "c0"), ("unknown", scope.unknown_s, "poll")]
    shares += [
        (f"from {_length(part.from_us)}", part.time_s, f"s{number}") for number, part in enumerate(scope.lengths)
    ]
    bars = [BarShare(name, 100.0 * time_s / scope.window_s, look) for name, time_s, look in shares if time_s]
    return draw_state_bar(bars, scope.name)


def csv_lines(deep: DeepIdle) -> Iterator[Line]:
    """Yield a head, then a line per part of the window, length, idle state, breaker and prediction of each scope."""
    yield [
        *("deep_idle", "part", "name", "count", "time_s", "low", "high", "process", "pid", "thread", "above_count"),
        "below_count",
    ]
    for scope in deep.scopes:
        for part in _PARTS:
            yield [scope.name, "window", part, None, getattr(scope, f"{part}_s")]
        for bin in scope.lengths:
            yield [scope.name, "length_us", bin.from_us, bin.count, bin.time_s]
        for state in scope.states:
            yield [scope.name, "state", state.name, state.count, state.time_s]
        for row in scope.breakers:
            who = (row.process, row.pid, row.thread, row.above_count, row.below_count)
            mechanism = f"{row.mechanism} {row.name or ''}".strip()
            yield [scope.name, "breaker", mechanism, row.count, row.stretch_s, None, None, *who]
    for expected in deep.what_if.expected if deep.what_if is not None else []:
        for name in ("together_s", "count", "half_us"):
            yield [expected.name, "expected", name, None, None, *getattr(expected, name)]
        for name, ends in expected.states_s.items():
            yield [expected.name, "expected_s", name, None, None, *ends]


def _length(microseconds: float | None) -> str:
    if microseconds is None:
        return "unknown"
    if microseconds >= 1e6:
        return f"{text.number(microseconds / 1e6, 2)} s"
    return f"{text.number(microseconds, 0)} µs" if microseconds < 1000 else f"{text.number(microseconds / 1e3, 1)} ms"


def _range(low_us: float, high_us: float) -> str:
    low, high = _length(low_us), _length(high_us)
    return high if low == high else f"{low} to {high}"


def _together(scope: DeepScope) -> str:
    """Return the time of all stretches as text, an interval if a part of the window is unknown."""
    together_us = 1e6 * (scope.ended_s + scope.open_s)
    return f"{_range(together_us, together_us + 1e6 * scope.unknown_s)} of {_length(1e6 * scope.window_s)}"


def _describe(scope: DeepScope) -> str:
    cpus = "Its only CPU idled" if scope.cpus == 1 else f"All {scope.cpus} CPUs idled together"
    where = "" if scope.name == "host" else f"{scope.name[:1].upper()}{scope.name[1:]}: "
    if not scope.window_s:
        return f"{where}Whether all CPUs idled together is unknown: no moment is in the windows of all CPUs."
    if not scope.count:
        if scope.unknown_s:
            return f"{where}Whether all CPUs idled together is unknown: their idle periods were not saved."
        return f"{where}{cpus} at no time in {_length(1e6 * scope.window_s)}."
    return (
        f"{where}{cpus} for {_together(scope)}, in {scope.count:,} stretch{'' if scope.count == 1 else 'es'}."
        f" Half of this time is in stretches of {_length(scope.half_us)} or more; the longest has"
        f" {_length(scope.longest_us)}."
    )


def _rest(scope: DeepScope) -> str:
    parts = [f"A CPU ran for {_length(1e6 * scope.running_s)}."]
    if scope.unknown_s:
        parts.append(f"Unknown: {_length(1e6 * scope.unknown_s)}.")
    if scope.open_s:
        parts.append(f"The window ended in a stretch of {_length(scope.open_s * 1e6)}.")
    if scope.polling_s >= 0.005:
        parts.append(f"In {_length(1e6 * scope.polling_s)} of the stretches a CPU polled, which saves no energy.")
    return " ".join(parts)


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], label: str, names: Sequence[str] = ()) -> Table:
    """Return a table of texts; the columns `names` hold names from outside."""
    keys = [column.key for column in columns]
    return Table(
        columns,
        [
            TableRow({key: Words(cell, ours=key not in names) for key, cell in zip(keys, row, strict=True)})
            for row in rows
        ],
        label,
    )


def _lengths_table(scope: DeepScope) -> Table:
    rows = []
    for part in scope.lengths:
        if part.count:
            limit = "or more" if part.below_us is None else f"to {_length(part.below_us)}"
            rows.append((f"{_length(part.from_us)} {limit}", f"{part.count:,}", _length(1e6 * part.time_s)))
    columns = [*word_columns("length"), Column("stretches", "stretches"), Column("time", "time")]
    return _draw(columns, rows, f"stretches of {scope.name} by length")


def _states_text(scope: DeepScope, table: str | None) -> str:
    shares = [
        f"{state.name} (from {_length(state.target_us)}{', disabled' if state.disabled else ''})"
        f" for {text.number(state.percent, 1)} %"
        for state in scope.states
        if state.percent is not None
    ]
    if not shares:
        return "The share of each idle state is unknown, because no target residency is known (--as CPU)."
    first = f"With the idle states of {table}, software" if table else "Software"
    return f"{first} would allow {text.join_words(shares)} of this time; the hardware can refuse."


def _who(row: Breaker) -> str:
    if row.mechanism == "lost":
        return "unknown: the idle periods after it were not saved"
    names = [row.process or "", row.thread if row.thread != row.process else "", row.name]
    return " · ".join(name for name in (*names, row.mechanism.replace("_", "-")) if name)


def _breakers_table(scope: DeepScope, top: int) -> Table:
    breakers, total_s = [row for row in scope.breakers if row.count], scope.ended_s + scope.open_s
    rows = [
        (f"{row.count:,}", _percent(row.stretch_s, total_s), _length(1e6 * row.stretch_s / row.count), _who(row))
        for row in breakers[:top]
    ]
    if hidden := breakers[top:]:
        count, time_s = sum(row.count for row in hidden), sum(row.stretch_s for row in hidden)
        rows.append((f"{count:,}", _percent(time_s, total_s), "", f"{len(hidden)} more (--top N, or --json)"))
    columns = [Column(key, key) for key in ("stretches", "time", "mean")]
    columns.append(Column("who", "ended by (process · thread · event)", left=True))
    return _draw(columns, rows, "breakers of deep idle", ("who",))


def _percent(part_s: float, total_s: float) -> str:
    return f"{text.number(100.0 * part_s / total_s, 1)} %"


def _governor_text(check: GovernorCheck | None, causes: Sequence[Breaker]) -> str:
    if check is None:
        return "Misses of the idle governor: unknown, because target residencies are unknown."
    missed = sorted(causes, key=lambda row: -row.above_count - row.below_count)
    most = [
        f"{_who(row)} ({row.above_count:,} too deep, {row.below_count:,} too shallow)"
        for row in missed[:_MOST_MISSES]
        if row.above_count + row.below_count
    ]
    above, below = (
        "unknown" if kernel is None else f"{kernel:,}"
        for kernel in (check.kernel_above_count, check.kernel_below_count)
    )
    partly = "" if check.is_complete else " Only saved idle periods are counted."
    before = f" Most before: {'; '.join(most)}." if most else ""
    return (
        f"The idle governor chose a state that was too deep {check.above_count:,} times (kernel: {above}), and too"
        f" shallow {check.below_count:,} times (kernel: {below}).{partly}{before}"
    )


def _predict(what_if: DeepWhatIf, present: Sequence[DeepScope], lost_count: int) -> Iterator[Sentence]:
    changes = [f"without {name}" for name in what_if.without]
    changes += [f"with {ms:g} ms more timer slack of {name}" for name, ms in what_if.slack_ms.items()]
    change = text.join_words(changes)
    yield Sentence(f"{change[:1].upper()}{change[1:]}, in a window of this length and load:")
    if what_if.unmatched:
        names = text.join_words(what_if.unmatched)
        yield Sentence(
            f"No effect: no thread of this name or id ended an idle period here (slack: by a timer): {names}.",
            look="detail",
        )
    if not what_if.expected:
        missing = "idle periods were not saved (a shorter --duration saves all)" if lost_count else "there is none"
        yield Sentence(f"Unknown, because {missing}.", look="detail")
        return
    for expected, before in zip(what_if.expected, present, strict=True):
        yield Sentence(_predict_scope(expected, before, is_bound=not what_if.slack_ms), look="detail")
    moved = f"{text.plural(what_if.removed_count, 'idle exit')} left out, {what_if.moved_count:,} moved"
    kind = "95 % intervals without events that are rarer than the window" if what_if.slack_ms else "Upper bounds"
    yield Sentence(f"{moved}. {kind}; the work can move to other threads.", look="detail")


def _predict_scope(expected: ExpectedScope, before: DeepScope, *, is_bound: bool) -> str:
    """Return the intervals of a later window as a sentence; of a bound only the upper end."""

    def amount(ends: tuple[float, float], scale: float) -> str:
        low, high = (scale * end for end in ends)
        return f"at most {_length(high)}" if is_bound else _range(low, high)

    more = "" if is_bound else " or more"
    half = f"; half of it in stretches of {amount(expected.half_us, 1.0)}{more} (now {_length(before.half_us)})"
    now = {state.name: state.time_s or 0.0 for state in before.states}
    states = [
        f"{name} for {amount(ends, 1e6)} (now {_length(1e6 * now[name]) if name in now else 'unknown'})"
        for name, ends in expected.states_s.items()
    ]
    return (
        f"{expected.name}: all CPUs idle together for {amount(expected.together_s, 1e6)} (now {_together(before)})"
        f"{half if before.count else ''}.{f' Software would allow {text.join_words(states)}.' if states else ''}"
    )
