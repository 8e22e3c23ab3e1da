# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed away from the repository, brings its probes and workloads and needs no bcc from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            "--wheel-dir",
            str(folder),
            str(REPOSITORY),
        ],
        check=True,
        timeout=120,
    )
    (built,) = folder.glob("powerprof-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the wheel, in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
            "--target",
            str(target),
            str(wheel),
        ],
        check=True,
        timeout=120,
    )
    return target


def run_installed(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python whose `powerprof` is the installed one: PYTHONPATH goes before the checkout's own entry."""
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize("kind", ["probes", "workloads"])
def test_data_is_found_from_the_installed_package(installed: Path, kind: str) -> None:
    program = "import sys; from powerprof.system import paths; print(paths.data_dir(sys.argv[1]))"
    done = run_installed(installed, "-c", program, kind)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(installed)
    assert files_below(folder) == files_below(REPOSITORY / kind)
    assert (folder / "README.md").is_file()


def test_the_installed_command_runs(installed: Path) -> None:
    done = run_installed(installed, "-m", "powerprof", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "What if:" in done.stdout
    assert (installed / "bin/powerprof").is_file()


def test_the_metadata_ask_for_no_bcc(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    needed = [requirement.lower() for requirement in metadata.get_all("Requires-Dist", [])]
    assert needed
    assert not [requirement for requirement in needed if requirement.startswith(("bcc", "python3-bpfcc", "bpfcc"))]
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_wheel_holds_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        roots = {name.split("/")[0] for name in archive.namelist()}
        beside = {name for name in archive.namelist() if ".data/" in name}
    assert {root for root in roots if not root.endswith((".dist-info", ".data"))} == {"powerprof"}
    assert {name.partition(".data/")[2] for name in beside} == {"data/share/man/man1/powerprof.1"}
