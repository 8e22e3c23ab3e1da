# SPDX-License-Identifier: Apache-2.0
"""Whom a command line means: on made-up process trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.errors import UsageError
from powerprof.processes.targets import resolve

Tree = Callable[[Mapping[str, str]], Path]


def _process(
    pid: int, name: str, parent: int = 1, *, state: str = "S", children: str = "", flags: int = 0
) -> dict[str, str]:
    base = f"proc/{pid}"
    return {
        f"{base}/comm": f"{name}\n",
        f"{base}/cmdline": f"/usr/sbin/{name}\0--option\0",
        f"{base}/stat": f"{pid} ({name}) {state} {parent} 0 0 0 0 {flags} 0 0",
        f"{base}/status": f"Name:\t{name}\nState:\t{state} (x)\nTgid:\t{pid}\nPPid:\t{parent}\n",
        f"{base}/task/{pid}/children": children,
    }


def test_a_server_of_several_processes_is_one_target(fake_tree: Tree) -> None:
    fake_tree(
        {
            **_process(10, "postgres", children="11 12 "),
            **_process(11, "postgres", 10),
            **_process(12, "postgres", 10),
            **_process(13, "postgres-helper", 10),
        }
    )
    found = resolve(["postgres"])
    assert found.pids == (10, 11, 12)
    assert (found.label, found.roots) == ("postgres", (10,))
    assert found.members() == [10, 11, 12]


def test_workers_that_are_born_later_belong_to_it_and_other_programs_do_not(fake_tree: Tree) -> None:
    host = fake_tree({**_process(10, "nginx", children="11"), **_process(11, "nginx", 10)})
    found = resolve(["nginx"])
    fake_tree({**_process(14, "nginx", 10), **_process(15, "sh", 10)})
    (host / "proc/10/task/10/children").write_text("11 14 15")
    assert found.members() == [10, 11, 14]


def test_two_servers_of_one_name_are_ambiguous(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "redis-server"), **_process(20, "redis-server"), **_process(21, "redis-server", 20)})
    with pytest.raises(UsageError, match=r"3 processes are called redis-server: 10 \(redis-server"):
        resolve(["redis-server"])
    assert resolve(["10,20"]).pids == (10, 20)


def test_mysqld_finds_mariadbd_and_the_label_is_its_own_name(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "mariadbd"), **_process(11, "mysqld_safe")})
    found = resolve(["mysqld"])
    assert (found.pids, found.label) == ((10,), "mariadbd")


@pytest.mark.parametrize(
    ("state", "flags", "said"), [("Z", 0, "has ended"), ("X", 0, "has ended"), ("S", 0x00200000, "is a kernel thread")]
)
def test_what_has_no_stack_is_no_target(state: str, flags: int, said: str, fake_tree: Tree) -> None:
    fake_tree(_process(10, "thing", state=state, flags=flags))
    with pytest.raises(UsageError, match=said):
        resolve(["10"])
