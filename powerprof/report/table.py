# SPDX-License-Identifier: Apache-2.0
"""Tables as values: a report builds each table once, and the terminal, Markdown, HTML and CSV draw it.

A figure carries its exact value, its place in the record and its format, so that all forms show the same figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.records import Estimate, Kind
from powerprof.report import labels
from powerprof.system.files import escape_formulas

if TYPE_CHECKING:
    from markupsafe import Markup

Form = Literal["terminal", "markdown", "html", "csv"]
ALL: frozenset[Form] = frozenset(("terminal", "markdown", "html", "csv"))
CSV: frozenset[Form] = frozenset(("csv",))
HTML: frozenset[Form] = frozenset(("html",))


class Figure(msgspec.Struct, frozen=True):
    """A figure of the record.

    Attributes:
        value: The exact value; `None` if it is unknown.
        at: Its place in the record, a JSON pointer (RFC 6901).
        digits: The number of decimals; `None` for three significant digits.
        unit: The unit of the scaled value.
        scale: The factor from the exact value to the shown one.
        sign: Whether a positive value has a plus.
        ends: The ends of its interval.
        words: A text that is plainer than the figure.
    """

    value: float | int | None
    at: str
    digits: int | None = 2
    unit: str = ""
    scale: float = 1.0
    sign: bool = False
    ends: tuple[Figure, Figure] | None = None
    words: str = ""

    @property
    def text(self) -> str:
        """The rounded value without its unit; `?` if it is unknown."""
        if self.value is None:
            return text.UNKNOWN
        shown = self.value * self.scale
        digits = self.digits
        if digits is None:
            digits = 0 if isinstance(self.value, int) else labels.count_decimals(shown)
        return (text.signed if self.sign else text.number)(shown, digits)

    @property
    def whole(self) -> str:
        """The rounded value with its unit."""
        if self.value is None and self.words:
            return self.words
        gap = "" if self.value is None or not self.unit or self.unit.startswith("/") else " "
        return self.text + (gap + self.unit if self.value is not None else "")

    @property
    def exact(self) -> tuple[float | int | None, float | int | None, float | int | None]:
        """The value and the ends of its interval, as they are in the record."""
        low, high = (end.value for end in self.ends) if self.ends else (None, None)
        return self.value, low, high

    @property
    def plus_minus(self) -> str:
        """The value with half of its interval, in its unit: `+6.8 ± 0.5 W`."""
        mean, low, high = self.exact
        estimate = Estimate(mean=mean or 0.0, low=low, high=high)
        return f"{text.plus_minus(estimate, self.digits or 0, sign=self.sign)} {self.unit}"


class Words(msgspec.Struct, frozen=True):
    """A text.

    Attributes:
        text: The text.
        more: A remark after it.
        ours: Whether it is a text of powerprof and not a name from outside.
        strong: Whether the remark is as important as the text.
        code: Whether it is SQL, in a fixed-width font.
    """

    text: str
    more: str = ""
    ours: bool = False
    strong: bool = False
    code: bool = False


class JudgedCell(msgspec.Struct, frozen=True):
    """The outcome of a judged figure in words.

    Attributes:
        word: The word, as in `answers.Outcome`.
        count: The remark after it, left out on a narrow terminal.
        detectable: The smallest detectable difference for an undecided figure, if it is known.
    """

    word: str
    count: str = ""
    detectable: Figure | None = None

    @property
    def text(self) -> str:
        """The word with its remark."""
        return self.word + self.count

    @property
    def is_decided(self) -> bool:
        """Whether the figure has a verdict."""
        return self.word not in ("may be chance", "inconclusive", "unknown")


class Path(msgspec.Struct, frozen=True):
    """A stack of frames, innermost first; an incomplete one breaks off."""

    frames: Sequence[str]
    complete: bool


Cell = Figure | Words | JudgedCell | Path


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        key: The key of its cells in each row.
        heading: The heading.
        name: A name from outside, after the heading.
        short: The heading on a terminal.
        left: Whether it holds words.
        interval: The heading of its intervals, if it has any.
        beside: The column that shows these cells too, if the form has room for few columns.
        forms: The forms that show it.
    """

    key: str
    heading: str = ""
    name: str = ""
    short: str = ""
    left: bool = False
    interval: str = ""
    beside: str = ""
    forms: frozenset[Form] = ALL


def words(*keys: str, **headings: str) -> list[Column]:
    """Return columns of words, by key and heading; `keys` are headings too."""
    return [Column(key, heading, left=True) for key, heading in [*zip(keys, keys, strict=True), *headings.items()]]


def figures(**headings: str) -> list[Column]:
    """Return columns of figures, by key and heading."""
    return [Column(key, heading) for key, heading in headings.items()]


class TableRow(msgspec.Struct, frozen=True):
    """A row of a table.

    Attributes:
        cells: The cells, by column.
        key: The name in CSV.
        short: The name on a terminal.
        unit: The unit of all its figures.
        exact_unit: The unit of the unscaled values, in CSV.
        kind: Whether its figures are measured or estimated.
        look: The class of its colour.
        inner: Whether it belongs to the row above.
        forms: The forms that show it.
    """

    cells: Mapping[str, Cell]
    key: str = ""
    short: str = ""
    unit: str = ""
    exact_unit: str = ""
    kind: Kind = "measured"
    look: str = ""
    inner: bool = False
    forms: frozenset[Form] = ALL

    def words(self, key: str) -> Words:
        """Return a cell as words; empty words for a missing one."""
        cell = self.cells.get(key)
        if isinstance(cell, Words):
            return cell
        if isinstance(cell, JudgedCell):
            return Words(cell.text)
        return Words((cell.words or cell.text) if isinstance(cell, Figure) else "")


class Table(msgspec.Struct, frozen=True):
    """Columns and rows.

    Attributes:
        columns: The columns.
        rows: The rows.
        label: The description for screen readers.
        caption: A line about the table.
        left_count: The number of rows of the record that are not in the table.
    """

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    label: str = ""
    caption: str = ""
    left_count: int = 0

    def of(self, form: Form, keys: Sequence[str] = ()) -> Table:
        """Return the columns and rows that a form shows; `keys` selects columns and their order, in any form."""
        named = {column.key: replace(column, forms=column.forms | {form}) for column in self.columns}
        columns = [named[key] for key in keys] or [column for column in self.columns if form in column.forms]
        return replace(self, columns=columns, rows=[row for row in self.rows if form in row.forms])


def split_rows(whole: Table, count: int) -> tuple[Table, Table]:
    """Return the first rows as one table, and the rows behind "more" as another."""
    return replace(whole, rows=whole.rows[:count], left_count=0), replace(whole, rows=whole.rows[count:], caption="")


def without_empty(whole: Table) -> Table:
    """Return a table without the columns that have only unknown values."""
    kept = [column for column in whole.columns if any(_is_known(row.cells.get(column.key)) for row in whole.rows)]
    return replace(whole, columns=kept)


def _is_known(shown: Cell | None) -> bool:
    if isinstance(shown, Figure):
        return shown.value is not None
    return not isinstance(shown, Words) or bool(shown.text) if shown is not None else False


class DrawnColumn(msgspec.Struct, frozen=True):
    """A column of drawings, one per row.

    Attributes:
        before: The key of the column that follows it.
        heading: The drawing in the head.
        cells: The drawings.
        primary: Whether the first row belongs to the headline.
    """

    before: str
    heading: Markup
    cells: Sequence[Markup]
    primary: bool = True


class Places(msgspec.Struct, frozen=True):
    """A record as plain values, and its figures by their places."""

    record: msgspec.Struct
    tree: Any = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tree", msgspec.to_builtins(self.record))

    def at(self, pointer: str) -> Any:
        """Return the value at a JSON pointer; `None` if there is none."""
        value = self.tree
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list | tuple) else value[name]
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return value

    def figure(
        self,
        at: str,
        digits: int | None = None,
        unit: str = "",
        *,
        ends: str | tuple[str, str] = "",
        scale: float = 1.0,
        sign: bool = False,
        wording: str = "",
    ) -> Figure:
        """Return the figure at a place.

        `ends` is the place of its interval, or the places of the two ends.
        """
        low, high = ends if isinstance(ends, tuple) else _ends(self.at(ends) if ends else None, ends)
        both = [
            Figure(value, place, digits, unit, scale, sign)
            for place in (low, high)
            if place and (value := _number(self.at(place))) is not None
        ]
        interval = (both[0], both[1]) if len(both) == 2 else None
        return Figure(_number(self.at(at)), at, digits, unit, scale, sign, interval, wording)


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ends(interval: Any, at: str) -> tuple[str, str]:
    return (f"{at}/0", f"{at}/1") if isinstance(interval, list | tuple) else (f"{at}/low", f"{at}/high")


def escape_pointer(name: str) -> str:
    """Return one part of a JSON pointer, escaped."""
    return name.replace("~", "~0").replace("/", "~1")


# Tables for a terminal: aligned columns, and fewer of them on a narrow one.

_NAME_LIMIT = 16  # CPUIDLE_NAME_LEN, include/linux/cpuidle.h
_HEAD_LIMIT = 12


def metric_lines(table: Table, width: int) -> list[str]:
    """Return the lines of metrics with three significant digits and intervals.

    A narrow terminal has no remarks. If the intervals do not fit either, a table with verdicts has two lines per
    metric, and others have several blocks of columns.
    """
    shown = table.of("terminal")
    is_judged = any(isinstance(cell, JudgedCell) for row in shown.rows for cell in row.cells.values())
    for count in (True, False):
        rows = [["", *map(_heading, shown.columns[1:])]]
        rows += [
            [row.short, *(_significant(row.cells.get(column.key), column, count) for column in shown.columns[1:])]
            for row in shown.rows
        ]
        for gap in (2, 1):
            lines = text.columns(rows, gap=gap)
            if max(map(len, lines)) <= width:
                return lines
    return _stack_rows(rows, width) if is_judged else text.fit_columns(rows, width)


# With more wide rows, all rows have two lines.
_MOST_WIDE_ROWS = 0.3


def _stack_rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return rows of which those that are too wide, or all, have two lines: name and verdict, then the figures."""
    by_width = sorted(range(1, len(rows)), key=lambda number: -sum(map(len, rows[number])))
    for count in range(1, int(_MOST_WIDE_ROWS * len(rows)) + 1):
        wide = set(by_width[:count])
        lines = text.columns([row for number, row in enumerate(rows) if number not in wide], gap=1)
        if max(map(len, lines)) <= width:
            rest = iter(lines)
            return [
                line
                for number, row in enumerate(rows)
                for line in (_stack_row(row, width) if number in wide else [next(rest)])
            ]
    return [line for row in rows for line in _stack_row(row, width)]


def _stack_row(row: Sequence[str], width: int) -> list[str]:
    name, a, b, *cells, verdict = row
    lines = text.wrap(" · ".join([f"{a} → {b}", *filter(None, cells)]), width, "  ")
    return [text.shorten(f"{name}: {verdict}", width), *lines] if name else lines


def _heading(column: Column) -> str:
    heading = column.short or text.shorten(column.name, _HEAD_LIMIT) or column.heading
    return f"{heading} ({column.interval})" if column.interval else heading


def _significant(cell: Cell | None, column: Column, count: bool) -> str:
    if isinstance(cell, JudgedCell):
        return cell.text if count else cell.word
    if not isinstance(cell, Figure):
        return cell.text if isinstance(cell, Words) else ""
    span = f" [{', '.join(map(_three, cell.ends))}]" if column.interval and cell.ends else ""
    return _three(cell) + span


def _three(figure: Figure) -> str:
    shown = labels.format_significant(figure.value)
    return f"+{shown}" if figure.sign and figure.value is not None and not shown.startswith("−") else shown


def phase_lines(table: Table, width: int, more: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return the lines of phases side by side with their units and the change between them.

    `more` rows are added at the end.
    """
    shown = table.of("terminal")
    rows = [["", *(column.short or column.name for column in shown.columns[1:])]]
    for row in shown.rows:
        cells = [row.cells.get(column.key) for column in shown.columns[1:]]
        values = [cell for cell in cells if isinstance(cell, Figure)]
        name = row.cells["name"]
        ours = isinstance(name, Words) and name.ours
        rows.append(
            [
                row.short if ours else text.shorten(row.short, _NAME_LIMIT),
                *(figure.plus_minus if figure.sign else figure.whole for figure in values),
            ]
        )
    rows += [list(line) for line in more]
    return text.fit_columns(rows, width)


def figure_lines(table: Table, width: int) -> list[str]:
    """Return one line per row: its short name and its figures with their units, below the headings."""
    rows = [["", *(column.short or column.heading for column in table.columns[1:])]]
    for row in table.rows:
        cells = [row.cells.get(column.key) for column in table.columns[1:]]
        shown = [cell.words or cell.whole if isinstance(cell, Figure) else "" for cell in cells]
        rows.append([row.short[:_NAME_LIMIT], *shown])
    return text.fit_columns(rows, width)


def align_rows(rows: Sequence[Sequence[str]], width: int, left: Sequence[int] = ()) -> list[str]:
    """Return the lines of rows of figures with a name as last cell; see `text.name_rows`."""
    return [line for entry in text.name_rows(rows, width, left=left)[0] for line in entry]


def column_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row; the last column is cut or wrapped last."""
    return align_rows(_text_rows(table), width, [at for at, column in enumerate(table.columns[:-1]) if column.left])


def block_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row; a table that is too wide has several blocks of columns."""
    left = next((at for at, column in enumerate(table.columns) if not column.left), len(table.columns))
    return text.fit_columns(_text_rows(table), width, left=left)


def _text_rows(table: Table) -> list[list[str]]:
    headings = [column.short or column.heading or column.name for column in table.columns]
    return [headings, *([row.words(column.key).text for column in table.columns] for row in table.rows)]


# Lines below a row of `named_rows`: a stack of an interpreter has a hundred frames.
_MOST_BELOW = 6
_BELOW_INDENT = 12


def named_rows(table: Table, width: int) -> list[str]:
    """Return one line per row: its figures, then its name, which is the last column of words.

    An interval has a column. Cells of columns `beside` the name are below it, at most six lines. The last line counts
    the rows that are not in the table.
    """
    plain = [column for column in table.columns if not column.beside]
    name = [column for column in plain if column.left][-1]
    others = [column for column in plain if column is not name]
    rows = [[*(head for column in others for head in _figure_heads(column)), name.heading]]
    for row in table.rows:
        rows.append([*(cell for column in others for cell in _figure_cells(row, column)), _named(row, name)])
    left = [number for number, column in enumerate(others) if column.left]
    entries, indent = text.name_rows(rows, width, left=left)
    lines, below = list(entries[0]), " " * min(_BELOW_INDENT, indent + 2)
    for row, entry in zip(table.rows, entries[1:], strict=True):
        more = " ".join(_below(row.cells.get(column.key)) for column in table.columns if column.beside).strip()
        lines += [*entry, *(text.wrap(more, width, below)[:_MOST_BELOW] if more else [])]
    return [*lines, *hidden_line(table.left_count, table.label)]


def _figure_heads(column: Column) -> Iterator[str]:
    yield column.heading
    if column.interval:
        yield column.interval


def _figure_cells(row: TableRow, column: Column) -> Iterator[str]:
    """Yield the figure of a column with its unit, and its interval if the column has intervals."""
    cell = row.cells.get(column.key)
    yield (cell.words or cell.whole) if isinstance(cell, Figure) else row.words(column.key).text
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} – {ends[1].text}" if ends else ""


def _named(row: TableRow, column: Column) -> str:
    name = row.words(column.key)
    return f"{name.text}  ({name.more})" if name.more else name.text


def _below(cell: Cell | None) -> str:
    if isinstance(cell, Path):
        return " ← ".join(cell.frames) or "(no stack)"
    return cell.text if cell is not None else ""


def fit_rows(table: Table, width: int) -> list[str]:
    """Return the heading and one line per row, its name first; a narrow terminal has several blocks of columns."""
    rows = [["", *(column.heading for column in table.columns[1:])]]
    rows += [[row.words(column.key).text for column in table.columns] for row in table.rows]
    return text.fit_columns(rows, width)


def hidden_line(count: int, what: str) -> list[str]:
    """Return the line about `count` rows that are not printed; empty without any."""
    return [f"{count} more {what} (--top N, or --json)"] if count > 0 else []


def function_lines(table: Table, headings: Mapping[str, str], width: int) -> list[str]:
    """Return one line per function: the figures of these columns, with intervals in brackets, then its name."""
    rows = [[*headings.values(), "function"]]
    for row in table.rows:
        values = [cell for key in headings if isinstance(cell := row.cells[key], Figure)]
        ends = [f" [{cell.ends[0].text}, {cell.ends[1].text}]" if cell.ends else "" for cell in values]
        name = row.words("name")
        cells = [f"{cell.text}{interval}" for cell, interval in zip(values, ends, strict=True)]
        rows.append([*cells, f"{name.text} ({name.more})"])
    return align_rows(rows, width)


# CSV for spreadsheets, one table per record. Text that a spreadsheet would run as a formula is disarmed.
#
# Process and function names come from outside. A text cell that begins with = + - @ or a control character gets a
# leading apostrophe (OWASP, CSV Injection). Figures are exact and stay unchanged.

CsvCell = str | float | int | None
Line = Sequence[CsvCell]


def format_csv(lines: Iterable[Line]) -> str:
    """Return the lines as RFC 4180 text. Short lines are padded to the head; unknown cells are empty."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    columns = 0
    for line in lines:
        columns = columns or len(line)
        cells = [*line, *[None] * (columns - len(line))]
        writer.writerow(
            [escape_formulas(cell) if isinstance(cell, str) else "" if cell is None else cell for cell in cells]
        )
    return out.getvalue()


def exact_cells(row: TableRow, *keys: str) -> Iterator[CsvCell]:
    """Yield the figures of a row, each with the ends of its interval."""
    for key in keys:
        shown = row.cells.get(key)
        yield from shown.exact if isinstance(shown, Figure) else (None, None, None)


def column_lines(table: Table, key: str) -> Iterator[Line]:
    """Yield one line per row of a column: name, unit, kind, value, low, high."""
    for row in table.of("csv").rows:
        if isinstance(row.cells.get(key), Figure):
            yield [row.key, row.exact_unit, row.kind, *exact_cells(row, key)]


def field_lines(rows: Iterable[msgspec.Struct], names: Sequence[str]) -> Iterator[Line]:
    """Yield the field names, then one line per row with these fields of the record."""
    yield names
    for row in rows:
        yield [getattr(row, name) for name in names]


# Markdown for pull requests: escaped text, code spans and tables.
#
# Names from outside are code spans. In these GitHub interprets no link, mention or HTML.

_MAX_NAME = 120
_MAX_FRAMES = 8
MARKDOWN_ROWS = 25
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")


def code_span(name: object, limit: int = _MAX_NAME) -> str:
    """Return a code span that the name cannot end. A `|` is escaped, because tables split at it even in a span."""
    clean = text.shorten(_CONTROL.sub(" ", str(name)), limit).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", clean)), default=0))
    pad = " " if clean.startswith("`") or clean.endswith("`") else ""
    # A backslash before the | would escape the escape.
    inner = clean.replace("\\|", "|").replace("|", "\\|")
    return f"{fence}{pad}{inner}{pad}{fence}"


def escape(sentence: str) -> str:
    """Return a sentence with Markdown characters escaped and with addresses and mentions broken."""
    one_line = text.shorten(_CONTROL.sub(" ", sentence), 1000)
    escaped = _SPECIAL.sub(r"\\\1", one_line)
    # GitHub has no escape for mentions and bare addresses, so a zero-width space breaks them.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//").replace("www.", "www\u200b.")


def draw_table(shown: Table, keys: Sequence[str] = ()) -> list[str]:
    """Return the lines of a GitHub table with `keys` as columns, or all columns. An interval has a separate column."""
    own = shown.of("markdown", keys)
    heads, rule = [], []
    for column in own.columns:
        heading = escape(column.heading)
        heads.append(f"{heading} {code_span(column.name, 60)}".strip() if column.name else heading)
        rule.append("---" if column.left else "---:")
        if column.interval:
            heads.append(column.interval)
            rule.append("---:")
    rows = [[part for column in own.columns for part in _draw_parts(row, column)] for row in own.rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))]


def _draw_parts(row: TableRow, column: Column) -> Iterator[str]:
    cell = row.cells.get(column.key)
    # If the row names the unit, its cells omit it.
    shown = _draw_cell(cell, unit=bool(column.beside) or not row.unit)
    if column.key == "name":
        estimated = ", estimated" if row.kind == "estimated" else ""
        shown += (escape(f", {row.unit}") if row.unit else "") + estimated
    yield shown
    if column.interval:
        ends = cell.ends if isinstance(cell, Figure) else None
        yield f"{ends[0].text} to {ends[1].text}" if ends else ""


def _draw_cell(cell: Cell | None, *, unit: bool) -> str:
    if isinstance(cell, Figure):
        return cell.words.removeprefix("every ") or (cell.whole if unit else cell.text)
    if isinstance(cell, JudgedCell):
        return f"**{cell.text}**" if cell.is_decided else cell.text
    if isinstance(cell, Path):
        more = " ← …" if len(cell.frames) > _MAX_FRAMES else ""
        return code_span(" ← ".join(cell.frames[:_MAX_FRAMES]) + more if cell.frames else "no user stack", 400)
    if cell is None or not cell.text:
        return ""
    if cell.ours and cell.strong:
        return f"**{escape(cell.text)}**"
    return (
        escape(cell.text) if cell.ours else code_span(f"{cell.text} {cell.more}".strip() if cell.strong else cell.text)
    )


def note_lines(notes: Iterable[str]) -> list[str]:
    """Return a list of notes, after an empty line; empty without notes."""
    written = [f"- {escape(note)}" for note in notes]
    return ["", *written] if written else []
