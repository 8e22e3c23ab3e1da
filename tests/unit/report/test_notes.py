# SPDX-License-Identifier: Apache-2.0
"""Notes of records in words."""

from __future__ import annotations

from string import Formatter

import msgspec
import pytest

from powerprof.model.records import Note
from powerprof.report.notes import WORDS, word_notes


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_note_has_the_same_words_after_it_was_saved(name: str) -> None:
    """A count stays a count: 18 threads are not 18.0."""
    fields = {field.partition(".")[0] for _, field, _, _ in Formatter().parse(WORDS[name]) if field}
    for first in (1, 18, 2.5):
        note = Note(name, dict.fromkeys(fields, first))
        assert word_notes([msgspec.json.decode(msgspec.json.encode(note), type=Note)]) == word_notes([note])
