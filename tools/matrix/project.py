# SPDX-License-Identifier: Apache-2.0
"""The project as a root takes it: sources, the bytecode of that root's Python, and the truth programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from powerprof.system.program_search import need
from powerprof.system.programs import run
from tools.matrix import cache
from tools.matrix.roots import COMPILE, REPOSITORY, Root, compile_foreign, run_inside

# What runs inside, and what the bench itself runs there.
_PARTS = ("powerprof", "probes", "workloads", "tools/matrix", "pyproject.toml")
PROGRAMS = ("tests/programs/sleepers.c", "tests/programs/functions_truth.c", "tests/programs/oncpu_truth.c")
TRUTH = "truth"
_PYTHON = ("powerprof", "tools")
_FLAGS = ("-O2", "-fomit-frame-pointer", "-pthread")


def _files() -> Iterator[Path]:
    for name in (*_PARTS, *PROGRAMS):
        place = REPOSITORY / name
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def _make(root: Root, place: Path) -> None:
    for file in _files():
        target = place / file.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (place / "tools/__init__.py").touch()
    (place / TRUTH).mkdir()
    compiler, package = root.arch.compiler
    made = [[*_FLAGS, "-o", f"{TRUTH}/{Path(name).stem}", name] for name in PROGRAMS]
    if not root.arch.is_native:
        for words in made:
            run([need(compiler, package), *words], cwd=place)
        compile_foreign(root.suite, place, _PYTHON)
        return
    compiled = " ".join((*COMPILE, *_PYTHON))
    lines = ["cd /srv/powerprof", *(f"{compiler} {' '.join(words)}" for words in made), compiled]
    run_inside(root.tree, place, ["sh", "-ec", "\n".join(lines)])


def project(root: Root) -> Path:
    """A folder with all that goes to /srv/powerprof, made now where the checkout has changed."""
    contents = [part for file in _files() for part in (str(file.relative_to(REPOSITORY)), file.read_bytes())]
    kind = f"{root.suite}-{root.arch.debian}"
    return cache.made(f"project-{kind}-{cache.digest(*contents)}", lambda place: _make(root, place))
