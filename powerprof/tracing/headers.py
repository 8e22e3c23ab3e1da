"""Kernel headers for bcc where /lib/modules/$(uname -r)/build is missing.

bcc compiles every program against kernel headers. Those of another version serve here, because powerprof's
programs read tracepoint arguments and call helpers only, and take every struct offset from BTF. Debian splits
its headers in two packages (-amd64: generated files, -common: the rest), bcc wants one tree: it is made of
symbolic links in powerprof's cache, and /lib/modules is never touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerprof import paths
from powerprof.errors import CapabilityError, PowerprofError
from powerprof.files import reason_of, try_text

# What bcc's kbuild_helper.cc calls the architecture in its -I flags, and how Debian names the package.
_ARCHITECTURES = {
    "x86_64": ("x86", "amd64"),
    "aarch64": ("arm64", "arm64"),
    "ppc64le": ("powerpc", "powerpc64le"),
    "s390x": ("s390", "s390x"),
    "riscv64": ("riscv", "riscv64"),
}
_LAYOUT = "1"  # part of the fingerprint: a tree made by an older powerprof is not taken for a new one


@dataclass(frozen=True)
class HeaderTree:
    """Installed headers of one kernel: the folders that together hold them, generated files first."""

    release: str
    parts: tuple[Path, ...]


def _architecture() -> tuple[str, str]:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, (machine, machine))


def _package() -> str:
    release = os.uname().release
    system = try_text(Path("/etc/os-release")) or ""
    if re.search(r"^ID=\"?ubuntu", system, re.MULTILINE):
        return "linux-headers-generic"
    # A cloud kernel has headers of its own; asking for them keeps the kernel and its headers together.
    return f"linux-headers-{'cloud-' if '-cloud-' in release else ''}{_architecture()[1]}"


def remedy() -> str:
    """The command that installs headers on this host."""
    return f"apt install {_package()}"


def _needed() -> tuple[str, ...]:
    arch = _architecture()[0]
    return (
        "include/linux/kconfig.h",
        "include/generated/autoconf.h",
        f"arch/{arch}/include/asm",
        f"arch/{arch}/include/generated",
    )


def _is_complete(parts: Sequence[Path]) -> bool:
    return all(any((part / name).exists() for part in parts) for name in _needed())


def installed_headers(modules: Path = Path("/lib/modules"), sources: Path = Path("/usr/src")) -> list[HeaderTree]:
    """Every complete set of headers on this host, in no order."""
    found: dict[Path, HeaderTree] = {}
    candidates = [*sources.glob("linux-headers-*"), *sources.glob("kernels/*"), *modules.glob("*/build")]
    for build in sorted(candidates):
        folder = build.resolve()
        release = (build.parent.name if build.name == "build" else build.name).removeprefix("linux-headers-")
        # 6.1.0-56-amd64 and 6.1.0-56-cloud-amd64 share 6.1.0-56-common.
        stem = folder.name.rsplit("-", 1)[0]
        commons = [folder.parent / f"{name}-common" for name in (stem, stem.rsplit("-", 1)[0])]
        for parts in ((folder,), *((folder, common) for common in commons)):
            if _is_complete(parts):
                found.setdefault(folder, HeaderTree(release, parts))
                break
    return list(found.values())


def _distance(release: str, running: str) -> tuple[int, int, str]:
    """How far two kernel versions are apart; 6.0 follows 5.19, a major step counts as twenty minor ones."""

    def number(text: str) -> tuple[int, int]:
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if not match:
            return 0, 0
        major, minor, patch = (int(part or 0) for part in match.groups())
        return major * 20 + minor, patch

    ours, theirs = number(running), number(release)
    return abs(ours[0] - theirs[0]), abs(ours[1] - theirs[1]), release


def _merge(parts: Sequence[Path], target: Path) -> None:
    """Link what only one part has as a whole; make a folder, and go down, only where several have it."""
    target.mkdir(mode=0o700)
    names = sorted({entry.name for part in parts for entry in part.iterdir()})
    for name in names:
        holders = [part / name for part in parts if (part / name).exists()]
        if not holders:
            continue  # a dangling link of the package, nothing that bcc could read
        if len(holders) > 1 and all(holder.is_dir() for holder in holders):
            _merge(holders, target / name)
        else:
            (target / name).symlink_to(holders[0])


def _build(tree: HeaderTree, target: Path) -> None:
    """Make the merged tree beside its place and rename it there: nobody ever sees half of one."""
    paths.private_directory(target.parent)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    arch = _architecture()[0]
    try:
        temporary.mkdir(mode=0o700)
        for name in ("include", f"arch/{arch}/include"):
            holders = [part / name for part in tree.parts if (part / name).is_dir()]
            (temporary / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _merge(holders, temporary / name)
        for folder, folders, files in os.walk(temporary):
            for name in (*folders, *files):
                paths.give_to_caller(Path(folder) / name)
        paths.give_to_caller(temporary)
        if target.exists() and not _is_complete((target,)):
            shutil.rmtree(target)
        try:
            temporary.rename(target)
        except OSError:
            if not _is_complete((target,)):  # otherwise another powerprof was quicker with the same tree
                raise
    except OSError as error:
        raise PowerprofError(f"cannot prepare kernel headers in {target} ({reason_of(error)})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def kernel_headers(
    modules: Path = Path("/lib/modules"), sources: Path = Path("/usr/src"), cache: Path | None = None
) -> Path | None:
    """What BCC_KERNEL_SOURCE must be while bcc compiles; None where bcc finds this kernel's own headers.

    Sets nothing itself. The merged tree is made once per set of installed headers and used again.
    Raises CapabilityError where no headers are installed, PowerprofError where the cache cannot be written.
    """
    running = os.uname().release
    own = modules / running
    # Where there are no modules, bcc itself unpacks the headers that a CONFIG_IKHEADERS kernel carries.
    carried = paths.sysfs() / "kernel/kheaders.tar.xz"
    if (own / "build").exists() or (not own.is_dir() and carried.exists()):
        return None
    trees = installed_headers(modules, sources)
    if not trees:
        raise CapabilityError("kernel headers for bcc are not installed", remedy())
    nearest = min(trees, key=lambda tree: _distance(tree.release, running))
    if len(nearest.parts) == 1:
        return nearest.parts[0]
    described = [f"{part} {part.stat().st_mtime_ns}" for part in nearest.parts]
    fingerprint = hashlib.sha256("\n".join([_LAYOUT, *described]).encode()).hexdigest()[:12]
    target = (cache or paths.cache_dir() / "headers") / f"{nearest.release}-{fingerprint}"
    if not _is_complete((target,)):
        _build(nearest, target)
    return target
