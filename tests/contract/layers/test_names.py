# SPDX-License-Identifier: Apache-2.0
"""A class is found by its name: no two of the product share one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.conftest import REPOSITORY


def shared_names(sources: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Each name that more than one class has, and where they are; `sources`: a module's text by its path."""
    places: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(path)
    yield from ((name, found) for name, found in sorted(places.items()) if len(found) > 1)


def test_every_class_has_a_name_of_its_own() -> None:
    package = REPOSITORY / "powerprof"
    sources = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert dict(shared_names(sources)) == {}


def test_a_shared_name_is_found_wherever_the_class_stands() -> None:
    sources = {"a.py": "class Window: ...\nclass Other: ...", "b.py": "def f():\n    class _Window: ..."}
    assert dict(shared_names(sources)) == {"Window": ["a.py", "b.py"]}
