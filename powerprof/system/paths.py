# SPDX-License-Identifier: Apache-2.0
"""Where powerprof looks for things and where it puts them.

Every read of /sys and /proc starts at `sysfs()` or `procfs()`, so that POWERPROF_SYSFS and POWERPROF_PROCFS
move them to a recorded machine. The XDG directories are the caller's, also under sudo, and what is created
there is created with the caller's rights; only the cache, whose content root compiles and runs, is root's own.
"""

from __future__ import annotations

import errno
import os
import tempfile
from functools import cache
from pathlib import Path

from powerprof.system.caller import as_caller, caller, is_delegated
from powerprof.system.errors import PowerprofError, UsageError
from powerprof.system.folders import Folder, only_root_writes

# FHS 3.0, 5.5: data of an application that can be made again.
ROOT_CACHE = Path("/var/cache/powerprof")
# FHS 3.0, 3.15: about the running system, gone with it. Root alone may write there.
ROOT_CHANGED = Path("/run/powerprof-changed")
# FHS 3.0, 5.8: what has to outlast a boot. Not in /var/lib/powerprof, which may be the account's of a service.
ROOT_CHANGED_FOR_GOOD = Path("/var/lib/powerprof-changed")
_STATE, _CONFIG, _CACHE = ".local/state", ".config", ".cache"


def sysfs() -> Path:
    """Root of sysfs."""
    return Path(os.environ.get("POWERPROF_SYSFS") or "/sys")


def procfs() -> Path:
    """Root of procfs."""
    return Path(os.environ.get("POWERPROF_PROCFS") or "/proc")


def check_roots() -> None:
    """Raise UsageError where a moved root is not there: a host without files would pass for one without cpuidle."""
    for variable in ("POWERPROF_SYSFS", "POWERPROF_PROCFS"):
        root = os.environ.get(variable)
        if root and not Path(root).is_dir():
            reason = "not a directory" if Path(root).exists() else "no such directory"
            hint = f"name the tree of a recorded machine, or unset {variable}"
            raise UsageError(f"{variable}={root}: {reason}", hint)


def is_this_host() -> bool:
    """False where sysfs or procfs have been moved: then nothing of the running kernel may be mixed in."""
    return _is_usual(os.environ.get("POWERPROF_SYSFS"), "/sys") and _is_usual(
        os.environ.get("POWERPROF_PROCFS"), "/proc"
    )


@cache
def _is_usual(given: str | None, usual: str) -> bool:
    # Asked at every edge of a window, where making two Paths costs more than the answer.
    return not given or Path(given) == Path(usual)


def private_directory(path: Path) -> Path:
    """Create `path` with mode 0700 and the caller's ownership, parents too; an existing one is left as it is.

    Raises PowerprofError where it cannot be created with the caller's rights.
    """
    try:
        with as_caller():
            _refuse_missing_home(path)
            with Folder.open(path, make=True):
                return path
    except OSError as error:
        raise PowerprofError(
            f"cannot create {path} ({(error.strerror or str(error)).lower()})",
            "choose another place with --runs-dir, XDG_STATE_HOME or XDG_CACHE_HOME",
        ) from error


def _xdg(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else caller().home / default
    return root / "powerprof"


def _refuse_missing_home(path: Path) -> None:
    """A home that is not there (`/nonexistent` of service accounts) is nobody's to make. Raises FileNotFoundError."""
    home = caller().home
    ours = any(path.is_relative_to(home / default) for default in (_STATE, _CONFIG, _CACHE))
    if ours and not home.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(home))


def state_dir() -> Path:
    """Saved runs live below it. It is the caller's: what is written there is written with the caller's rights."""
    return _xdg("XDG_STATE_HOME", _STATE)


def config_dir() -> Path:
    """The user's power models and defaults."""
    return _xdg("XDG_CONFIG_HOME", _CONFIG)


def changed_dir(*, outlasts: bool = False) -> Path:
    """Where the old values of changed settings of others are written down: for root a folder that a boot empties as it
    empties those settings, and another one for settings that outlast it."""
    if os.geteuid() != 0:
        return state_dir() / "changed"
    return ROOT_CHANGED_FOR_GOOD if outlasts else ROOT_CHANGED


def changed_dirs() -> list[Path]:
    """All of them."""
    return list(dict.fromkeys([changed_dir(), changed_dir(outlasts=True)]))


def open_changed(place: Path, *, make: bool = False) -> Folder:
    """Open one of `changed_dirs`. Raise OSError, and PermissionError if another account could write to root's."""
    if make and os.geteuid() != 0:
        private_directory(place)
    folder = Folder.open(place, make=make)
    if os.geteuid() == 0 and (reason := only_root_writes(place)) is not None:
        with folder:
            raise PermissionError(errno.EPERM, reason)
    return folder


def cache_dir() -> Path:
    """Headers, symbol tables, the server template and fetched servers: all can be made again.

    What root compiles, runs or reads as its own lies in root's own cache, under sudo too: whoever may write a header
    that root compiles is root.
    """
    if os.geteuid() == 0 and (is_delegated() or not Path(os.environ.get("XDG_CACHE_HOME") or ".").is_absolute()):
        return ROOT_CACHE
    return _xdg("XDG_CACHE_HOME", _CACHE)


def cache_folder(kind: str) -> Path:
    """The folder `kind` of the cache, made where it is missing, which nobody but the acting user may write to.

    Raises PowerprofError where it cannot be made, and where others may write to it.
    """
    path = cache_dir() / kind
    try:
        _refuse_missing_home(path)
        with Folder.open(path, make=True) as folder:
            info = folder.stat()
    except OSError as error:
        raise PowerprofError(
            f"cannot create {path} ({(error.strerror or str(error)).lower()})", "set XDG_CACHE_HOME to another place"
        ) from error
    if os.geteuid() == 0:
        reason = only_root_writes(path)
    else:
        reason = "others may write to it" if info.st_uid != os.geteuid() or info.st_mode & 0o022 else None
    if reason is not None:
        raise PowerprofError(
            f"cannot keep a cache in {path} ({reason})", "set XDG_CACHE_HOME to a folder of yours alone"
        )
    return path


def temporary_base() -> Path:
    """Where temporary folders are made: $TMPDIR, or for root /tmp where others could exchange what is in it."""
    chosen = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and only_root_writes(chosen) is not None:
        return Path("/tmp")  # noqa: S108 - sticky: what is root's there stays
    return chosen


def data_dir(kind: str) -> Path:
    """The shipped `probes` or `workloads` folder: inside an installed wheel, beside the package in a checkout."""
    from importlib.resources import files

    package = Path(str(files("powerprof")))
    packaged = package / "_data" / kind
    return packaged if packaged.is_dir() else package.parent / kind
