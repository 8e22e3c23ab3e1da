# SPDX-License-Identifier: Apache-2.0
"""Source lines of addresses: the line program of one DWARF unit.

Format: DWARF 2 to 5, section 6.2. Damaged data raise ValueError, IndexError or struct.error.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from powerprof.stacks.dwarf_values import LINE_STRP, STRING, STRP, read_value, sleb, uleb, unpack_fixed

_MAX_ROWS = 500_000
_MAX_FILES = 100_000
_PATH, _DIRECTORY = 1, 2
_ROW_BYTES = 16


class Lines:
    """The rows of a unit's line program, sorted by address."""

    def __init__(self, data: bytes, string: Callable[[int, int], str]) -> None:
        self._data, self._string = data, string
        self._addresses, self._numbers, self._lines = array("Q"), array("I"), array("I")
        self._files: list[str] = []
        self._read()
        self._data = b""

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        return _ROW_BYTES * len(self._addresses)

    def file(self, index: int) -> str | None:
        """Return a file's name as the compiler got it."""
        return self._files[index] if 0 <= index < len(self._files) else None

    def at(self, vaddr: int) -> tuple[str, int] | None:
        """Return file and line of an address."""
        index = bisect_right(self._addresses, vaddr) - 1
        if index < 0:
            return None
        file, line = self._numbers[index], self._lines[index]
        # Line 0 means no source line, or the end of a sequence.
        name = self.file(file)
        return (name, line) if name and line > 0 else None

    def _read(self) -> None:
        data = self._data
        length, version = unpack_fixed(data, 0, "IH")
        if length >= 0xFFFFFFF0 or not 2 <= version <= 5:
            raise ValueError(f"line table version {version}")
        end = min(4 + length, len(data))
        at = 6 + (2 if version == 5 else 0)
        (header_bytes,) = unpack_fixed(data, at, "I")
        program = at + 4 + header_bytes
        at += 4
        smallest = data[at]
        at += 1 + (version >= 4) + 1
        base, span, opcodes = unpack_fixed(data, at, "bBB")
        lengths = data[at + 3 : at + 2 + opcodes]
        at += 2 + opcodes
        if version == 5:
            directories, at = self._read_names_v5(at)
            files, at = self._read_names_v5(at)
            self._files = [_join_path(directories, name, place) for name, place in files]
        else:
            self._files = self._read_names(at)
        self._run(program, end, smallest, base, span, opcodes, lengths)

    def _read_names(self, at: int) -> list[str]:
        data = self._data
        directories: list[tuple[str, int]] = [("", 0)]
        while data[at]:
            name, at = _read_string(data, at)
            directories.append((name, 0))
            _check_count(directories)
        at += 1
        files = [""]
        while data[at]:
            name, at = _read_string(data, at)
            place, at = uleb(data, at)
            _, at = uleb(data, at)
            _, at = uleb(data, at)
            files.append(_join_path(directories, name, place))
            _check_count(files)
        return files

    def _read_names_v5(self, at: int) -> tuple[list[tuple[str, int]], int]:
        data = self._data
        formats = []
        count = data[at]
        at += 1
        for _ in range(count):
            kind, at = uleb(data, at)
            form, at = uleb(data, at)
            formats.append((kind, form))
        count, at = uleb(data, at)
        files: list[tuple[str, int]] = []
        for _ in range(count):
            name, place = "", 0
            for kind, form in formats:
                start = at
                value, at = read_value(form, 0, data, at)
                if kind == _DIRECTORY:
                    place = value
                elif kind == _PATH and form == STRING:
                    name, _ = _read_string(data, start)
                elif kind == _PATH and form in (STRP, LINE_STRP):
                    name = self._string(form, value)
            files.append((name, place))
            _check_count(files)
        return files, at

    def _run(self, at: int, end: int, smallest: int, base: int, span: int, opcodes: int, lengths: bytes) -> None:
        data = self._data
        rows: list[tuple[int, int, int]] = []
        address, file, line = 0, 1, 1
        while at < end:
            opcode = data[at]
            at += 1
            if opcode >= opcodes:
                moved = opcode - opcodes
                address += moved // span * smallest
                line += base + moved % span
                rows.append((address, file, line))
            elif opcode == 0:
                size, at = uleb(data, at)
                if size and data[at] == 1:
                    rows.append((address, file, 0))
                    address, file, line = 0, 1, 1
                elif size == 9 and data[at] == 2:
                    (address,) = unpack_fixed(data, at + 1, "Q")
                at += size
            elif opcode == 1:
                rows.append((address, file, line))
            elif opcode == 2:
                moved, at = uleb(data, at)
                address += moved * smallest
            elif opcode == 3:
                moved, at = sleb(data, at)
                line += moved
            elif opcode == 4:
                file, at = uleb(data, at)
            elif opcode == 8:
                address += (255 - opcodes) // span * smallest
            elif opcode == 9:
                address += unpack_fixed(data, at, "H")[0]
                at += 2
            else:
                for _ in range(lengths[opcode - 1]):
                    _, at = uleb(data, at)
            if len(rows) > _MAX_ROWS:
                raise ValueError("too many lines")
        # The end of a sequence sorts before a row at the same address; of several rows there the last one counts.
        rows.sort(key=lambda row: (row[0], row[2] > 0))
        for address, file, line in rows:
            self._addresses.append(address)
            self._numbers.append(file)
            self._lines.append(max(line, 0))


def _check_count(names: list[tuple[str, int]] | list[str]) -> None:
    if len(names) > _MAX_FILES:
        raise ValueError("too many files")


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode("utf-8", "replace"), end + 1


def _join_path(directories: list[tuple[str, int]], name: str, place: int) -> str:
    # Directory 0 is the compiler's working directory.
    folder = directories[place][0] if 0 < place < len(directories) else ""
    return f"{folder}/{name}" if folder and not name.startswith("/") else name
