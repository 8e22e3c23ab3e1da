# SPDX-License-Identifier: Apache-2.0
"""Unpack what lies below /usr in a Debian package that apt has verified. None of its scripts is read or run."""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess
import tarfile
from pathlib import Path

from powerprof import programs
from powerprof.errors import DataError, PowerprofError
from powerprof.files import reason_of

# Directories below /usr in releases that have no merged /usr yet (Debian 11).
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Read by people or by Perl, neither of which runs there.
_LEFT_OUT = (
    *(f"usr/share/{name}" for name in ("bug", "doc", "info", "lintian", "locale", "man", "perl", "perl5")),
    *("usr/games", "usr/include", "usr/local", "usr/src"),
)
_LEFT_OUT_PARTS = frozenset({"perl", "perl5", "perl-base"})


def unpack(package: Path, root: Path) -> None:
    """Unpack the files below /usr into `root`, without owners, set-user-id bits and devices.

    Raises DataError for a damaged package, PowerprofError if the file system has no room.
    """
    words: list[str | Path] = [programs.need("dpkg-deb", "dpkg"), "--fsys-tarfile", package]
    try:
        with programs.start(words, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None  # noqa: S101  for the type checker
            with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
                for member in archive:
                    _take(member, archive, root)
            # The padding at its end: dpkg-deb would fail to write it.
            child.stdout.read()
        if child.returncode != 0:
            raise DataError(package.name, "damaged package (dpkg-deb cannot unpack it)")
    except tarfile.TarError as error:
        raise DataError(package.name, f"damaged package ({error})") from error
    except OSError as error:
        raise PowerprofError(
            f"cannot unpack into {root} ({reason_of(error)})", "make room there, or set XDG_CACHE_HOME to another place"
        ) from error


def _take(member: tarfile.TarInfo, archive: tarfile.TarFile, root: Path) -> None:
    place = _kept(member.name)
    if place is None:
        return
    target = root / place
    _make_folder(target if member.isdir() else target.parent)
    if member.issym():
        # Relative, so that the link works both inside the root and from outside.
        text = member.linkname
        name = text if text.startswith("/") else posixpath.join(posixpath.dirname(member.name), text)
        kept = _kept(name)
        # /etc/alternatives and other links that scripts make are missing.
        if kept is not None:
            target.symlink_to(posixpath.relpath(kept, posixpath.dirname(place)))
    elif member.islnk():
        source = _kept(member.linkname)
        if source is not None:
            os.link(root / source, target)
    elif member.isreg():
        given = archive.extractfile(member)
        if given is not None:
            with target.open("xb") as made:
                shutil.copyfileobj(given, made)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)


def _kept(name: str) -> str | None:
    """Return the place below the root, with /usr merged; None for files that are left out."""
    path = posixpath.normpath(name).lstrip("/")
    parts = path.split("/")
    if parts[0] in _MERGED:
        path, parts = f"usr/{path}", ["usr", *parts]
    left_out = any(
        path == left_out or path.startswith(left_out + "/") for left_out in _LEFT_OUT
    ) or _LEFT_OUT_PARTS & set(parts)
    return path if parts[0] == "usr" and len(parts) > 1 and not left_out else None


def _make_folder(path: Path) -> None:
    """Make a folder and its parents with mode 0755, whatever the umask is: the server's account must enter."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)
