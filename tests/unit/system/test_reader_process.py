# SPDX-License-Identifier: Apache-2.0
"""The reader process: blocking reads are abandoned, late ones are waited for."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.stacks.image import snapshot
from powerprof.system import reader_process
from powerprof.system.reader_process import ANSWER_S, PATIENCE_S, FileStatus, ReaderProcess, Unreadable
from powerprof.system.reader_waits import OF_PEOPLE, ChildSleep, Waits
from powerprof.tracing.idle_stacks import read_sleeping_stacks
from tests.conftest import Tree


@pytest.fixture
def hanging(fake_tree: Tree) -> Callable[[int, str], Path]:
    """Return a function that creates a process with one file that blocks its reader."""
    root: list[Path] = []

    def make_one(pid: int, name: str) -> Path:
        files = {
            f"proc/{pid}/stat": f"{pid} (x) S " + " ".join(["1"] * 40),
            f"proc/{pid}/status": "Name:\tx\n",
            f"proc/{pid}/maps": "1000-2000 r-xp 00000000 00:00 0\n",
            f"proc/{pid}/mem": "",
            f"proc/{pid}/task/{pid}/syscall": "0 0 0 0 0 0 0 0x1000 0x2000\n",
        }
        root[:] = [fake_tree({key: text for key, text in files.items() if not key.endswith(f"/{name}")})]
        base = root[0] / f"proc/{pid}"
        os.mkfifo(base / name)
        (base / "exe").symlink_to("/bin/true")
        return base

    return make_one


def test_blocking_maps_read_is_abandoned(hanging: Callable[[int, str], Path]) -> None:
    hanging(78, "maps")
    with ReaderProcess() as aside, pytest.raises(Exception, match="kept a reader of its memory or files waiting"):
        snapshot(78, aside=aside)


def test_many_blocking_processes_cost_the_total_limit(
    hanging: Callable[[int, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_process, "PATIENCE_S", 0.1)
    for pid in range(100, 120):
        hanging(pid, "mem")
    began = time.monotonic()
    with ReaderProcess() as aside:
        for pid in [*range(100, 120), *range(100, 120)]:
            read_sleeping_stacks(pid, aside)
        assert aside.waits.silent == list(range(100, 120))
        assert "processes 100, 101, 102, 103, 104 and 15 more were left out" in aside.waits.notes()[0]
        # Their account is unknown, as that of a person.
        assert (aside.waits.of_people.left_behind, aside.waits.of_system.left_behind) == (OF_PEOPLE.left_behind, 0)
    assert time.monotonic() - began < OF_PEOPLE.left_behind * (0.1 + 1.0) + 1.0
    assert OF_PEOPLE.left_behind * PATIENCE_S <= OF_PEOPLE.waited_s == 20.0 and ANSWER_S < 10


def test_a_process_that_kept_its_reader_waiting_is_not_read_again(hanging: Callable[[int, str], Path]) -> None:
    hanging(78, "maps")
    with ReaderProcess() as aside:
        for reason in ("it kept a reader of its memory or files waiting", "it or others kept their reader waiting"):
            with pytest.raises(Unreadable, match=reason):
                aside.maps(78)
        assert aside.waits.of_people.left_behind == 1


def test_reader_without_cpu_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader waits for a CPU, and the process does not block it."""
    monkeypatch.setattr(reader_process, "PATIENCE_S", 0.05)
    monkeypatch.setattr(ChildSleep, "slept_s", lambda _self: 0.0)
    with ReaderProcess() as aside:
        aside.maps(os.getpid())
        child = aside._child
        child.send_signal(signal.SIGSTOP)
        resumes = threading.Timer(0.5, child.send_signal, [signal.SIGCONT])
        resumes.start()
        assert aside.maps(os.getpid())[0].count(b"\n") > 10
        assert aside._child is child and aside.waits.notes() == []
        resumes.join()


def test_starved_reader_is_reported_as_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the busy host, and the process is not counted as blocking."""
    monkeypatch.setattr(reader_process, "LATEST_S", 0.5)
    monkeypatch.setattr(ChildSleep, "slept_s", lambda _self: 0.0)
    with ReaderProcess() as aside:
        aside.maps(os.getpid())
        aside._child.send_signal(signal.SIGSTOP)
        with pytest.raises(Unreadable, match=rf"process {os.getpid()} could not be read in time: this host left"):
            aside.maps(os.getpid())
        assert aside.waits.notes() == []
        assert aside.maps(os.getpid())[0].count(b"\n") > 10


def test_idle_reader_is_stopped_and_replaced() -> None:
    with ReaderProcess() as aside:
        text, _ = aside.maps(os.getpid())
        first = aside._child
        aside.rest(3600.0)
        assert first is not None and aside._child is first
        aside.rest(0.0)
        assert aside._child is None and first.poll() is not None
        assert aside.maps(os.getpid())[0][:12] == text[:12]


def test_ended_process_is_not_reported_as_blocking() -> None:
    with ReaderProcess() as aside:
        with pytest.raises(Unreadable):
            aside.maps(4194303)
        assert aside.waits.notes() == []
        assert aside.maps(os.getpid())[0].count(b"\n") > 10


class _Unanswered:
    """A FUSE file system that answers all requests except READ, so that access to its file blocks."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"powerprof-test", os.fsencode(place), b"fuse", 0, options) != 0:
            os.close(self.device)
            pytest.skip(f"no capability: FUSE ({os.strerror(ctypes.get_errno())})")
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Unmount it: blocked readers get an error."""
        ctypes.CDLL(None).umount2(os.fsencode(self.place), 2)
        os.close(self.device)

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o40755, 0) if node == 1 else (0o100644, 4096)
        return struct.pack("<6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 18)
            except OSError:
                return
            _size, kind, unique, node = struct.unpack_from("<IIQQ", request)
            if kind == 26:  # INIT
                answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
            elif kind == 1:  # LOOKUP
                answer = struct.pack("<QQQQII", 2, 0, 9, 9, 0, 0) + self._attributes(2)
            elif kind == 3:  # GETATTR
                answer = struct.pack("<QII", 9, 0, 0) + self._attributes(node)
            elif kind in (14, 27):  # OPEN, OPENDIR
                answer = struct.pack("<QII", 1, 0, 0)
            elif kind == 15:  # READ: never
                continue
            else:
                answer = b""
            try:
                os.write(self.device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
            except OSError:
                return


def test_stack_on_a_blocking_fuse_page_is_abandoned(root: None, fake_tree: Tree, tmp_path: Path) -> None:
    """The reader sleeps uninterruptibly and is abandoned."""
    place = tmp_path / "fuse"
    place.mkdir()
    served = _Unanswered(place)
    code = f"import mmap,os,time;m=mmap.mmap(os.open({str(place / 'f')!r},0),4096,prot=1);print(1,flush=True);"
    code += "time.sleep(60)"
    target = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert target.stdout is not None and target.stdout.readline() == "1\n"
        line = next(one for one in Path(f"/proc/{target.pid}/maps").read_text().splitlines() if one.endswith("fuse/f"))
        sp = int(line.split("-")[0], 16)
        where = f"proc/{target.pid}/task/{target.pid}/syscall"
        host = fake_tree({where: f"35 0 0 0 0 0 0 {sp:#x} 0x1000\n"})
        (host / f"proc/{target.pid}/mem").symlink_to(f"/proc/{target.pid}/mem")
        with ReaderProcess() as aside:
            began = time.monotonic()
            assert read_sleeping_stacks(target.pid, aside) == []
            assert time.monotonic() - began < PATIENCE_S + 1.5
            assert aside.waits.silent == [target.pid]
    finally:
        target.kill()
        served.close()
        target.wait(10)


@pytest.mark.parametrize(
    ("uid", "mode", "is_copy", "is_trusted"),
    [
        (0, 0o755, False, True),
        (0, 0o775, False, False),
        (0, 0o757, False, False),
        (0, 0o755, True, False),
        (4242, 0o755, False, False),
        (os.geteuid(), 0o644, False, True),
    ],
)
def test_a_file_of_root_or_ours_is_trusted(uid: int, mode: int, is_copy: bool, is_trusted: bool) -> None:
    assert FileStatus(1, 2, 3, 4, uid, 5, mode, 6, is_copy).is_trusted is is_trusted


@given(st.tuples(*[st.integers(0, 20)] * 4), st.tuples(*[st.integers(0, 20)] * 4))
def test_a_key_is_that_of_one_version_of_one_file(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    keys = [FileStatus(*version, 0, 0, 0o644, 9, False).key for version in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)


def test_the_highest_account_of_a_process_pays(fake_tree: Tree) -> None:
    fake_tree({"proc/7/status": "Uid:\t1001\t0\t1002\t0\n", "proc/8/status": "Name:\tx\n"})
    assert reader_process.account_ids(7) == [1001, 0, 1002, 0]
    assert reader_process.account_of_process(7) == 1002
    assert reader_process.account_of_process(8) == reader_process.account_of_process(9) == 0xFFFFFFFF
    assert reader_process.account_of_process(0) == 0


def test_a_path_belongs_to_the_process_that_it_leads_through(fake_tree: Tree) -> None:
    host = fake_tree({})
    assert reader_process.process_of(host / "proc/77/root/run/x") == 77
    for path in (host / "proc/self/root", host / "proc", host / "sys/77", Path("/run/77")):
        assert reader_process.process_of(path) == 0


@pytest.mark.parametrize(
    ("left", "waited_s", "worked_s", "refused"),
    [(15, 19.0, 19.0, False), (16, 0.0, 0.0, True), (0, 20.5, 0.0, True), (0, 0.0, 20.5, True)],
)
def test_all_people_together_have_limits_that_hide_no_system_account(
    fake_tree: Tree, left: int, waited_s: float, worked_s: float, refused: bool
) -> None:
    fake_tree({"proc/7/status": "Uid:\t65534\t65534\t65534\t65534\n", "proc/8/status": "Uid:\t0\t0\t0\t0\n"})
    with ReaderProcess() as reader:
        reader.waits.of_people = Waits(left, waited_s, worked_s=worked_s)
        with pytest.raises(Unreadable) as error:
            reader.maps(7)
        assert (error.value.reason == "not read: it or others kept their reader waiting or busy") is refused
        assert reader.waits.silent == [7] * refused
        with pytest.raises(Unreadable, match="no such file"):
            reader.maps(8)


@pytest.mark.parametrize("uid", [112, 1001])
def test_a_system_account_has_five_times_the_patience(
    fake_tree: Tree, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    """Its files may be on a slow disk."""
    fake_tree({"proc/7/status": f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"})
    monkeypatch.setattr(reader_process, "is_system_account", lambda number: number < 1000)
    patience: list[float] = []
    reader = ReaderProcess()
    monkeypatch.setattr(reader, "_ensure_child", lambda: SimpleNamespace(pid=os.getpid()))
    parts = [b"u" + bytes(16)]
    monkeypatch.setattr(reader, "_receive_parts", lambda _, __, ___, factor: patience.append(factor) or iter(parts))
    reader._request(7, "maps")
    assert patience == [5.0 if uid == 112 else 1.0]
