# SPDX-License-Identifier: Apache-2.0
"""Act with the rights of another account in one thread: files, and connections to servers.

Under sudo powerprof is root, but the caller is not. Files for the caller are written with the caller's rights. A
symbolic link can then not make root overwrite a file, and the owner needs no change afterwards.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from powerprof.system.caller import HostUser, caller
from powerprof.system.errors import PowerprofError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# setgroups(2), setresgid(2), setresuid(2) of this thread only. The C library's functions change all threads.
_THREAD_SYSCALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}


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
