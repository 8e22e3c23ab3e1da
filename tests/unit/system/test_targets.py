# SPDX-License-Identifier: Apache-2.0
"""Whom a command line means: on made-up process trees."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.system import processes
from powerprof.system.errors import UsageError
from powerprof.system.processes import refresh_target, resolve

Tree = Callable[[Mapping[str, str]], Path]


def _process(
    pid: int, name: str, parent: int = 1, *, state: str = "S", children: str = "", flags: int = 0
) -> dict[str, str]:
    base = f"proc/{pid}"
    return {
        f"{base}/comm": f"{name}\n",
        f"{base}/cmdline": f"/usr/sbin/{name}\0--option\0",
        f"{base}/stat": f"{pid} ({name}) {state} {parent} 0 0 0 0 {flags}{' 0' * 43}",
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


def test_what_a_process_of_that_name_starts_later_belongs_to_it_as_well(fake_tree: Tree) -> None:
    """A server with a process for each request has none between two requests."""
    host = fake_tree(_process(10, "forker"))
    found = resolve(["forker"])
    assert (found.pids, found.roots) == ((10,), (10,))
    fake_tree(_process(11, "forker", 10))
    (host / "proc/10/task/10/children").write_text("11")
    assert found.members() == [10, 11]
    assert resolve(["10"]).roots == ()


def test_children_that_end_while_they_are_looked_for_make_no_name_ambiguous(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tree({**_process(10, "forker", children="11"), **_process(11, "forker", 10)})
    monkeypatch.setattr(processes, "_find_named", lambda name: [10, 11, 98, 99])
    assert resolve(["forker"]).roots == (10,)


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


def test_a_server_that_was_restarted_is_found_by_its_name(fake_tree: Tree) -> None:
    host = fake_tree({**_process(10, "mariadbd"), **_process(11, "sh"), **_process(12, "other")})
    target = resolve(["mysqld,12"])
    assert refresh_target(target) is target
    fake_tree(_process(10, "mariadbd", state="Z"))
    assert refresh_target(target) is target  # nobody bears the name now
    fake_tree(_process(30, "mariadbd"))
    again = refresh_target(target)
    assert (again.pids, again.names, again.label) == ((12, 30), ("mysqld",), target.label)
    assert again.roots == (30,)
    assert refresh_target(again) is again
    fake_tree({**_process(30, "mariadbd", state="X"), **_process(40, "mariadbd"), **_process(50, "mariadbd")})
    assert refresh_target(again) is again  # two of the name: whose successor would it be?
    shutil.rmtree(host / "proc/50")
    assert refresh_target(again).pids == (12, 40)


def test_a_server_in_processes_is_found_again_with_its_family(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "postgres", children="11"), **_process(11, "postgres", 10)})
    target = resolve(["postgres"])
    fake_tree(_process(11, "postgres", 10, state="X"))
    assert refresh_target(target) is target  # a connection that ended
    fake_tree({**_process(10, "postgres", state="X"), **_process(20, "postgres", children="21")})
    fake_tree(_process(21, "postgres", 20))
    again = refresh_target(target)
    assert (again.pids, again.roots) == ((20, 21), (20,))


def test_a_process_that_was_named_by_its_number_has_no_successor(fake_tree: Tree) -> None:
    fake_tree(_process(10, "mariadbd"))
    target = resolve(["10"])
    fake_tree({**_process(10, "mariadbd", state="X"), **_process(20, "mariadbd")})
    assert refresh_target(target) is target
