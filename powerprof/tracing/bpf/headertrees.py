# SPDX-License-Identifier: Apache-2.0
"""Trees of kernel headers in the cache: links to two packages in one, or what the kernel carries, unpacked.

Each is looked at before each use, whole: it holds what it was made of and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from powerprof.digests import tree_digest
from powerprof.errors import PowerprofError
from powerprof.files import reason_of, try_text

_MOST_CARRIED = 50_000


def plan_of(parts: Sequence[Path], prefix: str = "") -> dict[str, Path]:
    """Name in the merged tree → what it links to: a whole where only one part has it, else what is in both."""
    plan: dict[str, Path] = {}
    for name in sorted({entry.name for part in parts for entry in part.iterdir()}):
        holders = [part / name for part in parts if (part / name).exists()]
        if not holders:
            continue  # a dangling link of the package, nothing that bcc could read
        if len(holders) > 1 and all(holder.is_dir() for holder in holders):
            plan |= plan_of(holders, f"{prefix}{name}/")
        else:
            plan[prefix + name] = holders[0]
    return plan


def _is_as_planned(target: Path, plan: dict[str, Path]) -> bool:
    """Whether the tree holds these links and nothing else: looked at before each use (34 links, 1 ms)."""
    planned: dict[str, Path] = {}
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            path = Path(folder) / name
            if path.is_symlink():
                planned[str(path.relative_to(target))] = path.readlink()
            elif name in files:
                return False
    return planned == plan


def merged(plan: dict[str, Path], target: Path) -> Path:
    """The tree of these links, which is made where it is not there as planned. Raises PowerprofError.

    It is made beside its place and renamed: nobody ever sees half of one.
    """
    if _is_as_planned(target, plan):
        return target
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    try:
        temporary.mkdir(mode=0o700)
        for name, source in plan.items():
            link = temporary / name
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(source)
        _put(temporary, target, lambda: _is_as_planned(target, plan))
    except OSError as error:
        raise cannot_prepare(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _put(temporary: Path, target: Path, is_right: Callable[[], bool]) -> None:
    """Into its place, unless another powerprof was quicker with the same tree. Raises OSError."""
    if target.exists() and not is_right():
        shutil.rmtree(target)
    try:
        temporary.rename(target)
    except OSError:
        if not is_right():
            raise


def cannot_prepare(target: Path, error: OSError | tarfile.TarError | lzma.LZMAError) -> PowerprofError:
    reason = reason_of(error) if isinstance(error, OSError) else str(error)
    return PowerprofError(
        f"cannot prepare kernel headers in {target} ({reason})",
        "make room there, or set XDG_CACHE_HOME to another place",
    )


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Files only, within the folder: Python 3.11.2 has no extraction filters."""
    name = member.name.removeprefix("./")
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or name.startswith("/") or ".." in name.split("/"):
        return
    path = folder / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(content.read())


def unpacked(carried: Path, shelf: Path) -> Path:
    """The headers that a CONFIG_IKHEADERS kernel carries, unpacked in the cache.

    bcc would unpack them itself, to /tmp/kheaders-RELEASE, a name that everybody can take first.
    """
    try:
        packed = carried.read_bytes()
    except OSError as error:
        raise cannot_prepare(shelf, error) from error
    target = shelf / f"{os.uname().release}-{hashlib.sha256(packed).hexdigest()[:12]}"
    note = shelf / f"{target.name}.sha256"

    def is_right() -> bool:
        digest = try_text(note)
        return digest is not None and target.is_dir() and tree_digest(target, most_files=_MOST_CARRIED) == digest

    if is_right():
        return target
    temporary = shelf / f".{target.name}.{secrets.token_hex(8)}"
    try:
        temporary.mkdir(mode=0o700)
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
            for member in archive:
                _take(archive, member, temporary)
        note.write_text(tree_digest(temporary, most_files=_MOST_CARRIED))
        _put(temporary, target, is_right)
    except (OSError, tarfile.TarError, lzma.LZMAError) as error:
        raise cannot_prepare(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
