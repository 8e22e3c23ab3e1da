# SPDX-License-Identifier: Apache-2.0
"""Hold the English of the code to plain sentences: a subject, a common verb, the noun of the field.

Each rule is a construction that a reader has to translate. The measure is hits per 1,000 words; good projects have two
to three, because some hits are correct English. `python -m tests.unit.docs.test_prose` prints the places.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "powerprof"
# Construction → what to write instead.
RULES = {
    r"\b(?:says?|said|tells?|told)\b": "prints, reports, contains, shows",
    r"\b(?:asks?|asked|asking)\b": "queries, requests, reads",
    r"\b(?:whose|whom)\b": "the noun: the owner, the account",
    r"\b[Ww]hat (?!(?:is|are|does|do|did|can|would) [^.?]*\?)[^.?;:|\n]{2,120}[.;:|,\n]": "a noun: the cost, the rest",
    r"(?:^|(?<=[.;:] ))Where\b|, where (?:a|an|the|it|they|no|that|there|this|one)\b": "if, when",
    r"\bbeside\b": "next to, compared with, besides",
    r"\bof (?:its|their|your|our) own\b|\bby (?:it|them)sel(?:f|ves)\b": "separate, its own",
    r"\b(?:is|are|was|were|not) had\b|\bto be had\b": "is available",
    r"\b(?:stands?|stood|lies?|lay)\b(?! in for)": "is, appears",
    r"\b(?:is|are|was|were|be) no (?!longer|more|less)\w+": "is not a",
    r"\b(?:[Nn]obody|[Nn]othing|[Ee]verybody|[Ss]omebody)\b": "the noun: no process, no user",
    r"\b(?:goes|gone)\b(?! to\b)": "moves, is removed, is written",
    r"\bbr(?:ings?|ought)\b": "provides, installs",
    r"\b(?:those|that) (?:of|which|with|from|by)\b|\bthe ones? (?:of|that|which|in|with)\b": "repeat the noun",
    r"\b(?:meanwhile|all the same|once more|anew|nevertheless)\b": "during the window, still, again",
    r"\b(?:all|every \w+|any \w+|each|only|code) but\b|\bbut for\b": "except",
    r"\bin turns?\b|\btakes? turns\b": "alternate",
    r"\b(?:is|are|was|were) meant\b|\bmeans? (?:harm|nothing)\b": "state the purpose",
    r"\b(?:line|row|message|window|value|call|document|thread|test)s? (?:an?|each) (?!few\b)\w+": "one X per Y",
    r"(?:^|(?<=[.:] ))(?:Refused|Missing|Kept|Measured|Shown|Taken|Left|Never \w+)(?: is| are|:)": "X is refused",
}
# Hits per 1,000 words that an area may have.
CEILINGS = {"docstrings": 10, "comments": 12}
_COMPILED = {re.compile(pattern, re.MULTILINE): remedy for pattern, remedy in RULES.items()}
# Words that are no nouns of the field: participles, pronouns and bare verbs.
_NO_CLASS = re.compile(
    r"_?(?:Had|Took|Hurt|Met|Seen|Since|Whose|Way|Left|Between|Best|Tried|Spent|Behind|Apart|Passed|Drawn|Given|Asked|"
    r"Answered|Taken|Gathered|Watched|Varied|Exported|Held|Settled|Kept|Found|Known|Told|Said|One|Own|Place|Fillings?|"
    r"Waiting|Running|Chosen|Counted|Named|Joined|Read|Woken|Looked|Looks|Keeps?)"
)


@cache
def texts(area: str) -> tuple[tuple[str, str], ...]:
    """Return (place, text) of every docstring or comment of the package."""
    read = _docstrings if area == "docstrings" else _comments
    return tuple(
        (f"{path.relative_to(REPOSITORY)}:{line}", text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in read(path.read_text(encoding="utf-8"))
    )


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.search(r"SPDX|noqa|type: ignore", token.string):
            yield token.start[0], token.string.lstrip("# ")


def odd_places(area: str) -> list[tuple[str, str, str]]:
    """Return (place, odd words, remedy) of an area of the code."""
    return [
        (place, match[0], remedy)
        for place, text in texts(area)
        for pattern, remedy in _COMPILED.items()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("area", CEILINGS)
def test_the_code_is_written_in_plain_sentences(area: str) -> None:
    words = sum(len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) for _, text in texts(area))
    odd = odd_places(area)
    assert words > 1000
    assert 1000 * len(odd) / words <= CEILINGS[area], odd[:20]


def test_classes_are_nouns_of_the_field() -> None:
    names = {
        f"{path.relative_to(REPOSITORY)}:{node.lineno}": node.name
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert {place: name for place, name in names.items() if _NO_CLASS.fullmatch(name)} == {}


if __name__ == "__main__":
    for name in CEILINGS:
        for hit in odd_places(name):
            print(*hit, sep=": ")
