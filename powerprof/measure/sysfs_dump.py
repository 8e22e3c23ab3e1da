# SPDX-License-Identifier: Apache-2.0
"""Text dumps of sysfs files, in every layout that `grep`, `find -exec cat`, `head`, `tail` and `more` print.

`grep -r .` and `grep -H` print `PATH:VALUE`, `grep -n` prints `PATH:1:VALUE`. Some tools print `PATH|VALUE`,
`PATH=VALUE` or `PATH VALUE`. Above the value, `tail -n +1` and `head` print `==> PATH <==`, `find -print -exec cat`
prints `PATH`, and others print `PATH:`. A series of dumps has a line `Timestamp | EPOCH` before each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from powerprof.measure.program_output import TIMESTAMP, numbered_lines

# The name of the cell of a line `Timestamp | EPOCH`.
STAMP = "Timestamp"
_HEADING = re.compile(r"==>\s*(.+?)\s*<==")
_SEPARATOR = r"(?:\s*[|=]|\s*:(?:1:)?|\s)\s*"


class DumpCell(NamedTuple):
    """One file of a dump: its path, its value (None: empty or missing), and the line of the value from 1."""

    path: str
    value: str | None
    line: int


def read_dump_cells(text: str, path: Path | str, file: re.Pattern[str]) -> Iterator[DumpCell]:
    """Yield the files of a dump whose whole path matches `file`, and a cell STAMP for each time stamp.

    Other files and lines are ignored. Raise DataError(path, reason, line) for a line that is too long.
    """
    one_line = re.compile(rf"({file.pattern}){_SEPARATOR}(\S.*)")
    header: tuple[str, int] | None = None
    for number, raw in numbered_lines(text, path):
        line = raw.removeprefix("\ufeff").strip()
        if line and set(line) == {":"}:
            continue  # `more` frames a path by two such lines
        heading = _HEADING.fullmatch(line)
        name = heading[1] if heading else line.rstrip(":|= \t")
        stamp = TIMESTAMP.fullmatch(line)
        cell = one_line.fullmatch(line)
        is_header = file.fullmatch(name) is not None
        if header is not None:
            is_value = bool(line) and not (heading or stamp or cell or is_header or line.startswith(("/", "./")))
            yield DumpCell(header[0], line if is_value else None, number if is_value else header[1])
            header = None
        if stamp:
            yield DumpCell(STAMP, stamp[1], number)
        elif is_header:
            header = name, number
        elif cell:
            yield DumpCell(cell[1], cell[cell.re.groups], number)
    if header is not None:
        yield DumpCell(header[0], None, header[1])
