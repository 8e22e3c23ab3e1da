# SPDX-License-Identifier: Apache-2.0
"""Global variables and timer slack: present values, changes, and what a change leaves in connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.reversible import kinds
from powerprof.reversible.host_settings import HostFile
from powerprof.reversible.timer_slack import TimerSlack
from powerprof.system.errors import PowerprofError
from tests.conftest import Tree
from tests.unit.reversible.conftest import VariableServer, thread_files


def _file(tmp_path: Path, text: str, value: str = "new") -> tuple[HostFile, Path]:
    place = tmp_path / "setting"
    place.write_text(text)
    return HostFile("a setting", str(place), value), place


@pytest.mark.parametrize(
    ("now", "since", "after"),
    [
        ("new", "new", "old"),
        ("new", None, "old"),
        ("rounded", "rounded", "old"),
        ("other", "new", "other"),
        ("NEW", None, "old"),
        ("other", None, "other"),
        ("old", "new", "old"),
    ],
)
def test_a_change_is_reverted_unless_somebody_else_changed_it(
    tmp_path: Path, now: str, since: str | None, after: str
) -> None:
    setting, place = _file(tmp_path, now)
    place.chmod(0o600)
    kinds.AppliedChange(setting, "old", since).put_back()
    assert place.read_text() == after


def test_a_value_that_was_never_read_is_ours_unless_it_is_a_file(fake_tree: Tree) -> None:
    host = fake_tree(thread_files(77, slack="60001"))
    kinds.AppliedChange(TimerSlack(77, 4242, "60000"), "50000").put_back()
    assert (host / "proc/77/timerslack_ns").read_text() == "50000", "the kernel may round"


def test_a_value_that_does_not_return_is_an_error(server: VariableServer) -> None:
    server.values["max_connections"] = "200"
    server.moves["max_connections", "151"] = {"max_connections": "160"}
    with pytest.raises(PowerprofError, match="max_connections is 160 still"):
        kinds.AppliedChange(server.variable("max_connections", "200"), "151", "200").put_back()


def test_a_setting_that_has_ended_needs_no_restoration(fake_tree: Tree) -> None:
    fake_tree(thread_files(78, 4243))
    kinds.AppliedChange(TimerSlack(78, 4242, "60000"), "1", "60000").put_back()
    kinds.AppliedChange(TimerSlack(79, 4242, "60000"), "1", "60000").put_back()
