# SPDX-License-Identifier: Apache-2.0
"""Names of frames from the sources of a file: debug files, debuginfod and the cache."""

from __future__ import annotations

import shutil

import pytest

from powerprof.stacks.elf import parse_elf
from powerprof.stacks.image import snapshot
from powerprof.stacks.registers import SavedStack
from powerprof.stacks.store import TableStore, decode_tables
from powerprof.stacks.symbolizer import Frame, Symbolizer
from powerprof.stacks.unwind import Unwinder
from powerprof.system.errors import DataError
from powerprof.system.programs import run
from tests.programs.ground_truth import running
from tests.programs.ptracing import capture, wait_asleep
from tests.programs.web import Web


def test_unnamed_frame_is_labelled_by_address():
    assert Frame(None, "mariadbd", 0x1000, 5, 0x6E0F80).label == "mariadbd+0x6e0f80"
    assert Frame(None, "mariadbd", 0x1000, None, None, vaddr=0x77).label == "mariadbd+0x77"


def split(program, directory):
    """(stripped program, its debug file) in `directory`."""
    directory.mkdir()
    stripped, debug = directory / "split", directory / "split.debug"
    run(["objcopy", "--only-keep-debug", program, debug])
    run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped])
    return stripped, debug


def names_of(program):
    with running(program) as info:
        tid = info["threads"]["poll"]["tid"]
        wait_asleep(info["pid"], tid)
        image = snapshot(info["pid"])
        result = Unwinder().unwind(image, SavedStack(info["pid"], tid, *capture(info["pid"], tid)))
        return [frame.function for frame in Symbolizer(image).stack(result) if frame.module == "split"]


CHAIN = ["wait_poll", "poll_level2", "poll_level1", "poll_thread"]


def test_linked_debug_file_is_used_if_its_checksum_matches(built, tmp_path):
    stripped, debug = split(built("sleepers"), tmp_path / "d")
    assert names_of(stripped) == CHAIN
    hidden = debug.parent / ".debug"
    hidden.mkdir()
    shutil.move(debug, hidden / debug.name)
    assert names_of(stripped) == CHAIN
    with (hidden / debug.name).open("ab") as file:
        file.write(b"changed")
    assert names_of(stripped) == [None] * 4


def test_debuginfod_is_queried_once_per_build_id(built, tmp_path, monkeypatch):
    stripped, debug = split(built("sleepers"), tmp_path / "d")
    data = debug.read_bytes()
    debug.unlink()
    build_id = parse_elf(stripped.read_bytes(), "x").build_id
    place = f"/buildid/{build_id}/debuginfo"
    with Web() as web:
        web.answers[place] = (200, data)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("DEBUGINFOD_URLS", f"file:///etc {web.address}/")
        assert names_of(stripped) == CHAIN
        before = len(web.requested)
        assert names_of(stripped) == CHAIN
    assert web.requested.count(place) == 1
    # What no server has is not asked for again either.
    assert len(web.requested) == before


def test_damaged_cache_files_are_rewritten(built, own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with running(built("sleepers")) as info:
        image = snapshot(info["pid"])
        mapping = next(one for one in image.mappings if one.module == "sleepers")
        first = TableStore().tables(image, mapping)
        (cached,) = (tmp_path / "powerprof/symbols").glob(f"{mapping.build_id}*")
        assert cached.stat().st_mode & 0o777 == 0o600
        assert cached.parent.stat().st_mode & 0o777 == 0o700
        assert decode_tables(cached.read_bytes(), cached) == first
        for damage in (b"", b"junk", cached.read_bytes()[:-7]):
            cached.write_bytes(damage)
            with pytest.raises(DataError):
                decode_tables(damage, cached)
            assert TableStore().tables(image, mapping) == first
