# SPDX-License-Identifier: Apache-2.0
"""The preparation of a child between fork and exec: death with its parent, privileges, files, network.

All of it runs in the child and takes no lock. An exception ends the child before its program starts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

import msgspec

from powerprof.system.landlock import refuse_new_privileges
from powerprof.system.sandbox import Confinement, confine, isolate_mounts

_PR_SET_PDEATHSIG = 1


class Child(msgspec.Struct, frozen=True):
    """The differences of a child from its parent.

    `user` (uid, gid) is the account that a child of root gets, `confinement` limits its files and its network.
    `affinity` are its CPUs. With `own_mounts`, the mounts that it makes end with it. `mark` is its limit of
    real-time CPU time in µs, by which a run tree knows its programs.
    """

    user: tuple[int, int] | None = None
    confinement: Confinement | None = None
    dies_with_us: bool = True
    affinity: Sequence[int] | None = None
    own_mounts: bool = False
    mark: int | None = None

    def prepare(self) -> None:
        """Apply the settings in the child, after subprocess changed the account. Raise OSError.

        A change of credentials clears the signal of the parent's death (prctl(2)), so the signal is set here.
        """
        if self.affinity:
            os.sched_setaffinity(0, self.affinity)
        if self.confinement is not None:
            confine(self.confinement, self.user)
        if self.dies_with_us:
            die_with_parent()
        if self.user or self.confinement is not None:
            refuse_new_privileges(ctypes.CDLL(None, use_errno=True))
        if self.own_mounts:
            isolate_mounts()
        if self.mark is not None:
            resource.setrlimit(resource.RLIMIT_RTTIME, (self.mark, resource.getrlimit(resource.RLIMIT_RTTIME)[1]))

    def account(self) -> dict[str, Any]:
        """Return subprocess's arguments for the account. `confine` needs root and changes the account itself."""
        if self.user is None or self.confinement is not None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}


def die_with_parent() -> None:
    """Let the kernel kill this process when the *thread* that forked it ends: the main thread starts children."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
