# SPDX-License-Identifier: Apache-2.0
"""A small bounded reader of 64-bit ELF files: damaged files are refused before native code reads them.

Files belong to untrusted processes. They are read by pread and not mapped, because a file that is truncated while it
is read then gives a short read and not SIGBUS. Layout: System V ABI, "Object Files" and gABI "Compressed Sections".
"""

from __future__ import annotations

import os
import stat
import struct
import zlib

import msgspec
from msgspec.structs import replace

from powerprof.stacks.registers import BY_ELF, X86_64, Machine
from powerprof.stacks.time_budget import BudgetMeter
from powerprof.system.errors import DataError, reason_of
from powerprof.system.foreign_data import loader

ET_EXEC, ET_DYN = 2, 3
PT_LOAD, PT_NOTE, PT_TLS = 1, 4, 7
PF_X = 1
SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 3, 7, 8, 11
SHF_COMPRESSED = 1 << 11
NT_GNU_BUILD_ID = 3

MAX_SECTIONS = 8192  # Programs and libraries have about 40, including those of Go and Rust.
MAX_NOTES = 64
MAX_NOTES_BYTES = 256 << 10
MAX_SEGMENTS = 512
MAX_SECTION_BYTES = 512 << 20
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
SHDR = struct.Struct("<IIQQQQIIQQ")
_CHDR = struct.Struct("<IIQQ")
COMPRESSION_HEADER_BYTES = _CHDR.size
_ADDRESS_LIMIT = 1 << 63


class Segment(msgspec.Struct, frozen=True):
    """One program header."""

    kind: int
    flags: int
    offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int
    align: int = 1


class Section(msgspec.Struct, frozen=True):
    """One section header."""

    name: str
    kind: int
    flags: int
    vaddr: int
    offset: int
    size: int
    link: int
    entry_bytes: int


class Elf(msgspec.Struct, frozen=True):
    """The validated headers of one file. Either `data` (an image in memory) or `fd` (a file) is set."""

    path: str
    size: int
    kind: int
    entry: int
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]
    build_id: str | None
    fd: int = -1
    data: bytes | None = None
    meter: BudgetMeter | None = None
    machine: Machine = X86_64

    def section(self, name: str) -> Section | None:
        """Return the first section of that name with bytes in the file."""
        for section in self.sections:
            if section.name == name and section.kind != SHT_NOBITS and section.size:
                return section
        return None

    def loads(self) -> tuple[Segment, ...]:
        """Return the loadable segments in file order."""
        return tuple(segment for segment in self.segments if segment.kind == PT_LOAD)

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at a file offset. Raises DataError beyond the file or the size limit.

        Program headers can contain any number, so only offsets and sizes inside the file are passed on.
        """
        if not _is_inside(offset, size, self.size):
            raise DataError(self.path, f"ends inside of what it promises ({size} bytes at {offset:#x})")
        if size > MAX_SECTION_BYTES:
            raise DataError(self.path, f"a part of it is larger than {MAX_SECTION_BYTES >> 20} MiB")
        if self.meter is not None:
            self.meter.take(size, self.path)
        part = self.data[offset : offset + size] if self.data is not None else _pread(self.fd, size, offset, self.path)
        if len(part) != size:
            raise DataError(self.path, f"ends inside of what it promises ({size} bytes at {offset:#x})")
        return part


def _pread(fd: int, size: int, offset: int, path: str) -> bytes:
    parts = []
    try:
        while size > 0:
            part = os.pread(fd, min(size, 64 << 20), offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
    except OSError as error:
        raise DataError(path, f"cannot be read ({reason_of(error)})") from error
    return b"".join(parts)


@loader(1)
def read_elf(fd: int, path: str, meter: BudgetMeter | None = None) -> Elf:
    """Return the headers of an open file; `meter` counts the bytes. The file must outlive the result.

    Raises DataError.
    """
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise DataError(path, f"cannot be read ({reason_of(error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(path, "not a regular file")
    return _parse(Elf(path, status.st_size, 0, 0, (), (), None, fd, None, meter))


@loader(1)
def parse_elf(data: bytes, path: str) -> Elf:
    """Return the headers of an ELF image in memory (vdso, .gnu_debugdata). Raises DataError."""
    return _parse(Elf(path, len(data), 0, 0, (), (), None, -1, data))


def _parse(raw: Elf) -> Elf:
    path, size = raw.path, raw.size
    if size < EHDR.size:
        raise DataError(path, "too short for an ELF file")
    ident, kind, e_machine, _, entry, phoff, shoff, *sizes = EHDR.unpack(raw.read(0, EHDR.size))
    _flags, _ehsize, phentsize, phnum, shentsize, shnum, shstrndx = sizes
    if ident[:4] != b"\x7fELF":
        raise DataError(path, "not an ELF file")
    if ident[4] != 2 or ident[5] != 1:
        raise DataError(path, "not a 64-bit little-endian ELF file")
    if e_machine not in BY_ELF:
        supported = ", ".join(f"{machine.name} is {number}" for number, machine in sorted(BY_ELF.items()))
        raise DataError(path, f"ELF of another machine (e_machine {e_machine}; {supported})")
    if kind not in (ET_EXEC, ET_DYN):
        raise DataError(path, f"neither program nor library (e_type {kind})")
    segments: list[Segment] = []
    if phnum:
        if phentsize != PHDR.size or phnum > MAX_SEGMENTS or not _is_inside(phoff, phnum * PHDR.size, size):
            raise DataError(path, "program headers out of range")
        for words in PHDR.iter_unpack(raw.read(phoff, phnum * PHDR.size)):
            p_type, p_flags, offset, vaddr, _paddr, filesz, memsz, align = words
            segment = Segment(p_type, p_flags, offset, vaddr, filesz, memsz, align)
            # A separate debug file keeps the program headers of its program without the bytes.
            if p_type == PT_LOAD and (
                memsz >= _ADDRESS_LIMIT or vaddr >= _ADDRESS_LIMIT or vaddr + memsz >= _ADDRESS_LIMIT or filesz > memsz
            ):
                raise DataError(path, f"segment of impossible size ({memsz:#x} bytes at {vaddr:#x})")
            segments.append(segment)
    sections = _read_sections(raw, shoff, shentsize, shnum, shstrndx)
    elf = replace(raw, kind=kind, entry=entry, segments=tuple(segments), sections=sections, machine=BY_ELF[e_machine])
    return replace(elf, build_id=_find_build_id(elf))


def _is_inside(offset: int, length: int, size: int) -> bool:
    return 0 <= offset <= size and 0 <= length <= size - offset


def _read_sections(raw: Elf, shoff: int, shentsize: int, shnum: int, shstrndx: int) -> tuple[Section, ...]:
    # A file that sstrip processed is valid although it has no section headers.
    if not shoff or (not shnum and shoff >= raw.size):
        return ()
    if shentsize != SHDR.size or not _is_inside(shoff, max(shnum, 1) * SHDR.size, raw.size):
        raise DataError(raw.path, "section headers out of range")
    first = SHDR.unpack(raw.read(shoff, SHDR.size))
    count = shnum or first[5]
    names_index = first[6] if shstrndx == 0xFFFF else shstrndx
    if count > MAX_SECTIONS or not _is_inside(shoff, count * SHDR.size, raw.size):
        raise DataError(raw.path, f"section headers out of range ({count} of them)")
    headers = list(SHDR.iter_unpack(raw.read(shoff, count * SHDR.size)))
    names = b""
    if 0 < names_index < count:
        kind, offset, size = headers[names_index][1], headers[names_index][4], headers[names_index][5]
        if kind == SHT_STRTAB and size <= 1 << 20 and _is_inside(offset, size, raw.size):
            names = raw.read(offset, size)
    sections = []
    for name, kind, flags, vaddr, offset, size, link, _info, _align, entry_bytes in headers:
        if kind != SHT_NOBITS and not _is_inside(offset, size, raw.size):
            raise DataError(raw.path, f"a section lies outside of the file ({size:#x} bytes at {offset:#x})")
        sections.append(Section(_read_string(names, name), kind, flags, vaddr, offset, size, link, entry_bytes))
    return tuple(sections)


def _read_string(table: bytes, offset: int) -> str:
    if offset >= len(table):
        return ""
    return table[offset : offset + 256].partition(b"\0")[0].decode("utf-8", "replace")


def _find_build_id(elf: Elf) -> str | None:
    places = [(note.offset, note.size) for note in elf.sections if note.kind == SHT_NOTE]
    places += [(note.offset, note.file_bytes) for note in elf.segments if note.kind == PT_NOTE]
    bytes_left = MAX_NOTES_BYTES
    # Sections and segments may cover the same notes, or the whole file many times.
    for offset, size in list(dict.fromkeys(places))[:MAX_NOTES]:
        if size <= min(bytes_left, 1 << 16) and _is_inside(offset, size, elf.size):
            bytes_left -= size
            build_id = build_id_of_notes(elf.read(offset, size))
            if build_id:
                return build_id
    return None


def build_id_of_notes(notes: bytes) -> str | None:
    """Return the GNU build id among ELF notes as hexadecimal digits; None if there is none."""
    position = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, position)
        name_at = position + 12
        at = name_at + (name_size + 3 & ~3)
        if at + size > len(notes):
            return None
        if kind == NT_GNU_BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0" and 2 <= size <= 64:
            return notes[at : at + size].hex()
        position = at + (size + 3 & ~3)
    return None


@loader(0)
def section_bytes(elf: Elf, section: Section, limit_bytes: int = MAX_SECTION_BYTES) -> bytes:
    """Return the decompressed contents of a section. Raises DataError beyond `limit_bytes`."""
    if section.kind == SHT_NOBITS:
        return b""
    if section.size > limit_bytes:
        raise DataError(elf.path, f"{section.name} is larger than {limit_bytes >> 20} MiB")
    data = elf.read(section.offset, section.size)
    if not section.flags & SHF_COMPRESSED:
        return data
    if len(data) < _CHDR.size:
        raise DataError(elf.path, f"{section.name} is too short for its compression header")
    kind, _reserved, size, _align = _CHDR.unpack_from(data)
    if kind != 1:
        raise DataError(elf.path, f"{section.name} is compressed by method {kind}; zlib (1) is understood")
    if size > limit_bytes:
        raise DataError(elf.path, f"{section.name} is larger than {limit_bytes >> 20} MiB")
    if elf.meter is not None:
        elf.meter.take(size, elf.path)
    try:
        worker = zlib.decompressobj()
        plain = worker.decompress(data[_CHDR.size :], size + 1)
    except zlib.error as error:
        raise DataError(elf.path, f"{section.name} cannot be decompressed ({error})") from error
    if len(plain) != size:
        raise DataError(elf.path, f"{section.name} decompresses to another size than it promises")
    return plain


def code_vaddr(elf: Elf, offset: int) -> int | None:
    """Return the link-time address of an executable mapping of the file from `offset`; None if no code is there.

    Only executable segments count: with lld the last page of read-only data and the first page of code can share a
    page of the file, which is mapped twice with different biases.
    """
    for segment in elf.loads():
        # The kernel maps whole pages, so the bytes before p_offset in its page are mapped too.
        start = segment.offset & ~0xFFF
        if segment.flags & PF_X and start <= offset < segment.offset + max(segment.file_bytes, 1):
            return segment.vaddr - (segment.offset - offset)
    return None
