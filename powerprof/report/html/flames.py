# SPDX-License-Identifier: Apache-2.0
"""Flame graphs as boxes at percentages of the width, readable without a script and on paper.

The script adds zoom, search and the arrow keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from markupsafe import Markup

from powerprof.model import text
from powerprof.report.flame import Flame, FlameFrame
from powerprof.report.html.page import draw_macro
from powerprof.report.html.text import clean_name

_UNNAMED = re.compile(r"\+0x[0-9a-f]+$")
_LIBRARY = re.compile(r"(^|/)(lib|ld-)[^/]*|\.so(\.|$)")
_FRAME = Markup(
    '<div role="treeitem" class="f {look}" aria-level="{level}" tabindex="-1" data-x="{x}" data-w="{w}" '
    'style="--x:{x};--w:{w};--d:{depth}" data-info="{info}">{label}</div>'
)
_FRAME_LABEL_LIMIT = 100


class FlameView(msgspec.Struct, frozen=True):
    """The boxes of a flame graph and their height in rows, for the template."""

    title: str
    boxes: Markup
    rows: int
    unit: str
    hidden_count: int
    difference: bool


def class_of_frame(label: str, depth: int, modules: Mapping[str, str]) -> str:
    """Return the class of a frame: root, thread, unnamed, kernel, library or own."""
    module = modules.get(label, "")
    if depth == 0:
        return "root"
    if depth == 1 and label not in modules:
        return "thread"
    if module in ("kernel", "[kernel]", "vmlinux") or label.endswith("_[k]"):
        return "kernel"
    if _UNNAMED.search(label):
        return "unnamed"
    return "library" if _LIBRARY.search(module) or module == "[vdso]" else "own"


def _class_of_change(frame: FlameFrame) -> str:
    """Return a class from d-3 (only A has the frame) to d3 (only B has it)."""
    before = frame.a or 0.0
    share = (frame.value - before) / max(frame.value, before) if max(frame.value, before) else 0.0
    return f"d{round(3 * share)}" if abs(share) >= 0.05 else "d0"


def _format_weight(value: float) -> str:
    return text.number(value, 0 if value >= 100 or value == int(value) else 2)


def _describe_frame(frame: FlameFrame, total: float, unit: str, module: str | None) -> str:
    """Return the text that the script shows after the name of a box."""
    where = f" ({clean_name(module, 60)})" if module else ""
    if frame.a is not None:
        sides = f"A {_format_weight(frame.a)}, B {_format_weight(frame.value)} {unit}"
        return f"{where}: {sides}, B − A {text.signed(frame.value - frame.a, 2)}"
    share = 100 * frame.value / total if total else 0.0
    return f"{where}: {_format_weight(frame.value)} {unit}, {share:.1f} % of all"


def draw_flame(graph: Flame, title: str, modules: Mapping[str, str] | None = None) -> FlameView | None:
    """Return the boxes of a graph; `None` if it has no weight."""
    if len(graph.frames) < 2:
        return None
    known = modules or {}
    total = graph.frames[0].value
    boxes = []
    for frame in graph.frames:
        look = (
            _class_of_change(frame)
            if graph.difference and frame.depth
            else class_of_frame(frame.label, frame.depth, known)
        )
        sign = "" if not graph.difference or look in ("d0", "root") else "− " if look.startswith("d-") else "+ "
        boxes.append(
            _FRAME.format(
                look=look,
                level=frame.depth + 1,
                x=f"{frame.start:.6g}",
                w=f"{frame.width:.6g}",
                depth=frame.depth,
                info=_describe_frame(frame, total, graph.unit, known.get(frame.label)),
                label=sign + clean_name(frame.label, _FRAME_LABEL_LIMIT),
            )
        )
    return FlameView(title, Markup("\n").join(boxes), graph.depth, graph.unit, graph.hidden_count, graph.difference)


def draw_flames(views: Sequence[FlameView], name: str) -> Markup:
    """Return flame graphs of which one is shown at a time; an empty text without any."""
    return draw_macro("flame_choice", views, name) if views else Markup()
