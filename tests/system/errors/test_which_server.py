# SPDX-License-Identifier: Apache-2.0
"""Every command with a target resolves the same situations alike, on recorded process trees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerprof.cli import app
from powerprof.system import targets
from powerprof.system.errors import PowerprofError, SeveralServersError

Tree = Callable[[Mapping[str, str]], Path]
# The commands with a target, and the words that each needs besides.
VERBS = {
    **{name: [] for name in ("attribute", "diagnose", "queries", "profile", "offcpu", "cure", "watch", "syscalls")},
    "functions": ["*"],
}
_DATA = "/var/lib/data"
_PRIVATE = "/tmp/powerprof-0a1b2c3d4e5f/server-1/data"


@dataclass(frozen=True)
class Process:
    """A recorded process. `program` None: its link is not readable, as for an unprivileged user."""

    comm: str
    parent: int = 1
    program: str | None = ""
    arguments: str = _DATA
    uid: int = 0
    threads: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """Processes, the words of the target, and the expected (pids, label) or a part of the error."""

    processes: Mapping[int, Process]
    words: Sequence[str]
    expected: tuple[tuple[int, ...], str] | str
    mounts: str = ""
    euid: int = 0


def _cluster(root: int, *backends: int, program: str | None = "postgres", **more: Any) -> dict[int, Process]:
    family = {pid: Process("postgres", root, program) for pid in backends}
    return {root: Process("postgres", 1, program, **more), **family}


_MARIADB = {3: Process("mariadbd", 1, "mariadbd", threads={30: "statement_timer"})}
_ONE, _TWO = _cluster(10, 11, 12), {**_cluster(10, 11, 12), **_cluster(20, 21)}
_BESIDE = {**_ONE, **_cluster(70, 71, arguments=_PRIVATE)}
_SAFE = {5: Process("mysqld_safe", 1, "dash"), 6: Process("mariadbd", 5, "mariadbd")}
_SAFE_BY_COMM = {5: Process("mariadbd-safe", 1, None), 6: Process("mariadbd", 5, None)}
_NGINX = {40: Process("nginx", 1, "nginx"), 41: Process("nginx", 40, "nginx"), 42: Process("nginx", 40, "nginx")}
_FAMILY = ((10, 11, 12), "postgres")
SITUATIONS = {
    "pid of a postmaster": Situation(_TWO, ["10"], _FAMILY),
    "pid of a backend": Situation(_TWO, ["12"], _FAMILY),
    "pid of a postmaster and of its backend": Situation(_TWO, ["10", "11"], _FAMILY),
    "name with one cluster": Situation(_ONE, ["postgres"], _FAMILY),
    "product with one cluster": Situation(_ONE, ["postgresql"], _FAMILY),
    "name with two clusters": Situation(_TWO, ["postgres"], "2 servers are called postgres: 10, 20"),
    "private server beside": Situation(_BESIDE, ["postgres"], _FAMILY),
    "only private servers": Situation(_cluster(70, arguments=_PRIVATE), ["postgres"], "private servers of powerprof"),
    "private server by its pid": Situation(_BESIDE, ["70"], ((70, 71), "postgres")),
    "server in a container": Situation({8: Process("containerd-shim"), **_cluster(10, 11, 12)}, ["10"], _FAMILY),
    "no server": Situation({50: Process("sh", 1, "dash")}, [], "no MariaDB, MySQL or PostgreSQL server was found"),
    "no server of this name": Situation(_ONE, ["mysqld"], "no process is called mysqld"),
    "forked workers": Situation(_NGINX, ["40"], ((40, 41, 42), "nginx")),
    "one forked worker": Situation(_NGINX, ["41"], ((41,), "nginx")),
    "forked workers by name": Situation(_NGINX, ["nginx"], ((40, 41, 42), "nginx")),
    "pid of mysqld_safe": Situation(_SAFE, ["5"], ((6,), "mariadbd")),
    "name of mysqld_safe": Situation(_SAFE, ["mysqld_safe"], ((6,), "mariadbd")),
    "unprivileged, no target, mariadbd-safe": Situation(_SAFE_BY_COMM, [], ((6,), "mariadbd"), euid=1000),
    "name beside mysqld_safe": Situation(_SAFE, ["mysqld"], ((6,), "mariadbd")),
    "link called mysqld": Situation({3: Process("mysqld", 1, "mariadbd")}, ["mysqld"], ((3,), "mariadbd")),
    "link called redis-server": Situation(
        {3: Process("redis-server", 1, "redis-check-rdb")}, ["3"], ((3,), "redis-server")
    ),
    "renamed worker": Situation(
        {**_ONE, 13: Process("worker", 10, "postgres")}, ["10"], ((10, 11, 12, 13), "postgres")
    ),
    "name of a thread": Situation(_MARIADB, ["statement_timer"], "it is a thread of mariadbd (3)"),
    "another program below": Situation({**_ONE, 13: Process("sh", 10, "dash")}, ["10"], _FAMILY),
    "unprivileged": Situation(_cluster(10, 11, 12, program=None), ["10"], _FAMILY, euid=1000),
    "hidden processes": Situation(_ONE, ["mysqld"], "called mysqld", "proc {} proc hidepid=2", euid=1000),
    "no target, one server": Situation(_ONE, [], _FAMILY),
    "no target, two servers": Situation({**_ONE, **_MARIADB}, [], "2 servers run on this host: 3, 10"),
    "no target, private server beside": Situation(_BESIDE, [], _FAMILY),
    "no target, a server of a person": Situation(_cluster(10, uid=4242), [], "1 server runs on this host: 10"),
    "no target, a server of a person beside": Situation({**_ONE, **_cluster(80, uid=4242)}, [], _FAMILY),
}


def _record(fake_tree: Tree, situation: Situation, programs: Path) -> None:
    children: dict[int, list[int]] = {}
    for pid, process in situation.processes.items():
        children.setdefault(process.parent, []).append(pid)
    files = {"proc/self/mounts": situation.mounts}
    for pid, process in situation.processes.items():
        base, uids = f"proc/{pid}", f"\t{process.uid}" * 4
        files |= {
            f"{base}/comm": f"{process.comm}\n",
            f"{base}/cmdline": f"{process.comm}\0-D\0{process.arguments}\0",
            f"{base}/stat": f"{pid} ({process.comm}) S {process.parent} 0 0 0 0 0{' 0' * 43}",
            f"{base}/status": f"Name:\t{process.comm}\nState:\tS\nTgid:\t{pid}\nPPid:\t{process.parent}\nUid:{uids}\n",
            f"{base}/task/{pid}/children": " ".join(map(str, children.get(pid, []))),
            **{f"{base}/task/{tid}/comm": f"{name}\n" for tid, name in process.threads.items()},
        }
    host = fake_tree(files)
    mounts = host / "proc/self/mounts"
    mounts.write_text(mounts.read_text().format(host / "proc"))
    for pid, process in situation.processes.items():
        if process.program is not None:
            program = programs / (process.program or process.comm)
            program.touch(0o755)
            (host / f"proc/{pid}/exe").symlink_to(program)


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Iterable[str]], list[Any]]:
    """Run a command line up to the resolved target, and return what was resolved."""
    resolved = targets.resolve

    def run(arguments: Iterable[str]) -> list[Any]:
        outcomes: list[Any] = []

        def resolve(*words: Any, **options: Any) -> Any:
            try:
                target = resolved(*words, **options)
            except PowerprofError as error:
                outcomes.append((type(error), error.message, error.hint))
                raise
            outcomes.append(target)
            raise PowerprofError("resolved")

        monkeypatch.setattr(targets, "resolve", resolve)
        assert app.run_app(list(arguments)) in (1, 2)
        return outcomes

    monkeypatch.setattr(targets, "paths", SimpleNamespace(is_this_host=lambda: True))
    monkeypatch.setattr(app, "_server_lines", lambda error, arguments: [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return run


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_command_means_the_same_server(
    name: str, fake_tree: Tree, tmp_path: Path, outcome: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    situation = SITUATIONS[name]
    (tmp_path / "bin").mkdir()
    _record(fake_tree, situation, tmp_path / "bin")
    if situation.euid:
        monkeypatch.setattr(os, "geteuid", lambda: situation.euid)
    by_verb = {}
    for verb, others in VERBS.items():
        options = [word for word in situation.words for word in ("--pid", word)]
        if verb in ("queries", "diagnose", "cure") and len(situation.words) > 1:
            options = ["--pid", ",".join(situation.words)]
        (by_verb[verb],) = outcome([verb, *others, *options])
    if name == "no server":
        assert by_verb.pop("watch").system  # It shows the host.
    first = by_verb["attribute"]
    assert by_verb == dict.fromkeys(by_verb, first)
    if isinstance(situation.expected, str):
        assert situation.expected in first[1]
        if "servers are called" in first[1] or "run on this host" in first[1]:
            assert first[0] is SeveralServersError
        if situation.mounts:
            assert "hidepid" in first[2]
    else:
        assert (first.pids, first.label) == situation.expected
        assert first.members() == sorted(first.pids)


def test_only_leaves_out_the_family(fake_tree: Tree, tmp_path: Path, outcome: Callable[..., list[Any]]) -> None:
    _record(fake_tree, SITUATIONS["pid of a backend"], tmp_path)
    for verb, others in VERBS.items():
        for pid in (10, 12):
            (target,) = outcome([verb, *others, "--pid", str(pid), "--only"])
            assert (target.pids, target.roots, target.note) == ((pid,), (), "")


@pytest.mark.parametrize("verb", VERBS)
def test_only_needs_a_process(verb: str, outcome: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    for address in ([], ["--socket", "/s"] if verb in ("queries", "diagnose") else []):
        outcome([verb, *VERBS[verb], "--only", *address])
        assert capsys.readouterr().err == "error: --only needs --pid\nhint: add --pid ID|NAME\n"
