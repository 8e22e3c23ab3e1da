# SPDX-License-Identifier: Apache-2.0
"""Settings that a keeper process changes for a block."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from powerprof.reversible.changed import ChangedSettings, change_temporarily
from powerprof.reversible.host_settings import HostFiles
from powerprof.reversible.journal import SavedSetting
from powerprof.system.errors import PowerprofError


def _setting(tmp_path: Path, name: str, text: str, value: str) -> tuple[HostFiles, Path]:
    place = tmp_path / name
    place.write_text(text)
    return HostFiles(name, [str(place)], value), place


def _saved(setting: HostFiles, before: str) -> SavedSetting:
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
    missing = HostFiles("missing", [str(tmp_path / "none")], "7")
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
    reason = r"one could not be put back to '1' \(.*no such file.*\): echo 1 \| tee"
    with pytest.raises(PowerprofError, match=reason), change_temporarily([_saved(one, "1")]) as changed:
        os.kill(changed._keeper.pid, signal.SIGKILL)
        changed._keeper.wait()
        first.unlink()
    assert len(list(folders[0].iterdir())) == 1
