# SPDX-License-Identifier: Apache-2.0
"""The journal of old values: the next start of powerprof restores settings if it and its keeper were killed.

Each powerprof has one file, which is locked (flock(2)) while that process or its keeper lives. The kernel releases the
lock at their end. The first line has the old values. The rest is the state, which the keeper overwrites in place. The
keeper writes the state to the disk before each change, and changes nothing if it cannot. After a torn state the next
start reads the settings.

A new thread or server with an old number is left alone. Root's folder is in /run: a boot empties it, and those settings
end at a boot too. A setting on the server's disk (an event) is restored in the server's next process, and its entry is
in a folder that a boot keeps. Passwords are not written; those from an option file are read there again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from powerprof.database.base import Login
from powerprof.database.given import read_password
from powerprof.reversible.events import Event
from powerprof.reversible.host_settings import HostFiles, LatencyLimit, TunedProfile
from powerprof.reversible.kinds import AppliedChange, Setting, TimerSlack, Variable, read_start_ticks
from powerprof.system import paths
from powerprof.system.closeable import Closeable
from powerprof.system.errors import PowerprofError
from powerprof.system.files import reason_of
from powerprof.system.folders import Folder, write_all

_SUFFIX = ".json"
_LIMIT_BYTES = 1 << 20
_ROOM_BYTES = 1024  # for the state: the value of each setting, and the rest
_FALSE, _TRUE = ("off", "false", "no"), ("on", "true", "yes")


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


class JournalState(msgspec.Struct, frozen=True):
    """The progress of the keeper.

    Attributes:
        settled: every setting has its old value.
        since: the value of each setting as it reads after the change (ON may read 1); None if unknown.
    """

    settled: bool = False
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
                    self._handle = folder.create(self._name)
                    fcntl.flock(self._handle, fcntl.LOCK_EX)
                    room = _ROOM_BYTES * (1 + len(self._entries))
                    write_all(
                        self._handle, msgspec.json.encode(self._entries) + b"\n" + _encode_state(JournalState(), room)
                    )
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


def _encode_state(state: JournalState, room: int) -> bytes:
    """Return the state in exactly `room` bytes, with a checksum that reveals a partial write."""
    text = msgspec.json.encode(state)
    if len(text) + 10 > room:
        text = msgspec.json.encode(JournalState(state.settled))
    return b"%08x %s" % (zlib.crc32(text), text.ljust(room - 10) + b"\n")


def _parse_state(record: bytes, count: int) -> JournalState:
    """Return the state of `count` settings. A damaged record counts as the state before any report."""
    with suppress(msgspec.MsgspecError, ValueError):
        text = record[9:].rstrip()
        if int(record[:8], 16) == zlib.crc32(text):
            state = msgspec.json.decode(text, type=JournalState)
            if state.since is None or len(state.since) == count:
                return state
    return JournalState()


def _check_free(folder: Folder, wanted: Sequence[SavedSetting]) -> None:
    """Raise PowerprofError if another running powerprof is changing one of these settings.

    Its temporary value would be taken for the old value.
    """
    wanted_names = {_identity(entry): entry.setting.name for entry in wanted}
    for name in folder.names():
        for entry in _read_locked(folder, name):
            if (setting_name := wanted_names.get(_identity(entry))) is not None:
                raise PowerprofError(
                    f"another powerprof is trying {setting_name} now (process {name.partition('-')[0]}), so "
                    "nothing is changed",
                    "wait until it has ended",
                )


def _open_file(folder: Folder, name: str) -> int | None:
    """Open a file of the journal by the descriptor of its folder, without following links; None if that fails."""
    with suppress(OSError):
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    return None


def _read_locked(folder: Folder, name: str) -> list[SavedSetting]:
    """Return the entries of a file whose powerprof or keeper lives; empty if both have ended."""
    if not name.endswith(_SUFFIX):
        return []
    handle = _open_file(folder, name)
    if handle is None:
        return []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lines = os.pread(handle, _LIMIT_BYTES, 0).splitlines()
        with suppress(msgspec.MsgspecError, IndexError):
            return msgspec.json.decode(lines[0], type=list[SavedSetting])
    except OSError:
        return []
    finally:
        os.close(handle)
    return []


def _identity(entry: SavedSetting) -> tuple[object, ...]:
    """Return a key that is equal for the same setting of the same thread or server, whatever its value."""
    match entry.setting:
        case TimerSlack(tid=tid, started_ticks=ticks):
            return "timer_slack", tid, ticks
        case Event(server=server, database=database, event=event):
            return "event", server.get("datadir"), database, event
        case Variable(name=name, login=login):
            server_key = (login["host"], login["port"]) if entry.pid is None else entry.started_ticks
            return "variable", entry.pid, server_key, name.casefold()
        case HostFiles(paths=files):
            return ("host_files", *files)
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
        first, _, record = os.pread(handle, _LIMIT_BYTES, 0).partition(b"\n")
        if not first:  # The writer was killed before it had changed anything.
            folder.remove(name)
            return []
        entries = msgspec.json.decode(first, type=list[SavedSetting])
        state = _parse_state(record, len(entries))
        if state.settled:  # killed after the restoration
            folder.remove(name)
            return []
        # Restore the last change first: lowering innodb_io_capacity_max would lower innodb_io_capacity as well.
        pairs = reversed(list(zip(entries, state.since or [None] * len(entries), strict=True)))
        results = [_restore(entry, since, place / name) for entry, since in pairs]
    except BlockingIOError:
        return []  # its powerprof is running
    except (OSError, ValueError) as error:
        return [f"{place / name} cannot be read ({error}): remove it"]
    else:
        if all(done for done, _ in results):
            folder.remove(name)
        moved = [] if state.since else [line for entry in entries for line in _list_moved_variables(entry)]
        return [*(line for _, line in results if line), *moved]
    finally:
        os.close(handle)


def _restore(entry: SavedSetting, since: str | None, file: Path) -> tuple[bool, str]:
    """Restore a setting. Return whether the entry is done, and a line for the user or an empty text."""
    setting = _with_password(entry)
    by_hand = f"if it is not {entry.before!r}, {setting.by_hand(entry.before)}; then remove {file}"
    if entry.pid is None:
        return False, (
            f"a powerprof that was killed may have left {setting.name} at {setting.value!r} on another host, whose "
            f"server cannot be recognised: {by_hand}"
        )
    if setting.lasts == "process" and read_start_ticks(entry.pid) != entry.started_ticks:
        return True, ""  # the setting ended with its process
    if isinstance(setting, Variable):
        setting = msgspec.structs.replace(setting, pid=entry.pid, started_ticks=entry.started_ticks)
    try:
        now = setting.read()
    except PowerprofError as error:
        return False, (
            f"a powerprof that was killed had changed {setting.name} to {setting.value!r}, and what it is now cannot "
            f"be read ({error.message}): {by_hand}"
        )
    try:
        if now in (None, entry.before):
            return True, ""
        if not (now == since or is_same_value(now or "", setting.value)):
            return True, f"{setting.name} is {now}, and somebody else's: it was {entry.before} before powerprof came"
        AppliedChange(setting, entry.before, now).put_back()
    except PowerprofError as error:
        return False, (
            f"{setting.name} was left at {setting.value!r} by a powerprof that was killed, and cannot be put back "
            f"({error.message}): {setting.by_hand(entry.before)}; then remove {file}"
        )
    text = f"{setting.name} is {entry.before} again: a powerprof that was killed had left it at {now}"
    if isinstance(setting, Variable) and setting.keeps_copies:
        text += "; connections that opened in between keep that value until they are closed"
    return True, text


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


def is_same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value of a setting: ON is 1, 0.5 is 0.500000, and case is ignored."""
    return _parse_value(one) == _parse_value(other)


def _parse_value(value: str) -> str | float:
    text = value.strip().casefold()
    if text in _FALSE or text in _TRUE:
        return float(text in _TRUE)
    try:
        return float(text)
    except ValueError:
        return text


def _without_password(setting: Setting) -> Setting:
    if not isinstance(setting, Variable | Event):
        return setting
    return msgspec.structs.replace(setting, login={**setting.login, "password": ""})


def _with_password(entry: SavedSetting) -> Setting:
    """Return the setting with the present password of its option file, read with the rights of the caller."""
    setting = entry.setting
    if entry.options is None or not isinstance(setting, Variable | Event) or setting.login.get("password"):
        return setting
    with suppress(PowerprofError, OSError):
        password = read_password(Path(entry.options), Login.from_fields(setting.login).account)
        return msgspec.structs.replace(setting, login={**setting.login, "password": password})
    return setting
