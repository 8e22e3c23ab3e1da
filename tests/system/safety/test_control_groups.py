# SPDX-License-Identifier: Apache-2.0
"""Control groups that another account makes: many of them, with the names of system services, containers and pods."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from powerprof.system.cgroups import Units
from powerprof.system.errors import UsageError
from powerprof.system.targets import resolve
from tests.conftest import Cli

UID = 61234
USER = f"user.slice/user-{UID}.slice/user@{UID}.service"
CONTAINER = "cri-containerd-" + "3f2a9c1b7d42" + "0" * 52 + ".scope"


@contextmanager
def group(path: str, *, uid: int = 0, pid: int | None = None) -> Iterator[Path]:
    """A control group of the unified hierarchy, and its parents; removed afterwards."""
    unified = Path("/sys/fs/cgroup/unified")
    root = unified if unified.is_dir() else unified.parent
    made = []
    for folder in reversed([root / path, *(root / path).parents]):
        with suppress(FileExistsError):
            folder.mkdir()
            made.append(folder)
            if folder.name.startswith("user@") or uid in {folder.parent.stat().st_uid} - {0}:
                os.chown(folder, uid, uid)
    try:
        if pid is not None:
            (root / path / "cgroup.procs").write_text(str(pid))
        yield root / path
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                for line in (folder / "cgroup.procs").read_text().split():
                    (root / "cgroup.procs").write_text(line)
            remove(folder)


def remove(folder: Path) -> None:
    """Remove a group when its last process has left."""
    deadline = time.monotonic() + 20
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
        assert time.monotonic() < deadline, f"{folder} stays"


@contextmanager
def flood(count: int) -> Iterator[Path]:
    """So many groups below a user's manager, with long names."""
    with group(USER, uid=UID) as top:
        made = [top / f"d{number}" for number in range(100)]
        made += [top / f"d{number % 100}" / f"{number:0200}" for number in range(count - 100)]
        try:
            for folder in made:
                folder.mkdir()
                os.chown(folder, UID, UID)
            yield top
        finally:
            for folder in reversed(made):
                with suppress(FileNotFoundError):  # it could not be made
                    folder.rmdir()


@contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_flood_of_groups_costs_little_and_hides_no_service(root: None) -> None:
    name = f"flooded{os.getpid()}.service"
    with flood(19_000) as top, group(f"system.slice/{name}") as service:
        number, last = service.stat().st_ino, (top / "d99" / f"{18_899:0200}").stat().st_ino
        units = Units()
        tracemalloc.start()
        began_s = time.process_time()
        units.scan()
        remove(service)
        assert [units.of_group(2**40 + unknown) for unknown in range(20)] == [None] * 20
        cpu_s = time.process_time() - began_s
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert units.of_group(number) == name
        # The kernel knows a group that no scan has reached.
        assert units.of_group(last) == f"user@{UID}.service"
        service.mkdir()
    assert cpu_s < 2
    assert peak_bytes < 4 << 20


def test_attribute_ends_beside_a_flood_of_groups(powerprof_cli: Cli, root_bpf: None) -> None:
    """Processes end in groups that are removed: no scan of all groups for each."""
    end = threading.Event()

    def churn(top: Path) -> None:
        while not end.is_set():
            folder = top / "gone"
            folder.mkdir()
            subprocess.run(["sh", "-c", f"echo $$ > {folder}/cgroup.procs; exec sleep 0.001"], check=True)
            remove(folder)

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with ExitStack() as stack:
        top = stack.enter_context(flood(8_000))
        thread = threading.Thread(target=churn, args=(top,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(end.set)
        done = powerprof_cli(
            ["attribute", "--max-cost", "none", "--system", "--duration", "2", "--no-save", "--by", "unit"], timeout=120
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.code == 0, done.err
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_a_system_service_is_found_before_a_user_s_unit_of_its_name(root: None) -> None:
    name = f"named{os.getpid()}"
    with sleeper() as first, sleeper() as second, group(f"{USER}/{name}.service", uid=UID, pid=first):
        with group(f"{USER}/app.slice/{name}.service", uid=UID, pid=second) as other:
            with pytest.raises(UsageError, match=f"2 control groups are called {name}: /user.slice/") as error:
                resolve((), cgroup=name)
            assert error.value.hint is not None
            path = error.value.hint.rpartition(" ")[2]
            assert resolve((), cgroup=path).pids == (first,)
            assert resolve((), cgroup=str(other)).pids == (second,)
            with sleeper() as third, group(f"system.slice/{name}.service", pid=third):
                found = resolve((), cgroup=name)
                assert (found.pids, found.label) == ((third,), f"{name}.service")
        found = resolve((), cgroup=name)
        assert (found.pids, found.label) == ((first,), f"user {UID}: {name}.service")


def test_a_user_s_process_is_no_pod(root: None) -> None:
    path = f"{USER}/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/{CONTAINER}"
    with sleeper() as pid, group(path, uid=UID, pid=pid) as folder:
        wanted = f"user {UID}: pod 0a1b2c3d-1111-2222-3333-444455556666: 3f2a9c1b7d42"
        units = Units()
        units._containers = {CONTAINER[15:79]: "shop/payments-7d9f: api"}
        assert units.of(pid) == units.of_group(folder.stat().st_ino) == wanted
