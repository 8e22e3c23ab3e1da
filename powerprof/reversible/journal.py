# SPDX-License-Identifier: Apache-2.0
"""The journal of old values: the next start of powerprof restores settings if it and its keeper were killed.

Each powerprof has one file, which is locked (flock(2)) while that process or its keeper lives. The kernel releases the
lock at their end. The first line has the old values. The rest is the state, which the keeper overwrites in place. The
keeper writes the state to the disk before each change, and changes nothing if it cannot. After a torn state the next
start reads the settings. The state names the settings that are left: a setting that was restored is never looked at
again. A file that is missing (its CPU is offline) stays in the journal until it is back, or until a boot.

A new thread or server with an old number is left alone. Root's folder is in /run: a boot empties it, and those settings
end at a boot too. A setting that a boot keeps (a profile of TuneD) has its entry in a folder that a boot keeps.
Passwords are not written; those from an option file are read there again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.database.base import Login
from powerprof.database.option_files import read_password
from powerprof.reversible.groups import command_together, group_settings, name_together
from powerprof.reversible.host_settings import FileAway, HostFile, LatencyLimit, TunedProfile
from powerprof.reversible.kinds import AppliedChange, Setting, is_same_value
from powerprof.reversible.postgres_settings import PostgresSetting
from powerprof.reversible.timer_slack import TimerSlack, read_start_ticks
from powerprof.reversible.variables import Variable
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError, reason_of
from powerprof.system.files import try_text
from powerprof.system.folders import Folder, write_all

_SUFFIX = ".json"
_LIMIT_BYTES = 64 << 20
# Room for the state, and in it for the value of each setting. Hosts have thousands of files, with values of one word.
_ROOM_BYTES, _ROOM_OF_FILE_BYTES = 1024, 160


class SavedSetting(msgspec.Struct, frozen=True):
    """An entry of the journal: a setting that is to be changed, and its old value.

    Attributes:
        pid: the process; None on another host, whose server cannot be recognised later.
        started_ticks: the start of the process, since a later process may have its number.
        options: the option file that had the password.
        others: all global variables of the server before the change.
    """

    setting: Setting
    before: str
    pid: int | None
    started_ticks: int | None
    options: str | None = None
    others: dict[str, str] | None = None


class _Content(msgspec.Struct, frozen=True):
    """The first line of a journal: the settings, and the boot in which they were changed."""

    boot_id: str
    entries: list[SavedSetting]


class JournalState(msgspec.Struct, frozen=True):
    """The progress of the keeper.

    Attributes:
        left: the numbers of the settings that may not have their old value; None for all.
        since: the value of each setting as it reads after the change (ON may read 1); None if unknown.
    """

    left: list[int] | None = None
    since: list[str | None] | None = None


class Journal(Closeable):
    """The entries of one powerprof, which exist on the disk within the block.

    `open` raises PowerprofError if they cannot be written, or if another powerprof is changing one of the settings.
    Then nothing may be changed.

    Attributes:
        settled: all settings have their old values, so that the end of the block removes the entries.
    """

    def __init__(self, entries: Sequence[SavedSetting]) -> None:
        self.settled = False
        self._entries = [msgspec.structs.replace(e, setting=_without_password(e.setting)) for e in entries]
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"
        self._place = paths.changed_dir(outlasts=any(entry.setting.lasts == "always" for entry in entries))
        self._handle: int | None = None

    def _open(self) -> None:
        try:
            with paths.open_changed(self._place, make=True) as folder:
                handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX)  # The later of two sees the entries of the other.
                    _check_free(folder, self._entries)
                    content = msgspec.json.encode(_Content(_read_boot_id(), self._entries)) + b"\n"
                    content += _encode_state(JournalState(), _ROOM_BYTES + sum(map(_room_of, self._entries)))
                    if len(content) > _LIMIT_BYTES:  # The next start would not read it.
                        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                    self._handle = folder.create(self._name)
                    fcntl.flock(self._handle, fcntl.LOCK_EX)
                    write_all(self._handle, content)
                    os.fsync(self._handle)
                    os.fsync(handle)
                except OSError:
                    if self._handle is not None:  # It may be incomplete, so that the next start could not read it.
                        folder.remove(self._name)
                        os.close(self._handle)
                        self._handle = None
                    raise
                finally:
                    os.close(handle)
        except OSError as error:
            raise PowerprofError(
                f"cannot write down old values in {self._place} ({reason_of(error)}), so nothing is changed",
                "make room there, or give it back its owner and mode 0700",
            ) from error

    @property
    def handle(self) -> int:
        """The open file. While the keeper has it open, no other process restores the settings."""
        assert self._handle is not None  # noqa: S101  open
        return self._handle

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if self.settled:
            with suppress(OSError), paths.open_changed(self._place) as folder:
                folder.remove(self._name)
        os.close(handle)


def write_state(handle: int, state: JournalState) -> None:
    """Overwrite the state in an open journal and wait for the disk. Raise OSError.

    The space was written when the journal was opened, so this succeeds on a disk that has filled up since.
    """
    place = os.pread(handle, _LIMIT_BYTES, 0).find(b"\n") + 1
    data = _encode_state(state, os.fstat(handle).st_size - place)
    if not place or os.pwrite(handle, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle)


def _room_of(entry: SavedSetting) -> int:
    return _ROOM_OF_FILE_BYTES if isinstance(entry.setting, HostFile) else _ROOM_BYTES


def _read_boot_id() -> str:
    return try_text(paths.procfs() / "sys/kernel/random/boot_id") or ""


def _encode_state(state: JournalState, room: int) -> bytes:
    """Return the state in exactly `room` bytes, with a checksum that reveals a partial write."""
    text = msgspec.json.encode(state)
    if len(text) + 10 > room:
        text = msgspec.json.encode(JournalState(state.left))
    return b"%08x %s" % (zlib.crc32(text), text.ljust(room - 10) + b"\n")


def _parse_state(record: bytes, count: int) -> JournalState:
    """Return the state of `count` settings. A damaged record counts as the state before any report."""
    with suppress(msgspec.MsgspecError, ValueError):
        text = record[9:].rstrip()
        if int(record[:8], 16) == zlib.crc32(text):
            state = msgspec.json.decode(text, type=JournalState)
            if (state.since is None or len(state.since) == count) and set(state.left or ()) <= set(range(count)):
                return state
    return JournalState()


def _check_free(folder: Folder, wanted: Sequence[SavedSetting]) -> None:
    """Raise PowerprofError if one of these settings may have the temporary value of another powerprof.

    That would be taken for the old value. The other one is running, or was killed, and this start could not restore it.
    """
    wanted_names = {_identity(entry): entry.setting.name for entry in wanted}
    for name in folder.names():
        is_running, entries = _read_left(folder, name)
        for entry in entries:
            if (setting_name := wanted_names.get(_identity(entry))) is None:
                continue
            if is_running:
                raise PowerprofError(
                    f"another powerprof is trying {setting_name} now (process {name.partition('-')[0]}), so "
                    "nothing is changed",
                    "wait until it has ended",
                )
            raise PowerprofError(
                f"{setting_name} is not restored yet after a powerprof that was killed, so nothing is changed",
                "type the command again: each command restores it at its start, or prints the reason",
            )


def _open_file(folder: Folder, name: str) -> int | None:
    """Open a file of the journal by the descriptor of its folder, without following links; None if that fails."""
    with suppress(OSError):
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    return None


def _read_left(folder: Folder, name: str) -> tuple[bool, list[SavedSetting]]:
    """Return whether the powerprof or keeper of a file lives, and the settings that it may not have restored yet."""
    handle = _open_file(folder, name) if name.endswith(_SUFFIX) else None
    if handle is None:
        return False, []
    is_running = False
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_running = True
        entries, state, _ = _read_content(handle)
        return is_running, [entries[number] for number in _numbers_left(state, entries)]
    except (OSError, ValueError):
        return is_running, []
    finally:
        os.close(handle)


def _read_content(handle: int) -> tuple[list[SavedSetting], JournalState, bool]:
    """Return the entries of an open journal, its state, and whether it is of this boot. Raise OSError, ValueError."""
    first, _, record = os.pread(handle, _LIMIT_BYTES, 0).partition(b"\n")
    if not first:  # The writer was killed before it had changed anything.
        return [], JournalState(left=[]), True
    content = msgspec.json.decode(first, type=_Content)
    return content.entries, _parse_state(record, len(content.entries)), content.boot_id == _read_boot_id()


def _numbers_left(state: JournalState, entries: Sequence[SavedSetting]) -> list[int]:
    return list(range(len(entries))) if state.left is None else state.left


def _identity(entry: SavedSetting) -> tuple[object, ...]:
    """Return a key that is equal for the same setting of the same thread or server, whatever its value."""
    match entry.setting:
        case TimerSlack(tid=tid, started_ticks=ticks):
            return "timer_slack", tid, ticks
        case Variable(name=name, login=login):
            server_key = (login["host"], login["port"]) if entry.pid is None else entry.started_ticks
            return "variable", entry.pid, server_key, name.casefold()
        case PostgresSetting(name=name, folder=folder):
            return "postgres_setting", folder, name.casefold()
        case HostFile(path=path):
            return "host_file", os.path.realpath(path)  # CPUs of one policy have links to one file.
        case LatencyLimit() | TunedProfile():
            return (entry.setting.name,)


def restore_orphaned_settings() -> list[str]:
    """Restore the settings of each powerprof that was killed together with its keeper. Return lines for the user.

    Entries of a running powerprof are left alone. Errors become lines, because no command may fail by the end of
    another one.
    """
    messages: list[str] = []
    for place in paths.changed_dirs():
        try:
            with paths.open_changed(place) as folder:
                for name in folder.names():
                    if name.endswith(_SUFFIX):
                        messages += _restore_file(folder, name, place)
        except FileNotFoundError:
            continue
        except OSError as error:
            messages.append(f"{place} is not looked at ({reason_of(error)})")
    return messages


def _restore_file(folder: Folder, name: str, place: Path) -> list[str]:
    """Restore the settings of one file, and remove it if all are done. Return lines for the user."""
    handle = _open_file(folder, name)
    if handle is None:
        return []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink == 0:
            return []
        entries, state, is_of_this_boot = _read_content(handle)
        since = state.since or [None] * len(entries)
        # Restore the last change first: lowering innodb_io_capacity_max would lower innodb_io_capacity as well.
        numbers = sorted(_numbers_left(state, entries), reverse=True)
        outcomes = {number: _restore(entries[number], since[number], is_of_this_boot) for number in numbers}
        if left := [number for number, outcome in outcomes.items() if not outcome.is_done]:
            if len(left) < len(numbers):
                write_state(handle, JournalState(left, state.since))
        else:
            folder.remove(name)
        moved = [] if state.since else [line for number in numbers for line in _list_moved_variables(entries[number])]
        return [*_describe(entries, outcomes, place / name), *moved]
    except BlockingIOError:
        return []  # its powerprof is running
    except (OSError, ValueError) as error:
        return [f"{place / name} cannot be read ({error}): remove it"]
    finally:
        os.close(handle)


class _Outcome(msgspec.Struct, frozen=True):
    """The result of one entry at a start.

    Attributes:
        kind: `done` without a line; `away` without a line, and to be looked at again; the others are in `_describe`.
        now: the value that the setting had.
        reason: the failure.
    """

    kind: Literal["done", "away", "restored", "foreign", "unread", "stuck", "elsewhere"]
    now: str | None = None
    reason: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the entry is not looked at again."""
        return self.kind in ("done", "restored", "foreign")


def _restore(entry: SavedSetting, since: str | None, is_of_this_boot: bool) -> _Outcome:
    """Restore a setting."""
    setting = _with_password(entry)
    if entry.pid is None:
        return _Outcome("elsewhere")
    if setting.lasts == "process" and read_start_ticks(entry.pid) != entry.started_ticks:
        return _Outcome("done")  # the setting ended with its process
    if setting.lasts == "boot" and not is_of_this_boot:
        return _Outcome("done")
    if isinstance(setting, Variable):
        setting = msgspec.structs.replace(setting, pid=entry.pid, started_ticks=entry.started_ticks)
    now = None
    try:
        now = setting.read()
        if now in (None, entry.before):
            if isinstance(setting, PostgresSetting):
                setting.load()
            return _Outcome("done")
        if not (now == since or is_same_value(now or "", setting.value)):
            return _Outcome("foreign", now)
        AppliedChange(setting, entry.before, now).put_back()
    except FileAway:
        return _Outcome("away")
    except PowerprofError as error:
        return _Outcome("unread" if now is None else "stuck", now, error.message)
    return _Outcome("restored", now)


def _describe(entries: Sequence[SavedSetting], outcomes: Mapping[int, _Outcome], file: Path) -> list[str]:
    """Return a line for each group of settings with one old value and one result."""
    numbers = list(outcomes)
    keys = [(entries[number].before, outcomes[number].kind, outcomes[number].now) for number in numbers]
    lines = []
    for group in group_settings([entries[number].setting for number in numbers], keys):
        settings = [entries[numbers[index]].setting for index in group]
        entry, outcome = entries[numbers[group[0]]], outcomes[numbers[group[0]]]
        name, command = name_together(settings), command_together(settings, entry.before)
        by_hand = f"if it is not {entry.before!r}, {command}; then remove {file}"
        match outcome.kind:
            case "restored":
                lines.append(
                    f"{name} is {entry.before} again: a powerprof that was killed had left it at {outcome.now}"
                )
                if isinstance(entry.setting, Variable) and entry.setting.keeps_copies:
                    lines[-1] += "; connections that opened in between keep that value until they are closed"
            case "foreign":
                lines.append(
                    f"{name} is {outcome.now}, and somebody else's: it was {entry.before} before powerprof came"
                )
            case "unread":
                lines.append(
                    f"a powerprof that was killed had changed {name} to {entry.setting.value!r}, and what it is now "
                    f"cannot be read ({outcome.reason}): {by_hand}"
                )
            case "stuck":
                lines.append(
                    f"{name} was left at {entry.setting.value!r} by a powerprof that was killed, and cannot be put "
                    f"back ({outcome.reason}): {command}; then remove {file}"
                )
            case "elsewhere":
                lines.append(
                    f"a powerprof that was killed may have left {name} at {entry.setting.value!r} on another host, "
                    f"whose server cannot be recognised: {by_hand}"
                )
            case _:
                pass
    return lines


def _list_moved_variables(entry: SavedSetting) -> list[str]:
    """Return a line for each variable whose value differs from `entry.others`.

    This is for a powerprof that was killed before it had noted the variables that moved with `entry.setting`.
    """
    setting = _with_password(entry)
    if entry.others is None or entry.pid is None or not isinstance(setting, Variable):
        return []
    with suppress(PowerprofError):
        return [
            f"{name} is {now}, and was {was} before powerprof was killed while it changed {setting.name}: "
            f"if no other person set it, {Variable(setting.login, name, was).by_hand(was)}"
            for name, (was, now) in setting.moved_since(entry.others).items()
        ]
    return []


def _without_password(setting: Setting) -> Setting:
    if not isinstance(setting, Variable | PostgresSetting):
        return setting
    return msgspec.structs.replace(setting, login={**setting.login, "password": ""})


def _with_password(entry: SavedSetting) -> Setting:
    """Return the setting with the present password: that of its option file, read with the rights of the caller.

    PostgreSQL's is in the environment. The login accepts only the process of the server (`PostgresSetting`).
    """
    setting = entry.setting
    if isinstance(setting, PostgresSetting):
        return msgspec.structs.replace(setting, login={**setting.login, "password": os.environ.get("PGPASSWORD", "")})
    if entry.options is None or not isinstance(setting, Variable) or setting.login.get("password"):
        return setting
    with suppress(PowerprofError, OSError):
        password = read_password(Path(entry.options), Login.from_fields(setting.login).account)
        return msgspec.structs.replace(setting, login={**setting.login, "password": password})
    return setting
