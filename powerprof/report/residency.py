# SPDX-License-Identifier: Apache-2.0
"""Reports of `powerprof residency`, within 80 columns: the answer, the idle states and the doubts."""

from __future__ import annotations

from powerprof.model import text
from powerprof.model.records import Run, StateResidency, Window
from powerprof.report import labels
from powerprof.report.labels import word_notes

_WIDTH = 80
_SEPARATOR = " · "
_HARD_SPACE = "\N{NO-BREAK SPACE}"
_REJECTED = 6  # the column
_NAME = 16


def render_terminal(run: Run, width: int = _WIDTH, *, driver: str | None = None) -> list[str]:
    """Return the report of a run's only window. `driver` is the idle driver that a recording names."""
    window, host_driver = run.phases[0].windows[0], run.host.get("idle_driver")
    context = _context_line(window, driver or (f"driver {host_driver}" if host_driver else None))
    lines = [*text.wrap(_answer(window), width), *text.wrap(context, width)]
    if window.states:
        lines += ["", *_state_lines(window, width)]
    limits = _limit_lines(run, window, width)
    if limits:
        lines += ["", *limits]
    if window.achieved:
        lines += ["", *text.wrap("Reached by the hardware (may be shallower than requested):", width)]
        shown = [f"{item.scope} {item.name} {_percent(item.residency_percent)}" for item in window.achieved]
        lines += _wrapped(_SEPARATOR.join(part.replace(" ", _HARD_SPACE) for part in shown), width)
    lines += labels.cpu_lines(window.system, width)
    for sentence in labels.frequency_sentences(window.system.frequencies if window.system else None):
        lines += text.wrap(sentence, width)
    lines += _accounting(window, width)
    for note in word_notes(window.notes):
        lines += _wrapped(note, width)
    return lines


def _limit_lines(run: Run, window: Window, width: int) -> list[str]:
    """Return the settings that forbid idle states, and the share of idle periods that were long enough for more.

    The kernel counts `below` against all deeper states that are not disabled, so also against those that a latency
    limit excludes (cpuidle_enter_state in drivers/cpuidle/cpuidle.c).
    """
    limits = run.host.get("idle_limits") or []
    lines = [line for limit in limits for line in text.wrap(f"{limit[:1].upper()}{limit[1:]}.", width)]
    entries = sum(state.entries_hz or 0.0 for state in window.states)
    below = [state.below_hz for state in window.states]
    if limits and entries and None not in below:
        share = 100.0 * sum(value or 0.0 for value in below) / entries
        sentence = (
            f"{share:.0f} % of the {_rate(entries)} idle periods were long enough for a deeper state than they had."
        )
        lines += text.wrap(sentence, width)
    return lines


def _wrapped(sentence: str, width: int) -> list[str]:
    return [line.replace(_HARD_SPACE, " ") for line in text.wrap(sentence, width, "  ")]


def _answer(window: Window) -> str:
    deepest = max(
        (state for state in window.states if state.residency_percent),
        default=None,
        key=lambda state: state.residency_percent or 0.0,
    )
    if window.c0_percent is not None:
        unknown = window.unknown_cpus_count
        subject = f"{window.cpus} of {window.cpus + unknown} CPUs" if unknown else "The CPUs"
        answer = f"{subject} ran {_percent(window.c0_percent)} of the time"
        if window.wakeups_hz is not None:
            answer += f" and woke from idle {_rate(window.wakeups_hz)}"
        if unknown:
            answer += "; the other is unknown" if unknown == 1 else f"; the other {unknown} are unknown"
        return answer + "."
    if deepest is not None:
        time = "idle time" if window.percent_of == "idle_time" else "time"
        return f"{_percent(deepest.residency_percent)} of the {time} was in {deepest.name}."
    return "Residency is unknown on this host."


def _context_line(window: Window, driver: str | None) -> str:
    # A recording may hide its CPUs.
    count = f"{window.cpus} CPU{'s' if window.cpus != 1 else ''}" if window.cpus else ""
    parts = [part for part in (", ".join(filter(None, (count, driver))),) if part]
    if window.window_s is not None:
        parts.append(f"{window.window_s:.2f} s")
    parts.append(
        {"procfs": "from /proc/stat", "cpuidle": "states as requested by the kernel"}.get(
            window.residency_source, f"measured by {window.residency_source}, states as requested"
        )
    )
    return " · ".join(parts)


def _state_lines(window: Window, width: int) -> list[str]:
    share = "residency" if window.percent_of == "wall_time" else "of idle"
    rows = [["", share, "average", "entries", "too deep", "too shallow", "rejected"]]
    if window.c0_percent is not None:
        rows.append(["C0 (running)", _percent(window.c0_percent), "", "", "", "", ""])
    counted = window.window_s is None and any(state.entries_count for state in window.states)
    for state in window.states:
        rows.append(_state_row(state, counted=counted))
    # Omit a column without figures, and the rejected column if it is 0 everywhere.
    columns = [index for index in range(7) if index == 0 or any(row[index] for row in rows[1:])]
    if not any(state.rejected_hz for state in window.states):
        columns = [index for index in columns if index != _REJECTED]
    return text.fit_columns([[row[index][: None if index else _NAME] for index in columns] for row in rows], width)


def _state_row(state: StateResidency, counted: bool) -> list[str]:
    share = state.polling_percent if state.polling else state.residency_percent
    entries = f"{state.entries_count:,}" if counted else _rate(state.entries_hz)
    return [
        f"{state.name}{' (polling)' if state.polling else ''}",
        _percent(share),
        "" if state.average_residency_ms is None else _duration(state.average_residency_ms),
        entries,
        _rate(state.above_hz),
        _rate(state.below_hz),
        _rate(state.rejected_hz),
    ]


def _accounting(window: Window, width: int) -> list[str]:
    named = (
        ("user", window.user_percent),
        ("system", window.system_percent),
        ("interrupts", window.irq_percent),
        ("stolen", window.steal_percent),
    )
    parts = [f"{name} {_percent(value)}" for name, value in named if value is not None]
    lines = [""] if parts or window.edge_exits_count or window.residual_percent or window.notes else []
    if parts:
        lines += text.wrap(" · ".join(parts), width)
    if window.edge_exits_count:
        count = window.edge_exits_count
        lines += text.wrap(f"{text.plural(count, 'idle exit')} caused by reading the counters excluded", width)
    if window.residual_percent:
        sum_percent = _percent(100.0 + window.residual_percent)
        lines += text.wrap(f"the states sum to {sum_percent} of the time: C0 set to 0", width)
    return lines


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}/s" if value >= 1000 else f"{value:.1f}/s"


def _duration(ms: float) -> str:
    if ms < 1:
        return f"{ms * 1e3:.3g} µs"
    return f"{ms / 1e3:,.1f} s" if ms >= 10_000 else f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"
