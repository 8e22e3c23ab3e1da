# SPDX-License-Identifier: Apache-2.0
"""Old values written down before anything is changed: for the start after the one whose keeper was killed with it.

One file per powerprof, locked (flock(2)) while that process or its keeper lives: the kernel releases the lock however
they end. The first line holds the old values, and the rest the state, which the keeper overwrites in place. It writes
the state to the disk before each change, and changes nothing if it cannot. A torn state means that nothing is known, so
the next start reads the settings.

A thread or a server that is another now is left alone, and root's folder is in /run, which a boot empties as it empties
those settings. A setting on the server's disk (an event) is restored in its next process too, and is written to a
folder that a boot keeps. No password is written down; one from an option file is read there again.
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

from powerprof.database.clients.base import Login
from powerprof.database.clients.given import read_password
from powerprof.reversible.events import Event
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
    """A setting of process `pid` that is going to be changed, and what it was. `started_ticks` is the process's start:
    its number may be another's by the time it is put back. Both are None on another host: its server cannot be
    recognised later. `options` is the option file that had the password. `others` are all global variables of the
    server before the change."""

    setting: Setting
    before: str
    pid: int | None
    started_ticks: int | None
    options: str | None = None
    others: dict[str, str] | None = None


class JournalState(msgspec.Struct, frozen=True):
    """The progress of the keeper. `settled`: every setting has its old value. `since`: the value of each setting as it
    reads after the change (ON may read 1); None if unknown."""

    settled: bool = False
    since: list[str | None] | None = None


class Journal(Closeable):
    """`with Journal(held) as journal:` they are written down in the block; at its end, where `settled`, crossed out.

    Raises PowerprofError where they cannot be written down, or where another powerprof that lives has one of them
    changed: then nothing may be changed.
    """

    def __init__(self, held: Sequence[SavedSetting]) -> None:
        self.settled = False
        self._held = [msgspec.structs.replace(one, setting=_without_password(one.setting)) for one in held]
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"
        self._place = paths.changed_dir(outlasts=any(one.setting.outlasts for one in held))
        self._handle: int | None = None

    def _open(self) -> None:
        try:
            with paths.open_changed(self._place, make=True) as folder:
                handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX)  # one after the other: of two, one sees the other's
                    _check_free(folder, self._held)
                    self._handle = folder.create(self._name)
                    fcntl.flock(self._handle, fcntl.LOCK_EX)
                    room = _ROOM_BYTES * (1 + len(self._held))
                    write_all(self._handle, msgspec.json.encode(self._held) + b"\n" + _record(JournalState(), room))
                    os.fsync(self._handle)
                    os.fsync(handle)
                except OSError:
                    if self._handle is not None:  # It may lack its end: the next start could not read it.
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
        """The open file, for the keeper: while it holds it, nobody else puts back."""
        assert self._handle is not None  # noqa: S101  of an open journal only
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

    The room was written when the journal was opened, so that a disk that fills later does not refuse it.
    """
    place = os.pread(handle, _LIMIT_BYTES, 0).find(b"\n") + 1
    data = _record(state, os.fstat(handle).st_size - place)
    if not place or os.pwrite(handle, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle)


def _record(state: JournalState, room: int) -> bytes:
    """Return the state in exactly `room` bytes, with a checksum: half of it is never taken for the whole."""
    text = msgspec.json.encode(state)
    if len(text) + 10 > room:
        text = msgspec.json.encode(JournalState(state.settled))
    return b"%08x %s" % (zlib.crc32(text), text.ljust(room - 10) + b"\n")


def _state(record: bytes, count: int) -> JournalState:
    """Return the state of `count` settings. A torn or damaged record gives the state before any report."""
    with suppress(msgspec.MsgspecError, ValueError):
        text = record[9:].rstrip()
        if int(record[:8], 16) == zlib.crc32(text):
            state = msgspec.json.decode(text, type=JournalState)
            if state.since is None or len(state.since) == count:
                return state
    return JournalState()


def _check_free(folder: Folder, wanted: Sequence[SavedSetting]) -> None:
    """Raises PowerprofError where one of these is in the journal of another that lives: what it reads now may be that
    one's value, which would be taken for what it was."""
    mine = {_identity(one): one for one in wanted}
    for name in folder.names():
        for taken in _held_by_another(folder, name):
            if (one := mine.get(_identity(taken))) is not None:
                raise PowerprofError(
                    f"another powerprof is trying {one.setting.name} now (process {name.partition('-')[0]}), so "
                    "nothing is changed",
                    "wait until it has ended",
                )


def _open_entry(folder: Folder, name: str) -> int | None:
    """An entry of the journal, by its folder's descriptor and never by a link; None where it cannot be."""
    with suppress(OSError):
        return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder.handle)
    return None


def _held_by_another(folder: Folder, name: str) -> list[SavedSetting]:
    """What a powerprof that lives, or its keeper, has written down; nothing where it has ended."""
    if not name.endswith(_SUFFIX):
        return []
    handle = _open_entry(folder, name)
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


def _identity(held: SavedSetting) -> tuple[object, ...]:
    """The same for the same setting of the same thread, server or event, whatever it is to become."""
    match held.setting:
        case TimerSlack(tid=tid, started_ticks=ticks):
            return "timer_slack", tid, ticks
        case Event(server=server, database=database, event=event):
            return "event", server.get("datadir"), database, event
        case Variable(name=name, login=login):
            where = (login["host"], login["port"]) if held.pid is None else held.started_ticks
            return "variable", held.pid, where, name.casefold()


def restore_orphaned_settings() -> list[str]:
    """Put back what a powerprof that was killed together with its keeper left changed; what there is to say of it.

    What belongs to a powerprof that lives is not touched. Raises nothing: no command fails because of another's end.
    """
    messages: list[str] = []
    for place in paths.changed_dirs():
        try:
            with paths.open_changed(place) as folder:
                for name in folder.names():
                    if name.endswith(_SUFFIX):
                        messages += _look_at(folder, name, place)
        except FileNotFoundError:
            continue
        except OSError as error:
            messages.append(f"{place} is not looked at ({reason_of(error)})")
    return messages


def _look_at(folder: Folder, name: str, place: Path) -> list[str]:
    handle = _open_entry(folder, name)
    if handle is None:
        return []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink == 0:
            return []
        first, _, record = os.pread(handle, _LIMIT_BYTES, 0).partition(b"\n")
        if not first:  # its writer was killed before it had changed anything
            folder.remove(name)
            return []
        held = msgspec.json.decode(first, type=list[SavedSetting])
        state = _state(record, len(held))
        if state.settled:  # killed between that and the end
            folder.remove(name)
            return []
        # Last changed, first restored: lowering innodb_io_capacity_max would lower innodb_io_capacity as well.
        pairs = reversed(list(zip(held, state.since or [None] * len(held), strict=True)))
        results = [_put_back(one, last, place / name) for one, last in pairs]
    except BlockingIOError:
        return []  # its powerprof lives
    except (OSError, ValueError) as error:
        return [f"{place / name} cannot be read ({error}): remove it"]
    else:
        if all(done for done, _ in results):
            folder.remove(name)
        moved = [] if state.since else [text for one in held for text in _moved_with(one)]
        return [*(text for _, text in results if text), *moved]
    finally:
        os.close(handle)


def _put_back(held: SavedSetting, since: str | None, entry: Path) -> tuple[bool, str]:
    """Whether nothing is left to be done, and what there is to say."""
    setting = _with_password(held)
    if held.pid is None:
        return False, (
            f"a powerprof that was killed may have left {setting.name} at {setting.value!r} on another host, whose "
            f"server cannot be recognised: if it is not {held.before!r}, {setting.by_hand(held.before)}; then remove "
            f"{entry}"
        )
    if not setting.outlasts and read_start_ticks(held.pid) != held.started_ticks:
        return True, ""  # the setting ended with its process
    if isinstance(setting, Variable):
        setting = msgspec.structs.replace(setting, pid=held.pid, started_ticks=held.started_ticks)
    try:
        now = setting.read()
    except PowerprofError as error:
        return False, (
            f"a powerprof that was killed had changed {setting.name} to {setting.value!r}, and what it is now cannot "
            f"be read ({error.message}): if it is not {held.before!r}, {setting.by_hand(held.before)}; then remove "
            f"{entry}"
        )
    try:
        if now in (None, held.before):
            return True, ""
        if not (now == since or is_same_value(now or "", setting.value)):
            return True, f"{setting.name} is {now}, and somebody else's: it was {held.before} before powerprof came"
        AppliedChange(setting, held.before, now).put_back()
    except PowerprofError as error:
        return False, (
            f"{setting.name} was left at {setting.value!r} by a powerprof that was killed, and cannot be put back "
            f"({error.message}): {setting.by_hand(held.before)}; then remove {entry}"
        )
    text = f"{setting.name} is {held.before} again: a powerprof that was killed had left it at {now}"
    if isinstance(setting, Variable) and setting.keeps_copies:
        text += "; connections that opened in between keep that value until they are closed"
    return True, text


def _moved_with(held: SavedSetting) -> list[str]:
    """Return a line for each variable that is not as in `held.others`.

    Call this if powerprof was killed before it had noted which variables moved with `held.setting`.
    """
    setting = _with_password(held)
    if held.others is None or held.pid is None or not isinstance(setting, Variable):
        return []
    with suppress(PowerprofError):
        return [
            f"{name} is {now}, and was {was} before powerprof was killed while it changed {setting.name}: "
            f"if no other person set it, {Variable(setting.login, name, was).by_hand(was)}"
            for name, (was, now) in setting.moved_since(held.others).items()
        ]
    return []


def is_same_value(one: str, other: str) -> bool:
    """Two ways to write one value of a setting: ON is 1, 0.5 is 0.500000, and names have no case."""
    first, second = _plain(one), _plain(other)
    return first == second


def _plain(value: str) -> str | float:
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


def _with_password(held: SavedSetting) -> Setting:
    """The setting with the password that stands in its option file now, read with the rights of who named it."""
    setting = held.setting
    if held.options is None or not isinstance(setting, Variable | Event) or setting.login.get("password"):
        return setting
    with suppress(PowerprofError, OSError):
        password = read_password(Path(held.options), Login.from_fields(setting.login).account)
        return msgspec.structs.replace(setting, login={**setting.login, "password": password})
    return setting
