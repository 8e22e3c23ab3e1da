# SPDX-License-Identifier: Apache-2.0
"""The timeline per CPU as inline SVG: idle periods, and what ran between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from powerprof.report.html.figures import clean
from powerprof.report.html.scales import Scale, step
from powerprof.report.samples import TimelineExit

MAX_EXITS = 1500
EXITS_PER_CPU = 120
"""More than that on one lane is a bar code."""
_LANE = 34


@dataclass(frozen=True)
class Lanes:
    """The drawing and what part of the capture it shows."""

    svg: Markup
    shown_count: int
    total_count: int
    shown_s: float


def lanes(exits: Sequence[TimelineExit]) -> Lanes | None:
    """A lane per CPU of the first exits, as many as a page can hold. None where there are none."""
    if not exits:
        return None
    most = min(MAX_EXITS, EXITS_PER_CPU * len({one.cpu for one in exits}))
    ordered = sorted(exits, key=lambda one: (one.exit_ns, one.cpu))[:most]
    origin = min(one.enter_ns for one in ordered)
    end = max(one.next_ns or one.exit_ns for one in ordered)
    across = Scale(0, (end - origin) / 1e6, 9, 99.5)
    cpus = {cpu: row for row, cpu in enumerate(sorted({one.cpu for one in ordered}))}
    parts = [Markup('<text x="0" y="{}">CPU {}</text>').format(row * _LANE + 20, cpu) for cpu, row in cpus.items()]
    for one in ordered:
        enter, leave = (across((time - origin) / 1e6) for time in (one.enter_ns, one.exit_ns))
        top = cpus[one.cpu] * _LANE
        blame = f"{one.mechanism.replace('_', '-')}: {clean(one.cause, 80)}"
        parts.append(
            Markup(
                '<rect class="idle" x="{:.3f}%" y="{}" width="{:.3f}%" height="20"><title>CPU {} in {} for '
                "{:.3f} ms, ended by {}</title></rect>"
            ).format(
                enter,
                top + 5,
                max(0.02, leave - enter),
                one.cpu,
                clean(one.state, 40),
                (one.exit_ns - one.enter_ns) / 1e6,
                blame,
            )
        )
        ran = "" if one.next_ns is None else f", ran {(one.next_ns - one.exit_ns) / 1e6:.3f} ms"
        width = 0.0 if one.next_ns is None else across((one.next_ns - origin) / 1e6) - leave
        parts.append(
            Markup(
                '<rect class="ran m-{}" x="{:.3f}%" y="{}" width="{:.3f}%" height="28"><title>{:.3f} ms: '
                "{}, {}{}</title></rect>"
            ).format(
                one.mechanism if one.mechanism in MECHANISMS else "unknown",
                leave,
                top + 1,
                max(0.12, width),
                (one.exit_ns - origin) / 1e6,
                blame,
                clean(one.thread or "nobody ran", 80),
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
    return Lanes(svg, len(ordered), len(exits), span_ms / 1e3)


MECHANISMS = ("timer", "device", "ipi", "no_ipi", "tick", "unknown")
