# SPDX-License-Identifier: Apache-2.0
"""The timeline per CPU as inline SVG: idle periods, their causes, and the threads that ran between them.

The overview shows the whole window. The page draws the first part; its script draws other parts from the embedded
data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from powerprof.report.html.page import draw_macro, embed_json
from powerprof.report.html.svg import Scale, round_step
from powerprof.report.html.text import clean_name
from powerprof.report.timeline import TimelineExit

MECHANISMS = ("timer", "device", "ipi", "no_ipi", "tick", "unknown")
MAX_EXITS = 1500
# More exits on one lane cannot be distinguished.
EXITS_PER_CPU = 120
# The script can draw this many exits; each takes about 45 bytes of the page.
MAX_KEPT = 15_000
_LANE = 34
_ROW = 22
_BINS = 200
_LEFT, _RIGHT = 9.0, 99.5
_IDLE = Markup(
    '<rect class="idle" x="{:.3f}%" y="{}" width="{:.3f}%" height="20"><title>CPU {} in {} for {:.3f} ms, '
    "ended by {}</title></rect>"
)
_RAN = Markup(
    '<rect class="ran m-{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="28"><title>{:.3f} ms: {}, {}{}</title></rect>'
)
_SVG = Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>')


def draw_timeline(exits: Sequence[TimelineExit]) -> Markup:
    """Return the figure of the timeline, with its overview and its data; an empty text without exits."""
    drawn = lanes(exits)
    return draw_macro("timeline", drawn, MECHANISMS) if drawn is not None else Markup()


class Lanes(msgspec.Struct, frozen=True):
    """The drawing of the timeline and the part of the capture that it shows."""

    svg: Markup
    overview: Markup
    data: Markup
    kept_count: int
    total_count: int
    whole_s: float


def lanes(exits: Sequence[TimelineExit]) -> Lanes | None:
    """Draw one lane per CPU with the first exits, as many as a page can hold. Return None without exits."""
    if not exits:
        return None
    most = min(MAX_EXITS, EXITS_PER_CPU * len({period.cpu for period in exits}))
    whole = sorted(exits, key=lambda period: (period.exit_ns, period.cpu))[:MAX_KEPT]
    ordered = whole[:most]
    origin = min(period.enter_ns for period in ordered)
    end = max(period.next_ns or period.exit_ns for period in ordered)
    across = Scale(0, (end - origin) / 1e6, _LEFT, _RIGHT)
    cpus = {cpu: row for row, cpu in enumerate(sorted({period.cpu for period in ordered}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _LANE + 20, cpu) for cpu, row in cpus.items()]
    for period in ordered:
        enter, leave = (across((time - origin) / 1e6) for time in (period.enter_ns, period.exit_ns))
        top = cpus[period.cpu] * _LANE
        blame = f"{period.mechanism.replace('_', '-')}: {clean_name(period.cause, 80)}"
        idle_ms, state = (period.exit_ns - period.enter_ns) / 1e6, clean_name(period.state, 40)
        parts.append(_IDLE.format(enter, top + 5, max(0.02, leave - enter), period.cpu, state, idle_ms, blame))
        ran = "" if period.next_ns is None else f", ran {(period.next_ns - period.exit_ns) / 1e6:.3f} ms"
        width = 0.0 if period.next_ns is None else across((period.next_ns - origin) / 1e6) - leave
        place, exit_ms = (_mechanism_of(period), leave, top + 1, max(0.12, width)), (period.exit_ns - origin) / 1e6
        parts.append(_RAN.format(*place, exit_ms, blame, clean_name(period.thread or "no task ran", 80), ran))
    height = len(cpus) * _LANE
    span_ms = (end - origin) / 1e6
    distance = round_step(span_ms, 5)
    for index in range(int(span_ms / distance) + 1):
        at = across(index * distance)
        parts.append(
            Markup('<text x="{:.2f}%" y="{}" text-anchor="{}">{:g} ms</text>').format(
                at, height + 14, "end" if at > 94 else "middle", round(index * distance, 6)
            )
        )
    label = f"idle periods and wake-ups of {len(cpus)} CPUs over {span_ms:.0f} ms"
    svg = _SVG.format(label, height + 20, Markup().join(parts))
    whole_ms = (max(period.next_ns or period.exit_ns for period in whole) - origin) / 1e6
    return Lanes(
        svg,
        _draw_overview(whole, origin, whole_ms),
        embed_json(_timeline_data(whole, origin, whole_ms)),
        len(whole),
        len(exits),
        whole_ms / 1e3,
    )


def _draw_overview(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> Markup:
    """Draw one row per CPU: idle exits per part of the window, coloured by the most frequent mechanism."""
    cpus = {cpu: row for row, cpu in enumerate(sorted({period.cpu for period in exits}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _ROW + 16, cpu) for cpu, row in cpus.items()]
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for period in exits:
        at = min(_BINS - 1, int((period.exit_ns - origin) / 1e6 / whole_ms * _BINS)) if whole_ms > 0 else 0
        counts[period.cpu, at][_mechanism_of(period)] += 1
    most = max(sum(count.values()) for count in counts.values())
    width = (_RIGHT - _LEFT) / _BINS
    for (cpu, at), count in sorted(counts.items()):
        total = sum(count.values())
        height = max(1.0, (_ROW - 4) * total / most)
        parts.append(
            Markup('<rect class="m-{}" x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}"/>').format(
                count.most_common(1)[0][0], _LEFT + at * width, (cpus[cpu] + 1) * _ROW - 2 - height, width, height
            )
        )
    parts.append(Markup('<rect class="window" x="0" y="0" width="0" height="{}"/>').format(len(cpus) * _ROW))
    label = f"idle exits of {len(cpus)} CPUs over all of {whole_ms / 1e3:.1f} s"
    return _SVG.format(label, len(cpus) * _ROW, Markup().join(parts))


def _timeline_data(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> dict[str, object]:
    """Return all exits in short form.

    A row is CPU, begin, end and next idle period (µs), the index of the mechanism, and the index of the cause in
    `words`.
    """
    words: dict[str, int] = {}
    rows = []
    for period in exits:
        who = f"{clean_name(period.cause, 80)}, {clean_name(period.thread or 'no task ran', 80)}"
        times = [
            None if at is None else (at - origin) // 1000 for at in (period.enter_ns, period.exit_ns, period.next_ns)
        ]
        rows.append([period.cpu, *times, MECHANISMS.index(_mechanism_of(period)), words.setdefault(who, len(words))])
    return {"whole_ms": whole_ms, "mechanisms": MECHANISMS, "words": list(words), "rows": rows}


def _mechanism_of(period: TimelineExit) -> str:
    return period.mechanism if period.mechanism in MECHANISMS else "unknown"
