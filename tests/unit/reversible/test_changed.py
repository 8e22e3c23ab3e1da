# SPDX-License-Identifier: Apache-2.0
"""Settings that a keeper process changes for a block."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.reversible import journal
from powerprof.reversible.changed import ChangedSettings, change_temporarily
from powerprof.reversible.host_settings import HostFile
from powerprof.reversible.journal import SavedSetting
from powerprof.system.errors import PowerprofError


def _setting(tmp_path: Path, name: str, text: str, value: str) -> tuple[HostFile, Path]:
    place = tmp_path / name
    place.write_text(text)
    return HostFile(name, str(place), value), place


def _saved(setting: HostFile, before: str) -> SavedSetting:
    return SavedSetting(setting, before, os.getpid(), None)


def test_settings_have_their_value_in_the_block_and_the_old_one_after_it(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    (one, first), (two, second) = _setting(tmp_path, "one", "1", "5"), _setting(tmp_path, "two", "2", "6")
    with change_temporarily([_saved(one, "1"), _saved(two, "2")]) as changed:
        assert (first.read_text(), second.read_text()) == ("5", "6")
        assert changed.since == ["5", "6"]
        assert len(list(folders[0].iterdir())) == 1
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert changed.notes == [] and list(folders[0].iterdir()) == []


def test_a_setting_that_has_another_value_than_expected_stops_all_changes(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    (one, first), (two, second) = _setting(tmp_path, "one", "1", "5"), _setting(tmp_path, "two", "2", "6")
    with (
        pytest.raises(PowerprofError, match="two is 2, and was 3 before"),
        change_temporarily([_saved(one, "1"), _saved(two, "3")]),
    ):
        pytest.fail("the block is not entered")
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert list(folders[0].iterdir()) == []


def test_a_setting_that_cannot_be_changed_stops_all_changes(tmp_path: Path) -> None:
    one, first = _setting(tmp_path, "one", "1", "5")
    missing = HostFile("missing", str(tmp_path / "none"), "7")
    with pytest.raises(PowerprofError, match="no such file"), ChangedSettings([one, missing]):
        pytest.fail("the block is not entered")
    assert first.read_text() == "1"


def test_a_value_of_somebody_else_is_left_also_by_a_slow_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerprof.reversible.changed._END_S", 0.0)
    one, first = _setting(tmp_path, "one", "1", "5")
    with ChangedSettings([one]) as changed:
        first.write_text("8")
    assert first.read_text() == "8" and changed.notes == []


def test_after_a_killed_keeper_this_process_restores(tmp_path: Path) -> None:
    (one, first), (two, second) = _setting(tmp_path, "one", "1", "5"), _setting(tmp_path, "two", "2", "6")
    with ChangedSettings([one, two]) as changed:
        os.kill(changed._keeper.pid, signal.SIGKILL)
        changed._keeper.wait()
    assert (first.read_text(), second.read_text(), changed.notes) == ("1", "2", [])


def test_a_setting_that_stays_has_a_note_and_its_journal(
    tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerprof.reversible.changed._BACK_S", 0.0)
    one, first = _setting(tmp_path, "one", "1", "5")
    reason = r"one could not be put back to '1' \(cannot read .*/one \(is a directory\)\): echo 1 \| tee /.*/one$"
    with pytest.raises(PowerprofError, match=reason), change_temporarily([_saved(one, "1")]) as changed:
        os.kill(changed._keeper.pid, signal.SIGKILL)
        changed._keeper.wait()
        first.unlink()
        first.mkdir()
    assert len(list(folders[0].iterdir())) == 1


def test_each_group_of_files_has_a_note_and_no_other_file(
    tmp_path: Path, folders: tuple[Path, Path], refuse: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs 1, 2 and 5 refuse, CPU 3 is missing, CPU 4 has another user's value, and CPU 5 had another value before."""
    monkeypatch.setattr("powerprof.reversible.changed._BACK_S", 0.0)
    places = [tmp_path / f"cpu{cpu}/governor" for cpu in range(6)]
    for cpu, place in enumerate(places):
        place.parent.mkdir()
        place.write_text("teo" if cpu == 5 else "menu")
    saved = [_saved(HostFile("the governor", str(place), "ladder"), place.read_text()) for place in places]
    with pytest.raises(PowerprofError) as error, change_temporarily(saved) as changed:
        assert changed._keeper is not None
        os.kill(changed._keeper.pid, signal.SIGKILL)
        changed._keeper.wait()
        for cpu in (1, 2, 5):
            refuse(places[cpu])
        places[3].unlink()
        places[4].write_text("other")
    first, missing, last = changed.notes
    assert error.value.message == "; ".join(changed.notes)
    assert first.startswith("the governor on CPUs 1-2 could not be put back to 'menu' (the kernel refuses menu for ")
    assert first.endswith(f": echo menu | tee {places[1]} {places[2]}")
    assert missing == "the governor on CPU 3 is missing, and will be menu again when it is back"
    assert last.startswith("the governor on CPU 5 could not") and last.endswith(f": echo teo | tee {places[5]}")
    assert [places[cpu].read_text() for cpu in (0, 1, 2, 4, 5)] == ["menu", "ladder", "ladder", "other", "ladder"]
    (file,) = folders[0].iterdir()
    with file.open("rb") as content:
        assert journal._read_content(content.fileno())[1].left == [1, 2, 3, 5]
