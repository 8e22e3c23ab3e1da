# SPDX-License-Identifier: Apache-2.0
"""Debian's dtrace 2 in a root of its own, made once and kept in the user's cache (15 s, 150 MB).

Debian 12 has no DTrace, sid has. The kernel is this host's: the root shares /proc, /sys and the temporary folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_suffix(".c")
_LIBRARIES = "/usr/lib/powerprof-dtrace"
_RECIPE = (
    "mmdebstrap",
    "--mode=root",
    "--variant=minbase",
    "--quiet",
    '--aptopt=Acquire::Check-Valid-Until "false"',
    "--include=dtrace",
    "sid",
)
# A kernel that keeps the symbol `major_names` to itself (CONFIG_KALLSYMS_ALL off) makes all of io.d, and with it every
# script, fail to compile. The name of a device's driver is what it stands for.
_HIDDEN = re.compile(r"stringof\(\(\(struct blk_major_name \*\*\)&vmlinux`major_names\)\[.*?\]->name\)", re.DOTALL)


def _cache() -> Path:
    """Where it is kept. Not POWERPROF's own cache: that belongs to what is tested."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "powerprof-tests"


def _make(root: Path) -> None:
    subprocess.run([*_RECIPE, root], check=True, timeout=300)
    libraries = root / _LIBRARIES.lstrip("/")
    shutil.copytree(next(root.glob("usr/lib/*/dtrace")), libraries)
    for path in libraries.glob("*/io.d"):
        path.write_text(_HIDDEN.sub('"unknown"', path.read_text()))


def program() -> Path:
    """The folder that holds `dtrace`, made where it is not there yet. Skips where this host cannot make it."""
    if os.geteuid() != 0:
        pytest.skip("no capability: root (sudo make test)")
    for name, package in (("mmdebstrap", "mmdebstrap"), ("gcc", "gcc")):
        if shutil.which(name) is None:
            pytest.skip(f"no capability: {name} (apt install {package})")
    folder = _cache() / f"dtrace-{_digest(*_RECIPE, _HIDDEN.pattern)}"
    binaries = folder / f"bin-{_digest(_PROGRAM.read_text())}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "dtrace.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                made = Path(scratch) / "made"
                made.mkdir(mode=0o755)
                _make(made / "root")
                made.rename(folder)
        if not binaries.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                macros = [f'-DROOT="{folder / "root"}"', f'-DLIBRARIES="{_LIBRARIES}"']
                subprocess.run(["gcc", "-O1", *macros, "-o", Path(scratch) / "dtrace", _PROGRAM], check=True)
                shutil.copytree(scratch, binaries)
    return binaries


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
