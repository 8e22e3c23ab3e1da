# SPDX-License-Identifier: Apache-2.0
"""Inside a pid namespace of its own, as most containers have one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from powerprof.processes.namespaces import in_pid_namespace
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.usefixtures("root_bpf")
# Process 1 becomes powerprof, process 2 is there to be looked at.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
INSIDE = [*_APART, "sh", "-c", 'sleep 60 & exec "$@"', "sh"]


def inside(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [*INSIDE, sys.executable, "-m", "powerprof", *words]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_this_host_s_own_numbers_are_the_kernel_s() -> None:
    assert not in_pid_namespace()


@pytest.mark.parametrize("words", [["--system"], ["--pid", "2"], ["--pid", "2", "--on-cpu"]], ids=" ".join)
def test_attribution_is_refused_where_the_kernel_numbers_processes_otherwise(words: list[str]) -> None:
    refused = inside("attribute", *words, "--duration", "1", "--no-save")
    assert refused.returncode == 3
    assert refused.stderr.splitlines() == [
        "error: this pid namespace numbers processes otherwise than the kernel's tracepoints do",
        "hint: run powerprof on the host (--cgroup takes a container), or with its namespace: docker run --pid=host",
    ]


def test_an_idle_run_goes_on_without_causes_and_says_why(tmp_path: Path) -> None:
    done = inside(
        "idle", "--clients", "0", "--duration", "0.5", "--repeat", "1", "--markdown", str(tmp_path / "page.md")
    )
    assert done.returncode == 0, done.stderr
    assert "causes unknown: this pid namespace numbers processes otherwise" in " ".join(done.stdout.split())


def test_doctor_says_what_is_left_in_there() -> None:
    told = " ".join(inside("doctor").stdout.split())
    assert "tracing limited --functions only: this pid namespace numbers processes otherwise" in told
    assert "docker run --pid=host" in told
