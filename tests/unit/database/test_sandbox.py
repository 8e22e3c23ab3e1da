# SPDX-License-Identifier: Apache-2.0
"""The account, files and network of programs that work for a workload."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.database import sandbox
from powerprof.database.sandbox import Sandbox, choose_user
from powerprof.system.caller import HostUser
from powerprof.system.errors import CapabilityError

ALICE = HostUser(1001, 1002, Path("/home/alice"), "alice")
ROOT = HostUser(0, 0, Path("/root"), "root")


def test_a_program_of_a_workload_is_never_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sandbox, "find_server_owner", lambda: HostUser(112, 113, Path("/"), "mysql"))
    assert choose_user(ALICE) == (1001, 1002)
    assert choose_user(None) == (112, 113)
    for owner in (ROOT, None):
        monkeypatch.setattr(sandbox, "find_server_owner", lambda: owner)
        with pytest.raises(CapabilityError, match="no account but root"):
            choose_user(None)
    with pytest.raises(CapabilityError):
        choose_user(ROOT)
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert choose_user(ROOT) is None


@pytest.mark.parametrize(
    ("access", "has_namespaces", "expected"),
    [
        (Sandbox(), True, (True, True, (), ())),
        (Sandbox(binds=(4001,)), True, (True, False, (), (4001,))),
        (Sandbox(connects=(4001,)), True, (True, False, (4001,), ())),
        (Sandbox(namespaces=(7,)), True, (True, False, None, None)),
        (Sandbox(), False, (False, False, (), ())),
        (Sandbox(root=Path("/r")), False, (True, False, (), ())),
    ],
)
def test_only_named_ports_are_reached(
    monkeypatch: pytest.MonkeyPatch, access: Sandbox, has_namespaces: bool, expected: tuple[object, ...]
) -> None:
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: has_namespaces)
    confined = sandbox._confinement("/usr/sbin/mariadbd", access, None)
    assert (confined.view, confined.no_network, confined.connects, confined.binds) == expected


def test_a_program_reads_its_own_folders_and_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "has_namespaces", lambda: True)
    reads = sandbox._confinement("/opt/server/bin/mysqld", Sandbox(reads=(Path("/"), Path("/data"))), None).reads
    folders = {f"/opt/server/{name}" for name in ("bin", "lib", "lib64", "share")}
    assert {*folders, "/data", "/etc/passwd"} <= set(map(str, reads)) and Path("/") not in reads
    inside = sandbox._confinement("/usr/sbin/mysqld", Sandbox(root=Path("/r"), reads=(Path("/data"),)), None)
    assert inside.reads == (Path("/data"),)
    assert sandbox._program_folders(Path("mysqld")) == []
    assert sandbox._program_folders(Path("/opt/mysqld")) == [Path("/opt")]
