# SPDX-License-Identifier: Apache-2.0
"""Root compiles, runs and trusts what lies in its own cache, looked at before each use; never what the caller owns."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.stacks.store import TableStore
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.tracing.bpf import headers
from tests.system.safety.conftest import UID, Attacker
from tests.unit.tracing.test_headers import debian


@pytest.fixture
def under_sudo(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> Attacker:
    """Root by sudo of an account that prepared its cache, with root's own at another place than the host's."""
    monkeypatch.setenv("SUDO_UID", str(UID))
    monkeypatch.setenv("XDG_CACHE_HOME", str(attacker.home / "cache"))
    monkeypatch.setattr(paths, "ROOT_CACHE", attacker.secret.parent / "cache", raising=False)
    return attacker


def test_header_trees_of_the_caller_are_not_compiled(under_sudo: Attacker, tmp_path: Path) -> None:
    debian(tmp_path / "src", "6.1.0-56")
    where = (tmp_path / "modules", tmp_path / "src")
    theirs = headers.find_kernel_headers(*where, under_sudo.home / "cache/powerprof/headers")
    assert theirs is not None
    (theirs / "include/linux/kconfig.h").unlink()
    (theirs / "include/linux/kconfig.h").write_text("#define evil\n")
    for path in [under_sudo.home / "cache", *(under_sudo.home / "cache").rglob("*")]:
        under_sudo.owns(path)
    tree = headers.find_kernel_headers(*where)
    assert tree is not None and "evil" not in (tree / "include/linux/kconfig.h").read_text()
    assert tree.is_relative_to(under_sudo.secret.parent / "cache")
    assert {path.lstat().st_uid for path in [tree, *tree.rglob("*")]} == {0}


def test_the_cache_is_roots_alone_under_sudo(under_sudo: Attacker) -> None:
    assert paths.cache_dir() == under_sudo.secret.parent / "cache"
    assert paths.cache_folder("symbols").stat().st_mode & 0o777 == 0o700
    assert TableStore()._use_cache
    assert not (under_sudo.home / "cache").exists()


def test_a_cache_that_others_may_write_to_is_refused(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(attacker.folder("cache")))
    with pytest.raises(PowerprofError, match=f"cannot keep a cache in .* belongs to user {UID}"):
        paths.cache_folder("headers")
