# SPDX-License-Identifier: Apache-2.0
"""What is below `report` hands on names and figures: a note or a threat is worded in one place, by its figures."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from string import Formatter
from typing import TypeGuard

import pytest

from powerprof.experiment.records import ControlRecord, Threat
from powerprof.model.records import Note
from powerprof.report import comparison_words
from powerprof.report.comparison_words import control_text
from powerprof.report.notes import WORDS, word_notes
from tests.unit.layers import sources

# Modules and packages that hand on values alone: errors and docstrings are the only sentences in them.
WORDLESS = (
    "experiment/metrics.py",
    "experiment/phases.py",
    "experiment/threats.py",
    "experiment/verdict.py",
    "attribution/blame.py",
    "statistics",
)


def _modules(part: str = "") -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    return ((name, sources.walk(text)) for name, text in sources.modules().items() if name.startswith(part))


def _calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _made(name: str) -> Iterator[tuple[str, set[str]]]:
    """Every note that the code makes by a literal name, with the names of its figures."""
    for _, nodes in _modules():
        for node in nodes:
            if _calls(node, name) and node.args:
                figures = node.args[1] if len(node.args) > 1 else ast.Dict([], [])
                if isinstance(node.args[0], ast.Constant) and isinstance(figures, ast.Dict):
                    keys = {key.value for key in figures.keys if isinstance(key, ast.Constant)}
                    yield node.args[0].value, {str(key) for key in keys}


def _fields(template: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(template) if field}


def test_every_note_has_one_sentence_that_shows_its_figures() -> None:
    made = list(_made("Note"))
    assert len(made) > 20
    assert [(name, keys) for name, keys in made if _fields(WORDS.get(name, "{missing}")) != keys] == []


def test_every_threat_has_a_sentence() -> None:
    names = set()
    for _, nodes in _modules("experiment"):
        for node in nodes:
            if _calls(node, "Threat"):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                assert "text" not in given or "control.text" in ast.unparse(given["text"])
                chosen = given.get("form", given["name"])
                words = {str(one.value) for one in ast.walk(chosen) if isinstance(one, ast.Constant)} - {"", "0"}
                names |= words if "text" not in given else set()
    assert names - set(comparison_words.WORDS) == set()
    assert {"steal_varies", "drift_failed", "saturated", "no_pairs"} <= names


@pytest.mark.parametrize("part", WORDLESS)
def test_no_sentence_is_built_where_values_are_judged(part: str) -> None:
    found = []
    for path, nodes in _modules(part):
        spoken = {id(one) for node in nodes if isinstance(node, ast.Raise | ast.Expr) for one in ast.walk(node)
                  if isinstance(node, ast.Raise) or isinstance(node.value, ast.Constant)}  # fmt: skip
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in spoken:
                continue
            if len(node.value.split()) > 4:
                found.append(f"{path}:{node.lineno}: {node.value}")
    assert found == []


def test_a_damaged_note_is_shown_as_it_is() -> None:
    assert word_notes([Note("texts_cut", {"count": "many", "bytes": 3})]) == ["{'count': 'many', 'bytes': 3}"]
    assert word_notes([Note("unheard of"), "as it was"]) == ["unheard of", "as it was"]
    assert comparison_words.word_threats([Threat(name="steal")], {})[0].text == "steal {}"
    assert control_text(ControlRecord(kind="run", pairs_count=1, sound=False, half_width_percent=None)) == (
        "the A/A control has too few pairs to judge"
    )
