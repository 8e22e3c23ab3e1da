# SPDX-License-Identifier: Apache-2.0
"""Trees of kernel headers in the cache: links to two packages in one, or what the kernel carries, unpacked."""

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

from powerprof.errors import PowerprofError
from powerprof.files import reason_of


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


def merged(plan: dict[str, Path], target: Path) -> Path:
    """Make the tree of these links and return it. Raises PowerprofError."""

    def fill(temporary: Path) -> None:
        for name, source in plan.items():
            link = temporary / name
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(source)

    return _made(target, fill)


def _made(target: Path, fill: Callable[[Path], None]) -> Path:
    """Make `target` whole or not at all: it is filled next to its place and renamed. Raises PowerprofError."""
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
    reason = reason_of(error) if isinstance(error, OSError) else str(error)
    return PowerprofError(
        f"cannot prepare kernel headers in {target} ({reason})",
        "make room there, or set XDG_CACHE_HOME to another place",
    )


def unpacked(carried: Path, shelf: Path) -> Path:
    """The headers that a CONFIG_IKHEADERS kernel carries, unpacked in the cache.

    bcc would unpack them itself, to /tmp/kheaders-RELEASE, a name that everybody can take first.
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

    return _made(target, fill)
