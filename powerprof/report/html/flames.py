# SPDX-License-Identifier: Apache-2.0
"""A flame graph as HTML: boxes at percentages of the width, so that it is read without a script and on paper; the
script adds zoom, search and the arrow keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from powerprof.model import text
from powerprof.report.html.page import clean
from powerprof.report.stacks import Flame, FlameFrame

_UNNAMED = re.compile(r"\+0x[0-9a-f]+$")
_LIBRARY = re.compile(r"(^|/)(lib|ld-)[^/]*|\.so(\.|$)")
_FRAME = Markup(
    '<div role="treeitem" class="f {look}" aria-level="{level}" tabindex="-1" data-x="{x}" data-w="{w}" '
    'style="--x:{x};--w:{w};--d:{depth}" data-info="{info}">{label}</div>'
)
_LABEL_LIMIT = 100


@dataclass(frozen=True)
class FlameView:
    """What the template needs: the boxes and their height in rows."""

    title: str
    boxes: Markup
    rows: int
    unit: str
    hidden_count: int
    difference: bool


def look_of(label: str, depth: int, modules: Mapping[str, str]) -> str:
    """The class of a frame: root, thread, unnamed, kernel, library or own."""
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


def _change(frame: FlameFrame) -> str:
    """A class from d-3 (only A has it) to d3 (only B has it)."""
    before = frame.a or 0.0
    share = (frame.value - before) / max(frame.value, before) if max(frame.value, before) else 0.0
    return f"d{round(3 * share)}" if abs(share) >= 0.05 else "d0"


def _figure(value: float) -> str:
    return text.number(value, 0 if value >= 100 or value == int(value) else 2)


def _info(frame: FlameFrame, total: float, unit: str, module: str | None) -> str:
    """What the script says behind a box's name."""
    where = f" ({clean(module, 60)})" if module else ""
    if frame.a is not None:
        change = frame.value - frame.a
        return f"{where}: A {_figure(frame.a)}, B {_figure(frame.value)} {unit}, B − A {text.signed(change, 2)}"
    share = 100 * frame.value / total if total else 0.0
    return f"{where}: {_figure(frame.value)} {unit}, {share:.1f} % of all"


def flame_view(graph: Flame, title: str, modules: Mapping[str, str] | None = None) -> FlameView | None:
    """The graph's boxes; None for one without any weight."""
    if len(graph.frames) < 2:
        return None
    known = modules or {}
    total = graph.frames[0].value
    boxes = []
    for frame in graph.frames:
        look = _change(frame) if graph.difference and frame.depth else look_of(frame.label, frame.depth, known)
        sign = "" if not graph.difference or look in ("d0", "root") else "− " if look.startswith("d-") else "+ "
        boxes.append(
            _FRAME.format(
                look=look,
                level=frame.depth + 1,
                x=f"{frame.start:.6g}",
                w=f"{frame.width:.6g}",
                depth=frame.depth,
                info=_info(frame, total, graph.unit, known.get(frame.label)),
                label=sign + clean(frame.label, _LABEL_LIMIT),
            )
        )
    return FlameView(title, Markup("\n").join(boxes), graph.depth, graph.unit, graph.hidden_count, graph.difference)
