# SPDX-License-Identifier: Apache-2.0
"""The keeper: the order of restorations, new tries, and the values that settings must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerprof.reversible import keeper
from powerprof.reversible.events import EventAltered
from powerprof.reversible.host_settings import HostFiles
from powerprof.reversible.keeper import restore_all
from powerprof.reversible.kinds import AppliedChange
from powerprof.system.errors import PowerprofError


def _file(place: Path, value: str) -> HostFiles:
    return HostFiles(place.name, [str(place)], value)


def test_the_last_change_is_restored_first(tmp_path: Path) -> None:
    place = tmp_path / "setting"
    place.write_text("3")
    changes = [AppliedChange(_file(place, "2"), "1", "2"), AppliedChange(_file(place, "3"), "2", "3")]
    assert restore_all(changes, 60.0) == {}
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
    assert restore_all(changes, 60.0) == {}
    assert [change.tries for change in changes] == [1, 3, 1]
    assert pauses_s == [0.5, 0.5]


def test_the_last_reason_of_each_failure_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(keeper.time, "sleep", lambda pause_s: now_s.append(now_s[-1] + pause_s))
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now_s[-1])
    changes: list[Any] = [_Change(*[PowerprofError(f"try {number}") for number in range(9)]), _Change()]
    # Tries at 0, 0.5, 1 and 1.5 s; then more than 1.25 s have passed.
    assert restore_all(changes, 1.25) == {0: "try 3"}
    assert [change.tries for change in changes] == [4, 1]


def test_an_altered_event_is_left_and_its_reason_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper.time, "sleep", lambda _: pytest.fail("nothing is left to try"))
    changes: list[Any] = [_Change(EventAltered("another body")), _Change()]
    assert restore_all(changes, 60.0) == {0: "another body"}
    assert changes[0].tries == 1


def test_a_setting_that_somebody_else_set_is_refused(tmp_path: Path) -> None:
    settings: list[Any] = [_file(tmp_path / "one", "9"), _file(tmp_path / "two", "9")]
    keeper._check_expected(settings, ["1", "2"], ["1", "2"])
    with pytest.raises(PowerprofError, match=r"two is 3, and was 2 before: somebody else has set it"):
        keeper._check_expected(settings, ["1", "3"], ["1", "2"])
