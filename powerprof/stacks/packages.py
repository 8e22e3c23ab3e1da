# SPDX-License-Identifier: Apache-2.0
"""The packages with debug files of programs, from the package manager's own files; no program is executed.

dpkg(1) keeps a list of files per package. The archive indexes of apt(8) contain Build-Ids of debug packages. Packages
of rpm are requested by build id, as in gdb's hint. All files are read in the root of the process, with limits, and only
if no account except root and us can write them.
"""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from powerprof.model import text
from powerprof.model.records import Note
from powerprof.stacks.debuginfo import configured_servers, read_debug
from powerprof.stacks.elf import SHT_DYNSYM, SHT_SYMTAB, Elf, read_elf
from powerprof.stacks.image import Mapping, ProcessImage
from powerprof.stacks.store import ModuleTables, TableStore, open_module
from powerprof.stacks.symtab import SymbolTable, read_go_functions
from powerprof.system.caller import is_delegated
from powerprof.system.errors import DataError
from powerprof.system.next_steps import command_line
from powerprof.system.reader_process import Opened, process_of, shared
from powerprof.system.tasks import process_folder

_MOST_LISTS = 50_000
_LIST_BYTES = 16 << 20
_LISTS_BYTES = 512 << 20
_INDEX_BYTES = 256 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}")
_VERSION = re.compile(r"[A-Za-z0-9.+~:-]{1,100}")
# Debug archives of Debian and Ubuntu. The indexes of other archives are large and have no debug packages.
_DEBUG_ARCHIVES = ("debug", "ddebs")
_DPKG, _APT = "/var/lib/dpkg", "/var/lib/apt/lists"
# The server for every distribution without a server in _SERVERS.
_FEDERATED = "https://debuginfod.elfutils.org"
_SERVERS = {
    "debian": "https://debuginfod.debian.net",
    "ubuntu": "https://debuginfod.ubuntu.com",
    "fedora": "https://debuginfod.fedoraproject.org",
    "centos": "https://debuginfod.centos.org",
    "arch": "https://debuginfod.archlinux.org",
    "opensuse": "https://debuginfod.opensuse.org",
}
_DNF, _ZYPPER = ("fedora", "rhel", "centos"), ("opensuse", "suse", "sles")


class Package(msgspec.Struct, frozen=True):
    """A package and its version."""

    name: str
    version: str | None = None

    @property
    def word(self) -> str:
        """The argument of apt for the package."""
        return f"{self.name}={self.version}" if self.version else self.name


class Distribution:
    """The distribution in `root`, `/` or `/proc/PID/root`. Files that cannot be read are ignored."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """ID and ID_LIKE of os-release(5), the most specific first, `opensuse-leap` as `opensuse`."""
        release = (self._read("/etc/os-release", 1 << 16) or b"").decode("utf-8", "replace")
        fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
        words = [fields.get(name, "").strip("\"' ") for name in ("ID", "ID_LIKE")]
        return tuple(word.partition("-")[0] for word in " ".join(words).split()[:8])

    @property
    def server(self) -> str:
        """The distribution's debuginfod server."""
        return next((_SERVERS[name] for name in self.ids if name in _SERVERS), _FEDERATED)

    @cached_property
    def has_dpkg(self) -> bool:
        """Whether dpkg manages its packages."""
        return shared().names(self._root, f"{_DPKG}/info", 1) is not None

    def owners(self, paths: Collection[str]) -> dict[str, Package]:
        """Return the packages of the files that dpkg lists, by path."""
        # Before /usr was merged, packages had files in /lib and /bin, and many packages still list them there.
        wanted = {os.fsencode(name): path for path in paths for name in (path, path.removeprefix("/usr")) if path}
        list_names: dict[str, str] = {}
        left_bytes = _LISTS_BYTES
        for name in self._names(f"{_DPKG}/info", ".list") if wanted and self.has_dpkg else ():
            data = self._read(f"{_DPKG}/info/{name}", min(_LIST_BYTES, left_bytes)) or b""
            left_bytes -= len(data)
            for line in wanted.keys() & data.split(b"\n"):
                list_names[wanted[line]] = name.removesuffix(".list")
        versions = self._versions(set(list_names.values()))
        return {path: versions[name] for path, name in list_names.items() if name in versions}

    def debug_packages(self, build_ids: Collection[str]) -> dict[str, Package]:
        """Return the packages in apt's indexes with the debug files of these build ids."""
        packages: dict[str, Package] = {}
        for name in self._names(_APT, "_Packages", "_Packages.gz") if build_ids else ():
            if not any(word in name for word in _DEBUG_ARCHIVES):
                continue
            data = self._read(f"{_APT}/{name}", _INDEX_BYTES) or b""
            for build_id in set(build_ids) - set(packages):
                at = data.find(build_id.encode())
                if at >= 0:
                    package = _package(_stanza(data, at))
                    if package is not None:
                        packages[build_id] = package
        return packages

    def by_build_id(self, build_ids: Collection[str]) -> str | None:
        """Return the command that installs debug files by build id; None if the package manager has none."""
        if any(name in self.ids for name in _ZYPPER):
            return shlex.join(["zypper", "install", *(f"debuginfo(build-id)={build_id}" for build_id in build_ids)])
        if any(name in self.ids for name in _DNF):
            places = [f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug" for build_id in build_ids]
            return shlex.join(["dnf", "--enablerepo=*debug*", "install", *places])
        return None

    def _versions(self, names: Collection[str]) -> dict[str, Package]:
        """Return the installed packages by the names of their lists, `NAME` or `NAME:ARCHITECTURE`."""
        packages: dict[str, Package] = {}
        status = self._read(f"{_DPKG}/status", _INDEX_BYTES) or b"" if names else b""
        for stanza in status.split(b"\n\n"):
            package = _package(stanza)
            if package is not None:
                architecture = _field(stanza, b"Architecture")
                for name in (package.name, f"{package.name}:{architecture}"):
                    if name in names:
                        packages[name] = package
        return packages

    def _names(self, folder: str, *ends: str) -> list[str]:
        names = shared().names(self._root, folder, _MOST_LISTS) or []
        return sorted(name for name in names if name.endswith(ends))

    def _read(self, path: str, limit_bytes: int) -> bytes | None:
        opened = shared().open_in_root(process_of(self._root), self._root, path)
        if not isinstance(opened, Opened):
            return None
        with opened:
            if not opened.is_trusted or opened.size_bytes > limit_bytes:
                return None
            try:
                with os.fdopen(os.dup(opened.fd), "rb") as file:
                    data = file.read(limit_bytes)
                return zlib.decompressobj(31).decompress(data, limit_bytes) if path.endswith(".gz") else data
            except (OSError, zlib.error):
                return None


def debug_package(package: Package) -> Package:
    """Return the package with a package's debug files, by Debian's naming."""
    python = re.match(r"(?:lib)?(python[23]\.\d+)", package.name)
    if package.name == "libc6":
        return Package("libc6-dbg", package.version)
    return Package(f"{python[1]}-dbg" if python else f"{package.name}-dbgsym", package.version)


def _stanza(data: bytes, at: int) -> bytes:
    begin, end = data.rfind(b"\n\n", 0, at), data.find(b"\n\n", at)
    return data[max(0, begin) : end if end >= 0 else len(data)]


def _field(stanza: bytes, name: bytes) -> str:
    match = re.search(rb"^%s: ([^\n]{1,200})$" % name, stanza, re.MULTILINE)
    return match[1].decode("utf-8", "replace").strip() if match else ""


def _package(stanza: bytes) -> Package | None:
    """Return the package of a stanza; None for an invalid name, because users copy it into a command."""
    name, version = _field(stanza, b"Package"), _field(stanza, b"Version")
    if not _NAME.fullmatch(name):
        return None
    return Package(name, version if _VERSION.fullmatch(version) else None)


# Sources of function names of a process's files.

NamesFrom = Literal["symtab", "gopclntab", "gnu_debugdata", "dynsym"]


def is_complete(names_from: str | None, debug_from: str | None, functions_count: int | None) -> bool:
    """Return whether a debug file cannot add names. Functions besides Go's in a stripped Go program have FDEs."""
    return debug_from is not None or names_from == "symtab" or (names_from == "gopclntab" and not functions_count)


class FileNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of functions in one mapped file.

    `names_from` is the most complete table of the file itself, `debug_from` is how its debug file was found
    (`build_id`, `debuglink`, `debuginfod`); None: no such source. `functions_count` is the size of its unwind table,
    `named_count` the number of these functions with a symbol; None without such a table. `note`: a read failure.
    """

    path: str
    module: str
    build_id: str | None
    names_from: NamesFrom | None = None
    debug_from: str | None = None
    functions_count: int | None = None
    named_count: int | None = None
    note: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether a debug file cannot add names."""
        return is_complete(self.names_from, self.debug_from, self.functions_count)


def mapped_files(image: ProcessImage, chosen: Callable[[str], bool] = lambda module: True) -> list[Mapping]:
    """Return the mapped code files of a process, each once, its program first; `chosen` selects by module name."""
    files: dict[tuple[str, str, int], Mapping] = {}
    for mapping in image.mappings:
        if mapping.is_file and chosen(image.module_of(mapping)):
            files.setdefault((mapping.path, mapping.device, mapping.inode), mapping)
    return sorted(files.values(), key=lambda mapping: (mapping.path != image.executable, mapping.path))


def survey_names(image: ProcessImage, mappings: Iterable[Mapping], store: TableStore) -> list[FileNames]:
    """Return the names in each file."""
    return [_read_names(image, mapping, store) for mapping in mappings]


def _read_names(image: ProcessImage, mapping: Mapping, store: TableStore) -> FileNames:
    file = FileNames(path=mapping.path, module=image.module_of(mapping), build_id=mapping.build_id)
    tables = store.tables(image, mapping)
    if isinstance(tables, str):
        return msgspec.structs.replace(file, note=tables)
    debug = read_debug(store, image, mapping, inline=False)
    count, named = _count_functions(tables, debug.symbols)
    return msgspec.structs.replace(
        file,
        names_from=_names_from(image, mapping, store),
        debug_from=debug.source,
        functions_count=count,
        named_count=named,
        note="; ".join(debug.notes) or None,
    )


def _names_from(image: ProcessImage, mapping: Mapping, store: TableStore) -> NamesFrom | None:
    opened = open_module(image, mapping)
    if not isinstance(opened, Opened):
        return None
    try:
        with opened, store.budget.metered(image.pid, opened.is_trusted) as meter:
            return _best_table(read_elf(opened.fd, mapping.path, meter))
    except DataError:
        return None


def _best_table(elf: Elf) -> NamesFrom | None:
    kinds = {section.kind for section in elf.sections if section.size}
    if SHT_SYMTAB in kinds:
        return "symtab"
    if read_go_functions(elf) is not None:
        return "gopclntab"
    if elf.section(".gnu_debugdata") is not None:
        return "gnu_debugdata"
    return "dynsym" if SHT_DYNSYM in kinds else None


def _count_functions(tables: ModuleTables, debug: SymbolTable | None) -> tuple[int | None, int | None]:
    """Return the number of functions in the unwind table, and of those whose start a symbol covers."""
    import numpy as np

    starts = np.frombuffer(tables.unwind.starts, "<u8")
    if not len(starts):
        return None, None
    named = np.zeros(len(starts), bool)
    for table in (tables.symbols, debug):
        if table is not None and table.count:
            named |= _covered(table, starts)
    return len(starts), int(named.sum())


def _covered(table: SymbolTable, addresses: Any) -> Any:
    import numpy as np

    starts, ends = np.frombuffer(table.starts, "<u8"), np.frombuffer(table.ends, "<u8")
    at = starts.searchsorted(addresses, "right")
    # Symbols nest, so an address is covered up to the furthest end of all earlier symbols.
    furthest = np.concatenate([np.zeros(1, "<u8"), np.maximum.accumulate(ends)])
    return furthest[at] > addresses


# The one command that gets the missing names of a process's files: a package, else debuginfod.

# A smaller share of unnamed frames does not justify an installation.
_LEAST_PERCENT = 1.0
_MOST_FILES = 3
_SYSTEM_FOLDERS = ("/usr/", "/lib", "/bin/", "/sbin/")
_OWN_FOLDERS = ("/usr/local/", "/usr/src/")


class Remedies:
    """Sources of the missing names of some files of a process. Files with complete names are ignored."""

    def __init__(self, pid: int, files: Sequence[FileNames]) -> None:
        self._pid = pid
        self.files = [file for file in files if not file.is_complete and file.build_id]
        root = process_folder(pid) / "root"
        here = Path("/")
        status, ours = shared().status(root), shared().status(here)
        self._is_contained = (
            status is not None and ours is not None and (status.device, status.inode) != (ours.device, ours.inode)
        )
        self._distribution = Distribution(root if self._is_contained else here)

    @cached_property
    def _owners(self) -> dict[str, Package]:
        return self._distribution.owners([file.path for file in self.files])

    @cached_property
    def _in_archives(self) -> dict[str, Package]:
        return self._distribution.debug_packages([file.build_id for file in self.files if file.build_id])

    def package(self, file: FileNames) -> Package | None:
        """Return the package with a file's debug file, by build id in apt's indexes, else by the file's package."""
        indexed = self._in_archives.get(file.build_id or "")
        owner = self._owners.get(file.path)
        return indexed or (debug_package(owner) if owner is not None else None)

    def is_distributed(self, file: FileNames) -> bool:
        """Return whether the distribution built the file, so that it may have its debug file."""
        if self._distribution.has_dpkg:
            return file.path in self._owners
        return file.path.startswith(_SYSTEM_FOLDERS) and not file.path.startswith(_OWN_FOLDERS)

    def command(self, *, asked: bool = False) -> str | None:
        """Return the command; None if no source is known. `asked`: the user's own servers were queried."""
        files = [file for file in self.files if self.is_distributed(file)]
        build_ids = [file.build_id for file in files if file.build_id]
        if build_ids and not self._is_contained:
            packages = [self._in_archives.get(build_id) for build_id in build_ids]
            if all(packages):
                words = dict.fromkeys(package.word for package in packages if package is not None)
                return f"{_as_root()}{shlex.join(['apt', 'install', *words])}"
            if (installed := self._distribution.by_build_id(build_ids)) is not None:
                return f"{_as_root()}{installed}"
        if configured_servers():
            return self._fetch() if self.files and not asked else None
        return self._fetch(self._distribution.server) if files else None

    def _fetch(self, server: str | None = None) -> str:
        # The cache belongs to the account that runs powerprof, and sudo does not pass the environment on.
        chosen = (
            f"DEBUGINFOD_URLS={server or shlex.quote(' '.join(configured_servers()))}"
            if server or is_delegated()
            else ""
        )
        return command_line("doctor --pid {} --fetch", self._pid, environment=chosen)


def _as_root() -> str:
    return "sudo " if os.geteuid() != 0 or is_delegated() else ""


def missing_names(frames: Iterable[tuple[str, bool]], images: Iterable[ProcessImage]) -> Note | None:
    """Return the note of a report on unnamed frames; None if they are few or no file could name them.

    `frames` are (module, whether it has a name), one per printed frame.
    """
    total, unnamed = 0, Counter[str]()
    for module, is_named in frames:
        total += 1
        # Generated code such as `[Java code]` has no debug symbols.
        unnamed[module] += not is_named and not module.startswith("[")
    if not total or 100.0 * unnamed.total() / total < _LEAST_PERCENT:
        return None
    store, most = TableStore(downloads=False), unnamed.most_common(1)[0][0]
    # Prefer a process whose own files include the module with most unnamed frames.
    for image in sorted(images, key=lambda image: not mapped_files(image, lambda module: module == most)):
        lacking = [
            file
            for file in survey_names(image, mapped_files(image, lambda module: unnamed[module] > 0), store)
            if not file.is_complete and file.note is None
        ]
        if lacking:
            return _note(image.pid, sorted(lacking, key=lambda file: -unnamed[file.module]), unnamed, total)
    return None


def _note(pid: int, files: list[FileNames], unnamed: Counter[str], total: int) -> Note:
    names = list(dict.fromkeys(file.module for file in files))
    few = names[:_MOST_FILES]
    more = [text.plural(len(names) - len(few), "more file")] if len(names) > len(few) else []
    percent = 100.0 * sum(unnamed[name] for name in names) / total
    command = Remedies(pid, files).command(asked=True)
    files_text = text.join_words([*few, *more])
    if command is None:
        return Note("names_stripped", {"percent": percent, "files": files_text})
    return Note("names_missing", {"percent": percent, "files": files_text, "command": command})
