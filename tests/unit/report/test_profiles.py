# SPDX-License-Identifier: Apache-2.0
"""A profile of each minute: its sum is the host's, and nobody else's file is touched or believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from powerprof.live.intervals import LiveInterval
from powerprof.report.pprof import ProfileFolder
from powerprof.system.errors import PowerprofError
from powerprof.system.folders import Folder
from tests.unit.live.intervals import interval, row
from tests.unit.report.test_stack_exports import decoded


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """One that is ours alone: for root no one below a folder of everybody's that is not sticky."""
    made = tmp_path / "profiles"
    made.mkdir(mode=0o755)
    return made


def at(second: int, one: LiveInterval) -> LiveInterval:
    stamp = f"2026-11-22T08:{second // 60:02}:{second % 60:02}.500Z"
    return msgspec.structs.replace(one, ended_at=stamp)


def named(profiles: Path) -> list[str]:
    return sorted(path.name for path in profiles.iterdir())


def test_a_minute_is_a_file_whose_sum_is_the_hosts(folder: Path) -> None:
    deep = msgspec.structs.replace(row("poll", 3, 0.5), stack=("poll", "wait_for_data", "handle_connection"))
    said: list[str] = []
    with ProfileFolder(folder, said.append) as profiles:
        for number in range(1, 7):
            profiles.add(at(10 * number, interval(deep, row("page_cleaner", 2, 0.25), untraced=4)))
        assert named(folder) == ["powerprof-20261122T080100Z.pb.gz"]
        profiles.add(at(70, interval(deep)))
    assert (named(folder), said) == (["powerprof-20261122T080100Z.pb.gz"], [])
    path = folder / named(folder)[0]
    types, samples = decoded(path.read_bytes())
    assert types == [("idle_exits", "count"), ("c0", "nanoseconds")]
    found = dict(samples)
    key = deep.key
    assert found[("poll", "wait_for_data", "handle_connection", key.thread, key.process)] == [18, 3 * 10**9]
    assert found[("other",)][0] == 24
    assert sum(values[0] for values in found.values()) == 6 * 9
    assert path.stat().st_mode & 0o777 == 0o640


def test_only_the_newest_are_kept_and_what_is_not_ours_stays(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with ProfileFolder(folder, lambda _: None, kept=3, every_s=10.0) as profiles:
        for number in range(1, 8):
            profiles.add(at(10 * number, interval(row("poll", 1))))
    assert named(folder) == [
        "notes.txt",
        "powerprof-20261122T080050Z.pb.gz",
        "powerprof-20261122T080100Z.pb.gz",
        "powerprof-20261122T080110Z.pb.gz",
    ]


def test_a_clock_that_is_set_back_costs_old_profiles_not_new_ones(folder: Path) -> None:
    with ProfileFolder(folder, lambda _: None, kept=3, every_s=10.0) as profiles:
        for second in (600, 610, 620, 10, 20):
            profiles.add(at(second, interval(row("poll", 1), window_s=10.0)))
        assert named(folder) == [f"powerprof-20261122T08{stamp}Z.pb.gz" for stamp in ("0010", "0020", "1020")]


def test_a_disk_that_is_full_is_said_once_and_measuring_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    full, write = [True], Folder.write

    def maybe(self: Folder, name: str, data: bytes, mode: int = 0o600) -> None:
        if full[0]:
            raise OSError(28, os.strerror(28))
        write(self, name, data, mode)

    monkeypatch.setattr(Folder, "write", maybe)
    with ProfileFolder(folder, said.append, every_s=10.0) as profiles:
        for number in range(1, 4):
            profiles.add(at(10 * number, interval(row("poll", 1))))
        full[0] = False
        profiles.add(at(40, interval(row("poll", 1))))
    assert said == [f"cannot write a profile to {folder} (no space left on device)"]
    assert named(folder) == ["powerprof-20261122T080040Z.pb.gz"]


def test_a_folder_that_others_may_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(PowerprofError, match=r"cannot write profiles to .*others .*may write to"):
        ProfileFolder(folder, lambda _: None)
    with pytest.raises(PowerprofError, match="no such file"):
        ProfileFolder(folder / "missing", lambda _: None)


def test_root_takes_no_folder_of_somebody_elses(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(PowerprofError, match="belongs to user 65534"):
        ProfileFolder(theirs, lambda _: None)
