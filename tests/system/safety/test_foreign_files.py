# SPDX-License-Identifier: Apache-2.0
"""Files on mounts that another account chose, changed after they were opened: this process never waits for them."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerprof.stacks.elf import read_elf
from powerprof.stacks.image import snapshot
from powerprof.stacks.perf_map import read_perf_map
from powerprof.system import processes, reader_child
from powerprof.system.fork import SendPart, run_in_fork
from powerprof.system.listeners import list_tcp_ports
from powerprof.system.processes import label_of, owner_of
from powerprof.system.reader_child import _LOCAL, _LOCKED_BY_WRITERS, _OVERLAY, _kind_of, waits_for_nobody
from powerprof.system.reader_process import Opened, ReaderProcess, link_of, shared
from powerprof.system.reader_waits import ReaderWaits
from powerprof.system.tasks import list_threads
from tests.programs import foreign_mounts, stalling

# A busy host delays a fork; a reader of a file without a server would wait until the test ends.
DEADLINE_S = 30.0
PATHS = ("perf map", "passwd", "mapped", "handed", "debug link")
# The account of the attacker as that of a server.
PASSWD = f"mysql:x:{stalling.UID}:{stalling.UID}::/:/bin/sh\n"


@dataclass
class Foreign:
    """The attacker's process `pid`, the file `place`, and a function that changes the file."""

    pid: int
    place: str
    change: Callable[[], None]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """The programs, in a folder that every account may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root: other accounts, and the files of their processes")
    place = stalling.build(Path("/tmp"))
    shutil.copy(foreign_mounts.__file__, place / "foreign_mounts.py")
    (place / "text").write_text(PASSWD + "1000 10 name\n")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def fresh() -> Iterator[ReaderProcess]:
    """This process's reader without earlier waits."""
    shared().waits = ReaderWaits()
    yield shared()
    shared().waits = ReaderWaits()
    shared().close()


@contextmanager
def foreign(place: Path, kind: str, path: str) -> Iterator[Foreign]:
    """A process of the attacker with a file on a mount of that kind at that path."""
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    os.chown(room, stalling.UID, stalling.UID)
    source = place / ("text" if path in ("perf map", "passwd") else "waker")
    name = path if path in ("handed", "locked") else "file"
    target = Path("/etc/passwd") if path == "passwd" else room / name
    words = [sys.executable, "-I", "-S", place / "foreign_mounts.py", place / "fuse", room, kind, source, target]
    daemon = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=stalling.UID,
        group=stalling.UID,
        extra_groups=[],
    )
    assert daemon.stdin is not None and daemon.stdout is not None
    stdin, stdout = daemon.stdin, daemon.stdout
    try:
        word, _, pid = stdout.readline().partition(" ")
        assert word == "ready", (kind, path)

        def change() -> None:
            stdin.write("\n")
            stdin.flush()
            assert stdout.readline() == "changed\n"

        yield Foreign(int(pid), str(target), change)
    finally:
        # Whoever waits gets an error now.
        daemon.kill()
        daemon.wait()
        shutil.rmtree(room, ignore_errors=True)


def open_all(reader: ReaderProcess, at: Foreign, path: str) -> list[Opened]:
    """What the reader hands over for a path."""
    if path in ("mapped", "handed"):
        mappings = [mapping for mapping in snapshot(at.pid, aside=reader).mappings if mapping.is_file]
        places = [(mapping.start, mapping.end, mapping.inode, mapping.path) for mapping in mappings]
        files = [reader.open_mapped(at.pid, one) for one in places]
    else:
        files = [reader.open_in_root(at.pid, Path(f"/proc/{at.pid}/root"), at.place)]
    return [file for file in files if isinstance(file, Opened)]


def use(reader: ReaderProcess, at: Foreign, path: str) -> None:
    """Do with a path as commands do."""
    if path == "passwd":
        assert stalling.UID not in processes._read_server_uids(at.pid)
    elif path == "perf map":
        read_perf_map(snapshot(at.pid, aside=reader))
    else:
        for opened in open_all(reader, at, path):
            with opened:
                read_elf(opened.fd, at.place)


# What this process reads of others itself.
FREE = (
    "stat",
    "status",
    "statm",
    "comm",
    "schedstat",
    "cgroup",
    "mountinfo",
    "net/tcp",
    "net/unix",
    "net/dev",
    "limits",
)
LINKS = ("exe", "cwd", "root", "ns/net", "ns/mnt", "fd/0")


def test_files_of_proc_that_this_process_reads_take_no_lock(place: Path, fresh: ReaderProcess) -> None:
    with foreign(place, "fuse", "locked") as at:
        base = Path(f"/proc/{at.pid}")

        def read(*names: str) -> bool:
            def work(say: SendPart) -> None:
                for name in names:
                    (base / name).read_bytes()
                say(b"read")

            return run_in_fork(work, 0.5 if names == ("cmdline",) else DEADLINE_S).ended

        at.change()
        until_s = time.monotonic() + DEADLINE_S
        while read("cmdline"):
            assert time.monotonic() < until_s
        assert read(*FREE, *(f"task/{at.pid}/{name}" for name in ("stat", "status", "comm", "schedstat", "children")))
        assert all(link_of(base / name) for name in LINKS)
        assert list_threads(at.pid) and label_of(at.pid) and list_tcp_ports(at.pid) == []
        # Since Linux 6.17 maps needs no lock either.
        assert fresh.proc_file(at.pid, "cmdline", 100) is None and fresh.waits.silent == [at.pid]
        assert owner_of(at.pid).distrust is not None
        assert not read("cmdline"), "still locked"


_CONTAINER = """
mount -t tmpfs none "$1/upper"
mkdir "$1/upper/u" "$1/upper/w"
mount -t overlay -o lowerdir="$1/lower",upperdir="$1/upper/u",workdir="$1/upper/w" none "$1/root"
echo ready
exec chroot "$1/root" /waker
"""


@contextmanager
def container(place: Path) -> Iterator[int]:
    """A process in an overlay that root mounted in a mount namespace of its own, as Docker does."""
    room = Path(tempfile.mkdtemp(prefix="room-", dir=place))
    for name in ("lower/etc", "upper", "root"):
        (room / name).mkdir(parents=True)
    words = ["gcc", "-static", "-O1", "-x", "c", "-o", str(room / "lower/waker"), "-"]
    code = "#include <unistd.h>\nint main(void) { for (;;) usleep(5000); }\n"
    subprocess.run(words, input=code, text=True, check=True)
    (room / "lower/etc/passwd").write_text(PASSWD)
    words = ["unshare", "--mount", "sh", "-ec", _CONTAINER, "sh", str(room)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        until_s = time.monotonic() + DEADLINE_S
        while not (link_of(f"/proc/{process.pid}/exe") or "").endswith("/waker"):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(room, ignore_errors=True)


def test_files_of_a_container_of_root_come_without_a_copy_and_name_its_servers(
    place: Path, fresh: ReaderProcess
) -> None:
    with container(place) as pid:
        opened = open_all(fresh, Foreign(pid, "/waker", print), "mapped")
        opened += open_all(fresh, Foreign(pid, "/waker", print), "debug link")
        assert len(opened) == 2
        for file in opened:
            assert not file.is_copy and file.is_trusted and _kind_of(file.fd) == _OVERLAY
            os.close(file.fd)
        assert stalling.UID in processes._read_server_uids(pid)
    assert stalling.UID not in processes._read_server_uids(os.getpid())


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o644), (0, 0o664), (0, 0o646), (stalling.UID, 0o644)])
@pytest.mark.parametrize("kind", [*_LOCKED_BY_WRITERS, 0xEF53, 0x01021994, 0x65735546, 0x6969, 0])
def test_a_file_that_a_writer_may_lock_is_copied(tmp_path: Path, place: Path, kind: int, uid: int, mode: int) -> None:
    """XFS lets a writer keep readers out, ext4 and tmpfs do not; FUSE, NFS and unknown file systems are copied."""
    path = tmp_path / "file"
    path.touch(mode)
    path.chmod(mode)
    os.chown(path, uid, 0)
    with path.open("rb") as file:
        is_of_root = (uid, mode) == (0, 0o644)
        expected = kind in _LOCAL or (kind in _LOCKED_BY_WRITERS and is_of_root)
        assert waits_for_nobody(file.fileno(), kind, -1) is expected


@pytest.mark.parametrize(("most", "refusal"), [(1 << 20, None), (100, reader_child.LATER)])
def test_a_copy_ends_at_the_end_of_the_file_or_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, most: int, refusal: int | None
) -> None:
    """The status of such a file has size 0."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(reader_child, "_OUT", theirs, raising=False)
        file = os.open("/proc/self/status", os.O_RDONLY)
        if refusal is not None:
            with pytest.raises(OSError) as error:
                reader_child._hand_over(file, 0, -1, most)
            assert error.value.errno == refusal
            return
        size = reader_child._hand_over(file, 0, -1, most)
        data, files, _, _ = socket.recv_fds(ours, 1 << 10, 1)
        status = reader_child.FILE.unpack(data[-reader_child.FILE.size :])
        assert status[0] == size > 500 and status[-1]
        assert os.pread(files[0], 1 << 20, 0).startswith(b"Name:") and os.fstat(files[0]).st_size == size
        os.close(files[0])


# The kernel maps no file of proc as code.
CASES = [
    (kind, path, moment)
    for kind, path, moment in itertools.product(foreign_mounts.KINDS, PATHS, ("before", "between"))
    if path != "handed" or kind not in ("proc", "sysfs")
]


@pytest.mark.parametrize(("kind", "path", "moment"), random.Random(62).sample(CASES, 24))
def test_no_file_of_another_account_keeps_this_process_waiting(
    place: Path, fresh: ReaderProcess, kind: str, path: str, moment: str
) -> None:
    with foreign(place, kind, path) as at:
        if moment == "before":
            at.change()

            def look(say: SendPart) -> None:
                use(fresh, at, path)
                say(b"looked")

            fresh.maps(os.getpid())
            with fresh.lent():
                done = run_in_fork(look, DEADLINE_S)
                fresh.take_back(None)
            assert done.ended and done.parts == [b"looked"], (kind, path)
            return
        opened = open_all(fresh, at, path)
        contents = [os.pread(file.fd, 1 << 22, 0) for file in opened]
        at.change()
        if kind in ("proc", "sysfs"):
            assert path == "mapped" or opened == []
        elif kind.startswith("overlay"):
            # The FUSE of another user namespace refuses root.
            assert any(file.is_copy for file in opened), (kind, path)

        def read(say: SendPart) -> None:
            for file in opened:
                say(os.pread(file.fd, 1 << 22, 0))

        done = run_in_fork(read, DEADLINE_S)
        assert done.ended, (kind, path)
        for file, content, again in zip(opened, contents, done.parts, strict=True):
            magic = _kind_of(file.fd)
            assert file.is_copy or magic in _LOCAL, (kind, path, hex(magic))
            assert again == content or not file.is_copy
            assert magic != _OVERLAY
            os.close(file.fd)
