# SPDX-License-Identifier: Apache-2.0
"""Imports point strictly down: over packages, top-level modules and rooms of packages; late and typing ones too."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.unit.layers import sources
from tests.unit.layers.imports import circles, graph_of, layers_in, upward_edges

PACKAGE = REPOSITORY / "powerprof"
PAGE = REPOSITORY / "docs/dev/architecture.md"
LAYERS = layers_in(PAGE, "## Layers")
WITHIN = {room: layers_in(PAGE, f"### Within {room}") for room in ("experiment", "tracing", "report", "database")}


def problems(package: Path) -> list[str]:
    """What points up or in a circle."""
    graph = graph_of(package)
    up = upward_edges(graph, LAYERS)
    for room, layers in WITHIN.items():
        up += upward_edges(graph, layers, room)
    return [*up, *(" ↔ ".join(group) for group in circles(graph))]


def test_every_import_points_down_and_none_in_a_circle() -> None:
    assert problems(PACKAGE) == []


def test_every_package_and_top_level_module_has_its_layer() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    named = [name for line in LAYERS for name in line]
    assert sorted(named) == sorted(parts - {"__init__", "__main__"})
    for room, layers in WITHIN.items():
        folder = PACKAGE / room
        inner = {path.stem for path in folder.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
        assert {name for line in layers for name in line} == inner - {"__init__"}, room


@pytest.fixture(scope="module")
def copied_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("planted") / "powerprof"
    return Path(shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    ("module", "line", "found"),
    [
        ("energy/split.py", "from powerprof.attribution import blame", "energy.split → attribution.blame"),
        ("energy/split.py", "def late():\n    import powerprof.attribution.blame", "energy.split → attribution.blame"),
        (
            "stacks/elf.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from powerprof.tracing import idle",
            "stacks.elf → tracing.idle",
        ),
        ("system/errors.py", "from powerprof.model import runs", "system.errors → model.runs"),
        ("host/survey.py", "from powerprof.queries import session", "host.survey → queries.session"),
        ("energy/calibrate.py", "from ..tracing import idle", "energy.calibrate → tracing.idle"),
        ("model/text.py", "import importlib\nimportlib.import_module('powerprof.cli.idle')", "model.text → cli.idle"),
        ("model/records.py", "from powerprof.cli import main", "model.records → cli"),
        ("experiment/load.py", "from powerprof.experiment.bench import Bench", "experiment.load → experiment.bench"),
        ("experiment/records.py", "from powerprof.experiment import idle", "experiment.records → experiment.idle"),
        ("tracing/profile.py", "from powerprof.tracing import idle", "tracing.profile → tracing.idle"),
        ("report/table.py", "from powerprof.report.html import page", "report.table → report.html.page"),
        ("database/sql.py", "from powerprof.database import private_server", "database.sql → database.private_server"),
    ],
)
def test_an_upward_import_that_is_planted_is_found(copied_package: Path, module: str, line: str, found: str) -> None:
    place = copied_package / module
    text = place.read_text()
    place.write_text(f"{text}\n\n{line}\n")
    assert found in problems(copied_package)
    place.write_text(text)


def test_a_circle_within_one_package_is_found(tmp_path: Path) -> None:
    for name, other in (("first", "second"), ("second", "third"), ("third", "first")):
        place = tmp_path / f"powerprof/room/{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"def late():\n    from powerprof.room import {other}\n")
    assert circles(graph_of(tmp_path / "powerprof")) == [["room.first", "room.second", "room.third"]]


def test_records_are_structs() -> None:
    """Creating a dataclass takes 60 times as long as creating a struct."""
    assert [path for path in PACKAGE.rglob("*.py") if "dataclass" in path.read_text()] == []


def private_imports(package: Path) -> list[str]:
    """Return the private names that a module takes from another one of powerprof."""
    return [
        f"{path.relative_to(package)}: {alias.name}"
        for path in sorted(package.rglob("*.py"))
        for node in sources.walk(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("powerprof")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def test_no_module_imports_a_private_name(tmp_path: Path) -> None:
    assert private_imports(PACKAGE) == []
    (tmp_path / "late.py").write_text("def f():\n    from powerprof.experiment.run import _baseline, build_run\n")
    assert private_imports(tmp_path) == ["late.py: _baseline"]
