# SPDX-License-Identifier: Apache-2.0
"""A snapshot of one process's address space, sufficient to unwind and name its stacks after it has ended."""

from __future__ import annotations

import errno
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace

from powerprof.stacks.copied_code import FilePart, find_neighbours, find_origin
from powerprof.stacks.elf import Elf, code_vaddr, read_elf
from powerprof.stacks.time_budget import Budget, BudgetMeter
from powerprof.system.errors import CapabilityError, DataError, PowerprofError, reason_of
from powerprof.system.files import read_fields, try_text
from powerprof.system.foreign_data import loader
from powerprof.system.paths import procfs
from powerprof.system.process_stat import read_process_stat
from powerprof.system.reader_child import MAX_MAPPINGS, MOST_HOLES
from powerprof.system.reader_process import Opened, ReaderProcess, Unreadable, account_ids, link_of, shared
from powerprof.system.tasks import process_folder

# TASK_COMM_LEN: a name of this length may be cut.
_MOST_COMM = 15
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")


def find_program_name(pid: int, executable: str, reader: ReaderProcess) -> str | None:
    """Return the link by which a program was started: Debian's redis-server is one to redis-check-rdb.

    The kernel takes the comm from it, but a process may choose its comm and its arguments freely: a name counts only
    if it leads, in the process's root, to the very file that runs. If the comm was cut, the file's name counts.
    """
    base = process_folder(pid)
    folder, _, name = executable.rpartition("/")
    comm = try_text(procfs() / str(pid) / "comm") or ""
    if name.startswith(comm) or len(comm) >= _MOST_COMM or not _PLAIN_NAME.fullmatch(comm):
        return None
    program = reader.status(base / "exe")
    for place in dict.fromkeys((folder, *_PROGRAM_FOLDERS)) if program is not None else ():
        opened = reader.open_in_root(pid, base / "root", f"{place}/{comm}")
        if isinstance(opened, Opened):
            with opened:
                if program is not None and (opened.device, opened.inode) == (program.device, program.inode):
                    return comm
    return None


MAX_FILES = 2000
_MOST_ELVES = 2000
_LINE = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) ([0-9]{1,20})(?: +(.*))?", re.DOTALL
)
LineKey = tuple[int, int, int, str, str, int]
_DELETED = " (deleted)"


class Mapping(msgspec.Struct, frozen=True, kw_only=True):
    """One executable mapping. `bias` is load address − link-time address; None if the file could not be read.

    `note` is the reason why a file could not be read. `opened_at` is the range of another mapping of the file if this
    one is a copy of its code, in memory without a file.
    """

    start: int
    end: int
    offset: int
    path: str
    device: str
    inode: int
    build_id: str | None = None
    bias: int | None = None
    size_bytes: int | None = None
    mtime_ns: int | None = None
    note: str | None = None
    opened_at: tuple[int, int] | None = None

    @property
    def is_copy(self) -> bool:
        """Whether the process has copied the code from its file. The kernel places no probes in a copy."""
        return self.opened_at is not None

    @property
    def module(self) -> str:
        """The file's name in reports: `libc.so.6`, `[vdso]`, `[anonymous]`."""
        return self.path.rpartition("/")[2] or "[anonymous]"

    @property
    def is_file(self) -> bool:
        """Whether a file holds the code, in contrast to a JIT compiler's memory and the vdso."""
        return bool(self.inode) and not self.path.startswith(("/memfd:", "/dev/zero", "//anon"))

    def in_memory(self, vaddr: int) -> int:
        """Return the address in the process of a link-time address, modulo 2^64 because files contain any number."""
        return (vaddr + (self.bias or 0)) % (1 << 64)


class ProcessImage(msgspec.Struct, frozen=True, kw_only=True):
    """The executable mappings of one process at one moment, sorted and disjoint.

    `started_ticks` (clock ticks after boot) distinguishes a process from a later one of the same pid. `uid` and `gid`
    are its effective ids. `called` is the link by which its program was started, if there is one. `space` (the start of
    the stack) distinguishes the programs that a process executes one after the other; 0 if it is unknown.
    """

    pid: int
    started_ticks: int
    executable: str
    mappings: tuple[Mapping, ...]
    vdso: bytes | None = None
    namespace_pid: int | None = None
    uid: int | None = None
    gid: int | None = None
    called: str | None = None
    space: int = 0

    def module_of(self, mapping: Mapping) -> str:
        """Return the name of a mapping's file; for the program the name by which it was started."""
        return self.called if self.called and mapping.path == self.executable else mapping.module

    def mapping_at(self, address: int) -> Mapping | None:
        """Return the executable mapping that contains an address."""
        index = bisect_right(self.mappings, address, key=lambda mapping: mapping.start) - 1
        if index >= 0 and address < self.mappings[index].end:
            return self.mappings[index]
        return None

    @property
    def build_id(self) -> str | None:
        """The build id of the executable."""
        return next((mapping.build_id for mapping in self.mappings if mapping.path == self.executable), None)


class ElfCache:
    """A cache of ELF headers of mapped files, so that unchanged files are read once."""

    def __init__(self) -> None:
        self._elves: dict[tuple[int, int, int, int], Elf] = {}

    def elf(self, opened: Opened, path: str, meter: BudgetMeter | None) -> Elf:
        """Return the headers of an open file with its loaded segments only. Raises DataError."""
        key = (opened.device, opened.inode, opened.size_bytes, opened.mtime_ns)
        elf = self._elves.get(key)
        if elf is None:
            if len(self._elves) >= _MOST_ELVES:
                self._elves.clear()
            headers = read_elf(opened.fd, path, meter)
            elf = self._elves[key] = replace(headers, fd=-1, meter=None, segments=headers.loads(), sections=())
        return elf


def _advise_account() -> str:
    if os.geteuid():
        return "run as root or as its user"
    return "root may not either: run outside of the container, or change the security policy that protects it"


class ProcessGoneError(PowerprofError):
    """A process that has ended, or a kernel thread, which has no program."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} is gone", "ps -e lists them")


def snapshot(
    pid: int,
    budget: Budget | None = None,
    aside: ReaderProcess | None = None,
    *,
    seen: ElfCache | None = None,
    before: ProcessImage | None = None,
) -> ProcessImage:
    """Return the present image of a process. Raises PowerprofError if it has ended or may not be read.

    `budget` is the run's budget for files. `aside` reads files that may block. `seen` caches the files of earlier
    snapshots. `before` is the last image of this process: unchanged mappings are taken from it.
    """
    aside = aside or shared()
    base = process_folder(pid)
    try:
        stat = read_process_stat(pid)
        living = stat if base.name == str(pid) else read_process_stat(int(base.name))
        maps, vdso = aside.maps(pid)
        text = maps.decode("utf-8", "surrogateescape")
        executable = link_of(base / "exe")
        namespace_pid, uid, gid = _read_ids(base)
        if stat is None or executable is None:
            raise FileNotFoundError
        executable = executable.removesuffix(_DELETED)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGoneError(pid) from error
    except Unreadable as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise ProcessGoneError(pid) from error
        if error.errno:
            raise CapabilityError(error.message, _advise_account()) from error
        raise PowerprofError(error.message, error.hint) from error
    except (OSError, ValueError, IndexError) as error:
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise PowerprofError(f"cannot look at process {pid} ({why})", _advise_account()) from error
    with (budget := budget or Budget()).metered(pid, _is_trusted(pid)) as meter:
        if meter is not None:
            meter.take(len(text), str(base / "maps"))
        began_s = time.thread_time()
        mappings = parse_maps(text, str(base / "maps"))
    aside.charge(pid, time.thread_time() - began_s)
    unchanged = (
        {_make_line_key(mapping): mapping for mapping in before.mappings}
        if before and before.started_ticks == stat.started_ticks
        else {}
    )
    fresh = {
        _make_file_key(mapping): mapping
        for mapping in reversed(mappings)
        if mapping.inode and _make_line_key(mapping) not in unchanged
    }
    seen = seen or ElfCache()
    headers = _read_files(pid, list(fresh.values())[::-1][:MAX_FILES], budget, aside, seen)
    described = [
        mapping
        if not mapping.inode
        else unchanged.get(_make_line_key(mapping))
        or _describe(mapping, headers.get(_make_file_key(mapping), _TOO_MANY))
        for mapping in mappings
    ]
    copies = {(mapping.start, mapping.end): mapping for mapping in unchanged.values() if mapping.is_copy}
    described = [
        copies.get((mapping.start, mapping.end), mapping) if _is_hole(mapping) else mapping for mapping in described
    ]
    described = _name_copies(
        described, text, unchanged, lambda parts: _read_files(pid, parts[:MAX_FILES], budget, aside, seen)
    )
    vdso_at = next((mapping for mapping in described if mapping.path == "[vdso]"), None)
    if vdso_at and vdso:
        # The vdso is linked at 0 and mapped as a whole.
        place = described.index(vdso_at)
        described[place] = msgspec.structs.replace(vdso_at, bias=vdso_at.start)
    return ProcessImage(
        pid=pid,
        started_ticks=stat.started_ticks,
        executable=executable,
        mappings=tuple(described),
        vdso=vdso,
        namespace_pid=namespace_pid,
        uid=uid,
        gid=gid,
        called=find_program_name(pid, executable, aside),
        space=living.start_stack if living is not None else 0,
    )


def _is_hole(mapping: Mapping) -> bool:
    """Return whether code has no file that explains it."""
    return mapping.bias is None and not mapping.path.startswith("[")


def _name_copies(
    mappings: list[Mapping],
    text: str,
    known: Collection[LineKey],
    read: Callable[[list[Mapping]], dict[tuple[str, int, str], _FileHeaders]],
) -> list[Mapping]:
    """Return the mappings, with the file of each copy of its code. Mappings that are `known` are no copies.

    `read` returns the headers of files.
    """
    holes = {
        mapping.start: mapping for mapping in mappings if _is_hole(mapping) and _make_line_key(mapping) not in known
    }
    if not 0 < len(holes) <= MOST_HOLES:
        return mappings
    near = find_neighbours(text.split("\n"), holes, _parse_file_part)
    files = {
        (part.device, part.inode, part.path): Mapping(**part._asdict()) for parts in near.values() for part in parts
    }
    headers = read(list(files.values()))
    copies: dict[int, Mapping] = {}
    for start, hole in holes.items():
        for part in near[start]:
            header = headers.get((part.device, part.inode, part.path))
            origin = None if header is None or header.elf is None else find_origin(header.elf, part, start, hole.end)
            if header is not None and header.elf is not None and origin is not None:
                copies[start] = Mapping(
                    start=start,
                    end=hole.end,
                    offset=origin[1],
                    path=part.path,
                    device=part.device,
                    inode=part.inode,
                    build_id=header.elf.build_id,
                    bias=origin[0],
                    size_bytes=header.size_bytes,
                    mtime_ns=header.mtime_ns,
                    opened_at=(part.start, part.end),
                )
                break
    return [copies.get(mapping.start, mapping) for mapping in mappings]


def _parse_file_part(line: str) -> FilePart | None:
    match = _LINE.fullmatch(line)
    if match is None or match[7] == "0":
        return None
    low, high, _, offset, major, minor, inode, name = match.groups("")
    return FilePart(int(low, 16), int(high, 16), int(offset, 16), f"{major}:{minor}", int(inode), _clean_path(name))


def _clean_path(name: str) -> str:
    """Return the path of a file from its name in /proc/PID/maps."""
    clean = name.removesuffix(_DELETED).replace("\\012", "\n").encode("utf-8", "surrogateescape")
    return clean.decode("utf-8", "replace")


def _make_line_key(mapping: Mapping) -> LineKey:
    """Return the fields of a mapping in /proc/PID/maps, as a key."""
    return mapping.start, mapping.end, mapping.offset, mapping.path, mapping.device, mapping.inode


def _make_file_key(mapping: Mapping) -> tuple[str, int, str]:
    """Return a key of the mapping's file within its process."""
    return mapping.device, mapping.inode, mapping.path


def _is_trusted(pid: int) -> bool:
    """Return whether a process belongs to root or us, so that it has no reason to slow us down."""
    uids = account_ids(pid)
    return bool(uids) and {0, os.geteuid()}.issuperset(uids)


def _read_ids(base: Path) -> tuple[int | None, int | None, int | None]:
    """Return pid in its own namespace, effective user and effective group."""
    fields = read_fields(base / "status")
    pids, users, groups = (fields.get(name, "").split() for name in ("NSpid", "Uid", "Gid"))
    user, group = (int(ids[1]) if len(ids) > 1 else None for ids in (users, groups))
    return int(pids[-1]) if pids else None, user, group


@loader(1)
def parse_maps(text: str, path: str) -> tuple[Mapping, ...]:
    """Return the executable mappings of a /proc/PID/maps. Raises DataError for other text."""
    mappings = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(path, "not a line of /proc/PID/maps", number)
        low, high, permissions, offset, major, minor, inode, name = match.groups("")
        if "x" not in permissions:
            continue
        mappings.append(
            Mapping(
                start=int(low, 16),
                end=int(high, 16),
                offset=int(offset, 16),
                path=_clean_path(name),
                device=f"{major}:{minor}",
                inode=int(inode),
            )
        )
        if len(mappings) > MAX_MAPPINGS:
            raise DataError(path, f"more than {MAX_MAPPINGS:,} executable mappings")
    return tuple(sorted(mappings, key=lambda mapping: mapping.start))


class _FileHeaders(msgspec.Struct, frozen=True):
    elf: Elf | None
    size_bytes: int | None
    mtime_ns: int | None
    note: str | None


_TOO_MANY = _FileHeaders(None, None, None, f"left out: its process has more than {MAX_FILES:,} files")


def _read_files(
    pid: int, mappings: Sequence[Mapping], budget: Budget, aside: ReaderProcess, seen: ElfCache
) -> dict[tuple[str, int, str], _FileHeaders]:
    """Return the headers of mapped files, or the reasons why they could not be read."""
    places = [(mapping.start, mapping.end, mapping.inode, mapping.path) for mapping in mappings]
    headers: dict[tuple[str, int, str], _FileHeaders] = {}
    for mapping, opened in zip(mappings, aside.open_all_mapped(pid, places), strict=True):
        if not isinstance(opened, Opened):
            headers[_make_file_key(mapping)] = _FileHeaders(None, None, None, opened)
            continue
        with budget.metered(pid, opened.is_trusted) as meter:
            try:
                elf, note = seen.elf(opened, mapping.path, meter), None
            except DataError as error:
                elf, note = None, error.reason
        headers[_make_file_key(mapping)] = _FileHeaders(elf, opened.size_bytes, opened.mtime_ns, note)
    return headers


def _describe(mapping: Mapping, headers: _FileHeaders) -> Mapping:
    bias = None
    note = headers.note
    if headers.elf is not None:
        vaddr = code_vaddr(headers.elf, mapping.offset)
        bias = None if vaddr is None else mapping.start - vaddr
        note = None if bias is not None else "no code of the file is loaded from there"
    return msgspec.structs.replace(
        mapping,
        build_id=headers.elf.build_id if headers.elf else None,
        bias=bias,
        size_bytes=headers.size_bytes,
        mtime_ns=headers.mtime_ns,
        note=note,
    )


# Code of the kernel in every process. The vdso is next to the main thread's stack.
_KERNEL_CODE = ("[vdso]", "[vsyscall]", "[vectors]", "[sigpage]", "[uprobes]")


def find_code_ranges(image: ProcessImage) -> tuple[int, int, int, int]:
    """Return the two ranges that contain a process's code, each as start and bytes.

    The widest gap between two mappings separates them: usually the program from its libraries and a JIT compiler's
    code. The owner of a mapping does not show that: V8 maps a part of its program between the libraries. A range from
    there to the program would contain the heap, and every pointer on a stack would be a new call path.
    """
    mappings = [mapping for mapping in image.mappings if mapping.path not in _KERNEL_CODE]
    if not mappings:
        return 0, 0, 0, 0
    gaps = [after.start - before.end for before, after in pairwise(mappings)]
    first = gaps.index(max(gaps)) + 1 if gaps else 1
    start, end = mappings[0].start, mappings[first - 1].end
    if first == len(mappings):
        return start, end - start, 0, 0
    return start, end - start, mappings[first].start, mappings[-1].end - mappings[first].start


def is_same_program(older: ProcessImage, newer: ProcessImage) -> bool:
    """Return whether two images are of one process without an exec in between, also one of the same program."""
    same = (older.pid, older.started_ticks, older.executable) == (newer.pid, newer.started_ticks, newer.executable)
    return same and (not older.space or not newer.space or older.space == newer.space)


def is_same_code(first: ProcessImage, second: ProcessImage) -> bool:
    """Return whether two images have the same code at the same addresses, as a process and its parent have."""
    return first is second or (first.mappings == second.mappings and first.vdso == second.vdso)


def merge_images(older: ProcessImage, newer: ProcessImage) -> ProcessImage:
    """Return both images of one process as one: the newer's mappings, and those of the older that do not overlap them.

    Libraries that were unloaded between the two snapshots stay known. After an exec, and for another process of the
    same pid, the older image is dropped.
    """
    if not is_same_program(older, newer):
        return newer
    kept = list(newer.mappings)
    for old in older.mappings:
        after = bisect_right(newer.mappings, old.start, key=lambda mapping: mapping.start)
        is_free = after == 0 or newer.mappings[after - 1].end <= old.start
        if is_free and (after == len(newer.mappings) or old.end <= newer.mappings[after].start):
            kept.append(old)
    kept.sort(key=lambda mapping: mapping.start)
    return msgspec.structs.replace(newer, mappings=tuple(kept), vdso=newer.vdso or older.vdso)


def check_image(image: ProcessImage, path: object) -> ProcessImage:
    """Return an image from an untrusted file. Raises DataError if its mappings are impossible."""
    end = 0
    for mapping in image.mappings:
        if not end <= mapping.start < mapping.end <= 1 << 64 or len(mapping.path) > 4096:
            raise DataError(path, f"mappings of process {image.pid} overlap or are impossible at {mapping.start:#x}")
        if mapping.bias is not None and not -(1 << 63) < mapping.bias < 1 << 64:
            raise DataError(path, f"mapping of process {image.pid} at {mapping.start:#x} has an impossible bias")
        end = mapping.end
    return image
