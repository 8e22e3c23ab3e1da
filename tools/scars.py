# SPDX-License-Identifier: Apache-2.0
"""Find scars of merged and renamed code in the sources: `python -m tools.scars`, part of `make check`."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from functools import cache
from itertools import pairwise
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "powerprof"
# Tests shadow their fixtures and repeat calls on purpose.
_TESTS = "tests"
# Python's tokenizer is slow: it is used only for files with such a line.
_SECTION = re.compile(r"\n\n#")
_HASH = re.compile(r"#.*")
_MODULE = re.compile(r"\b(powerprof\.|(?<=`)(?!powerprof\.))(\w+\.\w[\w.]*)\b")
_FILE = re.compile(r"[\w./-]*\w\.py\b")
Scar = tuple[int, str]
Nodes = Sequence[ast.AST]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Import = ast.Import | ast.ImportFrom


def find_sections(source: str) -> Iterator[Scar]:
    """Yield comments at the margin between blank lines: each was the docstring of a module that was merged."""
    if not _SECTION.search(source):
        return
    lines = ["", *source.split("\n")]
    margin = {token.start[0] for token in _comments(source) if token.start[1] == 0}
    for first in sorted(line for line in margin if line > 1 and not lines[line - 1]):
        last = next(line for line in range(first, len(lines)) if line + 1 not in margin)
        if not lines[last + 1]:
            yield first, "a section comment: split the file, or move it to a docstring"


def _comments(source: str) -> Iterator[tokenize.TokenInfo]:
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    return (token for token in tokens if token.type == tokenize.COMMENT)


def find_shadows(nodes: Nodes) -> Iterator[Scar]:
    """Yield locals and parameters with the name of a function, class or import of the module (pylint's W0621)."""
    outer: dict[str, str] = {}
    for statement in _module_statements(nodes[0]):
        if isinstance(statement, _Import):
            outer.update(_imported(statement))
        elif isinstance(statement, _Definition):
            outer[statement.name] = ""
    for function in nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for line, name, thing in _locals(function):
                if name in outer and (not thing or thing != outer[name]):
                    yield line, f"local {name} has the name of a function, class or import of the module"


def _module_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of the module, also those below `if`, `try` and `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _module_statements(child)


def _imported(node: _Import) -> dict[str, str]:
    """Return the names that an import binds, and the imported thing of each."""
    if isinstance(node, ast.ImportFrom):
        return {one.asname or one.name: f"{'.' * node.level}{node.module or ''}.{one.name}" for one in node.names}
    things = {one: one.name if one.asname else one.name.partition(".")[0] for one in node.names}
    return {one.asname or thing: thing for one, thing in things.items()}


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[tuple[int, str, str]]:
    """Yield line and name of the locals of a function, and the thing if it is imported."""
    shared: set[str] = set()
    waiting = list(ast.iter_child_nodes(function))
    for node in waiting:
        if isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in shared:
            yield node.lineno, node.id, ""
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, ""
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | _Definition) and node.name:
            yield node.lineno, node.name, ""
        elif isinstance(node, _Import):
            yield from ((node.lineno, name, thing) for name, thing in _imported(node).items())
        if not isinstance(node, _Definition | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def find_underscores(nodes: Nodes) -> Iterator[Scar]:
    """Yield defined names that end in `_`, without those of ctypes and Python (`_fields_`)."""
    for node in nodes:
        name: str | None = None
        if isinstance(node, _Definition):
            name = node.name
        elif isinstance(node, ast.alias):
            name = node.asname
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        if name is not None and name.endswith("_") and not name.startswith("_"):
            yield getattr(node, "lineno", 0), f"the name {name} ends in an underscore"


def find_second_names(nodes: Nodes) -> Iterator[Scar]:
    """Yield imports of a thing that the file imports under another name too."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if isinstance(node, _Import):
            for name, thing in _imported(node).items():
                names[thing].add(name)
                if len(names[thing]) > 1:
                    yield node.lineno, f"{thing} is imported as {' and '.join(sorted(names[thing]))}"


def find_repeated(nodes: Nodes) -> Iterator[Scar]:
    """Yield statements that follow an equal one and do not advance a cursor or a counter."""
    for node in nodes:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            for one, other in pairwise(statements if isinstance(statements, list) else ()):
                if _shape(one) == _shape(other) and ast.dump(one) == ast.dump(other) and not _advances(one):
                    yield other.lineno, f"the statement before is equal: {ast.unparse(other).splitlines()[0]}"


def _shape(statement: ast.stmt) -> tuple[type, int, int | None]:
    """Return kind, lines and last column: `ruff format` writes equal statements alike, and a dump takes long."""
    lines = (statement.end_lineno or 0) - statement.lineno
    return type(statement), lines, statement.end_col_offset


def _advances(statement: ast.stmt) -> bool:
    """Return whether a statement reads a name that it assigns."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return isinstance(statement, ast.AugAssign) or any(
        node.id in read for node in names if isinstance(node.ctx, ast.Store)
    )


def find_missing_modules(source: str, nodes: Nodes) -> Iterator[Scar]:
    """Yield names of modules of powerprof and of Python files in docstrings and comments that do not exist."""
    for line, text in _prose(source, nodes):
        for whole, name in _MODULE.findall(text):
            if not _exists(name.split("."), bool(whole)):
                yield line, f"there is no module {name}"
        for path in _FILE.findall(text):
            if path.rpartition("/")[2] not in _file_names():
                yield line, f"there is no file {path}"


def _prose(source: str, nodes: Nodes) -> Iterator[Scar]:
    """Yield line and text of the docstrings and comments."""
    for node in nodes:
        if isinstance(node, ast.Module | _Definition) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
    if any(_MODULE.search(text) or _FILE.search(text) for text in _HASH.findall(source)):
        yield from ((token.start[0], token.string) for token in _comments(source))


@cache
def _file_names() -> Set[str]:
    return {path.name for path in _paths()}


def _exists(parts: Sequence[str], whole: bool) -> bool:
    """Return whether the parts are a module of powerprof or a name in one; if not `whole`, also if they start in none.

    A name is not looked up in the parts of a module: it is enough that the module contains the word.
    """
    place = REPOSITORY / PACKAGE
    if not (place / parts[0]).is_dir():
        return not whole
    for part, following in pairwise([*parts, ""]):
        module = place / f"{part}.py"
        if module.is_file():
            return following in module.read_text("utf-8")
        place = place / part
    return place.is_dir()


def _paths() -> list[Path]:
    return [path for part in (PACKAGE, "tools", _TESTS) for path in sorted((REPOSITORY / part).rglob("*.py"))]


def find_scars(path: Path) -> Iterator[Scar]:
    """Yield line and text of each scar of a file."""
    source = path.read_text("utf-8")
    nodes = tuple(ast.walk(ast.parse(source)))
    yield from find_underscores(nodes)
    yield from find_second_names(nodes)
    yield from find_missing_modules(source, nodes)
    if REPOSITORY / _TESTS not in path.parents:
        yield from find_sections(source)
        yield from find_shadows(nodes)
        yield from find_repeated(nodes)


def find_all_scars() -> list[str]:
    """Return the scars of all files, each with its file and line."""
    return [f"{path.relative_to(REPOSITORY)}:{line}: {text}" for path in _paths() for line, text in find_scars(path)]


def main() -> None:
    """Print all scars, and exit with 1 if there are any."""
    found = find_all_scars()
    print("".join(f"{scar}\n" for scar in found), end="")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
