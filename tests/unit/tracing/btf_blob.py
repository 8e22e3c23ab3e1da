# SPDX-License-Identifier: Apache-2.0
"""Builds a BTF section type by type, as Documentation/bpf/btf.rst lays it out."""

from __future__ import annotations

import struct

INT, PTR, STRUCT, UNION, ENUM, TYPEDEF, CONST, FUNC, FUNC_PROTO, ENUM64 = 1, 2, 4, 5, 6, 8, 10, 12, 13, 19


class BtfBlob:
    """Types are added in order; every `add` returns the id that the next ones refer to."""

    def __init__(self) -> None:
        self.types = bytearray()
        self.strings = bytearray(b"\0")
        self.count = 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        found = self.strings.find(b"\0" + text.encode() + b"\0")
        if found >= 0:
            return found + 1
        offset = len(self.strings)
        self.strings += text.encode() + b"\0"
        return offset

    def add(
        self, kind: int, name: str = "", size_or_type: int = 0, members: int = 0, extra: bytes = b"", flag: bool = False
    ) -> int:
        info = members | kind << 24 | flag << 31
        self.types += struct.pack("=III", self.name(name), info, size_or_type) + extra
        self.count += 1
        return self.count

    def integer(self, name: str, size: int) -> int:
        return self.add(INT, name, size, extra=struct.pack("=I", size * 8))

    def record(
        self, name: str, size: int, members: list[tuple[str, int, int]], kind: int = STRUCT, flag: bool = False
    ) -> int:
        """Members are (name, type id, offset in bits, or with `flag` width << 24 | offset)."""
        extra = b"".join(struct.pack("=III", self.name(n), t, where) for n, t, where in members)
        return self.add(kind, name, size, len(members), extra, flag)

    def prototype(self, parameters: list[tuple[str, int]]) -> int:
        extra = b"".join(struct.pack("=II", self.name(n), t) for n, t in parameters)
        return self.add(FUNC_PROTO, "", 0, len(parameters), extra)

    def tracepoint(self, name: str, parameters: list[tuple[str, int]], function: str | None) -> None:
        """As in the kernel: the typedef's prototype has no names, the function (if there is one) has."""
        void = ("__data", 0)
        nameless = self.prototype([("", t) for _, t in [void, *parameters]])
        pointer = self.add(PTR, "", nameless)
        self.add(TYPEDEF, f"btf_trace_{name}", pointer)
        if function:
            self.add(FUNC, function, self.prototype([void, *parameters]))

    def data(self) -> bytes:
        middle, end = len(self.types), len(self.strings)
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, middle, middle, end)
        return header + bytes(self.types) + bytes(self.strings)
