# SPDX-License-Identifier: Apache-2.0
"""Tables as values: a report builds each table once, and the terminal, Markdown, HTML and CSV draw it.

A figure carries its exact value, its place in the record and its format, so that all forms show the same figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from powerprof.model import text
from powerprof.model.records import Kind
from powerprof.report import labels

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
        return self.text + (labels.spaced(self.unit) if self.value is not None else "")

    @property
    def exact(self) -> tuple[float | int | None, float | int | None, float | int | None]:
        """The value and the ends of its interval, as they are in the record."""
        low, high = (end.value for end in self.ends) if self.ends else (None, None)
        return self.value, low, high

    @property
    def plus_minus(self) -> str:
        """The value with half of its interval, in its unit: `+6.8 ± 0.5 W`."""
        return f"{self.text} {self.half_width}".rstrip() + labels.spaced(self.unit)

    @property
    def half_width(self) -> str:
        """Half of its interval: `± 0.5`, or both ends of a lopsided one; empty without one."""
        if self.ends is None or self.value is None:
            return ""
        low, high = (end.value or 0.0 for end in self.ends)
        half = (high - low) / 2
        if labels.is_lopsided(self.value, low, half):
            return f"({self.ends[0].text} to {self.ends[1].text})"
        # A small half has as many digits as it needs.
        digits = self.digits or 0
        if half and not round(half * self.scale, digits):
            digits = labels.count_decimals(half * self.scale, 1)
        return f"± {text.number(half * self.scale, digits)}"


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


def word_columns(*keys: str, **headings: str) -> list[Column]:
    """Return columns of words, by key and heading; `keys` are headings too."""
    return [Column(key, heading, left=True) for key, heading in [*zip(keys, keys, strict=True), *headings.items()]]


def figure_columns(**headings: str) -> list[Column]:
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
    """The figures of a record by their places."""

    record: msgspec.Struct

    def at(self, pointer: str) -> Any:
        """Return the value at a JSON pointer, as it is in the JSON of the record; `None` if there is none."""
        value: Any = self.record
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                value = _member(value, name)
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return value if isinstance(value, int | float | str | None) else msgspec.to_builtins(value)

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
        equal: float = 0.0,
    ) -> Figure:
        """Return the figure at a place.

        `ends` is the place of its interval, or the places of the two ends. The interval determines the decimals;
        `digits` are those of a figure without one. `equal` is the value that means no difference.
        """
        places = ends if isinstance(ends, tuple) else _ends(self.at(ends) if ends else None, ends)
        known = [(value, place) for place in places if place and (value := _number(self.at(place))) is not None]
        interval = None
        if len(known) == 2:
            (low, _), (high, _) = known
            followed = labels.follow_interval(scale * low, scale * high, scale * equal)
            digits = digits if followed is None else followed
            both = [Figure(value, place, digits, unit, scale, sign) for value, place in known]
            interval = (both[0], both[1])
        return Figure(_number(self.at(at)), at, digits, unit, scale, sign, interval, wording)


def _member(value: Any, name: str) -> Any:
    """Return a member by its name in JSON. Raises KeyError, IndexError, TypeError and ValueError."""
    if isinstance(value, msgspec.Struct):
        return getattr(value, _field_names(type(value))[name])
    return value[int(name)] if isinstance(value, list | tuple) else value[name]


@cache
def _field_names(record: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the names of the fields by their names in JSON: a field `from_value` may be `from`."""
    return dict(zip(record.__struct_encode_fields__, record.__struct_fields__, strict=True))


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ends(interval: Any, at: str) -> tuple[str, str]:
    return (f"{at}/0", f"{at}/1") if isinstance(interval, list | tuple) else (f"{at}/low", f"{at}/high")


def escape_pointer(name: str) -> str:
    """Return one part of a JSON pointer, escaped."""
    return name.replace("~", "~0").replace("/", "~1")


CsvCell = str | float | int | None
Line = Sequence[CsvCell]


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
