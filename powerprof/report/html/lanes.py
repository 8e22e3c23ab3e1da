# SPDX-License-Identifier: Apache-2.0
"""The timeline per CPU as inline SVG: idle periods, what ended them and what ran between.

The whole window is an overview; of its parts the first is drawn, and the script draws any other from the data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from powerprof.report.html.figures import clean, embedded
from powerprof.report.html.scales import Scale, step
from powerprof.report.stacks.samples import TimelineExit

MAX_EXITS = 1500
EXITS_PER_CPU = 120
"""More than that on one lane is a bar code."""
MAX_KEPT = 15_000
"""So many can be looked at: some 45 bytes each."""
_LANE = 34
_ROW = 22
_BINS = 200
_LEFT, _RIGHT = 9.0, 99.5


@dataclass(frozen=True)
class Lanes:
    """The drawing and what part of the capture it shows."""

    svg: Markup
    overview: Markup
    data: Markup
    shown_count: int
    kept_count: int
    total_count: int
    shown_s: float
    whole_s: float


def lanes(exits: Sequence[TimelineExit]) -> Lanes | None:
    """A lane per CPU of the first exits, as many as a page can hold. None where there are none."""
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
        blame = f"{period.mechanism.replace('_', '-')}: {clean(period.cause, 80)}"
        parts.append(
            Markup(
                '<rect class="idle" x="{:.3f}%" y="{}" width="{:.3f}%" height="20"><title>CPU {} in {} for '
                "{:.3f} ms, ended by {}</title></rect>"
            ).format(
                enter,
                top + 5,
                max(0.02, leave - enter),
                period.cpu,
                clean(period.state, 40),
                (period.exit_ns - period.enter_ns) / 1e6,
                blame,
            )
        )
        ran = "" if period.next_ns is None else f", ran {(period.next_ns - period.exit_ns) / 1e6:.3f} ms"
        width = 0.0 if period.next_ns is None else across((period.next_ns - origin) / 1e6) - leave
        parts.append(
            Markup(
                '<rect class="ran m-{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="28"><title>{:.3f} ms: '
                "{}, {}{}</title></rect>"
            ).format(
                _mechanism(period),
                leave,
                top + 1,
                max(0.12, width),
                (period.exit_ns - origin) / 1e6,
                blame,
                clean(period.thread or "nobody ran", 80),
                ran,
            )
        )
    height = len(cpus) * _LANE
    span_ms = (end - origin) / 1e6
    distance = step(span_ms, 5)
    for index in range(int(span_ms / distance) + 1):
        at = across(index * distance)
        parts.append(
            Markup('<text x="{:.2f}%" y="{}" text-anchor="{}">{:g} ms</text>').format(
                at, height + 14, "end" if at > 94 else "middle", round(index * distance, 6)
            )
        )
    label = f"idle periods and wake-ups of {len(cpus)} CPUs over {span_ms:.0f} ms"
    svg = Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>').format(
        label, height + 20, Markup().join(parts)
    )
    whole_ms = (max(period.next_ns or period.exit_ns for period in whole) - origin) / 1e6
    return Lanes(
        svg,
        _overview(whole, origin, whole_ms),
        embedded(_data(whole, origin, whole_ms)),
        len(ordered),
        len(whole),
        len(exits),
        span_ms / 1e3,
        whole_ms / 1e3,
    )


def _overview(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> Markup:
    """A row a CPU: how many idle periods ended in each part of the window, in the colour of what ended most."""
    cpus = {cpu: row for row, cpu in enumerate(sorted({period.cpu for period in exits}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _ROW + 16, cpu) for cpu, row in cpus.items()]
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for period in exits:
        at = min(_BINS - 1, int((period.exit_ns - origin) / 1e6 / whole_ms * _BINS)) if whole_ms > 0 else 0
        counts[period.cpu, at][_mechanism(period)] += 1
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
    return Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>').format(
        label, len(cpus) * _ROW, Markup().join(parts)
    )


def _data(exits: Sequence[TimelineExit], origin: int, whole_ms: float) -> dict[str, object]:
    """All exits in short: CPU, begin, end, next idling (µs), mechanism, and which of the words says who it was."""
    words: dict[str, int] = {}
    rows = []
    for period in exits:
        who = f"{clean(period.cause, 80)}, {clean(period.thread or 'nobody ran', 80)}"
        times = [
            None if at is None else (at - origin) // 1000 for at in (period.enter_ns, period.exit_ns, period.next_ns)
        ]
        rows.append([period.cpu, *times, MECHANISMS.index(_mechanism(period)), words.setdefault(who, len(words))])
    return {"whole_ms": whole_ms, "mechanisms": MECHANISMS, "words": list(words), "rows": rows}


def _mechanism(period: TimelineExit) -> str:
    return period.mechanism if period.mechanism in MECHANISMS else "unknown"


MECHANISMS = ("timer", "device", "ipi", "no_ipi", "tick", "unknown")
