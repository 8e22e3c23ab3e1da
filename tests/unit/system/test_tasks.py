# SPDX-License-Identifier: Apache-2.0
"""The identity of threads: figures of /proc/PID/stat, traced threads with reused ids, ids in containers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerprof.stacks.image import snapshot
from powerprof.system import process_stat, processes, targets, tasks
from powerprof.system.processes import language_of
from powerprof.system.reader_process import shared
from powerprof.system.server_roles import read_titles
from powerprof.system.targets import resolve
from tests.conftest import Tree

# From the state (field 3) to the kernel's signal (field 38); each figure is another one.
FIELDS = "S 1 7 8 0 -1 2097216 11 12 13 14 15 16 17 -2 20 0 1 0 4242 43 44 45 46 47 140720 49 50"

KERNEL, USER = 0x00208040, 0x00400000


def add_thread(procfs: Path, tid: int, comm: str, flags: int = USER, tgid: int | None = None) -> None:
    folder = procfs / str(tid)
    folder.mkdir()
    (folder / "stat").write_text(f"{tid} ({comm}) S 1 1 1 0 -1 {flags}{' 0' * 30}")
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "status").write_text(f"Name:\t{comm}\nTgid:\t{tgid or tid}\nKthread:\t{int(flags == KERNEL)}\n")


def test_thread_without_known_flags_is_not_the_kernels(procfs: Path) -> None:
    assert tasks.look_up(77, 77, "kworker/0:1-x") == tasks.Task(77, 77, "kworker/0:1-x", "kworker/0:1-x", False)


def test_reused_number_keeps_the_traced_identity(procfs: Path) -> None:
    add_thread(procfs, 77, "later")
    add_thread(procfs, 78, "kworker/1:2", KERNEL)
    assert tasks.look_up(77, 77, "earlier", False) == tasks.Task(77, 77, "earlier", "earlier", False)
    assert tasks.look_up(77, 77, "kworker/1:2", True) == tasks.Task(77, 77, "kworker/1:2", "kernel", True)
    assert tasks.look_up(78, 78, "kworker/1:2", False) == tasks.Task(78, 78, "kworker/1:2", "kworker/1:2", False)
    assert tasks.look_up(78, 78, "kworker/1:2", True) == tasks.Task(78, 78, "kworker/1:2", "kernel", True)


def test_running_thread_has_the_name_of_its_process(procfs: Path) -> None:
    add_thread(procfs, 100, "server")
    add_thread(procfs, 101, "worker", tgid=100)
    assert tasks.look_up(101, 100, "worker", False) == tasks.Task(101, 100, "worker", "server", False)
    assert tasks.look_up(101) == tasks.Task(101, 100, "worker", "server", False)


def test_two_threads_with_one_number_have_their_own_names() -> None:
    last = tasks.Task(77, 77, "later", "later", False)
    assert tasks.restore_traced(last, 77, "later", False) is last
    assert tasks.restore_traced(last, 77, "earlier", False) == tasks.Task(77, 77, "earlier", "earlier", False)
    assert tasks.restore_traced(tasks.Task(101, 100, "b", "server", False), 100, "a", False) == tasks.Task(
        101, 100, "a", "server", False
    )
    assert tasks.restore_traced(tasks.Task(101, 100, "b", "server", False), 60, "a", False) == tasks.Task(
        101, 60, "a", "a", False
    )
    assert tasks.restore_traced(last, 77, "", False) is last


@pytest.mark.parametrize("name", ["mariadbd", "a) S 9 9 (b", ")", "", "two words", "\xff\n"])
def test_stat_fields_start_after_the_last_bracket(name: str, fake_tree: Tree) -> None:
    fake_tree({"proc/7/stat": f"7 ({name}) {FIELDS}\n"})
    assert process_stat.read_process_stat(7) == process_stat.ProcessStat(name, 2097216, 11, 15, 4242, 140720)


def test_a_short_stat_has_no_start_of_the_stack(fake_tree: Tree) -> None:
    fake_tree({"proc/7/stat": f"7 (x) {FIELDS.partition(' 140720')[0]}\n"})
    assert process_stat.read_process_stat(7) == process_stat.ProcessStat("x", 2097216, 11, 15, 4242, 0)


@pytest.mark.parametrize(("state", "is_stopped"), [("T", True), ("t", True), ("S", False), ("R", False), ("Z", False)])
def test_a_signal_or_a_debugger_stops_a_process(fake_tree: Tree, state: str, is_stopped: bool) -> None:
    fake_tree({"proc/7/status": f"Name:\tx\nState:\t{state} (some word)\n"})
    assert tasks.is_stopped(7) is is_stopped
    assert not tasks.is_stopped(8)


def test_switches_are_the_voluntary_ones_of_each_thread(fake_tree: Tree) -> None:
    text = "nonvoluntary_ctxt_switches:\t900\nvoluntary_ctxt_switches:\t{}\n"
    tree = {f"proc/7/task/{tid}/status": text.format(count) for tid, count in ((7, 31), (8, 0), (9, "x"))}
    fake_tree({**tree, "proc/7/task/10/status": "Name:\tx\n"})
    assert tasks.read_switches(7) == {7: 31, 8: 0}
    assert tasks.read_switches(11) == {}


def test_all_ended_threads_of_one_name_have_a_process_only_if_it_is_real(procfs: Path) -> None:
    add_thread(procfs, 100, "server")
    assert tasks.look_up(tasks.ENDED + 5, 100, "worker") == tasks.Task(tasks.ENDED + 5, 100, "worker", "server", False)
    assert tasks.look_up(tasks.ENDED + 5, 101, "worker") == tasks.Task(tasks.ENDED + 5, 101, "worker", "worker", False)
    for made_up in (tasks.ENDED, tasks.ENDED + 7, tasks.ENDED_IN_TARGET + 7, None):
        assert tasks.look_up(tasks.ENDED + 5, made_up, "worker") == tasks.Task(
            tasks.ENDED + 5, None, "worker", "worker", False
        )
    assert tasks.look_up(tasks.ENDED + 5).comm == "threads that have ended"
    assert tasks.look_up(0) == tasks.Task(0, 0, "idle", "kernel", True)


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x) S 1 7", f"7 (x) {FIELDS}".replace("4242", "soon")])
def test_unknown_stat_format_is_none(text: str, fake_tree: Tree) -> None:
    fake_tree({"proc/7/stat": text})
    assert process_stat.read_process_stat(7) is None
    assert process_stat.read_process_stat(8) is None


def start_without_first_thread() -> subprocess.Popen[str]:
    """Start a Python whose first thread has ended while another one sleeps."""
    code = (
        "import ctypes, threading, time, sys\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall(60 if sys.argv[1] == 'x86_64' else 93, 0)\n"
    )
    words = [sys.executable, "-c", code, os.uname().machine]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    until_s = time.monotonic() + 20
    while "Z" not in (Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return process


def test_process_without_its_first_thread_is_alive() -> None:
    """The kernel shows it as a zombie. Its program, memory and files are read by a living thread."""
    process = start_without_first_thread()
    pid = process.pid
    try:
        assert not tasks.has_ended(pid)
        folder = tasks.process_folder(pid)
        assert folder != Path(f"/proc/{pid}") and os.readlink(folder / "exe") == os.path.realpath(sys.executable)
        assert not os.path.lexists(f"/proc/{pid}/exe") or not Path(f"/proc/{pid}/maps").read_text()
        assert processes.name_of(pid) == Path(os.path.realpath(sys.executable)).name
        assert processes.owner_of(pid).program == os.path.realpath(sys.executable)
        assert resolve([str(pid)]).pids == (pid,)
        assert language_of(pid) is None
        assert read_titles([pid])[pid].startswith(sys.executable)
        assert pid in targets._find_named(processes.name_of(pid) or "")
        assert snapshot(pid).mappings
        assert shared().open_files(pid)
    finally:
        process.kill()
        until_s = time.monotonic() + 20
        while len(tasks.list_threads(pid)) > 1:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        # All threads have ended, and nobody has waited for it yet.
        assert tasks.has_ended(pid) and tasks.process_folder(pid) == Path(f"/proc/{pid}")
        process.wait()
    assert tasks.has_ended(pid)


@pytest.mark.parametrize(
    ("state", "threads", "ended"),
    [
        ("S (sleeping)", "1", False),
        ("T (stopped)", "1", False),
        ("Z (zombie)", "1", True),
        ("Z (zombie)", "2", False),
        ("Z (zombie)", "0", True),
        ("Z (zombie)", "", True),
        ("X (dead)", "1", True),
        ("X (dead)", "7", False),
        ("", "1", False),
    ],
)
def test_process_has_ended_with_its_last_thread(procfs: Path, state: str, threads: str, ended: bool) -> None:
    (procfs / "70").mkdir()
    (procfs / "70/status").write_text(f"Name:\tx\nState:\t{state}\nThreads:\t{threads}\n")
    assert tasks.has_ended(70) == ended
    assert tasks.has_ended(71)
