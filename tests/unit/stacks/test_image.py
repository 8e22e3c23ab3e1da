# SPDX-License-Identifier: Apache-2.0
"""Snapshots of processes, code ranges, thread names and kernel names."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from powerprof.stacks import image
from powerprof.stacks.elf import read_elf
from powerprof.system.errors import DataError, PowerprofError
from powerprof.system.process_stat import read_process_stat
from powerprof.system.programs import start, stop
from powerprof.system.reader_process import Opened, ReaderProcess, shared
from powerprof.tracing.idle_stacks import keep_every_program


def test_snapshot_contains_libraries_and_vdso():
    found = image.snapshot(os.getpid())
    libc = next(one for one in found.mappings if one.module == "libc.so.6")
    fd = os.open(libc.path, os.O_RDONLY)
    try:
        elf = read_elf(fd, libc.path)
    finally:
        os.close(fd)
    assert libc.build_id == elf.build_id
    assert libc.bias is not None
    assert libc.bias % 4096 == 0
    assert found.vdso[:4] == b"\x7fELF"
    assert found.mapping_at(libc.start) == libc
    assert found.mapping_at(libc.end - 1) == libc
    assert found.mapping_at(0) is None


def test_ended_process_raises_process_gone_error():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(PowerprofError, match=f"process {child.pid} is gone"):
        image.snapshot(child.pid)


def test_unusual_file_names_in_maps_are_read():
    text = (
        "1000-2000 r-xp 00000000 08:01 5 /a b (deleted) (deleted)\n"
        "2000-3000 r--p 00000000 08:01 5 /data\n"
        "4000-5000 rwxp 00000000 00:00 0 \n"
        "6000-7000 r-xp 00001000 00:0f 9 /with\\012newline\n"
    )
    found = image.parse_maps(text, "maps")
    assert [one.path for one in found] == ["/a b (deleted)", "", "/with\nnewline"]
    assert found[1].module == "[anonymous]"
    with pytest.raises(DataError, match="maps:2: not a line"):
        image.parse_maps("1000-2000 r-xp 00000000 08:01 5 /a\nnonsense\n", "maps")


def mapping(low: int, high: int, path: str = "/lib") -> image.Mapping:
    return image.Mapping(start=low, end=high, offset=0, path=path, device="8:1", inode=3, bias=low)


def process(*mappings: image.Mapping, executable: str = "/x", ticks: int = 1) -> image.ProcessImage:
    return image.ProcessImage(pid=1, started_ticks=ticks, executable=executable, mappings=mappings, vdso=b"v")


def test_merge_keeps_unloaded_libraries_until_replaced():
    older = process(mapping(0, 10, "/x"), mapping(20, 30, "/plugin"), mapping(40, 50, "/gone"))
    newer = process(mapping(0, 10, "/x"), mapping(25, 35, "/new"))
    merged = image.merge_images(older, newer)
    assert [(one.path, one.start) for one in merged.mappings] == [("/x", 0), ("/new", 25), ("/gone", 40)]


def test_merge_drops_images_of_other_programs_and_processes():
    older = process(mapping(0, 10, "/x"), mapping(20, 30, "/old"))
    for newer in (process(mapping(0, 10), executable="/y"), process(mapping(0, 10), ticks=2)):
        assert image.merge_images(older, newer) == newer


def test_impossible_mappings_of_saved_images_are_refused():
    assert image.check_image(process(mapping(0, 10), mapping(20, 30)), "x").mappings
    with pytest.raises(DataError, match="overlap"):
        image.check_image(process(mapping(0, 30), mapping(20, 40)), "x")
    with pytest.raises(DataError, match="impossible bias"):
        image.check_image(process(msgspec.structs.replace(mapping(0, 30), bias=1 << 64)), "x")


def test_paths_are_resolved_inside_the_root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("inner")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "climbing").symlink_to("../../../../../../etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    for name in ("/absolute", "/climbing"):
        opened = shared().open_in_root(0, tmp_path, name)
        assert isinstance(opened, Opened)
        with opened:
            assert os.read(opened.fd, 100) == b"inner"
    assert shared().open_in_root(0, tmp_path, "/fifo") == "not a regular file"
    assert shared().open_in_root(0, tmp_path, "/absent") == "no such file"
    assert isinstance(shared().open_in_root(0, tmp_path, "/absolute", follow=False), str)


def test_replaced_program_file_is_refused(tmp_path, monkeypatch):
    program = tmp_path / "sleeper"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o700)
    program_run = start([program, "30"], measured=True)
    try:
        while os.readlink(f"/proc/{program_run.pid}/exe") != str(program):
            pass
        new = tmp_path / "new"
        new.write_bytes(Path("/bin/true").read_bytes())
        new.replace(program)
        found = next(one for one in image.snapshot(program_run.pid).mappings if one.module == "sleeper")
        if os.geteuid() == 0:
            fd = os.open("/bin/sleep", os.O_RDONLY)
            assert found.build_id == read_elf(fd, "sleep").build_id
            os.close(fd)
        else:
            assert (found.build_id, found.bias) == (None, None)
            assert "replaced on disk" in found.note or "permission" in found.note
    finally:
        stop(program_run)


def test_too_many_mappings_are_refused(monkeypatch):
    monkeypatch.setattr(image, "MAX_MAPPINGS", 3)
    text = "".join(f"{low:x}000-{low:x}fff r-xp 00000000 08:01 5 /a\n" for low in range(1, 9))
    with pytest.raises(DataError, match="more than 3"):
        image.parse_maps(text, "maps")


def test_unchanged_files_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = image.ElfCache()
    first = image.snapshot(os.getpid(), seen=seen)

    def refuse(descriptor: int, path: str, meter: object) -> None:
        raise DataError(path, "it was read before")

    monkeypatch.setattr(image, "read_elf", refuse)
    assert image.snapshot(os.getpid(), seen=seen).mappings == first.mappings
    monkeypatch.setattr(ReaderProcess, "_mapped", None)
    assert image.snapshot(os.getpid(), before=first).mappings == first.mappings


@pytest.mark.parametrize(
    ("older", "newer", "same"),
    [
        # (executable, space): an exec of the same program draws another space.
        (("/bin/a", 0x7FFC00001000), ("/bin/a", 0x7FFC00001000), True),
        (("/bin/a", 0x7FFC00001000), ("/bin/a", 0x7FFD00002000), False),
        (("/bin/a", 0x7FFC00001000), ("/bin/b", 0x7FFC00001000), False),
        (("/bin/a", 0x7FFC00001000), ("/bin/b", 0x7FFD00002000), False),
        # It may not be read, or the record is of an older version.
        (("/bin/a", 0), ("/bin/a", 0x7FFD00002000), True),
        (("/bin/a", 0x7FFC00001000), ("/bin/a", 0), True),
        (("/bin/a", 0), ("/bin/a", 0), True),
        (("/bin/a", 0), ("/bin/b", 0), False),
        (("", 0), ("/bin/b", 0x7FFD00002000), False),
    ],
)
def test_exec_ends_an_image(older: tuple[str, int], newer: tuple[str, int], same: bool) -> None:
    images = [
        image.ProcessImage(pid=9, started_ticks=5, executable=executable, mappings=(), space=space)
        for executable, space in (older, newer)
    ]
    assert image.is_same_program(*images) == same
    assert len(keep_every_program([images[0]], images[1])) == 2 - same
    assert image.is_same_program(images[0], msgspec.structs.replace(images[0], started_ticks=6)) is False


def test_own_image_has_the_start_of_the_stack() -> None:
    stat = read_process_stat(os.getpid())
    assert stat is not None and image.snapshot(os.getpid()).space == stat.start_stack > 1 << 40


Maps = list[tuple[int, int, str]]


def image_of(maps: Maps, executable: str = "/usr/bin/node") -> image.ProcessImage:
    mappings = tuple(
        image.Mapping(start=start, end=end, offset=0, path=path, device="08:01", inode=7 if path.startswith("/") else 0)
        for start, end, path in sorted(maps)
    )
    return image.ProcessImage(pid=9, started_ticks=1, executable=executable, mappings=mappings)


def contains(ranges: tuple[int, int, int, int], address: int) -> bool:
    return any(start <= address < start + size for start, size in (ranges[:2], ranges[2:]))


LIBC = (0x7F3F6ED64000, 0x7F3F6EEBA000, "/usr/lib/libc.so.6")
VDSO = (0x7FFC12345000, 0x7FFC12347000, "[vdso]")
# Node 20: V8 maps its built-in functions a second time, near the libraries and its JIT code.
NODE: Maps = [
    (0xB6F000, 0x2601000, "/usr/bin/node"),
    (0x7F3F48003000, 0x7F3F4803F000, ""),
    (0x7F3F67E40000, 0x7F3F67FD2000, "/usr/bin/node"),
    LIBC,
    VDSO,
]
PIE: Maps = [(0x55D4A0001000, 0x55D4A0100000, "/usr/bin/node"), LIBC, VDSO]
JAVA: Maps = [
    (0x55D4A0001000, 0x55D4A0002000, "/usr/bin/java"),
    (0x7F3F50000000, 0x7F3F50270000, ""),
    (0x7F3F6A000000, 0x7F3F6B000000, "/usr/lib/libjvm.so"),
    LIBC,
    VDSO,
]
GO: Maps = [(0x401000, 0x900000, "/usr/bin/go"), VDSO]
NO_RANDOM_ADDRESSES: Maps = [
    (0x555555554000, 0x555555600000, "/usr/bin/node"),
    (0x7FFFF7D00000, 0x7FFFF7F00000, LIBC[2]),
    (0x7FFFF7FC0000, 0x7FFFF7FC2000, "[vdso]"),
]
BY_LOADER: Maps = [(0x7F3F6E000000, 0x7F3F6E100000, "/usr/bin/node"), LIBC, VDSO]
NAMED_JIT: Maps = [(0x7F3F48003000, 0x7F3F4803F000, "[anon:v8]"), *PIE]
OLD_X86: Maps = [*PIE, (0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, "[vsyscall]")]
ALL = {
    "node": NODE,
    "pie": PIE,
    "java": JAVA,
    "go": GO,
    "no random addresses": NO_RANDOM_ADDRESSES,
    "started by the loader": BY_LOADER,
    "named JIT code": NAMED_JIT,
    "vsyscall": OLD_X86,
}


@pytest.mark.parametrize("name", ALL)
def test_all_code_is_inside_and_data_is_not(name: str) -> None:
    ranges = image.find_code_ranges(image_of(ALL[name]))
    for low, high, path in ALL[name]:
        assert contains(ranges, low) == contains(ranges, high - 1) == (path not in ("[vdso]", "[vsyscall]"))
    heap, v8_heap, stack = 0x40AFD000, 0x36384F640000, 0x7FFC30000000
    if name != "go":
        assert not contains(ranges, heap)
    assert not contains(ranges, v8_heap)
    assert not contains(ranges, stack)
    assert all(0 <= figure < 1 << 63 for figure in ranges)


def test_ranges_of_drawn_processes_are_the_narrowest() -> None:
    drawn = random.Random(3)
    for _ in range(300):
        starts = sorted(drawn.sample(range(1, 1 << 30), drawn.randint(2, 12)))
        maps = [(start << 16, (start << 16) + 0x1000 * drawn.randint(1, 16), "/lib/x") for start in starts]
        ranges = image.find_code_ranges(image_of(maps))
        assert all(contains(ranges, start) and contains(ranges, end - 1) for start, end, _ in maps)
        narrowest = min(maps[at - 1][1] - maps[0][0] + maps[-1][1] - maps[at][0] for at in range(1, len(maps)))
        assert ranges[1] + ranges[3] == narrowest
