# SPDX-License-Identifier: Apache-2.0
"""Whoever reads an error is told what to do: none is without a hint.

Not judged here: DataError names file, line and reason, which is its remedy, and WorseError is an answer.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.unit.layers import sources

_WITH_A_REMEDY = {"PowerprofError", "Retryable", "UsageError", "CapabilityError"}


def _without(module: Path) -> list[str]:
    return [
        f"{module.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)}"
        for node in sources.walk(module.read_text())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WITH_A_REMEDY
        if len(node.args) < 2 and not any(keyword.arg in ("hint", None) for keyword in node.keywords)
    ]


def test_every_error_says_what_to_do() -> None:
    assert [line for module in sorted((REPOSITORY / "powerprof").rglob("*.py")) for line in _without(module)] == []
