# SPDX-License-Identifier: Apache-2.0
"""The targets of a command line, on artificial process trees."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from powerprof.system import targets
from powerprof.system.errors import PowerprofError, SeveralServersError, UsageError
from powerprof.system.targets import TargetWords, refresh_target, resolve, resolve_target

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


def test_server_of_several_processes_is_one_target(fake_tree: Tree) -> None:
    fake_tree(
        {
            **_process(10, "postgres", children="11 12 "),
            **_process(11, "postgres", 10),
            **_process(12, "postgres", 10),
            **_process(13, "postgres-helper", 10),
        }
    )
    target = resolve(["postgres"])
    assert target.pids == (10, 11, 12)
    assert (target.label, target.roots) == ("postgres", (10,))
    assert target.members() == [10, 11, 12]


def test_later_workers_join_the_target_but_other_programs_do_not(fake_tree: Tree) -> None:
    host = fake_tree({**_process(10, "nginx", children="11"), **_process(11, "nginx", 10)})
    target = resolve(["nginx"])
    fake_tree({**_process(14, "nginx", 10), **_process(15, "sh", 10)})
    (host / "proc/10/task/10/children").write_text("11 14 15")
    assert target.members() == [10, 11, 14]


def test_later_child_of_a_single_process_joins_the_target(fake_tree: Tree) -> None:
    """A server with one process per request has no worker between two requests."""
    host = fake_tree(_process(10, "forker"))
    target = resolve(["forker"])
    assert (target.pids, target.roots) == ((10,), (10,))
    fake_tree(_process(11, "forker", 10))
    (host / "proc/10/task/10/children").write_text("11")
    assert target.members() == [10, 11]
    assert resolve(["10"]).members() == [10, 11]
    assert (resolve(["10"], only=True).pids, resolve(["10"], only=True).roots) == ((10,), ())


def test_children_that_end_during_the_search_do_not_make_a_name_ambiguous(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While 12 is reaped, its parent is 0.
    fake_tree(
        {**_process(10, "forker", children="11"), **_process(11, "forker", 10), **_process(12, "forker", 0, state="X")}
    )
    monkeypatch.setattr(targets, "_find_named", lambda name: [10, 11, 12, 98, 99])
    assert resolve(["forker"]).roots == (10,)


def test_two_servers_of_one_name_are_ambiguous(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "redis-server"), **_process(20, "redis-server"), **_process(21, "redis-server", 20)})
    with pytest.raises(UsageError, match=r"2 processes are called redis-server: 10, 20$"):
        resolve(["redis-server"])
    assert resolve(["10,20"]).roots == (10, 20)


def test_mysqld_selects_mariadbd_and_the_label_is_the_real_name(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "mariadbd"), **_process(11, "mysqld_safe")})
    target = resolve(["mysqld"])
    assert (target.pids, target.label) == ((10,), "mariadbd")


@pytest.mark.parametrize(
    ("state", "flags", "message"),
    [("Z", 0, "has ended"), ("X", 0, "has ended"), ("S", 0x00200000, "is a kernel thread")],
)
def test_zombies_and_kernel_threads_are_refused(state: str, flags: int, message: str, fake_tree: Tree) -> None:
    fake_tree(_process(10, "thing", state=state, flags=flags))
    with pytest.raises(UsageError, match=message):
        resolve(["10"])


def test_a_server_is_refused_only_if_all_its_processes_are_stopped(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets.paths, "is_this_host", lambda: True)
    for state, is_refused in (("T", True), ("t", True), ("S", False)):
        fake_tree({**_process(10, "postgres", state="T", children="11 "), **_process(11, "postgres", 10, state=state)})
        words = TargetWords(["10"])
        with pytest.raises(PowerprofError, match=r"stopped postgres \(10\)") if is_refused else nullcontext():
            resolve_target(words, print)
        assert resolve_target(words, print, may_be_stopped=True).pids == (10, 11)


def test_restarted_server_is_found_by_its_name(fake_tree: Tree) -> None:
    host = fake_tree({**_process(10, "mariadbd"), **_process(11, "sh"), **_process(12, "other")})
    target = resolve(["mysqld,12"])
    assert refresh_target(target) is target
    fake_tree(_process(10, "mariadbd", state="Z"))
    assert refresh_target(target) is target  # No process has the name now.
    fake_tree(_process(30, "mariadbd"))
    new = refresh_target(target)
    assert (new.pids, new.names, new.label) == ((12, 30), ("mysqld",), target.label)
    assert new.roots == (12, 30)
    assert refresh_target(new) is new
    fake_tree({**_process(30, "mariadbd", state="X"), **_process(40, "mariadbd"), **_process(50, "mariadbd")})
    assert refresh_target(new) is new  # Two processes have the name.
    shutil.rmtree(host / "proc/50")
    assert refresh_target(new).pids == (12, 40)


def test_restarted_server_is_found_with_its_workers(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "postgres", children="11"), **_process(11, "postgres", 10)})
    target = resolve(["postgres"])
    fake_tree(_process(11, "postgres", 10, state="X"))
    assert refresh_target(target) is target  # A connection ended.
    fake_tree({**_process(10, "postgres", state="X"), **_process(20, "postgres", children="21")})
    fake_tree(_process(21, "postgres", 20))
    new = refresh_target(target)
    assert (new.pids, new.roots) == ((20, 21), (20,))


def test_process_selected_by_number_is_not_replaced(fake_tree: Tree) -> None:
    fake_tree(_process(10, "mariadbd"))
    target = resolve(["10"])
    fake_tree({**_process(10, "mariadbd", state="X"), **_process(20, "mariadbd")})
    assert refresh_target(target) is target


def test_a_name_of_another_server_or_of_several_is_no_word_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A printed command must select the server that it is about."""

    def find(word: str) -> tuple[int, str]:
        if selected:
            return selected[0], ""
        raise SeveralServersError("--pid mysqld: 2 servers are called mysqld", [7, 8], word)

    selected = [7]
    monkeypatch.setattr(targets, "label_of", lambda pid: "mysqld")
    monkeypatch.setattr(targets, "_find_root_by_name", find)
    assert (targets.word_for(7), targets.word_for(8)) == ("mysqld", "8")
    selected.clear()
    assert targets.word_for(7) == "7"
