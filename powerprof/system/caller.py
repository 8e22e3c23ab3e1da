# SPDX-License-Identifier: Apache-2.0
"""The account of the caller, and operations with the rights of that account only.

Under sudo powerprof is root, but the caller is not. Files for the caller are written with the caller's rights. A
symbolic link can then not make root overwrite a file, and the owner needs no change afterwards.
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
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from powerprof.system.errors import PowerprofError

_NOBODY = 65534
_DEFINITIONS = Path("/etc/login.defs")
_UID_MIN = re.compile(r"^UID_MIN\s+([0-9]{1,9})\s*$", re.MULTILINE)
_DEFAULT_UID_MIN = 1000
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# The directories of the system's programs, which sudo searches (secure_path in /etc/sudoers of Debian).
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# setgroups(2), setresgid(2), setresuid(2) of this thread only. The C library's functions change all threads.
_THREAD_SYSCALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}


class HostUser(msgspec.Struct, frozen=True):
    """A user of this host. `name` is None if the host has no account with this number."""

    uid: int
    gid: int
    home: Path
    name: str | None = None

    @property
    def groups(self) -> list[int]:
        """All groups of the account."""
        return os.getgrouplist(self.name, self.gid) if self.name is not None else [self.gid]


def account_of(uid: int) -> HostUser | None:
    """Return the account with this number; None if the host has none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return HostUser(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), entry.pw_name)


def is_system_account(uid: int) -> bool:
    """Return whether an account belongs to root or a service, and not to a person (login.defs(5))."""
    return uid < _read_uid_min()


@cache
def _read_uid_min() -> int:
    try:
        match = _UID_MIN.search(_DEFINITIONS.read_text("utf-8", "replace"))
    except OSError:
        match = None
    return int(match[1]) if match else _DEFAULT_UID_MIN


def caller() -> HostUser:
    """Return the user that typed the command: under sudo the user who called sudo, not root."""
    uid = os.geteuid()
    sudo_uid = os.environ.get("SUDO_UID", "")
    if uid == 0 and sudo_uid.isascii() and sudo_uid.isdigit() and int(sudo_uid) < 1 << 32:
        account = account_of(int(sudo_uid))
        if account is not None:
            return account
    account = account_of(uid)
    home = os.environ.get("HOME") or (str(account.home) if account else "/")
    return HostUser(uid, os.getegid(), Path(home), account.name if account else None)


def is_delegated() -> bool:
    """Return whether this process is root for another account (sudo)."""
    return os.geteuid() == 0 and caller().uid != 0


def unprivileged() -> HostUser | None:
    """Return the account for a child of root that needs no rights: the caller, or nobody.

    None if this process is not root.
    """
    if os.geteuid() != 0:
        return None
    return caller() if is_delegated() else account_of(_NOBODY) or HostUser(_NOBODY, _NOBODY, Path("/"))


@contextmanager
def acting_as(account: HostUser) -> Iterator[None]:
    """Open, create, rename and remove files with the rights of `account` in this thread, until the block ends.

    setfsuid(2) also removes the capabilities that override permissions (capabilities(7), "effect of user ID changes").
    The block has no effect if we are not root, or if `account` is root. Raise PowerprofError if the kernel refuses.
    """
    if os.geteuid() != 0 or account.uid == 0:
        yield
        return
    libc = ctypes.CDLL(None)
    groups = os.getgroups()
    before = libc.setfsgid(-1), libc.setfsuid(-1)
    with _delay_signals():
        try:
            _set_groups(libc, account.groups)
            libc.setfsgid(account.gid)
            libc.setfsuid(account.uid)
            # setfsuid returns no error. A call with an invalid account returns the present one.
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
    numbers = _THREAD_SYSCALLS.get(platform.machine())
    if numbers is None:
        os.setgroups(groups)
    elif libc.syscall(numbers[0], len(groups), (ctypes.c_uint * len(groups))(*groups)) != 0:
        raise PowerprofError("cannot act as another user (setgroups was refused)", "give root CAP_SETGID")


@contextmanager
def connecting_as(account: HostUser | None) -> Iterator[None]:
    """Act as `acting_as`, and also show that account to the servers that this thread connects to.

    Servers read it by SO_PEERCRED (unix(7)). None changes nothing. Raise PowerprofError if the kernel refuses.
    """
    if account is None or os.geteuid() != 0 or account.uid == 0:
        yield
        return
    libc, numbers = ctypes.CDLL(None), _THREAD_SYSCALLS.get(platform.machine())
    if numbers is None:
        raise PowerprofError(f"cannot connect as user {account.uid} on {platform.machine()}", "run without sudo")
    _, set_group, set_user = numbers
    gid = os.getegid()
    with acting_as(account):
        try:
            # The real and the saved user stay root, so that the change can be reverted.
            if libc.syscall(set_group, -1, account.gid, -1) or libc.syscall(set_user, -1, account.uid, -1):
                raise PowerprofError(
                    f"cannot connect as user {account.uid} (setresuid was refused)",
                    "give root CAP_SETUID and CAP_SETGID",
                )
            yield
        finally:
            libc.syscall(set_user, -1, 0, -1)
            libc.syscall(set_group, -1, gid, -1)


class _DelayedSignals:
    def __init__(self) -> None:
        self.arrived: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(number)


@contextmanager
def _delay_signals() -> Iterator[None]:
    """Delay signals until the block ends. An exception at its edges would leave root with another account's rights.

    Python runs handlers in the main thread, whichever thread received the signal, so a signal mask would not help.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed = _DelayedSignals()
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, delayed)
        yield
    finally:
        for changed, handler in handlers.items():
            signal.signal(changed, handler)
        for arrived in dict.fromkeys(delayed.arrived):
            signal.raise_signal(arrived)


@contextmanager
def as_caller() -> Iterator[None]:
    """Act as the caller: new files belong to the caller, and only files that the caller may write are written."""
    with acting_as(caller()):
        yield
