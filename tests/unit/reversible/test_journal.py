# SPDX-License-Identifier: Apache-2.0
"""The journal of old values, and the restorations of the next start."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.database.base import Login
from powerprof.reversible import journal
from powerprof.reversible.host_settings import HostFile, LatencyLimit, TunedProfile
from powerprof.reversible.journal import Journal, JournalState, SavedSetting, restore_orphaned_settings, write_state
from powerprof.reversible.kinds import Setting, is_same_value
from powerprof.reversible.timer_slack import TimerSlack
from powerprof.reversible.variables import Variable
from powerprof.system.errors import PowerprofError
from tests.conftest import Tree
from tests.unit.reversible.conftest import VariableServer, thread_files


def _file(place: Path, now: str, value: str, before: str) -> SavedSetting:
    place.write_text(now)
    return SavedSetting(HostFile(place.name, str(place), value), before, os.getpid(), None)


def _kill(entries: list[SavedSetting], state: JournalState | None = None) -> Path:
    """Leave the journal of a powerprof that was killed together with its keeper. Return its file."""
    killed = Journal(entries)
    killed._open()
    if state is not None:
        write_state(killed.handle, state)
    os.close(killed.handle)
    killed._handle = None
    return killed._place / killed._name


def test_settings_of_a_killed_process_are_restored_last_first(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    place = tmp_path / "setting"
    # The kernel rounds 20 to 2, and 30 to 3.
    entries = [_file(place, "3", "20", "1"), _file(place, "3", "30", "2")]
    file = _kill(entries, JournalState(since=["2", "3"]))
    lines = restore_orphaned_settings()
    assert lines == [
        f"setting is {before} again: a powerprof that was killed had left it at {now}"
        for before, now in (("2", "3"), ("1", "2"))
    ]
    assert place.read_text() == "1" and not file.exists()
    assert restore_orphaned_settings() == []


@pytest.mark.parametrize(
    ("now", "since", "restored"),
    [
        ("5", "5", True),
        ("5", None, True),
        ("8", "8", True),  # The kernel rounded the 5.
        ("5.000", None, True),
        ("8", "7", False),
        ("8", None, False),
        ("ON", "1", False),
    ],
)
def test_only_an_own_value_is_restored(
    tmp_path: Path, folders: tuple[Path, Path], now: str, since: str | None, restored: bool
) -> None:
    place = tmp_path / "setting"
    file = _kill([_file(place, now, "5", "1")], None if since is None else JournalState(since=[since]))
    (line,) = restore_orphaned_settings()
    assert place.read_text() == ("1" if restored else now)
    assert ("somebody else's: it was 1" in line) is not restored
    assert not file.exists()


def test_a_setting_with_its_old_value_needs_no_line(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    file = _kill([_file(tmp_path / "setting", "1", "5", "1")], JournalState(since=["5"]))
    assert restore_orphaned_settings() == [] and not file.exists()


@pytest.mark.parametrize("ticks", [4242, 4243])
def test_slack_of_a_later_thread_is_left(fake_tree: Tree, folders: tuple[Path, Path], ticks: int) -> None:
    host = fake_tree(thread_files(77, ticks, slack="60000"))
    file = _kill([SavedSetting(TimerSlack(77, 4242, "60000"), "50000", 77, 4242)], JournalState(since=["60000"]))
    assert len(restore_orphaned_settings()) == (ticks == 4242)
    assert (host / "proc/77/timerslack_ns").read_text() == ("50000" if ticks == 4242 else "60000")
    assert not file.exists()


def test_settings_that_a_boot_resets_are_in_the_first_folder(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    entries = [_file(tmp_path / "x", "1", "2", "1"), SavedSetting(TunedProfile("b"), "a", 1, None)]
    assert Journal(entries[:1])._place == folders[0]
    assert Journal(entries)._place == Journal(entries[::-1])._place == folders[1]
    assert Journal([SavedSetting(LatencyLimit("1"), "none", 1, None)])._place == folders[0]


def test_a_settled_journal_changes_nothing(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    place = tmp_path / "setting"
    file = _kill([_file(place, "5", "5", "1")], JournalState(left=[]))
    assert restore_orphaned_settings() == [] and not file.exists()
    assert place.read_text() == "5", "another user set it later"


@pytest.mark.parametrize("settled", [True, False])
def test_the_end_of_a_block_removes_a_settled_journal(
    tmp_path: Path, folders: tuple[Path, Path], settled: bool
) -> None:
    place = tmp_path / "setting"
    with Journal([_file(place, "5", "5", "1")]) as open_journal:
        assert [oct(path.stat().st_mode)[-3:] for path in (folders[0], *folders[0].iterdir())] == ["700", "600"]
        assert restore_orphaned_settings() == [], "its powerprof runs"
        open_journal.settled = settled
    assert (list(folders[0].iterdir()) == []) is settled
    assert len(restore_orphaned_settings()) == (not settled)
    assert place.read_text() == ("5" if settled else "1")


def test_a_journal_stays_until_each_setting_is_restored(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    entries = [_file(tmp_path / name, "5", "5", "1") for name in ("one", "two", "three")]
    for name in ("one", "three"):
        (tmp_path / name).unlink()
    (tmp_path / "three").mkdir()
    file = _kill(entries, JournalState(since=["5", "5", "5"]))
    size = file.stat().st_size
    unread, restored = restore_orphaned_settings()
    assert restored.startswith("two is 1 again") and "cannot be read (cannot read" in unread and str(file) in unread
    assert (tmp_path / "two").read_text() == "1" and file.stat().st_size == size
    (tmp_path / "two").write_text("5")  # another user's, from now on
    assert restore_orphaned_settings() == [unread], "a missing file has no line"
    (tmp_path / "one").write_text("5")
    (tmp_path / "three").rmdir()
    assert restore_orphaned_settings() == ["one is 1 again: a powerprof that was killed had left it at 5"]
    assert restore_orphaned_settings() == [] and file.exists()
    (tmp_path / "three").write_text("8")
    (foreign,) = restore_orphaned_settings()
    assert foreign.startswith("three is 8, and somebody else's") and not file.exists()
    assert (tmp_path / "two").read_text() == "5"


def test_a_boot_ends_the_settings_of_the_host(
    fake_tree: Tree, tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = fake_tree({"proc/sys/kernel/random/boot_id": "first\n"})
    monkeypatch.setattr(TunedProfile, "read", lambda _: "balanced")
    file = _kill([_file(tmp_path / "x", "5", "5", "1"), SavedSetting(TunedProfile("b"), "balanced", 1, None)])
    (host / "proc/sys/kernel/random/boot_id").write_text("second\n")
    assert restore_orphaned_settings() == [] and not file.exists()
    assert (tmp_path / "x").read_text() == "5"


@pytest.mark.parametrize("is_running", [True, False])
def test_a_value_that_a_journal_may_have_left_is_no_old_value(
    tmp_path: Path, folders: tuple[Path, Path], is_running: bool
) -> None:
    """CPU 1 was away at the start of the later powerprof, and is back when that reads the old values."""
    entries = [_file(tmp_path / name, "5", "5", "1") for name in ("one", "two")]
    first = Journal(entries)
    first._open()
    write_state(first.handle, JournalState(left=[1], since=["5", "5"]))
    if not is_running:
        os.close(first.handle)
        first._handle = None
    with Journal(entries[:1]) as restored:
        restored.settled = True
    with pytest.raises(PowerprofError, match="trying two now" if is_running else "two is not restored yet"):
        Journal(entries)._open()
    first.settled = True
    first.close()


def test_a_journal_that_no_start_would_read_is_refused(
    tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [_file(tmp_path / "x", "1", "5", "1")] * 5000
    _kill(many, JournalState(left=[4999], since=["powersave"] * 5000))
    assert next(folders[0].iterdir()).stat().st_size > 1 << 20
    assert restore_orphaned_settings() == [] and list(folders[0].iterdir()) == []
    monkeypatch.setattr(journal, "_LIMIT_BYTES", 2000)
    with pytest.raises(PowerprofError, match=r"cannot write down old values in .* \(file too large\), so nothing is"):
        Journal([_file(tmp_path / "x", "1", "5", "y" * 1000)])._open()
    assert list(folders[0].iterdir()) == []


def test_a_server_of_another_host_is_left_to_a_person(server: VariableServer, folders: tuple[Path, Path]) -> None:
    setting = server.variable("sync_binlog", "7", pid=None, started_ticks=None)
    file = _kill([SavedSetting(setting, "1", None, None)])
    (line,) = restore_orphaned_settings()
    assert "another host" in line and "SET GLOBAL sync_binlog = 1" in line and file.exists()
    assert server.values["sync_binlog"] == "1"


@pytest.mark.parametrize("keeps_copies", [True, False])
def test_a_variable_is_restored_in_its_server(
    server: VariableServer, folders: tuple[Path, Path], keeps_copies: bool
) -> None:
    server.values["flush"] = "1"
    setting = server.variable("flush", "ON", pid=None, started_ticks=None, keeps_copies=keeps_copies)
    _kill([SavedSetting(setting, "0", 77, 4242)])
    (line,) = restore_orphaned_settings()
    assert server.values["flush"] == "0"
    assert line.startswith("flush is 0 again: a powerprof that was killed had left it at 1")
    assert line.endswith("until they are closed") is keeps_copies


@pytest.mark.parametrize("since", [None, ["7"]])
def test_variables_that_moved_are_named_if_the_change_was_not_finished(
    server: VariableServer, folders: tuple[Path, Path], since: list[str | None] | None
) -> None:
    others = dict(server.values)
    server.values |= {"sync_binlog": "7", "max_connections": "200"}
    entry = SavedSetting(server.variable("sync_binlog", "7"), "1", 77, 4242, others=others)
    _kill([entry], JournalState(since=since))
    first, *moved = restore_orphaned_settings()
    assert first.startswith("sync_binlog is 1 again")
    line = "max_connections is 200, and was 151 before powerprof was killed while it changed sync_binlog: "
    expected = [f"{line}if no other person set it, SET GLOBAL max_connections = 151"]
    assert moved == ([] if since else expected)


_TEXTS = st.none() | st.text(max_size=40)
_STATES = st.builds(
    JournalState,
    st.none() | st.lists(st.integers(0, 2), max_size=3),
    st.none() | st.lists(_TEXTS, min_size=3, max_size=3),
)


@given(_STATES, st.integers(60, 600))
def test_a_state_fills_its_room_and_is_read_again(state: JournalState, room: int) -> None:
    record = journal._encode_state(state, room)
    assert len(record) == room
    fits = len(msgspec.json.encode(state)) + 10 <= room
    assert journal._parse_state(record, 3) == (state if fits else JournalState(state.left))


@given(_STATES, st.data())
def test_a_torn_state_is_no_report(state: JournalState, data: st.DataObject) -> None:
    record = bytearray(journal._encode_state(state, 900))
    text = record[9:].rstrip()
    at = data.draw(st.integers(9, 8 + len(text)))
    record[at] ^= data.draw(st.integers(1, 255))
    assert journal._parse_state(bytes(record), 3) == JournalState()
    # Earlier versions had one line per state.
    assert journal._parse_state(b'{"settled":false}\n{"settled":true}\n', 0) == JournalState()
    assert journal._parse_state(b"", 0) == journal._parse_state(bytes(900), 0) == JournalState()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_state_is_that_of_all_settings(count: int) -> None:
    state = JournalState([1], ["7", None])
    assert journal._parse_state(journal._encode_state(state, 100), count) == (state if count == 2 else JournalState())
    beyond = JournalState([count])
    assert journal._parse_state(journal._encode_state(beyond, 100), count) == JournalState()


def test_a_state_has_room_for_each_setting(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    entries = [SavedSetting(TimerSlack(tid, 1, "5"), "5", tid, 1) for tid in (1, 2)]
    entries += [_file(tmp_path / str(number), "5", "5", "1") for number in range(100)]
    since: list[str | None] = ["x" * 1000, "y" * 1000, *["z" * 64] * 100]
    state = JournalState(list(range(102)), since)
    first, _, record = _kill(entries, state).read_bytes().partition(b"\n")
    assert msgspec.json.decode(first, type=journal._Content).entries == entries
    assert len(record) == 3 * 1024 + 100 * 160 and journal._parse_state(record, 102) == state


def _variable(name: str, host: str, port: int, pid: int | None, ticks: int | None, before: str = "1") -> SavedSetting:
    return SavedSetting(Variable(Login(user="u", host=host, port=port).to_fields(), name, "7"), before, pid, ticks)


def _same(setting: Setting, other: Setting) -> tuple[SavedSetting, SavedSetting]:
    return SavedSetting(setting, "4", 77, 1), SavedSetting(other, "5", 78, 2)


# Settings that are all different, each with the same setting under other values.
_SETTINGS = [
    _same(TimerSlack(77, 1, "5"), TimerSlack(77, 1, "6")),
    _same(TimerSlack(77, 2, "5"), TimerSlack(77, 2, "6")),
    _same(TimerSlack(78, 1, "5"), TimerSlack(78, 1, "6")),
    (_variable("x", "h", 1, None, None), _variable("X", "h", 1, None, None, "2")),
    (_variable("x", "h", 2, None, None), _variable("x", "h", 2, None, None)),
    (_variable("x", "g", 1, None, None), _variable("x", "g", 1, None, None)),
    (_variable("y", "h", 1, None, None), _variable("y", "h", 1, None, None)),
    (_variable("x", "h", 1, 77, 1), _variable("x", "other", 9, 77, 1)),
    (_variable("x", "h", 1, 77, 2), _variable("x", "h", 1, 77, 2)),
    _same(HostFile("a", "/a", "5"), HostFile("b", "/a", "6")),
    _same(HostFile("a", "/b", "5"), HostFile("a", "/x/../b", "6")),
    _same(LatencyLimit("5"), LatencyLimit("6")),
    _same(TunedProfile("a"), TunedProfile("c")),
]


def test_a_setting_is_known_whatever_its_value() -> None:
    keys = [tuple(map(journal._identity, pair)) for pair in _SETTINGS]
    assert all(one == other for one, other in keys)
    assert len({one for one, _ in keys}) == len(_SETTINGS)


def test_a_setting_that_another_powerprof_changes_is_refused(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    one, two = _file(tmp_path / "one", "1", "5", "1"), _file(tmp_path / "two", "2", "6", "2")
    with Journal([one]) as first:
        with pytest.raises(PowerprofError, match=rf"another powerprof is trying one now \(process {os.getpid()}\)"):
            Journal([two, one])._open()
        with Journal([two]) as second:
            second.settled = True
        first.settled = True
    with Journal([one, two]) as third:
        third.settled = True


def test_passwords_are_not_written_and_are_read_again(
    tmp_path: Path, folders: tuple[Path, Path], server: VariableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tmp_path / "my.cnf"
    options.write_text("[client]\npassword=later\n")
    entries = [SavedSetting(server.variable("flush", "1"), "0", 77, 4242, str(options))]
    text = _kill(entries).read_bytes()
    assert b"s3cret" not in text and b"later" not in text and b'"user":"u"' in text
    stored = msgspec.json.decode(text.partition(b"\n")[0], type=journal._Content).entries
    for entry, given_entry in zip(stored, entries, strict=True):
        assert journal._with_password(entry).login["password"] == "later"  # type: ignore[union-attr]
        assert journal._with_password(given_entry) == given_entry.setting, "it has its password"
        without = msgspec.structs.replace(entry, options=None)
        assert journal._with_password(without) == entry.setting


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *[(text, "1", True) for text in ("ON", "true", " yes ", "1", "1.0")],
        *[(text, "0", True) for text in ("OFF", "False", "no", "0.000")],
        ("ON", "0", False),
        ("no", "1", False),
        ("0.5", "0.500000", True),
        ("0.5", "0.50001", False),
        ("Performance", "performance", True),
        ("performance", "powersave", False),
    ],
)
def test_texts_of_one_value_are_the_same(one: str, other: str, same: bool) -> None:
    assert is_same_value(one, other) is is_same_value(other, one) is same


@pytest.mark.parametrize("content", [b"nonsense\n", b'[{"setting": 1}]\n', b"\xff\xfe\n"])
def test_an_unreadable_journal_is_a_line(folders: tuple[Path, Path], content: bytes) -> None:
    folders[0].mkdir(mode=0o700, parents=True)
    (folders[0] / "1-x.json").write_bytes(content)
    (folders[0] / "other").write_bytes(content)
    (line,) = restore_orphaned_settings()
    assert line.startswith(f"{folders[0]}/1-x.json cannot be read")
    (folders[0] / "1-x.json").write_bytes(b"")
    assert restore_orphaned_settings() == []
    assert [path.name for path in folders[0].iterdir()] == ["other"]
