# SPDX-License-Identifier: Apache-2.0
"""Reads the import graph of a package from its source, and judges it by a table of layers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.unit.layers import sources

Graph = Mapping[str, frozenset[str]]
_AT_RUN_TIME = -1
# `report.run` or `model.records:Run`: a name that `report.kinds` resolves.
_PLACE = re.compile(r"report\.\w+(:\w+)?|[a-z_]+\.\w+:\w+")


def graph_of(package: Path) -> Graph:
    """Module → modules of the same package that it imports: at the top, late, or for types alone. `.` is the root."""
    files = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: frozenset(_imported(name, path, package.name, files)) for name, path in files.items()}


def _name(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip(".") or "."


def _imported(own: str, path: Path, root: str, known: Mapping[str, Path]) -> Iterator[str]:
    here = [] if own == "." else own.split(".")
    if path.name != "__init__.py":
        here = here[:-1]
    for level, names in _named(path.read_text(encoding="utf-8"), root):
        base = ".".join([root, *here[: len(here) - level + 1]]) + "." if level > 0 else ""
        for name in (f"{base}{name}" for name in names):
            # A sibling that is named at run time tells nothing new.
            if name.split(".")[0] == root and not (level == _AT_RUN_TIME and name == ".".join([root, *here])):
                module = _module_of(name.split(".")[1:], known)
                if module != own:
                    yield module


@cache
def _named(source: str, root: str) -> list[tuple[int, list[str]]]:
    """What each import of a module names, and from how many packages above, or `_AT_RUN_TIME`; once a source."""
    found = []
    for node in sources.walk(source):
        if isinstance(node, ast.Import):
            found.append((0, [one.name for one in node.names]))
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            found.append((node.level, [f"{base}{one.name}" for one in node.names]))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            # A name that is put together at run time is known by its beginning.
            text = ast.unparse(node.args[0]) if node.args else ""
            found.append((_AT_RUN_TIME, re.findall(rf"{root}\.[\w.]*\w", text)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PLACE.fullmatch(node.value):
            found.append((_AT_RUN_TIME, [f"{root}.{node.value.partition(':')[0]}"]))
    return found


def _module_of(parts: Sequence[str], known: Mapping[str, Path]) -> str:
    """The module that a dotted name lies in: the name itself, or what it is taken from."""
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in known:
            return name
    return "."


def layers_in(page: Path, heading: str) -> list[list[str]]:
    """The indented lines below a heading of a page, top layer first: names that `|` divides."""
    text = page.read_text(encoding="utf-8").partition(heading)[2]
    lines = re.search(r"(?:^    \S.*\n)+", text, re.MULTILINE)
    return [[word.strip() for word in line.split("|")] for line in lines[0].splitlines()] if lines else []


def upward_edges(graph: Graph, layers: Sequence[Sequence[str]], within: str = "") -> list[str]:
    """Imports that do not point strictly down, or whose end is in no layer; modules of one part are not compared.

    A part is what the layers name: a top-level module or package, or one of the package `within`.
    """
    rank = {name: number for number, line in enumerate(reversed(layers)) for name in line}
    prefix = f"{within}." if within else ""

    def part(module: str) -> str:
        return module.removeprefix(prefix).split(".")[0] if module != "." else "."

    found = []
    for module, others in graph.items():
        for other in others:
            if not (module.startswith(prefix) and other.startswith(prefix)):
                continue
            a, b = part(module), part(other)
            # The root holds a version and nothing else; a package's own front is part of each of its parts.
            if a == b or b == "." or other == within or module in (".", "__main__", within):
                continue
            if a not in rank or b not in rank or rank[a] <= rank[b]:
                found.append(f"{module} → {other}")
    return sorted(found)


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in number:
            visit(module)
    return found
