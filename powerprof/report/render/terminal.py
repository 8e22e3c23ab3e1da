# SPDX-License-Identifier: Apache-2.0
"""Draw a document for a terminal: plain lines of at most its width."""

from __future__ import annotations

from collections.abc import Sequence

from powerprof.model import text
from powerprof.report.document import Document, Drawing, Item, Items, Part, Section, Sentence, Shown, shown_parts
from powerprof.report.notes import wrap_note

_INDENT = "  "
_LABEL = 6


def render_terminal(document: Document, width: int = text.DEFAULT_WIDTH) -> list[str]:
    """Return the lines of a document: its early end, answer, context, warnings, parts, notes, next step."""
    lines = text.wrap(document.opening, width) if document.opening else []
    lines += [*text.wrap(document.answer, width), *(text.wrap(document.context, width) if document.context else [])]
    _draw_parts(shown_parts(document.lead, "terminal"), width, lines)
    for warning in document.warnings:
        lines += text.wrap(warning, width)
    _draw_parts(shown_parts(document.parts(), "terminal"), width, lines)
    for note in [] if document.is_brief else document.short_notes:
        lines += wrap_note(note, width)
    return [*lines, *(text.wrap(document.next_step, width) if document.next_step else [])]


def _draw_parts(parts: Sequence[Part], width: int, lines: list[str]) -> None:
    """Add the lines of the parts to `lines`; a section begins after one empty line."""
    for part in parts:
        match part:
            case Sentence():
                sentence = f"{part.label}: {part.text}" if part.label else part.text
                lines += text.wrap(sentence, width, _INDENT if part.look == "detail" else "")
            case Items():
                lines += [line for item in part.rows for line in _draw_item(item, width)]
            case Shown():
                lines += part.layout(part.table.of("terminal"), width)
            case Section():
                lines += [""] if part.apart and lines and lines[-1] else []
                if part.heading and "terminal" in part.headed:
                    lines += text.wrap(part.heading, width)
                _draw_parts(part.parts, width, lines)
            case Drawing():
                raise TypeError("a terminal has no drawings")


def _draw_item(item: Item, width: int) -> list[str]:
    below = [line for row in item.rows for line in text.wrap(row, width, 2 * _INDENT)]
    if not item.label:
        return [*text.wrap(item.text, width, _INDENT), *below]
    first = f"{_INDENT}{item.label:<{_LABEL}} "
    wrapped = text.wrap(item.text, max(20, width - len(first)))
    return [f"{first}{wrapped[0]}", *(f"{'':{len(first)}}{line}" for line in wrapped[1:]), *below]
