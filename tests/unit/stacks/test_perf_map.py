# SPDX-License-Identifier: Apache-2.0
"""Perf maps: untrusted text with the names of generated code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from powerprof.stacks import perf_map, symbolizer
from powerprof.stacks.image import Mapping, ProcessImage


def written(tmp_path, text: str | bytes):
    path = tmp_path / "perf.map"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parse_file(path: Path) -> perf_map.PerfMap:
    with path.open("rb") as file:
        return perf_map._parse(file.fileno(), str(path))


def test_address_has_the_name_of_the_covering_entry(tmp_path):
    found = parse_file(written(tmp_path, "1000 20 LazyCompile:~add app.js:3\n0x2000 0x10 stub\n"))
    assert found.lookup(0x1000) == ("LazyCompile:~add app.js:3", 0x1000)
    assert found.lookup(0x101F)[0] == "LazyCompile:~add app.js:3"
    assert found.lookup(0x1020) is None
    assert found.lookup(0x2008) == ("stub", 0x2000)


def test_later_overlapping_entry_wins(tmp_path):
    found = parse_file(written(tmp_path, "1000 100 old\n1040 20 new\n3000 10 a\n3000 10 b\n"))
    names = [found.lookup(at)[0] for at in (0x1000, 0x1040, 0x105F, 0x1060, 0x10FF)]
    assert names == ["old", "new", "new", "old", "old"]
    assert found.lookup(0x3000)[0] == "b"
    assert all(low < high for low, high in zip(found.starts, found.ends, strict=True))
    assert all(end <= start for end, start in zip(found.ends, found.starts[1:], strict=False))


def test_malformed_lines_are_skipped_and_counted(tmp_path):
    text = b"zz 10 a\n1000\n1000 0 empty\n-5 10 minus\n1000 ffffffffffffffffffff huge\n\n2000 10 good\xff\x1b[31m\n"
    found = parse_file(written(tmp_path, text + b"9" * 9000 + b"\n3000 10 after\n"))
    assert found.names == ("good�?[31m", "after")
    assert any("6 malformed lines" in note for note in found.notes)


def test_huge_map_is_read_within_limits(tmp_path, monkeypatch):
    path = tmp_path / "huge.map"
    with path.open("wb") as file:
        file.write(b"1000 10 first\n")
        # A sparse gigabyte: one endless line.
        file.truncate(1 << 30)
    monkeypatch.setattr(perf_map, "MAX_BYTES", 8 << 20)
    found = parse_file(path)
    assert found.lookup(0x1000) == ("first", 0x1000)
    assert any("first 8 MiB" in note for note in found.notes)
    monkeypatch.setattr(perf_map, "MAX_ENTRIES", 1000)
    many = parse_file(written(tmp_path, "".join(f"{at * 16:x} 10 f{at}\n" for at in range(1, 5000))))
    assert len(many.starts) == 1000
    assert any("1,000 entries" in note for note in many.notes)


def fake_process(tmp_path, monkeypatch, pid: int = 77):
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    (tmp_path / f"proc/{pid}/root/tmp").mkdir(parents=True)
    (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (jit) S " + " ".join(["0"] * 18) + " 1 0\n")
    mapping = Mapping(start=0x1000, end=0x2000, offset=0, path="", device="0:0", inode=0)
    return ProcessImage(
        pid=pid, started_ticks=1, executable="/jit", mappings=(mapping,), namespace_pid=5
    ), tmp_path / f"proc/{pid}/root/tmp/perf-5.map"


def test_map_is_found_in_the_root_by_namespace_pid(tmp_path, monkeypatch):
    image, path = fake_process(tmp_path, monkeypatch)
    path.write_text("1000 100 jitted\n")
    frame = symbolizer.Symbolizer(image).frames(0x1010)[0]
    assert (frame.function, frame.module, frame.offset) == ("jitted", "perf-77.map", 0x10)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_link_or_fifo_is_not_read(tmp_path, monkeypatch, kind):
    image, path = fake_process(tmp_path, monkeypatch)
    if kind == "link":
        (path.parent / "secret").write_text("1000 100 secret\n")
        path.symlink_to("secret")
    else:
        os.mkfifo(path)
    found = perf_map.read_perf_map(image)
    assert found.starts == ()
    assert len(found.notes) == 1


def test_map_of_another_account_is_not_read(tmp_path, monkeypatch):
    assert perf_map.find_owner_refusal(0, 1000) is None
    assert perf_map.find_owner_refusal(1000, 1000) is None
    assert perf_map.find_owner_refusal(12345, 1000) == "owned by user 12345, the process is of user 1000"
    image, path = fake_process(tmp_path, monkeypatch)
    path.write_text("1000 100 jitted\n")
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(path, 12345, 12345)
        assert "owned by user 12345" in perf_map.read_perf_map(image).notes[0]


def test_world_writable_map_is_not_read(tmp_path, monkeypatch):
    image, path = fake_process(tmp_path, monkeypatch)
    path.write_text("1000 100 jitted\n")
    path.chmod(0o666)
    assert perf_map.read_perf_map(image).starts == ()
    assert "anybody may write it: chmod o-w" in perf_map.read_perf_map(image).notes[0]
    path.chmod(0o664)
    assert perf_map.read_perf_map(image).names == ("jitted",)


def test_map_of_a_reused_pid_is_not_read(tmp_path, monkeypatch):
    image, path = fake_process(tmp_path, monkeypatch)
    path.write_text("1000 100 jitted\n")
    assert perf_map.read_perf_map(image).names == ("jitted",)
    assert perf_map.read_perf_map(msgspec.structs.replace(image, started_ticks=2)) == perf_map.NO_PERF_MAP


def test_owner_is_compared_with_the_effective_account(tmp_path, monkeypatch):
    image, path = fake_process(tmp_path, monkeypatch)
    path.write_text("1000 100 jitted\n")
    other = path.stat().st_uid + 1
    if other != 1:  # what root owns is believed of anybody
        assert "not read" in perf_map.read_perf_map(msgspec.structs.replace(image, uid=other)).notes[0]
    assert perf_map.read_perf_map(msgspec.structs.replace(image, uid=path.stat().st_uid)).names == ("jitted",)


def test_code_without_map_is_one_function(tmp_path, monkeypatch):
    image, _path = fake_process(tmp_path, monkeypatch)
    assert symbolizer.Symbolizer(image).frames(0x1010)[0].label == "[anonymous]"
