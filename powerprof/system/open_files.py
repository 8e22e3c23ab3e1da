# SPDX-License-Identifier: Apache-2.0
"""The limit of open files (RLIMIT_NOFILE): the need of every command, the spare files, and the error at the limit.

Shells and services start programs with a low soft limit, and every program may raise it to the hard limit.
"""

from __future__ import annotations

import errno
import os
import resource

from powerprof.system.caller import is_delegated
from powerprof.system.errors import PowerprofError

# `watch` has the most files open: 164 for two tracers and the counters, and a batch of 50 files of the reader. Samplers
# open 6 events per CPU.
_NEEDED, _NEEDED_PER_CPU = 256, 8
# Half of the spare files hold the counters of ten idle states of each CPU.
_WANTED, _WANTED_PER_CPU = 512, 128
_USUAL = 1024
_UNLIMITED = 1 << 40
_at_start: list[int] = []


class TooManyFilesError(PowerprofError):
    """The limit of open files is reached, or a command needs more."""


def count_needed() -> int:
    """Return the open files that each command needs: all its parts rely on them."""
    return _NEEDED + _NEEDED_PER_CPU * _count_cpus()


def count_spare() -> int:
    """Return the open files beyond that need, for parts that also work without them."""
    return max(0, _read_limits()[0] - count_needed())


def prepare() -> None:
    """Raise the soft limit at the start of a command, or raise TooManyFilesError if the hard limit is too low."""
    _at_start[:] = [_read_limits()[0]]
    allow(_WANTED + _WANTED_PER_CPU * _count_cpus())
    if _read_limits()[0] < count_needed():
        raise explain_shortage(count_needed())


def allow(count: int, *, beyond_hard: bool = False) -> bool:
    """Raise the soft limit of this process and its future children to `count`, or to the hard limit if that is lower.

    With `beyond_hard`, root raises the hard limit too. Return whether `count` files are allowed.
    """
    soft, hard = _read_limits()
    if soft < min(count, hard):
        _set_limits(min(count, hard), hard)
    if count > hard and beyond_hard:
        _set_limits(count, count)
    return _read_limits()[0] >= count


def restore() -> None:
    """Restore the soft limit from before `prepare`: a measured command runs with that of the caller's shell."""
    hard = _read_limits()[1]
    for soft in _at_start:
        _set_limits(min(soft, hard), hard)


def raise_if_used_up() -> None:
    """Raise TooManyFilesError if this process can open no file: an error of another program does not contain that."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise explain_shortage() from error


def explain_shortage(needed: int | None = None) -> TooManyFilesError:
    """Return the error for a limit below `needed`, or for one that is reached, with a way to raise it."""
    allowed = _read_limits()[0]
    need = "all are in use" if needed is None else f"powerprof needs {needed:,}"
    return TooManyFilesError(f"this shell allows {allowed:,} open files; {need}", describe_remedy(needed))


def describe_remedy(needed: int | None = None) -> str:
    """Return the way to raise the limit to `needed`, or well above the present one."""
    soft, hard = _read_limits()
    count = max(_USUAL, 4 * soft if needed is None else needed)
    if count <= hard or (os.geteuid() == 0 and not is_delegated() and _may_exceed(soft, hard)):
        return f"raise the limit: ulimit -n {count}"
    if os.geteuid() == 0 and not _may_exceed(soft, hard):
        return (
            f"use another shell, or start the container with --ulimit nofile={count} (a service: LimitNOFILE={count})"
        )
    return f"raise the limit of this shell: sudo prlimit --pid $$ --nofile={count}"


def _may_exceed(soft: int, hard: int) -> bool:
    """Return whether this process may raise its hard limit (CAP_SYS_RESOURCE, outside of a user namespace)."""
    if not _set_limits(soft, hard + 1):
        return False
    return _set_limits(soft, hard)


def _set_limits(soft: int, hard: int) -> bool:
    pair = [resource.RLIM_INFINITY if limit == _UNLIMITED else limit for limit in (soft, hard)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (pair[0], pair[1]))
    except (ValueError, OSError):
        return False
    return True


def _read_limits() -> tuple[int, int]:
    soft, hard = (
        _UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def _count_cpus() -> int:
    return os.cpu_count() or 1
