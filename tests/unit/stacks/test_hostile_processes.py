# SPDX-License-Identifier: Apache-2.0
"""Files and names of hostile processes: reading them is bounded in time and memory, and omissions have notes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.stacks import function_ranges, time_budget
from powerprof.stacks.debug_files import find_debug_file
from powerprof.stacks.elf import parse_elf, read_elf
from powerprof.stacks.image import Mapping as Mapped
from powerprof.stacks.image import ProcessImage, parse_maps, snapshot
from powerprof.stacks.store import TableStore
from powerprof.stacks.time_budget import Budget
from powerprof.system.errors import DataError
from powerprof.system.files import read_fields
from powerprof.system.reader_child import MAX_MAPPINGS
from powerprof.system.tasks import look_up
from tests.programs.cpu_time import least_cpu_s
from tests.unit.stacks.elves import Part, image_of, make, symbol


def test_overlapping_notes_are_read_in_bounded_time() -> None:
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


def cie(augmentation: bytes = b"zR") -> bytes:
    body = struct.pack("<I", 0) + b"\x01" + augmentation + b"\0\x01\x78\x10\x01\x1b"
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def entry(at: int, cie_at: int, start: int, code: bytes = b"\0\0\0") -> bytes:
    body = struct.pack("<IiI", at + 4 - cie_at, start, 16) + b"\0" + code
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def test_fde_with_private_cie_is_refused_quickly() -> None:
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
            function_ranges.read_fde_functions(bytes(table), 0x1000, "cies")

    assert least_cpu_s(read, 1.0) < 1.0


def test_oversized_unwind_entry_is_refused() -> None:
    head = cie()
    table = head + entry(len(head), 0, 0x100, b"\x0a" * 100_000)
    with pytest.raises(DataError, match="an entry of 100"):
        function_ranges.read_fde_functions(table, 0x1000, "long")


def test_half_a_million_functions_take_bounded_time_and_memory() -> None:
    head = cie()
    one = bytearray(head)
    for number in range(400_000):
        one += struct.pack("<IIiIBBBB", 16, len(one) + 4, number, 16, 0, 0x07, 0x11, 0)
    data = bytes(one)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert least_cpu_s(lambda: function_ranges.read_fde_functions(data, 0x1000, "many"), 2.0) < 2.0
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
def test_overlapping_symbol_names_are_stored_once(spread: int, count: int) -> None:
    """Each has a name of 4 KiB of its own, all within 300 KB; at one address they are aliases as well."""
    code = _SHARED.replace("SPREAD", str(spread))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    megabytes, seconds, found = done.stdout.split()
    assert int(megabytes) < 100 and float(seconds) < 2.0 and int(found) == count


def mapped(path: Path) -> tuple[ProcessImage, Mapped]:
    image = image_of(path, pid=os.getpid(), bias=0, build_id=None)
    return image, image.mappings[0]


def test_sparse_debug_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "holes.debug").open("wb") as file:
        file.truncate(2 << 30)
    (tmp_path / "linked").write_bytes(make([Part(".gnu_debuglink", 1, b"holes.debug\0" + bytes(4))]))
    image, mapping = mapped(tmp_path / "linked")
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


def test_files_beyond_the_budget_are_left_out_with_a_note(others: Path) -> None:
    big(others / "big", 42)
    (others / "small").write_bytes(make([Part(".text", 1, b"x")]))
    (others / "small").chmod(0o666)
    store = TableStore(use_cache=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = store.tables(*mapped(others / "big"))
    # Its names are left out, and with them what they would cost.
    assert isinstance(found, str) or found.symbols.count == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert store.budget.notes() == [
        f"files of 1 processes were left out ({os.getpid()}): they took more than 2 s or 40 MiB each, "
        "15 s or 192 MiB per account, or 20 s or 256 MiB together"
    ]
    assert not isinstance(store.tables(*mapped(others / "small")), str)


def test_trusted_file_is_read_without_limit(others: Path) -> None:
    big(others / "big", 42)
    (others / "big").chmod(0o644)
    store = TableStore(use_cache=False)
    found = store.tables(*mapped(others / "big"))
    assert not isinstance(found, str) and found.symbols.count == 1
    assert store.budget.notes() == []


def test_processes_share_the_budget_of_a_run() -> None:
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


def test_processes_of_one_account_leave_a_quarter_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_budget, "account_of_process", lambda pid: 1001 if pid < 50 else 112)
    budget, part = Budget(), time_budget.PROCESS_BYTES // 2
    fitting = time_budget.ACCOUNT_BYTES // part
    for pid in range(1, fitting + 1):
        with budget.meter(pid) as meter:
            meter.take(part, "x")
    with budget.meter(49) as meter, pytest.raises(DataError, match="too large"):
        meter.take(part, "x")
    with budget.meter(50) as meter:
        meter.take(part, "x")
    assert list(budget.left_out) == [49]


def test_control_characters_in_names_hide_no_mapping(tmp_path: Path) -> None:
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


def test_thread_name_cannot_forge_status_fields() -> None:
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


def test_large_maps_file_is_parsed_in_bounded_time() -> None:
    chance = random.Random(3)
    lines = [
        f"{0x1000 * n:x}-{0x1000 * (n + 1):x} r-xp 00000000 00:0{chance.randrange(9)} {n} /{'x' * 200}{n}"
        for n in range(1, MAX_MAPPINGS)
    ]
    text = "\n".join(lines)
    assert least_cpu_s(lambda: parse_maps(text, "maps"), 2.0) < 2.0
