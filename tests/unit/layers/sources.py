# SPDX-License-Identifier: Apache-2.0
"""The parsed sources of the package, for all tests that scan them. Each module is parsed once per process."""

from __future__ import annotations

import ast
from functools import cache

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "powerprof"


@cache
def parse(source: str) -> ast.Module:
    """Return the tree of a source. All scanners share it: do not change it."""
    return ast.parse(source)


@cache
def walk(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the tree of a source, in the order of `ast.walk`."""
    return tuple(ast.walk(parse(source)))


@cache
def modules() -> dict[str, str]:
    """Return the sources of the package by their paths below it."""
    return {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def strings(source: str) -> tuple[tuple[int, str], ...]:
    """Return line and text of each string that is not a docstring; {} stands for a value of an f-string."""
    inner: set[int] = set()
    found: list[tuple[int, str]] = []
    for node in walk(source):  # a parent comes before its parts
        if isinstance(node, ast.Expr):
            inner.add(id(node.value))
        elif isinstance(node, ast.JoinedStr) and id(node) not in inner:
            inner.update(map(id, node.values))
            parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.append((node.lineno, node.value))
    return tuple(found)
