# SPDX-License-Identifier: Apache-2.0
"""Names that resemble a typed name: the only source of `did you mean`."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
_LEAST_LETTERS = 2
# One wrong key in this many characters.
_CHARACTERS_PER_ERROR = 4
# A longer word is no misspelled name. The comparison takes quadratic time.
_LONGEST = 60


def find_similar(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that are nearly a word or begin with it, the most similar one first; at most 3."""
    typed = word.lower()
    if not _LEAST_LETTERS <= len(typed.lstrip("-")) <= _LONGEST:
        return []
    allowed = max(1, len(typed.lstrip("-")) // _CHARACTERS_PER_ERROR)
    ranked = []
    for name in dict.fromkeys(names):
        spelled = name.lower()
        if abs(len(spelled) - len(typed)) <= allowed and (errors := _count_errors(typed, spelled)) <= allowed:
            ranked.append((errors, name))
        elif spelled.startswith(typed):
            ranked.append((allowed + 1, name))
    return [name for _, name in sorted(ranked)[:_MOST]]


def _count_errors(typed: str, name: str) -> int:
    """Return the number of wrong, missing, additional and exchanged letters."""
    before: list[int] = []
    row = list(range(len(name) + 1))
    for at, letter in enumerate(typed, 1):
        earlier, before, row = before, row, [at]
        for place, right in enumerate(name, 1):
            errors = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != right))
            if at > 1 and place > 1 and letter == name[place - 2] and typed[at - 2] == right:
                errors = min(errors, earlier[place - 2] + 1)
            row.append(errors)
    return row[-1]
