# SPDX-License-Identifier: Apache-2.0
"""Containers, made of namespaces, as targets of powerprof."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.programs.balance import check_balance
from tests.programs.ground_truth import build

pytestmark = pytest.mark.usefixtures("root_bpf")
_CONTAINED = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child")
# Version 2 alone, beside version 1, and version 1.
_CGROUPS = [Path("/sys/fs/cgroup") / name for name in ("", "unified", "systemd")]


# A container as its runtime makes it, but for the image: another root, in which the program has a path of its own, and
# namespaces for processes, host name, messages and control groups.
_CONTAINER = """set -e
root=$1
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in usr lib lib64 bin; do
    [ -e "/$name" ] || continue
    if [ -L "/$name" ]; then cp -P "/$name" "$root/"; else mkdir "$root/$name"; mount --bind "/$name" "$root/$name"; fi
done
mkdir "$root/app" "$root/proc"
mount -t proc proc "$root/proc"
cp "$2" "$root/app/server"
exec chroot "$root" /app/server 60 nanosleep=31
"""


@pytest.fixture
def container(tmp_path: Path, compilers: Sequence[str]) -> Iterator[int]:
    """A program in a container, by its number here; its control group is named after that number."""
    program = build("sleepers", tmp_path)
    (tmp_path / "root").mkdir()
    argv = [*_CONTAINED, "sh", "-c", _CONTAINER, "sh", str(tmp_path / "root"), str(program)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    group = None
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == 1  # as it sees itself
        (pid,) = psutil.Process(process.pid).children()
        group = next(place for place in _CGROUPS if (place / "cgroup.procs").exists()) / f"powerprof-test-{pid.pid}"
        group.mkdir()
        (group / "cgroup.procs").write_text(f"{pid.pid}\n")
        yield pid.pid
    finally:
        process.kill()
        process.communicate()
        if group is not None:
            for _ in range(100):  # processes leave their group some time after their end
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.05)


def attributed(*words: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    argv = [
        *prefix,
        sys.executable,
        "-m",
        "powerprof",
        "attribute",
        "--max-cost",
        "none",
        *words,
        "--no-save",
        "--json",
        "-",
    ]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("option", ["--pid", "--cgroup"])
def test_a_container_s_program_is_named_from_outside(container: int, option: str) -> None:
    target = str(container) if option == "--pid" else f"powerprof-test-{container}"
    record = attributed(option, target, "--duration", "2")
    rows = [
        row for row in [*record["wakeups"], *record["wakings_without_exit"]] if row["thread"]["comm"] == "nanosleep"
    ]
    own = [row for row in rows if any(frame["function"] == "wait_nanosleep" for frame in row["stack"])]
    # 31 a second by the program's own clock: on a busy host some come late, none twice.
    assert 40 <= sum(row["wakings_count"] for row in own) <= 66
    assert {frame["module"] for row in own for frame in row["stack"] if frame["function"] == "wait_nanosleep"} == {
        "server"
    }
    assert record["stacks"]["complete_count"] == record["stacks"]["captured_count"] > 0


def test_a_read_only_sys_keeps_nothing_from_being_traced(container: int) -> None:
    read_only = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro /sys && exec "$@"', "sh")
    record = attributed("--pid", str(container), "--duration", "1", prefix=read_only)
    assert sum(row["wakings_count"] for row in [*record["wakeups"], *record["wakings_without_exit"]]) >= 20


def test_in_a_time_namespace_the_window_is_where_the_kernel_s_clock_has_it() -> None:
    apart = ["unshare", "--time", "--monotonic", "100000", "--fork", "--kill-child"]
    script = "import time; from powerprof.measure.clock import kernel_ns; print(time.monotonic_ns() - kernel_ns())"
    ahead = subprocess.run([*apart, sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert abs(int(ahead.stdout) - 100_000 * 10**9) < 10**9, ahead.stderr
    words = ["attribute", "--system", "--duration", "0.5", "--meter", "none", "--no-save", "--json", "-"]
    argv = [*apart, sys.executable, "-m", "powerprof", *words]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    balance = json.loads(done.stdout)["conservation"]
    check_balance(balance)
