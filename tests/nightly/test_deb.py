# SPDX-License-Identifier: Apache-2.0
"""The Debian package on a bare Debian 12: installed by apt, used, and gone without a trace."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.nightly.bareroot import Machine, bare_machine


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    subprocess.run([REPOSITORY / "packaging/deb", folder], check=True)
    (found,) = folder.glob("powerprof_*.deb")
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make soak)")
    with bare_machine("bookworm", tmp_path_factory.mktemp("bare") / "log") as made:
        yield made


def named_like_us(machine: Machine) -> set[str]:
    """Everything on the machine whose path has our name in it, but the checkout and what a package manager writes."""
    words = ["find", "/", "-xdev", "-path", "/root", "-prune", "-o", "-path", "/var/log", "-prune"]
    found = machine.run(*words, "-o", "-path", "*powerprof*", "-print", folder="/")
    assert found.status == 0, found.tail()
    return set(found.output.split())


def test_it_is_installed_used_and_removed(machine: Machine, package: Path) -> None:
    shutil.copy(package, machine.root / "opt/package.deb")
    assert machine.run("apt-get", "update", folder="/").status == 0
    before = named_like_us(machine)
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes")
    installed = machine.run(*apt, "--no-install-recommends", "install", "/opt/package.deb", folder="/")
    assert installed.status == 0, installed.tail()
    assert "powerprof" in machine.packages()
    # drgn of PyPI would have its libraries here.
    assert not list((machine.root / "usr/lib/powerprof").rglob("drgn.libs"))
    assert package.stat().st_size <= 30 << 20
    document = machine.root / "usr/share/doc/powerprof"
    assert "License: Apache-2.0 or GPL-2.0" in (document / "copyright").read_text()
    bill = json.loads((document / "sbom.cdx.json").read_text())
    assert {"drgn", "numpy", "typer"} <= {part["name"] for part in bill["components"]}
    # Where the programs are carried nothing that compiles them comes with it.
    assert ("python3-bpfcc" in machine.packages()) == (platform.machine() not in ("x86_64", "aarch64"))

    version = machine.run("powerprof", "--version", folder="/")
    assert (version.status, version.output.split()[0]) == (0, "powerprof"), version.tail()
    # A kernel that no carried program fits it refuses, and says what is missing.
    traced = machine.run("powerprof", "attribute", "--system", "--duration", "1", folder="/")
    assert traced.status in (0, 3), traced.tail()
    # Which cause is named first, and how, is the host's: the balance of its idle exits always is there.
    assert "lost =" in " ".join(traced.output.split()) or "hint:" in traced.output, traced.tail()
    assert "Traceback" not in traced.output
    unit = (machine.root / "lib/systemd/system/powerprof.service").read_text()
    assert "ExecStart=/usr/bin/powerprof export" in unit
    for place in (
        "usr/share/man/man1/powerprof.1.gz",
        "usr/share/bash-completion/completions/powerprof",
        "usr/share/zsh/vendor-completions/_powerprof",
        "usr/share/fish/vendor_completions.d/powerprof.fish",
    ):
        assert (machine.root / place).stat().st_size > 100

    removed = machine.run(*apt, "purge", "powerprof", folder="/")
    assert removed.status == 0, removed.tail()
    assert named_like_us(machine) == before
