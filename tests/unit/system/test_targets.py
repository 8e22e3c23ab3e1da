# SPDX-License-Identifier: Apache-2.0
"""The targets of a command line, on artificial process trees."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerprof.system import targets
from powerprof.system.errors import PowerprofError, SeveralServersError, UsageError
from powerprof.system.targets import TargetWords, refresh_target, resolve, resolve_target
from tests.conftest import Tree


def _process(
    pid: int, name: str, parent: int = 1, *, state: str = "S", children: str = "", kthread: int = 0, place: str = "/usr"
) -> dict[str, str]:
    base = f"proc/{pid}"
    return {
        f"{base}/comm": f"{name}\n",
        f"{base}/cmdline": f"/usr/sbin/{name}\0--datadir={place}/data\0",
        f"{base}/stat": f"{pid} ({name}) {state} {parent}{' 0' * 48}",
        f"{base}/status": (
            f"Name:\t{name}\nState:\t{state} (x)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nKthread:\t{kthread}\n"
        ),
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
    ("state", "kthread", "message"), [("Z", 0, "has ended"), ("X", 0, "has ended"), ("S", 1, "is a kernel thread")]
)
def test_zombies_and_kernel_threads_are_refused(state: str, kthread: int, message: str, fake_tree: Tree) -> None:
    fake_tree(_process(10, "thing", state=state, kthread=kthread))
    with pytest.raises(UsageError, match=message):
        resolve(["10"])


def test_a_server_is_refused_only_if_all_its_processes_are_stopped(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets.paths, "is_this_host", lambda: True)
    for state, is_refused in (("T", True), ("t", True), ("S", False)):
        fake_tree({**_process(10, "postgres", state="T", children="11 "), **_process(11, "postgres", 10, state=state)})
        words = TargetWords(["10"])
        with pytest.raises(PowerprofError, match=r"postgres \(10\) was stopped") if is_refused else nullcontext():
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


def test_a_family_has_all_generations_and_the_children_of_all_threads(fake_tree: Tree) -> None:
    grandchild = _process(12, "nginx", 11, children="13")
    tree = {**_process(10, "nginx", children="11"), **_process(11, "nginx", 10, children="12"), **grandchild}
    tree |= {**_process(13, "nginx", 12), **_process(14, "nginx", 10), **_process(15, "sh", 10, children="16")}
    tree |= {**_process(16, "nginx", 15), "proc/10/task/20/children": "14 15"}
    fake_tree(tree)
    assert targets.list_family(10) == [10, 11, 12, 13, 14]
    assert targets.list_family(12) == [12, 13]
    assert resolve(["12"]).pids == (12, 13), "no backend of PostgreSQL: the process is its own target"


def test_a_backend_is_a_part_of_its_server(fake_tree: Tree) -> None:
    fake_tree({**_process(10, "postgres", children="11"), **_process(11, "postgres", 10), **_process(1, "init", 0)})
    target = resolve(["11"])
    assert (target.pids, target.roots) == ((10, 11), (10,))
    assert target.note == "process 11 is part of the server postgres (10); --only takes process 11 alone"
    assert resolve(["11"], only=True).pids == (11,)


def test_a_starting_script_is_its_server(fake_tree: Tree) -> None:
    fake_tree(
        {**_process(10, "mysqld_safe", children="11 12"), **_process(11, "mariadbd", 10), **_process(12, "sh", 10)}
    )
    target = resolve(["10"])
    assert (target.pids, target.note.partition(";")[0]) == ((11,), "process 10 started the server mariadbd (11)")
    assert resolve(["mysqld_safe"]).pids == (11,)
    assert resolve(["mysqld_safe"], only=True).pids == (10,)


def test_a_long_name_is_cut_in_comm(fake_tree: Tree) -> None:
    """A comm has 15 characters, and the program of another account may not be readable."""
    fake_tree({**_process(10, "a-very-long-pro"), **_process(20, "a-very-long-prog")})
    assert resolve(["a-very-long-program"]).pids == (10,)
    assert resolve(["a-very-long-pro"]).pids == (10,)


def test_a_thread_selects_its_process(fake_tree: Tree) -> None:
    thread = _process(17, "worker")
    thread["proc/17/status"] = "Name:\tworker\nState:\tS\nTgid:\t10\nPid:\t17\nPPid:\t1\n"
    fake_tree({**_process(10, "mariadbd"), **thread})
    assert resolve(["17"]).pids == resolve(["17"], only=True).pids == (10,)


def test_private_servers_are_not_the_hosts(fake_tree: Tree) -> None:
    private = _process(20, "mariadbd", place="/tmp/powerprof-0123456789ab/server")
    fake_tree({**_process(10, "mariadbd"), **private, **_process(30, "postgres", children="31")})
    fake_tree({**_process(31, "postgres", 30), **_process(40, "mysqldump"), **_process(50, "mysqld", state="Z")})
    assert targets.list_servers() == [10, 30]
    assert resolve(["mysqld"]).pids == (10,)
    shutil.rmtree(fake_tree({}) / "proc/10")
    with pytest.raises(UsageError, match=r"only private servers of powerprof have this name: 20$"):
        resolve(["mysqld"])


def test_the_only_server_is_taken_without_a_name(fake_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "owner_of", lambda *_, **__: SimpleNamespace(distrust=None))
    host = fake_tree({**_process(10, "postgres", children="11"), **_process(11, "postgres", 10)})
    target = resolve([])
    assert (target.pids, target.note) == ((10, 11), "postgres (10) is the only server of this host")
    fake_tree(_process(20, "mariadbd"))
    with pytest.raises(SeveralServersError, match=r"2 servers run on this host: 10, 20"):
        resolve([])
    for pid in (10, 11, 20):
        shutil.rmtree(host / f"proc/{pid}")
    with pytest.raises(UsageError, match=r"no MariaDB, MySQL or PostgreSQL server was found on this host$"):
        resolve([])
    with pytest.raises(UsageError, match="exclude each other"):
        resolve(["10"], system=True)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a unified hierarchy with a service, its subgroup, and a unit of a person with the same name."""
    root = tmp_path / "cgroup"
    person = "user.slice/user-1001.slice/user@1001.service/app.slice/mariadb.service"
    pids = {"": "1\n", "system.slice": "", "system.slice/mariadb.service": "12\n10\n0\n"}
    pids |= {"system.slice/mariadb.service/inner": "11\n10\n", person: "90\n", "empty.service": "", "batch": "70\n"}
    for path, text in pids.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "cgroup.procs").write_text(text)
    monkeypatch.setattr(targets, "_CGROUPS", root)
    return root


def test_a_control_group_has_the_processes_of_its_subgroups(groups: Path) -> None:
    """A process of another pid namespace has the number 0."""
    assert targets.cgroup_pids(groups / "system.slice") == [10, 11, 12]
    target = resolve((), cgroup="mariadb")
    assert (target.pids, target.label) == ((10, 11, 12), "mariadb.service")
    assert target.members() == [10, 11, 12]
    (groups / "system.slice/mariadb.service/cgroup.procs").write_text("")
    assert target.members() == [10, 11]
    shutil.rmtree(groups / "system.slice")
    assert target.members() == []
    assert resolve((), cgroup="mariadb.service").pids == (90,), "the unit of a person alone has the name"


def test_a_control_group_is_found_by_name_or_path(groups: Path) -> None:
    assert resolve((), cgroup="/batch").pids == resolve((), cgroup=str(groups / "batch")).pids == (70,)
    for name, reason in (("none", "no such cgroup or unit"), ("empty", "has no processes")):
        with pytest.raises(PowerprofError, match=reason):
            resolve((), cgroup=name)
    (groups / "other.slice/batch").mkdir(parents=True)
    (groups / "other.slice/batch/cgroup.procs").write_text("71\n")
    shutil.rmtree(groups / "batch")
    (groups / "third.slice/batch").mkdir(parents=True)
    with pytest.raises(UsageError, match="2 control groups are called batch"):
        resolve((), cgroup="batch")


def test_a_name_that_only_people_have_may_be_forged(fake_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tree({**_process(10, "mariadbd"), **_process(20, "mariadbd")})
    trusted = {10}
    owner = SimpleNamespace
    monkeypatch.setattr(targets, "owner_of", lambda pid, **_: owner(distrust=None if pid in trusted else "runs as eve"))
    assert not targets.may_be_forged("mysqld")
    trusted.clear()
    assert targets.may_be_forged("mysqld")
    assert not targets.may_be_forged("10") and not targets.may_be_forged("none")
