# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifest gives no more than measuring takes, and says what the program says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from powerprof import __version__
from tests.conftest import REPOSITORY, Cli

FILE = REPOSITORY / "packaging/container/daemonset.yaml"


@pytest.fixture
def pod() -> dict[str, Any]:
    (found,) = [one for one in yaml.safe_load_all(FILE.read_text()) if one["kind"] == "DaemonSet"]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_it_has_the_least_rights(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["BPF", "PERFMON", "SYS_PTRACE", "SYS_RESOURCE"]}
    assert (rights["privileged"], rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (
        False,
        False,
        True,
    )
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["hostPID"] and not pod["automountServiceAccountToken"]
    assert "hostNetwork" not in pod and "hostIPC" not in pod
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    for volume in pod["volumes"]:
        assert volume["name"] in mounts
        # What is the node's is only read.
        assert "hostPath" not in volume or mounts[volume["name"]]["readOnly"]


def test_what_it_runs_is_a_command_of_this_version(pod: dict[str, Any], powerprof_cli: Cli) -> None:
    (container,) = pod["containers"]
    assert container["image"] == f"powerprof:{__version__}"
    done = powerprof_cli([*container["args"], "--interval", "nothing"])
    assert done.code == 2 and "--interval" in done.err, done.err
