# SPDX-License-Identifier: Apache-2.0
"""Pages of the reference that must agree with the code: commands, exit codes, environment, and the map of packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from powerprof.system import errors
from powerprof.tracing.bpf import features
from tests.conftest import REPOSITORY
from tests.unit.layers import sources
from tools.pages import commands_page
from tools.pages.cli import commands

PACKAGE = REPOSITORY / "powerprof"
# Variables that a library reads for powerprof (tempfile, shutil, urllib), so that no line of ours names them.
_BY_LIBRARIES = {"COLUMNS", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY"}


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package, parsed."""
    return {path: sources.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def table_of(page: Path, after: str = "") -> list[list[str]]:
    """The rows of the first table of a page (after a heading), a list of cells each, without the heads."""
    lines = (
        page.read_text(encoding="utf-8").partition(after)[2].splitlines()
        if after
        else page.read_text(encoding="utf-8").splitlines()
    )
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            break
    return rows[2:]


def codes_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_of_commands_is_what_the_commands_declare() -> None:
    written = commands_page.PAGE.read_text(encoding="utf-8")
    assert written == commands_page.render(), f"docs/reference/commands.md is out of date: {commands_page.COMMAND}"


def test_the_declarations_are_those_that_help_shows() -> None:
    """The page is made from the declarations; this ties it to a command line that was really read."""
    compare = {one.name: one for one in commands()["compare"].options}
    assert (compare["--pairs"].default, compare["--pairs"].low, compare["--pairs"].high) == (10, 3, 1000)
    assert compare["--fail-if-worse"].takes_value is False
    assert {"--from", "--set"} <= {one.name for name in ("energy", "sweep") for one in commands()[name].options}


def _exit_codes() -> set[int]:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and hasattr(one, "exit_code")]
    return {0, *(kind.exit_code for kind in kinds)}


def test_every_exit_code_has_a_line() -> None:
    rows = table_of(REPOSITORY / "docs/reference/environment.md", "## Exit codes")
    assert {int(row[0]) for row in rows} == _exit_codes()


def _names(tree: ast.Module) -> dict[str, str]:
    """Module-level names that stand for a string."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def _read_variables(tree: ast.Module) -> Iterator[str]:
    """What a module takes from os.environ: by a string, a name of the module, or through `_find_xdg_folder`."""
    names = _names(tree)
    for node in ast.walk(tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_environ(node.value) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif (
            isinstance(node, ast.Call)
            and node.args
            and (
                (isinstance(node.func, ast.Name) and node.func.id == "_find_xdg_folder")
                or (isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _is_environ(node.func.value))
            )
        ):
            key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.Name) and key.id in names:
            yield names[key.id]


def test_every_variable_that_is_read_has_a_line_and_no_other() -> None:
    rows = table_of(REPOSITORY / "docs/reference/environment.md", "## Environment variables")
    told = {name for row in rows for name in codes_of(row[0])}
    read = {name for tree in trees().values() for name in _read_variables(tree)}
    assert {"POWERPROF_SYSFS", "XDG_CACHE_HOME", "POWERPROF_MAVEN_INDEX", "DEBUGINFOD_URLS"} <= read
    assert told == read | _BY_LIBRARIES


def test_the_map_of_packages_is_complete() -> None:
    rows = table_of(REPOSITORY / "docs/dev/architecture.md", "## Packages")
    packages = {f"{folder.name}/" for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    assert {codes_of(row[0])[0] for row in rows} == packages


@pytest.mark.parametrize("page", ["cost-and-safety", "permissions", "support"])
def test_tables_by_command_have_every_command(page: str) -> None:
    rows = table_of(REPOSITORY / f"docs/{page}.md")
    assert {code.split()[0] for row in rows for code in codes_of(row[0])} >= set(commands())


def test_supported_kernels_are_those_of_the_code() -> None:
    rows = {row[0]: row[1] for row in table_of(REPOSITORY / "docs/support.md")}
    needed = max((features.CURRENT_TASK, features.TASK_REGISTERS), key=lambda feature: feature.since)
    assert rows["`profile`"] == f"{needed.since} and newer"
    assert rows["`functions`"] == f"{features.ATTACH_COOKIE.since} and newer"
