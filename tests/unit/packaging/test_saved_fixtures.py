# SPDX-License-Identifier: Apache-2.0
"""Saved runs: they open, show what they hold, and can be compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Cli

SAVED = REPOSITORY / "tests/fixtures/saved"
IDS = sorted(folder.name for folder in SAVED.iterdir())


def within(old: Any, new: Any, where: str = "$") -> list[str]:
    """What the old document says and the new one does not: keys and items that are gone or have another value."""
    if isinstance(old, dict) and isinstance(new, dict):
        # What was empty or unknown need not be written.
        gone = [f"{where}.{key}" for key, value in old.items() if key not in new and value not in (None, [], {}, "")]
        return gone + [text for key in old.keys() & new.keys() for text in within(old[key], new[key], f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [text for n, (a, b) in enumerate(zip(old, new, strict=True)) for text in within(a, b, f"{where}[{n}]")]
    return [] if old == new else [f"{where}: {old!r} → {new!r}"]


# Sentences of a verdict, which are written from the saved figures.
WORDED = ("speed", "text", "power")


@pytest.mark.parametrize("name", IDS)
def test_a_saved_run_loses_nothing(powerprof_cli: Cli, name: str) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", name, "--json", "-"])
    assert (done.code, done.err) == (0, "")
    old, new = json.loads((SAVED / name / "run.json").read_text()), json.loads(done.out)
    if new["schema"] == "powerprof.comparison/1":
        for word in WORDED:
            assert bool(new["verdict"][word]) == bool(old["verdict"].pop(word)), word
    assert within(old, new) == []


@pytest.mark.parametrize("name", IDS)
def test_a_saved_run_is_shown(powerprof_cli: Cli, name: str) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", name])
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) >= 5
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("name", [name for name in IDS if not name.startswith("residency")])
def test_a_saved_run_makes_a_page(powerprof_cli: Cli, tmp_path: Path, name: str) -> None:
    done = powerprof_cli(["--runs-dir", str(SAVED), "report", name, "-o", str(tmp_path / "page.html")])
    assert (done.code, done.err) == (0, "")
    assert "</html>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("a", "b"), [("compare-0001:index", "compare-0001:no-index"), ("run-0001", "run-0009"), ("idle-0001", "idle-0009")]
)
def test_saved_runs_are_compared(powerprof_cli: Cli, tmp_path: Path, a: str, b: str) -> None:
    runs = Path(shutil.copytree(SAVED, tmp_path / "runs"))
    for name in ("run", "idle"):  # a second one of each: with itself nothing is compared
        shutil.copytree(runs / f"{name}-0001", runs / f"{name}-0009")
        again = runs / f"{name}-0009/run.json"
        again.write_text(again.read_text().replace(f'"{name}-0001"', f'"{name}-0009"'))
    done = powerprof_cli(["--runs-dir", str(runs), "compare", a, b, "--no-save", "--json", "-"])
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    if a.startswith("compare"):
        # As it was measured: the server spends many times as long on a query without the index.
        server = found["metrics"][0]
        assert server["name"] == "c0_ms_per_query_server"
        assert server["b"]["mean"] > 5 * server["a"]["mean"]


@pytest.mark.parametrize(("b", "code"), [("no-index", 4), ("index", 0)])
def test_a_reader_that_has_enough_does_not_change_the_exit_code(powerprof_cli: Cli, b: str, code: int) -> None:
    a = "index" if b == "no-index" else "no-index"
    words = ["compare", f"compare-0001:{a}", f"compare-0001:{b}", "--no-save", "--fail-if-worse"]
    with subprocess.Popen(
        [sys.executable, "-m", "powerprof", "--runs-dir", str(SAVED), *words],
        cwd=REPOSITORY,
        env=powerprof_cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        os.read(running.stdout.fileno(), 1)
        running.stdout.close()
        assert running.wait(60) == code
