# SPDX-License-Identifier: Apache-2.0
"""Who typed the command, and acting with no more than that account's rights.

Under sudo powerprof is root beside an account that is not. What is written for that account is written with its own
rights: then no link of anybody can make root overwrite a file or give one away, and nothing has to be given away
afterwards.
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from powerprof.errors import PowerprofError

_NOBODY = 65534
_DEFINITIONS = Path("/etc/login.defs")
_FIRST_PERSON = re.compile(r"^UID_MIN\s+([0-9]{1,9})\s*$", re.MULTILINE)
_USUAL_FIRST_PERSON = 1000
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# setgroups(2), setresgid(2), setresuid(2) of this thread alone: the C library's own change all threads of a process.
_OF_THREAD = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}


@dataclass(frozen=True)
class HostUser:
    """A user of this host. `name` is None where the host knows only the number."""

    uid: int
    gid: int
    home: Path
    name: str | None = None

    @property
    def groups(self) -> list[int]:
        """All groups of the account."""
        return os.getgrouplist(self.name, self.gid) if self.name is not None else [self.gid]


def account_of(uid: int) -> HostUser | None:
    """The account of that number; None where the host has none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return HostUser(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), entry.pw_name)


def is_system_account(uid: int) -> bool:
    """Whether an account is root's or a service's, and not a person's (login.defs(5))."""
    return uid < _first_person()


@cache
def _first_person() -> int:
    try:
        match = _FIRST_PERSON.search(_DEFINITIONS.read_text("utf-8", "replace"))
    except OSError:
        match = None
    return int(match[1]) if match else _USUAL_FIRST_PERSON


def caller() -> HostUser:
    """Who typed the command: under sudo not root but the user in front of the terminal."""
    uid = os.geteuid()
    behind = os.environ.get("SUDO_UID", "")
    if uid == 0 and behind.isascii() and behind.isdigit() and int(behind) < 1 << 32:
        account = account_of(int(behind))
        if account is not None:
            return account
    known = account_of(uid)
    home = os.environ.get("HOME") or (str(known.home) if known else "/")
    return HostUser(uid, os.getegid(), Path(home), known.name if known else None)


def is_delegated() -> bool:
    """True where this process is root on behalf of somebody who is not (sudo)."""
    return os.geteuid() == 0 and caller().uid != 0


def unprivileged() -> HostUser | None:
    """Whom a child of root becomes that needs no rights at all: the caller, or nobody. None where we are not root."""
    if os.geteuid() != 0:
        return None
    return caller() if is_delegated() else account_of(_NOBODY) or HostUser(_NOBODY, _NOBODY, Path("/"))


@contextmanager
def acting_as(account: HostUser) -> Iterator[None]:
    """Files are opened, made, renamed and removed with the rights of `account`, by this thread, until the block ends.

    setfsuid(2) also takes away the capabilities that override permissions (capabilities(7), "effect of user ID
    changes"). Does nothing where we are not root or are that account. Raises PowerprofError where the kernel refuses.
    """
    if os.geteuid() != 0 or account.uid == 0:
        yield
        return
    libc = ctypes.CDLL(None)
    groups = os.getgroups()
    before = libc.setfsgid(-1), libc.setfsuid(-1)
    with _signals_wait():
        try:
            _set_groups(libc, account.groups)
            libc.setfsgid(account.gid)
            libc.setfsuid(account.uid)
            # It returns no error; asked for the impossible it says what holds.
            if (libc.setfsgid(-1), libc.setfsuid(-1)) != (account.gid, account.uid):
                raise PowerprofError(
                    f"cannot act as user {account.uid} (setfsuid was refused)",
                    "give root CAP_SETUID and CAP_SETGID, or run without sudo",
                )
            yield
        finally:
            libc.setfsuid(before[1])
            libc.setfsgid(before[0])
            _set_groups(libc, groups)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    numbers = _OF_THREAD.get(platform.machine())
    if numbers is None:
        os.setgroups(groups)
    elif libc.syscall(numbers[0], len(groups), (ctypes.c_uint * len(groups))(*groups)) != 0:
        raise PowerprofError("cannot act as another user (setgroups was refused)", "give root CAP_SETGID")


@contextmanager
def known_as(account: HostUser | None) -> Iterator[None]:
    """As `acting_as`; also what this thread connects to within the block sees that account (SO_PEERCRED, unix(7)).

    None: as whom we are. Raises PowerprofError where the kernel refuses.
    """
    if account is None or os.geteuid() != 0 or account.uid == 0:
        yield
        return
    libc, numbers = ctypes.CDLL(None), _OF_THREAD.get(platform.machine())
    if numbers is None:
        raise PowerprofError(f"cannot connect as user {account.uid} on {platform.machine()}", "run without sudo")
    _, set_group, set_user = numbers
    gid = os.getegid()
    with acting_as(account):
        try:
            # The real and the saved user stay root, so that it can be taken back.
            if libc.syscall(set_group, -1, account.gid, -1) or libc.syscall(set_user, -1, account.uid, -1):
                raise PowerprofError(
                    f"cannot connect as user {account.uid} (setresuid was refused)",
                    "give root CAP_SETUID and CAP_SETGID",
                )
            yield
        finally:
            libc.syscall(set_user, -1, 0, -1)
            libc.syscall(set_group, -1, gid, -1)


class _SignalsWaiting:
    def __init__(self) -> None:
        self.arrived: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(number)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """No signal becomes an exception in this block: at its edges one would leave root with another account's rights.

    Handlers run in the main thread alone, whichever thread the signal came to: a mask would not keep them out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = _SignalsWaiting()
    kept: dict[int, Callable[[int, FrameType | None], Any]] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                kept[number] = handler
                signal.signal(number, waiting)
        yield
    finally:
        for changed, handler in kept.items():
            signal.signal(changed, handler)
        for arrived in dict.fromkeys(waiting.arrived):
            signal.raise_signal(arrived)


@contextmanager
def as_caller() -> Iterator[None]:
    """As `acting_as(caller())`: what is made belongs to the caller, and only what the caller may write is written."""
    with acting_as(caller()):
        yield
