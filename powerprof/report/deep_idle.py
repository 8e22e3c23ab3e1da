# SPDX-License-Identifier: Apache-2.0
"""The part of `powerprof attribute --deep`: time in which all CPUs idled together, its end by cause, and what-if."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.model import text
from powerprof.model.deep_idle import Breaker, DeepIdle, DeepScope, DeepWhatIf, GovernorCheck
from powerprof.report.table import align_rows
from powerprof.system.next_steps import command_line

_MOST_MISSES = 3


def render_lines(deep: DeepIdle, width: int, top: int) -> list[str]:
    """Return the lines of deep idle: the host, then its packages; `top` is the number of breakers."""
    lines: list[str] = []
    for scope in deep.scopes:
        lines += [*text.wrap(_answer(scope), width), *text.wrap(_rest(scope), width, "  ")]
        if scope.count:
            lines += _length_lines(scope, width)
            lines += text.wrap(_states_text(scope, deep.table), width, "  ")
        if scope is deep.scopes[0]:
            lines += _breaker_lines(scope, width, top)
    if deep.lost_count:
        remedy = (
            f"; to save all: {command_line('attribute --system --deep')}"
            if deep.lost_count > deep.periods_count
            else ""
        )
        sentence = f"{text.plural(deep.lost_count, 'idle period')} not saved, so this time is unknown{remedy}."
        lines += text.wrap(sentence, width)
    lines += text.wrap(_governor_text(deep.governor, deep.scopes[0].breakers), width)
    if deep.what_if is not None:
        lines += _what_if_lines(deep.what_if, deep.scopes, width)
    return lines


def _deep_s(scope: DeepScope) -> float:
    return scope.ended_s + scope.open_s


def _length(microseconds: float | None) -> str:
    if microseconds is None:
        return "unknown"
    if microseconds >= 1e6:
        return f"{text.number(microseconds / 1e6, 2)} s"
    return f"{text.number(microseconds, 0)} µs" if microseconds < 1000 else f"{text.number(microseconds / 1e3, 1)} ms"


def _is_unknown(scope: DeepScope) -> bool:
    return scope.unknown_s > 0 and not scope.count


def _together(scope: DeepScope) -> str:
    """Return the time of all stretches as text, an interval if a part of the window is unknown."""
    low, most = _length(1e6 * _deep_s(scope)), _length(1e6 * (_deep_s(scope) + scope.unknown_s))
    return f"{low}{'' if most == low else f' to {most}'} of {_length(1e6 * scope.window_s)}"


def _answer(scope: DeepScope) -> str:
    cpus = "Its only CPU idled" if scope.cpus == 1 else f"All {scope.cpus} CPUs idled together"
    where = "" if scope.name == "host" else f"{scope.name[:1].upper()}{scope.name[1:]}: "
    if _is_unknown(scope):
        return f"{where}Whether all CPUs idled together is unknown: their idle periods were not saved."
    if not scope.count:
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


def _length_lines(scope: DeepScope, width: int) -> list[str]:
    rows = [["length", "stretches", "time"]]
    for part in scope.lengths:
        if part.count:
            limit = "or more" if part.below_us is None else f"to {_length(part.below_us)}"
            rows.append([f"  {_length(part.from_us)} {limit}", f"{part.count:,}", _length(1e6 * part.time_s)])
    return align_rows(rows, width, left=(0,))


def _states_text(scope: DeepScope, table: str | None) -> str:
    known = [state for state in scope.states if state.percent is not None and state.target_us is not None]
    if not known:
        return "The share of each idle state is unknown, because this host has no target residencies (--as CPU)."
    shares = [
        f"{state.name} (from {_length(state.target_us)}{', disabled' if state.disabled else ''})"
        f" for {text.number(state.percent, 1)} %"
        for state in known
    ]
    first = f"With the idle states of {table}, software" if table else "Software"
    return f"{first} would allow {text.join_words(shares)} of this time; the hardware can refuse."


def _who(row: Breaker) -> str:
    if row.mechanism == "lost":
        return "unknown: the idle periods after it were not saved"
    names = [row.process or "", row.thread if row.thread != row.process else "", row.name]
    how = row.mechanism.replace("_", "-")
    return " · ".join(name for name in (*names, how) if name)


def _breaker_lines(scope: DeepScope, width: int, top: int) -> list[str]:
    breakers, total = [row for row in scope.breakers if row.count], _deep_s(scope)
    if not breakers:
        return []
    rows = [["stretches", "time", "mean", "ended by (process · thread · event)"]]
    for row in breakers[:top]:
        share = f"{text.number(100.0 * row.stretch_s / total, 1)} %"
        rows.append([f"{row.count:,}", share, _length(1e6 * row.stretch_s / row.count), _who(row)])
    if hidden := breakers[top:]:
        count, rest = sum(row.count for row in hidden), 100.0 * sum(row.stretch_s for row in hidden) / total
        rows.append([f"{count:,}", f"{text.number(rest, 1)} %", "", f"{len(hidden)} more (--top N, or --json)"])
    return align_rows(rows, width)


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


def _what_if_lines(what_if: DeepWhatIf, present: Sequence[DeepScope], width: int) -> list[str]:
    changes = [f"without {name}" for name in what_if.without]
    changes += [f"with {ms:g} ms more timer slack of {name}" for name, ms in what_if.slack_ms.items()]
    sentence = text.join_words(changes)
    lines = ["", *text.wrap(f"{sentence[:1].upper()}{sentence[1:]}:", width)]
    bound = "about" if what_if.slack_ms else "at most"
    sentences = []
    if what_if.unmatched:
        names = text.join_words(what_if.unmatched)
        sentences.append(f"No effect, because they ended no idle period of this window (slack: by a timer): {names}.")
    for scope, before in zip(what_if.scopes, present, strict=True):
        if _is_unknown(before):
            sentences.append(f"{scope.name}: unknown.")
            continue
        half = f"; half of it in stretches of {_length(scope.half_us)} or more (now {_length(before.half_us)})"
        states = [
            f"{state.name} for {_length(1e6 * state.time_s)} (now {_length(1e6 * (old.time_s or 0.0))})"
            for state, old in zip(scope.states, before.states, strict=True)
            if state.time_s is not None
        ]
        sentences.append(
            f"{scope.name}: all CPUs idle together for {bound} {_together(scope)} (now {_together(before)})"
            f"{half if scope.count else ''}.{f' Software would allow {text.join_words(states)}.' if states else ''}"
        )
    moved = f"{text.plural(what_if.removed_count, 'idle exit')} left out, {what_if.moved_count:,} moved"
    # The model of slack does not know the sleeps that end while their CPU runs: they may end together, too.
    doubt = (
        "an estimate: sleeps that end on running CPUs are not moved, and the"
        if what_if.slack_ms
        else "an upper bound: the"
    )
    sentences.append(f"{moved}. This is {doubt} work can move to other threads.")
    return [*lines, *(line for sentence in sentences for line in text.wrap(sentence, width, "  "))]
