# SPDX-License-Identifier: Apache-2.0
"""A report as a value: one `document` function per kind of record says what comes after what, each form draws it once.

The answer, the warnings, the notes and the next step are properties of the document, so that no form forgets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from powerprof.model.records import Ended
from powerprof.report.layouts import column_rows
from powerprof.report.notes import describe_blindness, list_notes
from powerprof.report.table import ALL, HTML, DrawnColumn, Form, Line, Table
from powerprof.report.timeline import TimelineExit

if TYPE_CHECKING:
    from markupsafe import Markup

TERMINAL: frozenset[Form] = frozenset(("terminal",))
MARKDOWN: frozenset[Form] = frozenset(("markdown",))
NOT_TERMINAL: frozenset[Form] = ALL - TERMINAL
NOT_MARKDOWN: frozenset[Form] = ALL - MARKDOWN
NOT_HTML: frozenset[Form] = ALL - HTML

Layout = Callable[[Table, int], list[str]]
"""Returns the lines of a table for a terminal of so many columns."""


class Sentence(msgspec.Struct, frozen=True):
    """A sentence.

    Attributes:
        text: The sentence.
        label: A word before it, such as `Caution`.
        look: `detail` (belongs to the sentence above), `muted`, `warning`, `lead`, `balance`, or empty.
        forms: The forms that show it.
    """

    text: str
    label: str = ""
    look: str = ""
    forms: frozenset[Form] = ALL


class Item(msgspec.Struct, frozen=True):
    """One line of a list.

    Attributes:
        text: The sentence, or the frames of a stack.
        label: A word before it.
        code: Whether it is a name from outside, such as a stack.
        rows: The lines below it.
    """

    text: str
    label: str = ""
    code: bool = False
    rows: Sequence[str] = ()


class Items(msgspec.Struct, frozen=True):
    """A list of sentences."""

    rows: Sequence[Item]
    look: str = "notes"
    forms: frozenset[Form] = ALL


class Shown(msgspec.Struct, frozen=True):
    """A table and its layout in each form.

    Attributes:
        table: The table.
        layout: Returns its lines for a terminal.
        look: The style of the table on a page.
        columns: The columns of Markdown; empty for all.
        open_rows: The rows that a page shows at once; the others are one click away.
        what: The name of its rows, for the count of those that are not shown.
        names: Whether the first column names the rows.
        is_further: Whether CSV has this table too, below the lines of the document (`Document.rows`).
        drawn: Returns a column of drawings for a page.
        forms: The forms that show it.
    """

    table: Table
    layout: Layout = column_rows
    look: str = "plain"
    columns: Sequence[str] = ()
    open_rows: int | None = None
    what: str = "rows"
    names: bool = True
    is_further: bool = False
    drawn: Callable[[], DrawnColumn | None] | None = None
    forms: frozenset[Form] = ALL


class Drawing(msgspec.Struct, frozen=True):
    """A drawing for a page. `draw` returns an empty text if there is nothing to draw."""

    draw: Callable[[], Markup]
    caption: str | Markup = ""
    look: str = "chart"
    forms: frozenset[Form] = HTML


class Section(msgspec.Struct, frozen=True):
    """A part of the report with its heading; it is left out if none of its parts is shown.

    Attributes:
        heading: The heading; an empty one only separates.
        parts: What is in it.
        name: The place of a link on a page; empty for a section within a section.
        headed: The forms that print the heading.
        folded: Whether a page opens it by a click only.
        count: A number beside the heading of a folded one.
        apart: Whether a terminal separates it from the part before by an empty line.
        forms: The forms that show it.
    """

    heading: str
    parts: Sequence[Part]
    name: str = ""
    headed: frozenset[Form] = HTML
    folded: bool = False
    count: int | None = None
    apart: bool = True
    forms: frozenset[Form] = ALL


Part = Sentence | Items | Shown | Drawing | Section


class Tile(msgspec.Struct, frozen=True):
    """A figure with a heading and a note. `look` is the class of a verdict, which greys an inconclusive one."""

    heading: str
    value: Markup
    note: str
    look: str = ""


class Extras(msgspec.Struct, frozen=True):
    """Data that a page shows next to its record.

    Attributes:
        timeline: The idle periods of each CPU; None without a capture.
        views: The fields of a view that change it.
        derived: A sentence derived from prices that the user stated.
    """

    timeline: Sequence[TimelineExit] | None = None
    derived: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked to see of a record.

    Attributes:
        everything: All rows and notes on the terminal (--all).
        by: The field that groups or sorts the rows.
        top: The number of rows; None for as many as are useful.
        columns: The names of columns, separated by commas.
        is_whole: Statements are not cut, because the report goes to a pipe.
        sources: Frames have their file and line.
        extras: Data that is saved next to the record.
    """

    everything: bool = False
    by: str | None = None
    top: int | None = None
    columns: str | None = None
    is_whole: bool = False
    sources: bool = False
    extras: Extras = Extras()


ALL_ROWS = 1_000_000


def _no_tiles() -> Sequence[Tile]:
    return ()


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a record.

    Attributes:
        record: The record.
        answer: The first sentence, unless the measurement ended early.
        context: What was measured, how long, on which server.
        title: The title of its page, if it is not the answer.
        lead: Sentences that belong to the answer.
        parts: Yields the parts in their order; a list of runs needs only the answer, so nothing is built before.
        rows: Yields the lines of CSV, head first; None for the figures of the first table.
        tiles: Returns the figures at the top of a page.
        setup: The headings and the places of the facts at the end of a page.
        views: The fields of a view that change it.
        derived: A sentence that follows from prices, for the page.
        next_step: The last line on a terminal.
        is_brief: Whether a terminal leaves out the notes; the next step says how to see them.
    """

    record: Any
    answer: str
    context: str = ""
    title: str = ""
    lead: Sequence[Sentence] = ()
    parts: Callable[[], Iterable[Part]]
    rows: Callable[[], Iterable[Line]] | None = None
    tiles: Callable[[], Sequence[Tile]] = _no_tiles
    setup: Sequence[tuple[str, str]] = ()
    views: Sequence[str] = ()
    derived: str = ""
    next_step: str = ""
    is_brief: bool = False

    @property
    def whole_view(self) -> View | None:
        """The view with every row and detail (--all); None if the document always has them."""
        if "everything" in self.views:
            return View(everything=True)
        return View(top=ALL_ROWS) if "top" in self.views else None

    @property
    def opening(self) -> str:
        """The early end of the measurement, which every form shows before the answer; empty for a complete one."""
        return word_end(getattr(self.record, "ended", None))

    @property
    def warnings(self) -> list[str]:
        """What is missing in the record, and why; empty for a complete one."""
        return warnings_of(self.record)

    @property
    def notes(self) -> list[str]:
        """The source of the energy, then the notes of the record and of its parts."""
        return list_notes(self.record)

    @property
    def short_notes(self) -> list[str]:
        """The notes with only the first doubt about an estimate."""
        return list_notes(self.record, is_short=True)


def warnings_of(record: Any) -> list[str]:
    """Return why a record has unknown totals, as sentences; empty for a complete one."""
    reason = getattr(getattr(record, "total", None), "reason", None)
    counts = getattr(record, "conservation", None)
    blind = describe_blindness(counts) if counts is not None else ""
    totals = [f"No total: {reason}." if reason else "", blind]
    return [*filter(None, totals), *getattr(record, "gaps", ())]


def word_end(ended: Ended | None) -> str:
    """Return the early end of a measurement as a sentence; empty for a complete one."""
    if ended is None:
        return ""
    if ended.is_of_target:
        return f"{ended.message}. The figures end there."
    return f"Ended early: {ended.why}. Partial results." if ended.how == "failed" else "Interrupted: partial results."


def shown_parts(parts: Iterable[Part], form: Form) -> list[Part]:
    """Return the parts that a form shows, drawn; empty ones, and sections of only empty ones, are left out."""
    shown: list[Part] = []
    for part in parts:
        if form not in part.forms:
            continue
        if isinstance(part, Section):
            part = msgspec.structs.replace(part, parts=shown_parts(part.parts, form))  # noqa: PLW2901
        elif isinstance(part, Drawing):
            part = msgspec.structs.replace(part, draw=partial(_drawn, part.draw()))  # noqa: PLW2901
        if _has_content(part, form):
            shown.append(part)
    return shown


def _has_content(part: Part, form: Form) -> bool:
    match part:
        case Sentence():
            return bool(part.text)
        case Items():
            return bool(part.rows)
        case Shown():
            return bool(part.table.of(form).rows)
        case Section():
            return bool(part.parts)
        case Drawing():
            return bool(part.draw())


def _drawn(picture: Markup) -> Markup:
    return picture
