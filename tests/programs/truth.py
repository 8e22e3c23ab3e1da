# SPDX-License-Identifier: Apache-2.0
"""Programs whose calls and CPU times are known by construction: how they are compiled, and what is known."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.programs.built import build_once

_HERE = Path(__file__).parent
# Calls, and own CPU time of each in µs, as functions_truth.c has them.
TRUTH = {
    "truth_leaf": (600, 100),
    "truth_outer": (50, 300),
    "truth_inner": (150, 150),
    "truth_recurse": (400, 50),
    "truth_tail_first": (60, 200),
    "truth_tail_second": (60, 300),
}


def compiled(compiler: str, source: str, folder: Path, *linked: str) -> Path:
    """A program of this folder, without frame pointers, called as its source is."""
    target = folder / Path(source).stem
    flags = ("-O2", "-fomit-frame-pointer")

    def make(program: Path) -> None:
        subprocess.run([compiler, *flags, "-o", program, _HERE / source, *linked, "-lpthread"], check=True)

    return build_once(target, [compiler, *flags, *linked], [_HERE / source], make)
