# SPDX-License-Identifier: Apache-2.0
"""The recipes of other distributions, and the bill of materials of a wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.conftest import REPOSITORY

RPM = REPOSITORY / "packaging/rpm/powerprof.spec"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([REPOSITORY / "packaging/dist", folder], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def rpm(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built on Debian: the packages of RPM that the build needs are not looked up."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("no capability: rpmbuild (sudo make soak)")
    top = tmp_path_factory.mktemp("rpm")
    (top / "SOURCES").mkdir()
    for sdist in dist.glob("*.tar.gz"):
        shutil.copy(sdist, top / "SOURCES")
    words = ["--nodeps", "--define", f"_topdir {top}", "--define", "_build_id_links none"]
    done = subprocess.run(["rpmbuild", "-bb", *words, RPM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (package,) = (top / "RPMS").rglob("*.rpm")
    return package


def test_the_package_of_rpm(rpm: Path) -> None:
    listed = subprocess.run(["rpm", "-qpl", rpm], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"/usr/bin/powerprof", "/usr/lib/systemd/system/powerprof.service"} <= set(listed)
    assert not [line for line in listed if "drgn.libs" in line]
    needs = subprocess.run(["rpm", "-qpR", rpm], capture_output=True, text=True, check=True).stdout
    assert "python(abi) = 3." in needs and "libcurl" not in needs


def test_the_recipe_of_arch_is_a_script(tmp_path: Path) -> None:
    """makepkg is not in Debian: bash reads the file, and its function is called with another program."""
    tool = tmp_path / "source/powerprof-0.2.0/packaging/tree"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\necho "$1"\n')
    tool.chmod(0o755)
    script = f'. {REPOSITORY}/packaging/arch/PKGBUILD; srcdir={tmp_path}/source pkgdir=/there; package; echo "$pkgver"'
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "/there\n0.2.0\n"


def test_the_bill_of_materials_lists_each_library(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    subprocess.run(["/usr/bin/python3", "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True, timeout=900)
    subprocess.run([REPOSITORY / "packaging/sbom", tmp_path / "venv", tmp_path / "bill.json"], check=True)
    bill = json.loads((tmp_path / "bill.json").read_text())
    listed = subprocess.run([tmp_path / "venv/bin/pip", "list", "--format=json"], capture_output=True, check=True)
    installed = {
        one["name"].lower().replace("_", "-").replace(".", "-"): one["version"] for one in json.loads(listed.stdout)
    }
    found = {
        one["name"].replace(".", "-"): one["version"] for one in [bill["metadata"]["component"], *bill["components"]]
    }
    assert found == installed
    assert all(one["purl"] == one["bom-ref"] for one in bill["components"])


def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    """By the schema of the specification, in a module of the Go proxy."""
    if shutil.which("go") is None:
        pytest.skip("no capability: Go (sudo make soak)")
    words = ["go", "mod", "download", "-json", "github.com/compose-spec/compose-go/v2@v2.9.1"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=True)
    schema = json.loads((Path(json.loads(done.stdout)["Dir"]) / "schema/compose-spec.json").read_text())
    jsonschema.validate(yaml.safe_load((REPOSITORY / "packaging/compose/compose.yaml").read_text()), schema)
