# SPDX-License-Identifier: Apache-2.0
"""The words of what powerprof prints and of its documentation: the usual verb and the field's noun.

A phrase that was replaced once stays replaced. What is printed is read out of the source: every string that is no
docstring, those of commands are in docs/reference/commands.md.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.conftest import REPOSITORY
from tests.contract.docs.pages import name_of, pages

PACKAGE = REPOSITORY / "powerprof"
# What stood somewhere, and what stands there now.
PHRASES = {
    "costs nothing that": "no measurable cost: less than …",
    "tell nothing about the rest": "the rest is inconclusive",
    "surely grew or shrank": "changed significantly",
    "surely differs": "differs significantly",
    "what parts with it": "correlated metrics",
    "the storm raged": "the storm was active",
    "Derived: nothing": "No yearly figure: power is inconclusive.",
    "What tracing cost cannot be told": "Tracing cost is unknown",
    "it is not sure that": "inconclusive after correcting for … comparisons",
    "nobody is there to agree": "confirmation needs a terminal; add --yes",
    "the sweep was begun with": "keeps the original values",
    "call stacks beside": "Also sample call stacks",
    "A network of its own for every": "One network namespace per …",
    "EXPLAIN is going to be run": "About to run EXPLAIN on",
    "; nor without": "; the fallback failed: ",
    "told by their names": "grouped by name",
    "began anew": "was reset",
    "it lacks for you": "run it directly to see what is missing",
    "everybody there could read": "anyone on that network can read it",
    "by whom they are blamed": "by blamed thread",
    "of the rest stands for": "filled with the mean power",
    "one asks which of its statements": "Which statement should you fix first?",
    "Why is it dear": "Why is it expensive?",
    "Series are what memory goes by": "Memory grows with the number of series",
    "its code is said": "its exit code is reported",
    "Whose figure a host's is": "Host or guest?",
    "must go by": "must scale with",
    "forgotten and begun anew": "cleared",
    "root's eyes": "read access, not write access",
    "It ended no idle period": "It woke no idle CPU.",
    "Doubtful: condition": "Caution: …",
    "there is no capture beside": "has no trace; only attribute runs have one",
    "could see": "smallest detectable change",
    "Where it differs from the obvious": "Exceptions",
    "where they part": "where they diverge",
    "sweeps part": "the sweeps diverge",
    "cannot be told": "is unknown; cannot be separated from …",
    "tells nothing": "is not judged; inconclusive",
    "tell nothing": "are inconclusive",
    "nobody is": "no account is; no source is known",
    "goes on with": "continues with",
    "begun anew": "was reset",
    "written anew": "rewritten",
    "surely": "significantly",
    " is dear": "is expensive",
    "Check, the whole host": "Whole host: …",
    "wider than usual": "for narrower intervals, leave it out",
    "more doubts:": "(powerprof energy)",
    "it is within the figures": "which the figures contain",
    "going to be saved": "will not be saved",
    "going to be written": "About to write …",
    "goes beside the terminal": "goes besides the terminal",
    'windows of its own"': "sets the windows",
    "argument(s)": "unexpected argument: …",
    "it said nothing": "it reported nothing",
    "time-out": "timeout",
    "no answer. Its windows differ": "its own noise hides the server",
    "probed functions were never": "1 probed function was never called",
}
# `docs/design` and `docs/studies` are held to the phrases alone.
WORDS = re.compile(
    r"\b(told|tells?|surely|(?:is|are|was|am I) sure|begun|anew|dear(?:er)?|wants|go(?:es)? on|goes by|raged|"
    r"everybody|by whom|parts with|begins? anew)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@cache
def _printed() -> list[tuple[str, str]]:
    """Every string of the code that has words in it, with its place."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
            if isinstance(text, str) and " " in text:
                found.append((f"{path.relative_to(REPOSITORY)}:{node.lineno}", text))
    for path in sorted(PACKAGE.rglob("*.j2")):
        text = re.sub(r"{[{%#].*?[}%#]}|<[^>]*>", " ", path.read_text(encoding="utf-8"))
        found.append((str(path.relative_to(REPOSITORY)), text))
    return found


@cache
def _documentation(*, design: bool) -> list[tuple[str, str]]:
    """The prose of pages. The gallery is made by powerprof; code is quoted."""
    found = []
    for page in pages():
        name = name_of(page)
        if not name.startswith("docs/gallery") and (design or not name.startswith(("docs/design", "docs/studies"))):
            found.append((name, _CODE.sub(" ", page.read_text(encoding="utf-8"))))
    return found


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_replaced_phrase_stays_replaced(phrase: str) -> None:
    found = [place for place, text in (*_printed(), *_documentation(design=True)) if phrase.lower() in text.lower()]
    assert found == [], f"write: {PHRASES[phrase]}"


def test_what_is_printed_has_the_usual_verbs() -> None:
    found = [(place, match[0], text[:80]) for place, text in _printed() if (match := WORDS.search(text))]
    assert found == []


def test_what_users_read_has_the_usual_verbs() -> None:
    found = [
        (name, line.strip()[:120])
        for name, text in _documentation(design=False)
        for line in text.splitlines()
        if WORDS.search(line)
    ]
    assert found == []
