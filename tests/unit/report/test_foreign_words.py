# SPDX-License-Identifier: Apache-2.0
"""Each word of a record that another account can choose is escaped in Markdown, whatever the kind of record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from powerprof.report.exports import export
from powerprof.report.kinds import KIND_LOADERS, kind_of
from tests.programs.golden_files import records
from tests.unit.report import distinct_records

# Markup of each form, and a mention, an address and a bidi mark.
WORD = "<img src=x onerror=f()>[y](http://z.example)|![i](j)`k`*l* @m \u202en"
# Texts that choose the kind of a record.
_FIXED = {"schema", "command"}
RECORDS: dict[str, Callable[[], Any]] = {
    **records(),
    **{f"{name}, distinct": partial(distinct_records.make_kind, name, known=True) for name in KIND_LOADERS},
}


def _replaced(value: Any, key: str) -> Any:
    """Return a copy whose texts with this key are foreign."""
    if isinstance(value, dict):
        return {name: _foreign(part) if name == key else _replaced(part, key) for name, part in value.items()}
    return [_replaced(part, key) for part in value] if isinstance(value, list) else value


def _foreign(value: Any) -> Any:
    if isinstance(value, list):
        return [_foreign(part) for part in value]
    return WORD if isinstance(value, str) else value


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, str) or (isinstance(part, list) and any(isinstance(item, str) for item in part)):
                yield name
            yield from _keys(part)
    elif isinstance(value, list):
        for part in value:
            yield from _keys(part)


def _hostile_copies(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the record with each text replaced in turn. Texts of fixed lists, such as verdicts, cannot be foreign."""
    plain = msgspec.to_builtins(record)
    for key in sorted(set(_keys(plain)) - _FIXED):
        try:
            yield key, msgspec.convert(_replaced(plain, key), type(record))
        except (msgspec.ValidationError, ValueError):
            continue


@pytest.mark.parametrize("name", RECORDS)
def test_no_foreign_word_is_markup_of_a_ticket(name: str) -> None:
    record = RECORDS[name]()
    kind = kind_of(record)
    found = []
    for key, copy in _hostile_copies(record) if kind is not None and "md" in kind.file_kinds() else ():
        text = re.sub(r"(`+) ?.*?\1", "", export(copy, "md").decode())
        raw = re.search(r"(?<!\\)<img|(?<!\\)\]\(http|(?<!\\)!\\?\[|@m", text)
        found += [f"{key}: {text[max(raw.start() - 40, 0) : raw.end() + 20]!r}"] if raw else []
    assert found == []
