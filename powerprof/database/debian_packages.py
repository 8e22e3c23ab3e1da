# SPDX-License-Identifier: Apache-2.0
"""Servers of other releases of Debian, whose packages are unpacked into their own root.

All Debian builds are built alike and run with their own libraries, so that only the releases differ.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from powerprof.database import mysql, postgresql
from powerprof.database.builds import Family, ServerBuild
from powerprof.database.runtree import RunTree
from powerprof.database.templates import check_room_in
from powerprof.model.text import Say
from powerprof.system import paths, program_search, programs
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, UsageError, reason_of
from powerprof.system.next_steps import command_line

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_DEBIAN = "http://deb.debian.org/debian"
_MIRROR_VARIABLE = "POWERPROF_DEBIAN_MIRROR"
_DOWNLOAD_S = 1800.0
_MAX_BYTES = 400 << 20
# 'http://…/x_1%3a2_amd64.deb' x_1%3a2_amd64.deb 123 SHA256:…
_URI_LINE = re.compile(
    r"'(https?://\S+|file:/\S+)' ([A-Za-z0-9][\w.+%~-]{1,200}\.deb) (\d{1,12}) SHA256:([0-9a-f]{64})"
)
# Options of the host that are adopted: access to the network, and whether outdated lists are accepted.
_HOST_OPTION = re.compile(
    r'Acquire::(http|https|Retries|Check-Valid-Until|Check-Date)(::[A-Za-z0-9_.:/-]+)? "[^"\n]*";'
)
_CONFIGURATION = """
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Dir::State "{place}/state";
Dir::State::status "{place}/status";
Dir::Cache "{place}/cache";
Dir::Log "{place}";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
APT::Install-Recommends "false";
"""


def list_proxies() -> dict[str, str]:
    """Return the proxies of this process by the names that apt reads, which are in small letters."""
    from urllib.request import getproxies_environment

    proxies: dict[str, str] = getproxies_environment()
    return {f"{scheme}_proxy": proxies[scheme] for scheme in ("http", "https", "no") if scheme in proxies}


class WantedPackage(msgspec.Struct, frozen=True):
    """A package to download: its file, size and digest."""

    file_name: str
    size_bytes: int
    sha256: str

    @property
    def name_and_version(self) -> tuple[str, str]:
        """Name and version, such as `libc6`, `2.36-9`."""
        name, version, *_ = urllib.parse.unquote(self.file_name).split("_")
        return name, version


def read_mirror_address() -> str:
    """Return the mirror of Debian: $POWERPROF_DEBIAN_MIRROR, else deb.debian.org. Raise UsageError."""
    chosen = os.environ.get(_MIRROR_VARIABLE) or _DEBIAN
    if not re.fullmatch(r"https?://[A-Za-z0-9._~:/%+-]{1,200}", chosen):
        raise UsageError(f"{_MIRROR_VARIABLE}={chosen!r} is not an http(s) address", _DEBIAN)
    return chosen.rstrip("/")


class Suite:
    """The packages of one suite, in a folder of the tree. Raises CapabilityError if the host has no apt or no key.

    The host's own apt downloads packages of another suite with separate lists. It handles signatures, digests,
    dependencies and the network, and installs nothing. The archive's key and the suite's name, which is signed too, are
    pinned. Versions are not: the archive drops a version at the next point release. The manifest records version and
    SHA-256 of the downloaded packages.
    """

    def __init__(self, suite: str, tree: RunTree) -> None:
        self._apt = program_search.need("apt-get", "apt")
        if not KEYRING.is_file():
            raise CapabilityError(f"{KEYRING} is not there", "apt install debian-archive-keyring")
        self._suite = suite
        # apt downloads with an unprivileged account, which must enter this folder.
        tree.path.chmod(0o711)
        self._place = place = tree.path / "apt"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (place / name).mkdir(0o755, parents=True)
        (place / "status").touch()
        (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {read_mirror_address()} {suite} main\n")
        (place / "apt.conf").write_text(_CONFIGURATION.format(place=place) + "\n".join(_read_host_options()) + "\n")

    def list_wanted(self, packages: Sequence[str]) -> list[WantedPackage]:
        """Return these packages and all their dependencies from the signed lists. Raise PowerprofError."""
        self._run("update")
        check_room_in(self._place, _MAX_BYTES)
        output = self._run("install", "--print-uris", "--yes", *packages)
        listed = [WantedPackage(name, int(size), sha256) for _, name, size, sha256 in _URI_LINE.findall(output)]
        if not listed:
            raise PowerprofError(
                f"Debian {self._suite} does not provide {', '.join(packages)}",
                f"to list the others: {command_line('servers')}",
            )
        return sorted(listed, key=lambda package: package.file_name)

    def download(self, packages: Sequence[str], wanted: Sequence[WantedPackage], shelf: Path) -> list[Path]:
        """Return the downloaded files. apt compares them with the signed lists.

        After an interruption complete files are kept on `shelf` for the next attempt. Raises PowerprofError, DataError.
        """
        archives = self._place / "cache/archives"
        _copy_complete(wanted, shelf, archives)
        try:
            self._run("install", "--download-only", "--yes", *packages)
        except BaseException:
            _copy_complete(wanted, archives, shelf)
            raise
        return [archives / package.file_name for package in wanted]

    def _run(self, *words: str) -> str:
        environment = {"APT_CONFIG": str(self._place / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
        done = programs.run(
            [self._apt, "-q", "-o", "APT::Update::Error-Mode=any", *words],
            timeout_s=_DOWNLOAD_S,
            env={**environment, **list_proxies()},
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:"))]
            raise PowerprofError(
                f"cannot download packages of Debian {self._suite} from {read_mirror_address()} "
                f"({' / '.join(errors[:3])[:300] or done.tail()})",
                f"check the network, or set {_MIRROR_VARIABLE}",
            )
        return done.stdout


def _read_host_options() -> list[str]:
    done = programs.run([program_search.need("apt-config", "apt"), "dump"], check=False)
    return [line for line in done.stdout.splitlines() if _HOST_OPTION.fullmatch(line)]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy_complete(wanted: Sequence[WantedPackage], source: Path, target: Path) -> None:
    for package in wanted:
        file = source / package.file_name
        if file.is_file() and _sha256(file) == package.sha256:
            shutil.copyfile(file, target / package.file_name)


# Directories that belong below /usr, in releases without a merged /usr (Debian 11).
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Documentation, and files of Perl, which does not run in the root.
_SKIPPED = (
    *(f"usr/share/{name}" for name in ("bug", "doc", "info", "lintian", "locale", "man", "perl", "perl5")),
    *("usr/games", "usr/include", "usr/local", "usr/src"),
)
_SKIPPED_PARTS = frozenset({"perl", "perl5", "perl-base"})


def unpack_package(package: Path, root: Path) -> None:
    """Unpack the files below /usr into `root`, without owners, set-user-id bits and devices.

    apt has verified the package. None of its scripts is read or run. Raises DataError for a damaged package,
    PowerprofError if the file system has no room.
    """
    words: list[str | Path] = [program_search.need("dpkg-deb", "dpkg"), "--fsys-tarfile", package]
    try:
        with programs.start(words, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None  # noqa: S101  for the type checker
            with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
                for member in archive:
                    _unpack_entry(member, archive, root)
            # Read the padding at the end: dpkg-deb would fail to write it.
            child.stdout.read()
        if child.returncode != 0:
            raise DataError(package.name, "damaged package (dpkg-deb cannot unpack it)")
    except tarfile.TarError as error:
        raise DataError(package.name, f"damaged package ({error})") from error
    except OSError as error:
        raise PowerprofError(
            f"cannot unpack into {root} ({reason_of(error)})", "make room there, or set XDG_CACHE_HOME to another place"
        ) from error


def _unpack_entry(member: tarfile.TarInfo, archive: tarfile.TarFile, root: Path) -> None:
    place = _find_place(member.name)
    if place is None:
        return
    target = root / place
    _check_below(root, target.parent, member.name)
    _make_open_folder(target if member.isdir() else target.parent)
    if member.issym():
        # A relative link works inside the root and from outside.
        text = member.linkname
        name = text if text.startswith("/") else posixpath.join(posixpath.dirname(member.name), text)
        kept = _find_place(name)
        # Links to /etc/alternatives and other targets that scripts create are skipped.
        if kept is not None:
            link = posixpath.relpath(kept, posixpath.dirname(place))
            # The folder of a link can itself be reached by a link, from where `..` leads elsewhere.
            _check_below(root, Path(os.path.realpath(target.parent), link), member.name)
            target.symlink_to(link)
    elif member.islnk():
        source = _find_place(member.linkname)
        if source is not None:
            _check_below(root, root / source, member.name)
            os.link(root / source, target)
    elif member.isreg():
        given = archive.extractfile(member)
        if given is not None:
            with target.open("xb") as made:
                shutil.copyfileobj(given, made)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)


def _check_below(root: Path, path: Path, name: str) -> None:
    """Check that a path, its links followed, is below the root. Raise DataError with the name in the archive.

    The root is private to this process, so no other account can change a link after the check.
    """
    # Not `resolve`, which raises RuntimeError for a link to itself.
    if not Path(os.path.realpath(path)).is_relative_to(root.resolve()):
        raise DataError(name[:200], "is a path that leads out of its archive: refused")


def _find_place(name: str) -> str | None:
    """Return the place below the root, with /usr merged; None for skipped files."""
    path = posixpath.normpath(name).lstrip("/")
    parts = path.split("/")
    if parts[0] in _MERGED:
        path, parts = f"usr/{path}", ["usr", *parts]
    left_out = any(
        path == left_out or path.startswith(left_out + "/") for left_out in _SKIPPED
    ) or _SKIPPED_PARTS & set(parts)
    return path if parts[0] == "usr" and len(parts) > 1 and not left_out else None


def _make_open_folder(path: Path) -> None:
    """Create a folder and its parents with mode 0755 under any umask: the server's account must enter."""
    if not path.is_dir():
        _make_open_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


# For people, next to the root.
MANIFEST = "packages.json"
# initdb and mariadb-install-db start a shell and these programs, which are no dependencies of a server package.
TOOLS = ("coreutils", "dash", "grep", "hostname", "sed")


class DebianPackages(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="debian"
):
    """A server of a suite: its packages, and the program with the expected family and version."""

    suite: str
    packages: tuple[str, ...]
    family: Family
    version: tuple[int, ...]
    binary: str
    download_bytes: int

    @property
    def origin(self) -> str:
        """The mirror and suite."""
        return f"{read_mirror_address()} ({self.suite})"

    def bring(self, place: Path, tree: RunTree, say: Say) -> None:
        """Download, check and unpack into `place`, which must not exist. Raise PowerprofError."""
        shelf = paths.cache_folder("packages")
        asked = (*self.packages, *TOOLS)
        say(f"reading the lists of Debian's {self.suite}")
        suite = Suite(self.suite, tree)
        wanted = suite.list_wanted(asked)
        say(f"downloading {len(wanted)} packages, {sum(package.size_bytes for package in wanted) / 1e6:.0f} MB")
        files = suite.download(asked, wanted, shelf)
        say("unpacking")
        (place / "root").mkdir(0o755, parents=True)
        for file in files:
            unpack_package(file, place / "root")
        unpacked = []
        for package in wanted:
            name, version = package.name_and_version
            unpacked.append({"name": name, "version": version, "sha256": package.sha256})
            (shelf / package.file_name).unlink(missing_ok=True)
        manifest = {"suite": self.suite, "packages": unpacked}
        (place / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        shutil.rmtree(tree.path / "apt")

    def load_build(self, place: Path) -> ServerBuild:
        """Return the program. Raise PowerprofError if it does not run here, DataError for another version."""
        find = postgresql.find_build if self.family == "postgresql" else mysql.find_build
        build = find(Path(self.binary), root=place / "root")
        if (build.family, build.version[: len(self.version)]) != (self.family, self.version):
            raise DataError(place, f"Debian's {self.suite} has {build.name} now")
        return build
