# SPDX-License-Identifier: Apache-2.0
"""The keeper: the order of restorations, new tries, and the values that settings must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerprof.reversible import keeper
from powerprof.reversible.host_settings import HostFile
from powerprof.reversible.keeper import KeeperOrder, Restoration
from powerprof.reversible.kinds import AppliedChange
from powerprof.system.errors import PowerprofError


def _run(changes: list[Any], patience_s: float = 60.0) -> Restoration:
    restoration = Restoration(changes)
    restoration.run(patience_s)
    return restoration


def _file(place: Path, value: str) -> HostFile:
    return HostFile(place.name, str(place), value)


def test_the_last_change_is_restored_first(tmp_path: Path) -> None:
    place = tmp_path / "setting"
    place.write_text("3")
    changes = [AppliedChange(_file(place, "2"), "1", "2"), AppliedChange(_file(place, "3"), "2", "3")]
    assert _run(changes).left == []
    assert place.read_text() == "1"


class _Change:
    """A change that can be restored after some failures."""

    def __init__(self, *failures: PowerprofError) -> None:
        self.failures = list(failures)
        self.tries = 0

    def put_back(self) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)


def test_a_failed_restoration_is_tried_again_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr(keeper.time, "sleep", pauses_s.append)
    changes: list[Any] = [_Change(), _Change(PowerprofError("busy"), PowerprofError("full")), _Change()]
    restoration = _run(changes)
    assert (restoration.left, restoration.reasons) == ([], {})
    assert [change.tries for change in changes] == [1, 3, 1]
    assert pauses_s == [0.5, 0.5]


def test_the_last_reason_of_each_failure_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(keeper.time, "sleep", lambda pause_s: now_s.append(now_s[-1] + pause_s))
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now_s[-1])
    changes: list[Any] = [_Change(*[PowerprofError(f"try {number}") for number in range(9)]), _Change()]
    # Tries at 0, 0.5, 1 and 1.5 s; then more than 1.25 s have passed.
    restoration = _run(changes, 1.25)
    assert (restoration.reasons, restoration.left, restoration.missing) == ({0: "try 3"}, [0], [])
    assert [change.tries for change in changes] == [4, 1]


def test_a_setting_that_somebody_else_set_is_refused(tmp_path: Path) -> None:
    settings: list[Any] = [_file(tmp_path / "one", "9"), _file(tmp_path / "two", "9")]
    keeper._check_expected(settings, ["1", "2"], ["1", "2"])
    with pytest.raises(PowerprofError, match=r"two is 3, and was 2 before: somebody else has set it"):
        keeper._check_expected(settings, ["1", "3"], ["1", "2"])


def test_a_file_that_somebody_sets_during_the_change_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_file(tmp_path / name, "7") for name in ("one", "two", "three")]
    for file in files:
        Path(file.path).write_text("2")
    write = HostFile.write
    answers: list[Any] = []

    def write_one(self: HostFile, value: str) -> str | None:
        if self.name == "one" and value == "7":
            (tmp_path / "two").write_text("9")
        return write(self, value)

    monkeypatch.setattr(HostFile, "write", write_one)
    monkeypatch.setattr(keeper, "_answer", answers.append)
    keeper.keep(KeeperOrder([*files], ["2"] * 3), None, lambda: pytest.fail("the change has failed"))
    assert [Path(file.path).read_text() for file in files] == ["2", "9", "2"]
    refused, last = answers[1], answers[-1]
    assert refused.error == "two is 9, and was 2 before: somebody else has set it, and it is left as it is"
    assert last.is_last and last.left == {} and last.missing == []


def test_missing_files_alone_are_not_waited_for_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def bring_back(pause_s: float) -> None:
        pauses.append(pause_s)
        (tmp_path / "one").write_text("7")

    monkeypatch.setattr(keeper.time, "sleep", bring_back)
    (tmp_path / "two").write_text("7")
    reports: list[list[int]] = []
    changes = [AppliedChange(_file(tmp_path / name, "7"), "2", "7") for name in ("one", "two")]
    restoration = Restoration(changes, lambda progress: reports.append(progress.left))
    restoration.run(60.0)
    assert (restoration.missing, restoration.reasons, pauses) == ([0], {}, [])
    restoration.run(60.0, waits_for_files=True)
    assert (restoration.missing, reports, len(pauses)) == ([], [[0], []], 1)
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["2", "2"]
