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

from powerprof.system.errors import PowerprofError

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


# Giving up what root may do, once all is open that needs it.
#
# Loading BPF programs and opening meters takes many capabilities; looking at threads, maps and files of processes, and
# writing as the caller, takes few. What reads the bytes of other people's processes and files does it with the few.
# The user stays root, because sysfs and the cache are root's: what is gone is overriding permissions, changing owners,
# mounting, modules, raw devices, the network, and all of it for every child.

# Numbers of include/uapi/linux/capability.h, and what each is for here.
TRACING = {
    "dac_read_search": 2,  # files of processes that root may not read as such: below other users' folders
    "setgid": 6,  # acting as the caller
    "setuid": 7,
    "sys_ptrace": 19,  # /proc/PID/{maps,map_files,root,environ} of other users
    "sys_resource": 24,  # locked memory on kernels before 5.11
    "syslog": 34,  # the kernel's own function names: without it kallsyms shows zeros, and no timer has a name
    "perfmon": 38,  # detaching, and counting the run time of, what was attached
    "bpf": 39,  # reading maps
    "checkpoint_restore": 40,  # map_files since Linux 5.9
}
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_MOST = 64


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def keep(capabilities: dict[str, int]) -> None:
    """Give up every capability but these, for this thread and for whatever it starts, for good.

    Does nothing where we are not root: nobody gave us what we do not need. Raises PowerprofError where the kernel
    refuses.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = sum(1 << number for number in capabilities.values())
    for number in range(_MOST):
        if not wanted >> number & 1 and libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _must(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    left = wanted & _permitted()
    halves = (_Data * 2)(*(_Data(left >> shift & 0xFFFFFFFF, left >> shift & 0xFFFFFFFF, 0) for shift in (0, 32)))
    _must(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), halves))


def settle(wanted: bool = True, energy_source: str = "") -> None:
    """All is open that takes more: from here on TRACING is enough, where this process does nothing else (`wanted`).

    Events of perf are opened before: kernels of Debian and Ubuntu want CAP_SYS_ADMIN for them, not CAP_PERFMON alone
    (kernel.perf_event_paranoid of 3 and more).

    Not with PowerTOP as meter, which is started again for each of its reports, and wants to be root.
    """
    if wanted and "powertop" not in energy_source:
        keep(TRACING)


def _permitted() -> int:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _must(result: int) -> None:
    if result != 0:
        raise PowerprofError(
            f"cannot give up privileges ({os.strerror(ctypes.get_errno()).lower()})",
            "run it where capset is allowed (a container's seccomp profile may forbid it)",
        )
