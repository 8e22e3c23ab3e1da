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
