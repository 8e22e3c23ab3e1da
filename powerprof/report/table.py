# SPDX-License-Identifier: Apache-2.0
"""Tables as values: a report builds each once from its record, and every form (terminal, Markdown, HTML, CSV) draws it.

A figure carries its exact value, its place in the record and how it is shown, so that no form can show another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from powerprof.experiment.verdict import direction
from powerprof.model import text
from powerprof.model.records import Estimate, Kind
from powerprof.report import labels
from powerprof.statistics import Verdict

Form = Literal["terminal", "markdown", "html", "csv"]
ALL: frozenset[Form] = frozenset(("terminal", "markdown", "html", "csv"))
CSV: frozenset[Form] = frozenset(("csv",))
HTML: frozenset[Form] = frozenset(("html",))


@dataclass(frozen=True)
class Figure:
    """A figure of the record. `at` is its place there (a JSON pointer, RFC 6901), `ends` are those of its interval.

    `digits` None: three significant ones. `words` stand in its place where they are plainer than the figure.
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
        """Rounded, without the unit; ? where it is unknown."""
        if self.value is None:
            return text.UNKNOWN
        shown = self.value * self.scale
        digits = self.digits
        if digits is None:
            digits = 0 if isinstance(self.value, int) else labels.digits(shown)
        return (text.signed if self.sign else text.number)(shown, digits)

    @property
    def whole(self) -> str:
        """With its unit."""
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
        """`+6.8 ± 0.5`, in its unit."""
        mean, low, high = self.exact
        estimate = Estimate(mean=mean or 0.0, low=low, high=high)
        return f"{text.plus_minus(estimate, self.digits or 0, sign=self.sign)} {self.unit}"


@dataclass(frozen=True)
class Words:
    """Text. `more` stands beside it. `ours`: not a name from outside. `strong`: `more` is as important. `code`: SQL,
    in letters of one width."""

    text: str
    more: str = ""
    ours: bool = False
    strong: bool = False
    code: bool = False


@dataclass(frozen=True)
class JudgedCell:
    """A verdict, and for an inconclusive one the difference that would have been found."""

    metric: str
    verdict: Verdict
    detectable: Figure

    @property
    def text(self) -> str:
        """better, worse or inconclusive: B beside A; lower or higher where neither is better."""
        return direction(self.metric, self.verdict)


@dataclass(frozen=True)
class Path:
    """A stack, innermost first. A broken one is not `complete`."""

    frames: Sequence[str]
    complete: bool


Cell = Figure | Words | JudgedCell | Path


@dataclass(frozen=True)
class Column:
    """`left`: words rather than figures. `interval`: what the column of its intervals is called where it has one.
    `short` is its heading on a terminal.

    `name` is a name from outside, shown after the heading. `beside` is the column whose cells hold these too, where
    there is room for few.
    """

    key: str
    heading: str = ""
    name: str = ""
    short: str = ""
    left: bool = False
    interval: str = ""
    beside: str = ""
    forms: frozenset[Form] = ALL


def words(*keys: str) -> list[Column]:
    """Columns of words that are called as they are."""
    return [Column(key, key, left=True) for key in keys]


def figures(**headings: str) -> list[Column]:
    """Columns of figures: key and heading."""
    return [Column(key, heading) for key, heading in headings.items()]


@dataclass(frozen=True)
class TableRow:
    """`short` is its name on a terminal. `unit` and `kind` are all its figures'; `look` is its colour.

    `key` and `exact_unit` are its name and its unscaled unit in CSV. `inner`: it belongs to the row above.
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
        """A cell as words, whatever it holds; empty for none."""
        cell = self.cells.get(key)
        if isinstance(cell, Words):
            return cell
        return Words((cell.words or cell.text) if isinstance(cell, Figure) else "")


@dataclass(frozen=True)
class Table:
    """`label` says what it is to who cannot see it, `caption` is a line about it, `left_count` rows are not in it."""

    columns: Sequence[Column]
    rows: Sequence[TableRow]
    label: str = ""
    caption: str = ""
    left_count: int = 0

    def of(self, form: Form, keys: Sequence[str] = ()) -> Table:
        """What one form shows of it: all columns that it has there, or these in their order."""
        named = {column.key: column for column in self.columns}
        columns = [named[key] for key in keys] or [column for column in self.columns if form in column.forms]
        return replace(self, columns=columns, rows=[row for row in self.rows if form in row.forms])


@dataclass(frozen=True)
class Places:
    """A record as plain values, and its figures by their places."""

    record: msgspec.Struct
    tree: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", msgspec.to_builtins(self.record))

    def at(self, pointer: str) -> Any:
        """The value at a pointer; None where there is none."""
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
        words: str = "",
    ) -> Figure:
        """The figure at a place. `ends`: the places of its interval's ends, or that of the interval."""
        low, high = ends if isinstance(ends, tuple) else _ends(self.at(ends) if ends else None, ends)
        both = [
            Figure(value, place, digits, unit, scale, sign)
            for place in (low, high)
            if place and (value := _number(self.at(place))) is not None
        ]
        interval = (both[0], both[1]) if len(both) == 2 else None
        return Figure(_number(self.at(at)), at, digits, unit, scale, sign, interval, words)


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _ends(interval: Any, at: str) -> tuple[str, str]:
    return (f"{at}/0", f"{at}/1") if isinstance(interval, list | tuple) else (f"{at}/low", f"{at}/high")


def escape_pointer(name: str) -> str:
    """One part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


# Tables for a terminal: aligned columns, and less of them where it is narrow.

_NAME_LIMIT = 16  # CPUIDLE_NAME_LEN, include/linux/cpuidle.h
_HEAD_LIMIT = 12


def metrics(table: Table, width: int) -> list[str]:
    """Metrics with three significant digits each, and their intervals where there is room."""
    shown = table.of("terminal")
    lines: list[str] = []
    for ends, gap in ((True, 2), (True, 1), (False, 2), (False, 1)):
        rows = [["", *(_heading(column, ends) for column in shown.columns[1:])]]
        rows += [
            [row.short, *(_significant(row.cells.get(column.key), column, ends) for column in shown.columns[1:])]
            for row in shown.rows
        ]
        lines = text.columns(rows, gap=gap)
        if max(map(len, lines)) <= width:
            break
    return [text.shorten(line, width) for line in lines]


def _heading(column: Column, ends: bool) -> str:
    heading = column.short or text.shorten(column.name, _HEAD_LIMIT) or column.heading
    return f"{heading} ({column.interval})" if column.interval and ends else heading


def _significant(cell: Cell | None, column: Column, ends: bool) -> str:
    if not isinstance(cell, Figure):
        return cell.text if isinstance(cell, JudgedCell) else ""
    span = f" [{', '.join(map(_three, cell.ends))}]" if column.interval and ends and cell.ends else ""
    return _three(cell) + span


def _three(figure: Figure) -> str:
    shown = labels.significant(figure.value)
    return f"+{shown}" if figure.sign and figure.value is not None and not shown.startswith("−") else shown


def phases(table: Table, width: int, more: Sequence[Sequence[str]] = ()) -> list[str]:
    """Phases side by side with their units, and the change over them; `more` rows are added below."""
    shown = table.of("terminal")
    rows = [["", *(column.short or column.name for column in shown.columns[1:])]]
    for row in shown.rows:
        cells = [row.cells.get(column.key) for column in shown.columns[1:]]
        figures = [cell for cell in cells if isinstance(cell, Figure)]
        name = row.cells["name"]
        ours = isinstance(name, Words) and name.ours
        rows.append(
            [
                row.short if ours else text.shorten(row.short, _NAME_LIMIT),
                *(figure.plus_minus if figure.sign else figure.whole for figure in figures),
            ]
        )
    rows += [list(line) for line in more]
    lines = text.columns(rows)
    return lines if max(map(len, lines)) <= width else text.columns(rows, gap=1)


def align_rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return rows with figures aligned to the right; the name in the last column is shortened to the width."""
    heads = text.columns([row[:-1] for row in rows], left=0)
    return [text.shorten(f"{head}  {row[-1]}", width) for head, row in zip(heads, rows, strict=True)]


def function_lines(table: Table, headings: Mapping[str, str], width: int) -> list[str]:
    """Return one line per function: the figures of these columns, with intervals in brackets, then its name."""
    rows = [[*headings.values(), "function"]]
    for row in table.rows:
        figures = [cell for key in headings if isinstance(cell := row.cells[key], Figure)]
        ends = [f" [{cell.ends[0].text}, {cell.ends[1].text}]" if cell.ends else "" for cell in figures]
        name = row.words("name")
        cells = [f"{cell.text}{interval}" for cell, interval in zip(figures, ends, strict=True)]
        rows.append([*cells, f"{name.text} ({name.more})"])
    return align_rows(rows, width)
