# SPDX-License-Identifier: Apache-2.0
"""The locations of powerprof's inputs and outputs.

Every read of /sys and /proc starts at `sysfs()` or `procfs()`, so that POWERPROF_SYSFS and POWERPROF_PROCFS can replace
them with a recorded host. The XDG directories are the caller's, also under sudo, and files in them are created with the
caller's rights. Only the cache belongs to root, because root compiles and runs its content.
"""

from __future__ import annotations

import errno
import os
import tempfile
from functools import cache
from pathlib import Path

from powerprof.system.acting import as_caller
from powerprof.system.caller import caller, is_delegated
from powerprof.system.errors import PowerprofError, UsageError, reason_of
from powerprof.system.folders import Folder, only_root_writes

# FHS 3.0, 5.5: application data that can be made again.
ROOT_CACHE = Path("/var/cache/powerprof")
# FHS 3.0, 3.15: data of the running system, removed at boot. Only root may write there.
ROOT_CHANGED = Path("/run/powerprof-changed")
# FHS 3.0, 5.8: data that survives a boot. It is not in /var/lib/powerprof, which may belong to a service account.
ROOT_CHANGED_FOR_GOOD = Path("/var/lib/powerprof-changed")
_STATE, _CONFIG, _CACHE = ".local/state", ".config", ".cache"


def sysfs() -> Path:
    """Return the root of sysfs."""
    return Path(os.environ.get("POWERPROF_SYSFS") or "/sys")


def procfs() -> Path:
    """Return the root of procfs."""
    return Path(os.environ.get("POWERPROF_PROCFS") or "/proc")


def check_places() -> None:
    """Raise UsageError for a missing directory: the working one, $TMPDIR, or a replacement of sysfs or procfs.

    Else relative paths would fail late, files would go to another place, and the host would seem to lack cpuidle.
    """
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd imports more
    except OSError as error:
        raise UsageError(f"the working directory is gone ({reason_of(error)})", "cd to another directory") from error
    temporary = os.environ.get("TMPDIR")
    if temporary and not os.path.isdir(temporary):  # noqa: PTH112 - Path's raises for a long name
        reason = "not a directory" if os.path.exists(temporary) else "no such directory"  # noqa: PTH110
        raise UsageError(f"TMPDIR={temporary}: {reason}", "set TMPDIR to a directory that you can write, or unset it")
    for variable in ("POWERPROF_SYSFS", "POWERPROF_PROCFS"):
        root = os.environ.get(variable)
        if root and not Path(root).is_dir():
            reason = "not a directory" if Path(root).exists() else "no such directory"
            hint = f"name the tree of a recorded machine, or unset {variable}"
            raise UsageError(f"{variable}={root}: {reason}", hint)


def is_this_host() -> bool:
    """Return whether sysfs and procfs are this kernel's. Figures of this kernel and a recorded host never mix."""
    return _is_usual(os.environ.get("POWERPROF_SYSFS"), "/sys") and _is_usual(
        os.environ.get("POWERPROF_PROCFS"), "/proc"
    )


def has_one_host() -> bool:
    """Return whether sysfs and procfs are of one host: this one, or a recorded one that has both."""
    return is_this_host() or all(os.environ.get(name) for name in ("POWERPROF_SYSFS", "POWERPROF_PROCFS"))


@cache
def _is_usual(given: str | None, usual: str) -> bool:
    # Every edge of a window calls this, and creating two Paths would cost more than the answer.
    return not given or Path(given) == Path(usual)


def private_directory(path: Path) -> Path:
    """Create `path` and its parents with mode 0700 for the caller. An existing directory is left unchanged.

    Raise PowerprofError if it cannot be created with the caller's rights.
    """
    try:
        with as_caller():
            _refuse_missing_home(path)
            with Folder.open(path, make=True):
                return path
    except OSError as error:
        options = (
            "--output FILE or XDG_CONFIG_HOME" if path.is_relative_to(config_dir()) else "--runs-dir or XDG_STATE_HOME"
        )
        raise PowerprofError(
            f"cannot create {path} ({(error.strerror or str(error)).lower()})", f"choose another place: {options}"
        ) from error


def _find_xdg_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else caller().home / default
    return root / "powerprof"


def _refuse_missing_home(path: Path) -> None:
    """Raise FileNotFoundError for a path in a missing home (`/nonexistent` of service accounts)."""
    home = caller().home
    ours = any(path.is_relative_to(home / default) for default in (_STATE, _CONFIG, _CACHE))
    if ours and not home.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(home))


def state_dir() -> Path:
    """Return the directory of saved runs. It is the caller's and is written with the caller's rights."""
    return _find_xdg_folder("XDG_STATE_HOME", _STATE)


def config_dir() -> Path:
    """Return the directory of the user's power models and defaults."""
    return _find_xdg_folder("XDG_CONFIG_HOME", _CONFIG)


def changed_dir(*, outlasts: bool = False) -> Path:
    """Return the directory in which old values of changed settings are saved.

    Root has two: a boot empties the first as it resets the settings. The second is for settings that survive a boot.
    """
    if os.geteuid() != 0:
        return state_dir() / "changed"
    return ROOT_CHANGED_FOR_GOOD if outlasts else ROOT_CHANGED


def changed_dirs() -> list[Path]:
    """Return all directories of saved old values."""
    return list(dict.fromkeys([changed_dir(), changed_dir(outlasts=True)]))


def open_changed(path: Path, *, make: bool = False) -> Folder:
    """Open one of `changed_dirs`. Raise OSError, and PermissionError if another account can write to root's."""
    if make and os.geteuid() != 0:
        private_directory(path)
    folder = Folder.open(path, make=make)
    if os.geteuid() == 0 and (reason := only_root_writes(path)) is not None:
        with folder:
            raise PermissionError(errno.EPERM, reason)
    return folder


def cache_dir() -> Path:
    """Return the directory of headers, symbol tables, the server template and downloaded servers.

    All of it can be made again. Root has its own cache, also under sudo, for content that root compiles, runs or
    trusts: an account that can write a header that root compiles has root's rights.
    """
    if os.geteuid() == 0 and (is_delegated() or not Path(os.environ.get("XDG_CACHE_HOME") or ".").is_absolute()):
        return ROOT_CACHE
    return _find_xdg_folder("XDG_CACHE_HOME", _CACHE)


def cache_folder(kind: str) -> Path:
    """Return the folder `kind` of the cache, created if missing and writable by the acting user only.

    Raise PowerprofError if it cannot be created, or if other accounts can write to it.
    """
    path = cache_dir() / kind
    try:
        _refuse_missing_home(path)
        with Folder.open(path, make=True) as folder:
            info = folder.stat()
    except OSError as error:
        raise PowerprofError(
            f"cannot create {path} ({(error.strerror or str(error)).lower()})",
            "set XDG_CACHE_HOME to another directory",
        ) from error
    if os.geteuid() == 0:
        reason = only_root_writes(path)
    else:
        reason = "other users may write to it" if info.st_uid != os.geteuid() or info.st_mode & 0o022 else None
    if reason is not None:
        raise PowerprofError(
            f"cannot keep a cache in {path} ({reason})", "set XDG_CACHE_HOME to a directory that only you can write"
        )
    return path


def temporary_base() -> Path:
    """Return the parent of temporary folders: $TMPDIR, or for root /tmp if others can change $TMPDIR."""
    chosen = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and only_root_writes(chosen) is not None:
        return Path("/tmp")  # noqa: S108 - sticky: others cannot replace root's files
    return chosen


def data_dir(kind: str) -> Path:
    """Return the `probes` or `workloads` folder: in an installed wheel, or next to the package in a checkout."""
    from importlib.resources import files

    package = Path(str(files("powerprof")))
    packaged = package / "_data" / kind
    return packaged if packaged.is_dir() else package.parent / kind
