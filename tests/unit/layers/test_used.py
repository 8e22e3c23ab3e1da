# SPDX-License-Identifier: Apache-2.0
"""Every function, class and constant of a module is used by the product; what tests alone use belongs to the tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.unit.layers import sources

PACKAGE = REPOSITORY / "powerprof"
# Forms of records, whose names `report.kinds` puts together; and the counterparts of what the product reads.
_FORM = re.compile(r"render\w*_(terminal|html|markdown|csv)")
_FOR_TESTS = {"lines_of", "pack_carried"}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            # Several names at once are an enumeration, which has all members.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _used(source: str) -> Iterator[str]:
    for node in sources.walk(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from re.findall(r"\w+", node.value)  # a name for getattr


def unused_names(package: Path) -> list[str]:
    """The names of modules that nothing in the package uses."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    used = Counter(name for text in texts.values() for name in _used(text))
    return [
        f"{path.relative_to(package)}: {name}"
        for path, text in texts.items()
        for name in _defined(sources.parse(text))
        if not used[name] and name not in _FOR_TESTS and not name.startswith("__") and not _FORM.fullmatch(name)
    ]


def test_the_product_has_no_code_for_tests_alone() -> None:
    assert unused_names(PACKAGE) == []


def test_a_planted_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(
        'LIMIT = 1\nMOST = LIMIT\n\n\ndef look():\n    """See look at night."""\n    return MOST\n'
    )
    assert unused_names(tmp_path) == ["room.py: look"]
