# SPDX-License-Identifier: Apache-2.0
"""`powerprof functions` for a terminal: calls and self time of the probed functions, and their cost."""

from __future__ import annotations

from powerprof.attribution.functions import FunctionProfile
from powerprof.model import text
from powerprof.report.labels import texts


def headline(profile: FunctionProfile) -> str:
    """How many functions were called how often."""
    calls = sum(row.calls_count for row in profile.functions)
    who = profile.label or "the target"
    if not calls:
        return f"{who} called no function of {profile.pattern} in {text.number(profile.window_s, 1)} s."
    several = len(profile.functions) != 1
    what = f"{len(profile.functions)} functions of {profile.pattern}" if several else profile.functions[0].function
    return f"{who} called {what} {text.plural(calls, 'time')} in {text.number(profile.window_s, 1)} s."


def _rows(profile: FunctionProfile, width: int, limit: int) -> list[str]:
    lines = [f"{'calls':>10}  {'calls/s':>9}  {'self CPU':>11}  {'self wall':>11}  {'% CPU':>6}  function"]
    for row in profile.functions[:limit]:
        share = "" if row.self_cpu_percent is None else text.number(row.self_cpu_percent, 1)
        head = (
            f"{row.calls_count:>10,}  {text.number(row.calls_hz, 1):>9}  {text.number(row.self_cpu_ms, 2, ' ms'):>11}  "
            f"{text.number(row.self_wall_ms, 1, ' ms'):>11}  {share:>6}  "
        )
        lines.append(text.shorten(f"{head}{row.function}", width))
    left = len(profile.functions) - limit
    return [*lines, *([f"{left} more functions (--top N, or --json)"] if left > 0 else [])]


def _cost(profile: FunctionProfile) -> str:
    if profile.probe_cost_ms is None or profile.probe_cost_percent is None:
        return f"{profile.hits_count:,} probe hits ({profile.method}); what they cost is unknown."
    each = "" if profile.probe_call_us is None else f", {text.number(profile.probe_call_us, 1)} µs a call"
    return (
        f"{profile.hits_count:,} probe hits ({profile.method}) cost about {text.number(profile.probe_cost_ms, 1)} ms, "
        f"{text.number(profile.probe_cost_percent, 1)} % of one CPU{each}: no energy figure comes from this window."
    )


def lines(profile: FunctionProfile, width: int = text.DEFAULT_WIDTH, *, top: int = 20) -> list[str]:
    """The whole report."""
    printed = [*text.wrap(headline(profile), width), ""]
    printed += [*_rows(profile, width, top), ""] if profile.functions else []
    sentences = [_cost(profile)]
    if profile.never_called_count:
        were = "was" if profile.never_called_count == 1 else "were"
        sentences.append(f"{text.plural(profile.never_called_count, 'probed function')} {were} never called.")
    sentences.append(
        f"Returns without entry {profile.unmatched_returns_count:,}, calls too deep {profile.too_deep_count:,}, "
        f"lost {profile.lost_count:,}."
    )
    sentences += [f"Not probed: {name} ({why})." for name, why in profile.refused[:5]]
    sentences += [f"Limits: {'; '.join(profile.limits)}."] if profile.limits else []
    sentences += [f"Note: {note}." for note in texts(profile.notes)]
    for line in sentences:
        printed += text.wrap(line, width)
    if profile.interrupted:
        printed.append("Interrupted: this is what was counted until then.")
    return printed
