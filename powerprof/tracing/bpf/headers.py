# SPDX-License-Identifier: Apache-2.0
"""Find kernel headers for bcc if /lib/modules/$(uname -r)/build is missing.

bcc compiles every program against kernel headers. Headers of another version serve here, because powerprof's programs
only read tracepoint arguments and call helpers, and take every struct offset from BTF. Debian splits its headers in two
packages (-amd64: generated files, -common: the rest) and bcc needs one tree: it is made of symbolic links in
powerprof's cache. /lib/modules is never changed.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from powerprof.system import paths
from powerprof.system.errors import CapabilityError, PowerprofError, reason_of
from powerprof.system.files import try_text
from powerprof.system.folders import only_root_writes


def plan_links(parts: Sequence[Path], prefix: str = "") -> dict[str, Path]:
    """Return the links of a merged tree: whole folders if only one part has them, else their contents."""
    plan: dict[str, Path] = {}
    for name in sorted({entry.name for part in parts for entry in part.iterdir()}):
        holders = [part / name for part in parts if (part / name).exists()]
        if not holders:
            continue  # a dangling link of the package, nothing that bcc could read
        if len(holders) > 1 and all(holder.is_dir() for holder in holders):
            plan |= plan_links(holders, f"{prefix}{name}/")
        else:
            plan[prefix + name] = holders[0]
    return plan


def make_merged_tree(plan: dict[str, Path], target: Path) -> Path:
    """Make the tree of these links and return it. Raises PowerprofError."""

    def fill(temporary: Path) -> None:
        for name, source in plan.items():
            link = temporary / name
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(source)

    return _fill_tree(target, fill)


def _fill_tree(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a temporary folder next to `target` and rename it. Raises PowerprofError."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    try:
        temporary.mkdir(mode=0o700)
        fill(temporary)
        temporary.rename(target)
    except OSError as error:
        # Another powerprof may have made the same tree first.
        if not target.is_dir():
            raise cannot_prepare(target, error) from error
    except (tarfile.TarError, lzma.LZMAError) as error:
        raise cannot_prepare(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def cannot_prepare(target: Path, error: OSError | tarfile.TarError | lzma.LZMAError) -> PowerprofError:
    """Return the error for a cache folder that cannot be filled."""
    reason = reason_of(error) if isinstance(error, OSError) else str(error)
    return PowerprofError(
        f"cannot prepare kernel headers in {target} ({reason})",
        "make room there, or set XDG_CACHE_HOME to another place",
    )


def unpack_carried_headers(carried: Path, shelf: Path) -> Path:
    """Return the headers that a CONFIG_IKHEADERS kernel carries, unpacked in the cache.

    bcc would unpack them to /tmp/kheaders-RELEASE, a name that any user can take first.
    """
    try:
        packed = carried.read_bytes()
    except OSError as error:
        raise cannot_prepare(shelf, error) from error
    target = shelf / f"{os.uname().release}-{hashlib.sha256(packed).hexdigest()[:12]}"
    if target.is_dir():
        return target

    def fill(temporary: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
            archive.extractall(temporary, [member for member in archive if member.isreg()])  # noqa: S202

    return _fill_tree(target, fill)


# The architecture in the -I flags of bcc's kbuild_helper.cc, and in Debian's package name.
_ARCHITECTURES = {
    "x86_64": ("x86", "amd64"),
    "aarch64": ("arm64", "arm64"),
    "ppc64le": ("powerpc", "powerpc64le"),
    "s390x": ("s390", "s390x"),
    "riscv64": ("riscv", "riscv64"),
}
# Always this kernel's own: programs are not compiled for a recorded machine (POWERPROF_SYSFS).
_CARRIED = Path("/sys/kernel/kheaders.tar.xz")
_LAYOUT = "1"  # part of the fingerprint: a tree made by an older powerprof is not taken for a new one


class HeaderTree(msgspec.Struct, frozen=True):
    """Installed headers of one kernel: the folders that together hold them, generated files first."""

    release: str
    parts: tuple[Path, ...]


def _name_architecture() -> tuple[str, str]:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, (machine, machine))


def _name_package() -> str:
    release = os.uname().release
    system = try_text(Path("/etc/os-release")) or ""
    if re.search(r"^ID=\"?ubuntu", system, re.MULTILINE):
        return "linux-headers-generic"
    # A cloud kernel has separate headers. Their package keeps the kernel and its headers together.
    return f"linux-headers-{'cloud-' if '-cloud-' in release else ''}{_name_architecture()[1]}"


def install_command() -> str:
    """Return the command that installs headers on this host."""
    return f"apt install {_name_package()}"


def _list_required() -> tuple[str, ...]:
    arch = _name_architecture()[0]
    return (
        "include/linux/kconfig.h",
        "include/generated/autoconf.h",
        f"arch/{arch}/include/asm",
        f"arch/{arch}/include/generated",
    )


def _is_complete(parts: Sequence[Path]) -> bool:
    return all(any((part / name).exists() for part in parts) for name in _list_required())


def find_installed_headers(modules: Path = Path("/lib/modules"), sources: Path = Path("/usr/src")) -> list[HeaderTree]:
    """Return every complete set of headers on this host, in no order."""
    trees: dict[Path, HeaderTree] = {}
    candidates = [*sources.glob("linux-headers-*"), *sources.glob("kernels/*"), *modules.glob("*/build")]
    for build in sorted(candidates):
        folder = build.resolve()
        release = (build.parent.name if build.name == "build" else build.name).removeprefix("linux-headers-")
        # 6.1.0-56-amd64 and 6.1.0-56-cloud-amd64 share 6.1.0-56-common.
        stem = folder.name.rsplit("-", 1)[0]
        commons = [folder.parent / f"{name}-common" for name in (stem, stem.rsplit("-", 1)[0])]
        for parts in ((folder,), *((folder, common) for common in commons)):
            if _is_complete(parts):
                trees.setdefault(folder, HeaderTree(release, parts))
                break
    return list(trees.values())


def _measure_distance(release: str, running: str) -> tuple[int, int, str]:
    """Return a distance of two kernel versions. 6.0 follows 5.19; a major step counts as twenty minor ones."""

    def number(text: str) -> tuple[int, int]:
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if not match:
            return 0, 0
        major, minor, patch = (int(part or 0) for part in match.groups())
        return major * 20 + minor, patch

    ours, theirs = number(running), number(release)
    return abs(ours[0] - theirs[0]), abs(ours[1] - theirs[1]), release


def _plan_tree(tree: HeaderTree) -> dict[str, Path]:
    arch = _name_architecture()[0]
    plan: dict[str, Path] = {}
    for name in ("include", f"arch/{arch}/include"):
        plan |= plan_links([part / name for part in tree.parts if (part / name).is_dir()], f"{name}/")
    return plan


def _may_be_compiled(tree: HeaderTree) -> str | None:
    """Return why root must not compile these headers, or None: a user who can write them would become root."""
    if os.geteuid() != 0:
        return None
    return next((reason for part in tree.parts if (reason := only_root_writes(part)) is not None), None)


def _is_found_by_bcc(own: Path) -> bool:
    """Return whether bcc uses this kernel's own headers.

    It takes `source` if it exists, and looks for kconfig.h there. If that is missing it uses /tmp/kheaders-RELEASE
    (src/cc/frontends/clang/loader.cc of bcc 0.26).
    """
    build, source = own / "build", own / "source"
    folders = (build, source) if source.is_dir() else (build,)
    if not build.is_dir() or not (folders[-1] / "include/linux/kconfig.h").exists():
        return False
    return _may_be_compiled(HeaderTree(own.name, folders)) is None


def find_kernel_headers(
    modules: Path = Path("/lib/modules"),
    sources: Path = Path("/usr/src"),
    cache: Path | None = None,
    carried: Path = _CARRIED,
) -> Path | None:
    """Return the value of BCC_KERNEL_SOURCE for bcc, or None if bcc finds this kernel's own headers.

    The merged tree is made once per set of installed headers. Root uses only headers that no other user may write.
    Raises CapabilityError if no headers are installed, PowerprofError if the cache cannot be written.
    """
    running = os.uname().release
    if _is_found_by_bcc(modules / running):
        return None
    if carried.exists():
        return unpack_carried_headers(carried, _open_cache(cache))
    trees = find_installed_headers(modules, sources)
    refused = {tree.release: reason for tree in trees if (reason := _may_be_compiled(tree)) is not None}
    usable = [tree for tree in trees if tree.release not in refused]
    if not usable:
        for release, reason in refused.items():
            raise CapabilityError(f"kernel headers {release} are not root's alone ({reason})", install_command())
        raise CapabilityError("kernel headers for bcc are not installed", install_command())
    nearest = min(usable, key=lambda tree: _measure_distance(tree.release, running))
    if len(nearest.parts) == 1:
        return nearest.parts[0]
    described = [f"{part} {part.stat().st_mtime_ns}" for part in nearest.parts]
    fingerprint = hashlib.sha256("\n".join([_LAYOUT, *described]).encode()).hexdigest()[:12]
    target = _open_cache(cache) / f"{nearest.release}-{fingerprint}"
    return target if target.is_dir() else make_merged_tree(_plan_tree(nearest), target)


def _open_cache(cache: Path | None) -> Path:
    if cache is None:
        return paths.cache_folder("headers")
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_prepare(cache, error) from error
    return cache
