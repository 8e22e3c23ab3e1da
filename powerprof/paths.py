"""Where powerprof looks for things and where it puts them.

Every read of /sys and /proc starts at `sysfs()` or `procfs()`, so that POWERPROF_SYSFS and POWERPROF_PROCFS
move them to a recorded machine. The XDG directories are the caller's, also under sudo, and what is created
there belongs to the caller.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from powerprof.errors import PowerprofError, UsageError


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


@dataclass(frozen=True)
class _Owner:
    uid: int
    gid: int
    home: Path


def _caller() -> _Owner:
    """Who typed the command: under sudo not root but the user in front of the terminal."""
    uid = os.geteuid()
    if uid == 0 and os.environ.get("SUDO_UID", "").isdigit():
        try:
            entry = pwd.getpwuid(int(os.environ["SUDO_UID"]))
        except KeyError:
            pass
        else:
            return _Owner(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))
    home = os.environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            home = "/"
    return _Owner(uid, os.getegid(), Path(home))


def private_directory(path: Path) -> Path:
    """Create `path` with mode 0700 and the caller's ownership, parents too; an existing one is left as it is.

    Raises PowerprofError where it cannot be created.
    """
    owner = _caller()
    missing = []
    probe = path
    try:
        while not probe.exists():
            missing.append(probe)
            probe = probe.parent
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
            if os.geteuid() == 0 and owner.uid != 0:
                os.chown(directory, owner.uid, owner.gid)
    except OSError as error:
        raise PowerprofError(
            f"cannot create {path} ({(error.strerror or str(error)).lower()})",
            "choose another place by --runs-dir, XDG_STATE_HOME or XDG_CACHE_HOME",
        ) from error
    return path


def give_to_caller(path: Path) -> None:
    """Under sudo hand a file that was just written to the caller."""
    owner = _caller()
    if os.geteuid() == 0 and owner.uid != 0:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def _xdg(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and Path(base).is_absolute() else _caller().home / default
    return root / "powerprof"


def state_dir() -> Path:
    """Saved runs live below it."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """Headers, symbol tables, the server template and fetched servers: all can be made again."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def config_dir() -> Path:
    """The user's power models and defaults."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def data_dir(kind: str) -> Path:
    """The shipped `probes` or `workloads` folder: inside an installed wheel, beside the package in a checkout."""
    from importlib.resources import files

    package = Path(str(files("powerprof")))
    packaged = package / "_data" / kind
    return packaged if packaged.is_dir() else package.parent / kind
