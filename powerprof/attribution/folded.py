"""Folded stacks: one line per call path, `outermost;…;innermost count`, which flame graph tools read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def folded(rows: Iterable[tuple[Sequence[str], int]]) -> str:
    """Rows of (labels, outermost first; count) as text; equal paths are summed, in the order of their names.

    A semicolon separates frames and a line break rows, so neither may be part of a label.
    """
    counts: dict[str, int] = {}
    for labels, count in rows:
        path = ";".join(_clean(label) for label in labels)
        if path and count > 0:
            counts[path] = counts.get(path, 0) + count
    return "".join(f"{path} {count}\n" for path, count in sorted(counts.items()))


def _clean(label: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in label).replace(";", ":") or "?"
