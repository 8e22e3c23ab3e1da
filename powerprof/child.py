# SPDX-License-Identifier: Apache-2.0
"""What a child does to itself between fork and exec: it dies with its parent, gains no rights, and keeps to itself.

All of it runs in the child: it takes no lock, and what raises there ends the child before its program begins.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from powerprof.enclosure import Confinement, confine

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000  # include/uapi/linux/{sched,mount}.h


@dataclass(frozen=True)
class Child:
    """The differences of a child from its parent.

    `user` (uid, gid) is the account that a child of root gets, `confinement` limits its files and its network.
    `affinity` are its CPUs. With `own_mounts`, the mounts that it makes end with it.
    """

    user: tuple[int, int] | None = None
    confinement: Confinement | None = None
    dies_with_us: bool = True
    affinity: Sequence[int] | None = None
    own_mounts: bool = False

    def prepare(self) -> None:
        """To be called in the child, after subprocess made it the user: a change of credentials clears the signal of
        the parent's death (prctl(2)). Raises OSError."""
        if self.affinity:
            os.sched_setaffinity(0, self.affinity)
        if self.confinement is not None:
            confine(self.confinement, self.user)
        if self.dies_with_us:
            die_with_parent()
        if self.user or self.confinement is not None:
            _gain_nothing()
        if self.own_mounts:
            _keep_mounts_apart()

    def account(self) -> dict[str, Any]:
        """Return subprocess's arguments for the account. `confine` needs root and changes the account itself."""
        if self.user is None or self.confinement is not None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}


def die_with_parent() -> None:
    """The kernel kills this process when the *thread* that forked it ends: children are started from the main one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _gain_nothing() -> None:
    """A child that gave up root gets it back by no set-user-id program."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _keep_mounts_apart() -> None:
    """What this process mounts from now on is gone with it. Does nothing where we may not (not root)."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
