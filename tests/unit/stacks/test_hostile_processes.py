# SPDX-License-Identifier: Apache-2.0
"""Processes that want their observer busy, full or hanging: each costs little, and what was left out is said."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from powerprof.stacks import symtab, time_budget, unwind_tables
from powerprof.stacks.debuginfo import find_debug_file
from powerprof.stacks.elf import parse_elf, read_elf
from powerprof.stacks.image import Mapping as Mapped
from powerprof.stacks.image import ProcessImage, parse_maps, snapshot
from powerprof.stacks.store import TableStore
from powerprof.stacks.time_budget import Budget
from powerprof.system import reader_process
from powerprof.system.errors import DataError
from powerprof.system.files import read_fields
from powerprof.system.reader_process import ANSWER_S, MOST_LEFT_BEHIND, PATIENCE_S, ReaderProcess, Unreadable
from powerprof.system.tasks import look_up
from powerprof.tracing.idle_members import read_sleeping_stacks
from tests.programs.cpu_time import least_cpu_s
from tests.unit.stacks.elves import Part, make, symbol

Tree = Callable[[Mapping[str, str]], Path]


def test_notes_that_overlap_are_read_once() -> None:
    """Thousands of sections show the same 64 KiB of notes, which name no build id."""
    notes = struct.pack("<III", 0, 0, 9) * 5000
    data = make([Part(f".n{number}", 7, notes if number == 0 else b"") for number in range(3000)])
    out = bytearray(data)
    sections_at = struct.unpack_from("<Q", data, 40)[0]
    first = sections_at + 64
    place = struct.unpack_from("<QQ", data, first + 24)
    for number in range(1, 3000):
        # Each begins a note later, so that none is the same as another.
        struct.pack_into("<QQ", out, first + 64 * number + 24, place[0] + 12 * (number % 2500), place[1] // 2)
    assert least_cpu_s(lambda: parse_elf(bytes(out), "notes"), 0.5) < 0.5


def cie(augmentation: bytes = b"zR", tail: bytes = b"") -> bytes:
    body = struct.pack("<I", 0) + b"\x01" + augmentation + b"\0\x01\x78\x10\x01\x1b" + tail
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def entry(at: int, cie_at: int, start: int, code: bytes = b"\0\0\0") -> bytes:
    body = struct.pack("<IiI", at + 4 - cie_at, start, 16) + b"\0" + code
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def test_functions_that_each_have_a_common_entry_of_their_own_are_refused() -> None:
    """An FDE may point anywhere: a hundred thousand of them at what begins like a CIE and ends with the section."""
    table = bytearray(cie())
    place = len(table)
    fake = cie(b"z" + b"S" * 900)
    table += struct.pack("<I", 4 + 400_000) + struct.pack("<I", place + 4) + fake[:16] + b"S" * (400_000 - 16)
    for number in range(100_000):
        at = len(table)
        table += entry(at, place + 8 + 4 * number % 390_000, 16 * number)

    def read() -> None:
        with pytest.raises(DataError, match="unwind table"):
            unwind_tables.read_fde_functions(bytes(table), 0x1000, "cies")

    assert least_cpu_s(read, 1.0) < 1.0


def test_instructions_without_end_never_reach_the_unwinder() -> None:
    head = cie()
    table = head + entry(len(head), 0, 0x100, b"\x0a" * 100_000)
    with pytest.raises(DataError, match="an entry of 100"):
        unwind_tables.read_fde_functions(table, 0x1000, "long")


def test_half_a_million_functions_take_little() -> None:
    head = cie()
    one = bytearray(head)
    for number in range(400_000):
        one += struct.pack("<IIiIBBBB", 16, len(one) + 4, number, 16, 0, 0x07, 0x11, 0)
    data = bytes(one)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert least_cpu_s(lambda: unwind_tables.read_fde_functions(data, 0x1000, "many"), 2.0) < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


_SHARED = """
import resource, struct
from powerprof.stacks.elf import parse_elf
from powerprof.stacks.symtab import read_symbols
from tests.programs.cpu_time import least_cpu_s
from tests.unit.stacks.elves import Part, make
count = 300_000
strings = b"\\0" + b"x" * (count + 4096) + b"\\0"
rows = b"".join(struct.pack("<IBBHQQ", 1 + n, 0x12, 0, 1, 0x1000 + SPREAD * n, 16) for n in range(count))
elf = parse_elf(make([Part(".symtab", 2, rows, link=2, entry_bytes=24), Part(".strtab", 3, strings)]), "shared")
del rows, strings
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = read_symbols(elf)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown >> 10, least_cpu_s(lambda: read_symbols(elf), 2.0), table.count)
"""


@pytest.mark.parametrize(("spread", "count"), [(16, 300_000), (0, 1)])
def test_symbols_that_share_their_names_take_memory_once(spread: int, count: int) -> None:
    """Each has a name of 4 KiB of its own, all within 300 KB; at one address they are aliases as well."""
    code = _SHARED.replace("SPREAD", str(spread))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    megabytes, seconds, found = done.stdout.split()
    assert int(megabytes) < 100 and float(seconds) < 2.0 and int(found) == count


def test_the_best_alias_is_still_found() -> None:
    names = [
        ("__nanosleep", 0x12),
        ("nanosleep", 0x22),
        ("_nanosleep", 0x12),
        ("sleepy", 0x02),
        ("nanosleep_x@@V1", 0x22),
    ]
    strings = bytearray(b"\0")
    rows = [bytes(24)]
    for name, info in names:
        rows.append(symbol(len(strings), 0x100, 16, info))
        strings += name.encode() + b"\0"
    elf = parse_elf(
        make([Part(".symtab", 2, b"".join(rows), link=2, entry_bytes=24), Part(".strtab", 3, bytes(strings))]), "x"
    )
    table = symtab.read_symbols(elf)
    assert table.lookup(0x108) == ("nanosleep", 0x100, 0x110)
    assert table.ranges_of({"nanosleep"}) == {(0x100, 0x110)}


def image_of(path: Path) -> tuple[ProcessImage, Mapped]:
    status = path.stat()
    mapping = Mapped(
        start=0x10000, end=0x20000, offset=0, path=str(path), device="0:0", inode=status.st_ino, bias=0,
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns,
    )  # fmt: skip
    return ProcessImage(pid=os.getpid(), started_ticks=1, executable=str(path), mappings=(mapping,)), mapping


def test_a_debug_file_of_holes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "holes.debug").open("wb") as file:
        file.truncate(2 << 30)
    (tmp_path / "linked").write_bytes(make([Part(".gnu_debuglink", 1, b"holes.debug\0" + bytes(4))]))
    image, mapping = image_of(tmp_path / "linked")
    fd = os.open(tmp_path / "linked", os.O_RDONLY)
    try:
        assert least_cpu_s(lambda: find_debug_file(image, mapping, read_elf(fd, "linked"), Budget()), 0.3) < 0.3
    finally:
        os.close(fd)


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files others may write."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path


def big(path: Path, megabytes: int) -> None:
    """A file with a symbol table of that size that anybody may write."""
    rows = bytes(24) + symbol(1, 0x100, 16) * (megabytes * (1 << 20) // 24)
    path.write_bytes(make([Part(".symtab", 2, rows, link=2, entry_bytes=24), Part(".strtab", 3, b"\0f\0")]))
    path.chmod(0o666)


def test_files_of_others_have_a_budget_and_it_is_said(others: Path) -> None:
    big(others / "big", 60)
    (others / "small").write_bytes(make([Part(".text", 1, b"x")]))
    (others / "small").chmod(0o666)
    store = TableStore(use_cache=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = store.tables(*image_of(others / "big"))
    # Its names are left out, and with them what they would cost.
    assert isinstance(found, str) or found.symbols.count == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert store.budget.notes() == [
        f"files of 1 processes were left out ({os.getpid()}): they took more than 2 s or 40 MiB each, "
        "or 20 s or 256 MiB together"
    ]
    assert not isinstance(store.tables(*image_of(others / "small")), str)


def test_what_only_root_can_write_is_read_whatever_its_size(others: Path) -> None:
    big(others / "big", 60)
    (others / "big").chmod(0o644)
    store = TableStore(use_cache=False)
    found = store.tables(*image_of(others / "big"))
    assert not isinstance(found, str) and found.symbols.count == 1
    assert store.budget.notes() == []


def test_many_processes_share_one_budget() -> None:
    budget = Budget(bytes_left=100, seconds_left=1.0)
    for pid in range(1, 11):
        with budget.meter(pid) as meter:
            meter.take(10, "x")
    with budget.meter(11) as meter, pytest.raises(DataError, match="too large"):
        meter.take(1, "x")
    with budget.meter(12) as meter:
        meter.take(0, "x")
        end = time.thread_time() + 1.05
        while time.thread_time() < end:
            pass
        with pytest.raises(DataError, match="too long"):
            meter.take(0, "x")
    assert list(budget.left_out) == [11, 12]
    assert time_budget.PROCESS_S <= 2.0 and time_budget.PROCESS_BYTES <= 100 << 20


@pytest.fixture
def hanging(fake_tree: Tree) -> Callable[[int, str], Path]:
    """`hanging(pid, "mem")`: a process whose file of that name lets its reader wait for ever."""
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


def test_memory_that_never_comes_leaves_the_reader_behind(hanging: Callable[[int, str], Path]) -> None:
    hanging(77, "mem")
    with ReaderProcess() as aside:
        began = time.monotonic()
        assert read_sleeping_stacks(77, aside) == []
        assert time.monotonic() - began < PATIENCE_S + 1.0
        assert aside.notes() == [
            "processes 77 were left out: they kept a reader of their memory or files waiting, or other processes of "
            "their account did"
        ]


def test_a_lock_that_never_comes_leaves_the_reader_behind(hanging: Callable[[int, str], Path]) -> None:
    hanging(78, "maps")
    with ReaderProcess() as aside, pytest.raises(Exception, match="kept a reader of its memory or files waiting"):
        snapshot(78, aside=aside)


def test_a_crowd_that_lets_its_readers_wait_costs_two_waits(hanging: Callable[[int, str], Path]) -> None:
    for pid in range(100, 120):
        hanging(pid, "mem")
    began = time.monotonic()
    with ReaderProcess() as aside:
        for pid in range(100, 120):
            read_sleeping_stacks(pid, aside)
        assert len(aside.waits.silent) == 20
        assert "processes 100, 101, 102, 103, 104 and 15 more were left out" in aside.notes()[0]
    assert time.monotonic() - began < MOST_LEFT_BEHIND * (PATIENCE_S + 1.0) + 1.0
    assert MOST_LEFT_BEHIND * PATIENCE_S <= 2.0 and ANSWER_S < 10


def test_a_reader_that_is_only_late_is_waited_for() -> None:
    """It waits for a CPU that others have: nobody keeps it."""
    with ReaderProcess() as aside:
        aside.maps(os.getpid())
        child = aside._child
        assert child is not None
        hog = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
        os.sched_setaffinity(child.pid, {0})
        os.sched_setscheduler(child.pid, os.SCHED_IDLE, os.sched_param(0))
        hogs = [subprocess.Popen([sys.executable, "-c", hog]) for _ in range(8)]
        try:
            time.sleep(0.5)
            for _ in range(3):
                assert aside.maps(os.getpid())[0].count(b"\n") > 10
            assert aside._child is child and aside.notes() == []
        finally:
            for one in hogs:
                one.kill()
                one.wait()


def test_a_reader_that_gets_no_cpu_is_told_from_one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is busy, so that is said, and the process is not one of those that keep their readers waiting."""
    monkeypatch.setattr(reader_process, "LATEST_S", 0.5)
    monkeypatch.setattr(reader_process._Waited, "slept_s", lambda _self: 0.0)
    with ReaderProcess() as aside:
        aside.maps(os.getpid())
        assert aside._child is not None
        aside._child.send_signal(signal.SIGSTOP)
        with pytest.raises(Unreadable, match=rf"process {os.getpid()} could not be read in time: this host left"):
            aside.maps(os.getpid())
        assert aside.notes() == []
        assert aside.maps(os.getpid())[0].count(b"\n") > 10


def test_a_reader_that_nobody_asks_goes_and_another_comes() -> None:
    with ReaderProcess() as aside:
        text, _ = aside.maps(os.getpid())
        first = aside._child
        aside.rest(3600.0)
        assert first is not None and aside._child is first
        aside.rest(0.0)
        assert aside._child is None and first.poll() is not None
        assert aside.maps(os.getpid())[0][:12] == text[:12]


def test_a_process_that_is_gone_is_told_from_one_that_is_silent() -> None:
    with ReaderProcess() as aside:
        with pytest.raises(Unreadable):
            aside.maps(4194303)
        assert aside.notes() == []
        assert aside.maps(os.getpid())[0].count(b"\n") > 10


class _Unanswered:
    """A file system in user space that answers all but READ: whoever touches a page of its one file waits."""

    def __init__(self, place: Path) -> None:
        import threading

        self.place = place
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"powerprof-test", os.fsencode(place), b"fuse", 0, options) != 0:
            os.close(self.device)
            pytest.skip(f"no capability: FUSE ({os.strerror(ctypes.get_errno())})")
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Waiting readers get an error."""
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


def test_a_stack_in_a_page_of_fuse(root: None, fake_tree: Tree, tmp_path: Path) -> None:
    """The real thing: the reader sleeps where no signal reaches it, and we go on without it."""
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


def test_a_name_with_a_carriage_return_hides_no_mapping(tmp_path: Path) -> None:
    for name in ("a\rb", "c\x0bd\x1ce\u2028f\x85g", "h i\tj"):
        program = tmp_path / name
        shutil.copy("/bin/sleep", program)
        process = subprocess.Popen([str(program), "60"])
        try:
            # The link changes first, and the program is mapped a little later.
            while b"libc" not in Path(f"/proc/{process.pid}/maps").read_bytes():
                time.sleep(0.01)
            image = snapshot(process.pid)
            assert image.executable == str(program)
            assert any(one.path == str(program) and one.bias is not None for one in image.mappings)
        finally:
            process.kill()
            process.wait()


def test_a_name_with_lines_in_it_forges_no_field() -> None:
    code = (
        "import ctypes,time;ctypes.CDLL(None).prctl(15,b'\\rTgid:\\t1\\rUid:\\t0');print(1,flush=True);time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert look_up(process.pid).pid == process.pid
        assert look_up(process.pid).comm.isprintable()
        assert read_fields(Path(f"/proc/{process.pid}/status"))["Tgid"] == str(process.pid)
    finally:
        process.kill()
        process.wait()


def test_maps_of_many_long_names_take_little() -> None:
    chance = random.Random(3)
    lines = [
        f"{0x1000 * n:x}-{0x1000 * (n + 1):x} r-xp 00000000 00:0{chance.randrange(9)} {n} /{'x' * 200}{n}"
        for n in range(1, 60_000)
    ]
    text = "\n".join(lines)
    assert least_cpu_s(lambda: parse_maps(text, "maps"), 2.0) < 2.0
