# SPDX-License-Identifier: Apache-2.0
"""Rust symbol names: the legacy scheme (a C++ name with a hash) and v0 (RFC 2603)."""

from __future__ import annotations

import re
from collections.abc import Callable

_HASH = re.compile(r"h[0-9a-f]{16}")
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_BASIC = {
    **{"a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize", "j": "usize"},
    **{"l": "i32", "m": "u32", "n": "i128", "o": "u128", "s": "i16", "t": "u16", "u": "()", "v": "...", "x": "i64"},
    **{"y": "u64", "z": "!", "p": "_"},
}
# Not str.isdigit, which accepts ² and the digits of every script.
_DIGITS = frozenset("0123456789")
_MAX_DEPTH = 64
_MAX_OUTPUT = 8192


def demangle_legacy(name: str) -> str | None:
    """Return `core::ptr::drop_in_place` for `_ZN4core3ptr13drop_in_place17h0123456789abcdefE`; None for a C++ name."""
    if not name.startswith("_ZN"):
        return None
    parts: list[str] = []
    at = 3
    while name[at : at + 1] in _DIGITS:
        end = at
        while end < len(name) and end - at < 6 and name[end] in _DIGITS:
            end += 1
        size = int(name[at:end])
        if end + size > len(name):
            return None
        parts.append(name[end : end + size])
        at = end + size
    if name[at : at + 1] != "E" or len(parts) < 2 or not _HASH.fullmatch(parts[-1]):
        return None
    return "::".join(_unescape(part) for part in parts[:-1])


def _unescape(part: str) -> str:
    if part.startswith("_$"):
        part = part[1:]
    out = []
    at = 0
    while at < len(part):
        if part[at] == "$":
            end = part.find("$", at + 1)
            code = part[at + 1 : end] if end > 0 else ""
            if code in _ESCAPES:
                out.append(_ESCAPES[code])
                at = end + 1
                continue
            if re.fullmatch(r"u[0-9a-f]{1,6}", code) and int(code[1:], 16) < 0x110000:
                out.append(chr(int(code[1:], 16)))
                at = end + 1
                continue
        if part.startswith("..", at):
            out.append("::")
            at += 2
            continue
        out.append(part[at])
        at += 1
    return "".join(out)


def demangle_v0(name: str) -> str | None:
    """Return `mycrate::foo` for `_RNvCs1234_7mycrate3foo`, without crate hashes; None if malformed or too deep."""
    if not name.startswith("_R"):
        return None
    try:
        return _V0Reader(name[2:].partition(".")[0]).read_path(True)
    except (ValueError, IndexError, OverflowError):
        return None


class _V0Reader:
    """A recursive reader of one name, with limits of depth and output."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.made = 0

    def _enter(self) -> None:
        self.depth += 1
        # Every step counts, because back references can expand without bound.
        self.made += 1
        if self.depth > _MAX_DEPTH or self.made > _MAX_OUTPUT:
            raise ValueError("too deep")

    def _leave(self, text: str) -> str:
        self.depth -= 1
        # Each level copies the text of its parts.
        self.made += len(text) // 64
        if len(text) > _MAX_OUTPUT or self.made > _MAX_OUTPUT:
            raise ValueError("too long")
        return text

    def _take(self) -> str:
        letter = self.text[self.at]
        self.at += 1
        return letter

    def _eat(self, letter: str) -> bool:
        if self.text[self.at : self.at + 1] == letter:
            self.at += 1
            return True
        return False

    def _read_base62(self) -> int:
        if self._eat("_"):
            return 0
        value = 0
        while (letter := self._take()) != "_":
            if letter in _DIGITS:
                digit = int(letter)
            elif "a" <= letter <= "z":
                digit = ord(letter) - ord("a") + 10
            elif "A" <= letter <= "Z":
                digit = ord(letter) - ord("A") + 36
            else:
                raise ValueError("base 62")
            value = value * 62 + digit
            if value > 1 << 64:
                raise ValueError("number")
        return value + 1

    def _read_identifier(self) -> str:
        if self._eat("s"):
            self._read_base62()
        puny = self._eat("u")
        start = self.at
        # A length is 0 or has no leading zero, so a digit after 0 begins the next length.
        if not self._eat("0"):
            while self.text[self.at : self.at + 1] in _DIGITS:
                self.at += 1
        size = int(self.text[start : self.at][:6])
        self._eat("_")
        if self.at + size > len(self.text):
            raise ValueError("identifier")
        name = self.text[self.at : self.at + size]
        self.at += size
        if puny:
            head, _, tail = name.rpartition("_")
            return (f"{head}-{tail}" if head else tail).encode("ascii").decode("punycode")
        return name

    def _read_reference(self, read: Callable[[], str]) -> str:
        target = self._read_base62()
        start = self.at
        if target >= start - 1:
            raise ValueError("reference forward")
        self.at = target
        text = read()
        self.at = start
        return text

    def read_path(self, value: bool) -> str:
        """Return a path; with `value`, generics are written as `::<>`."""
        self._enter()
        tag = self._take()
        if tag == "C":
            text = self._read_identifier()
        elif tag == "M":
            self._skip_impl()
            text = f"<{self.read_type()}>"
        elif tag in "XY":
            if tag == "X":
                self._skip_impl()
            kind = self.read_type()
            text = f"<{kind} as {self.read_path(False)}>"
        elif tag == "N":
            space = self._take()
            outer = self.read_path(value)
            disambiguator = 0
            if self.text[self.at] == "s":
                mark = self.at
                self.at += 1
                disambiguator = self._read_base62() + 1
                self.at = mark
            name = self._read_identifier()
            if space.isupper():
                kind = {"C": "closure", "S": "shim"}.get(space, space)
                text = f"{outer}::{{{kind}{':' + name if name else ''}#{disambiguator}}}"
            else:
                text = f"{outer}::{name}" if name else outer
        elif tag == "I":
            outer = self.read_path(value)
            text = f"{outer}{'::' if value else ''}<{', '.join(self._read_arguments())}>"
        elif tag == "B":
            text = self._read_reference(lambda: self.read_path(False))
        else:
            raise ValueError("path")
        return self._leave(text)

    def _skip_impl(self) -> None:
        if self._eat("s"):
            self._read_base62()
        self.read_path(False)

    def _read_arguments(self) -> list[str]:
        arguments = []
        while not self._eat("E"):
            if self._eat("L"):
                self._read_base62()
                arguments.append("'_")
            elif self._eat("K"):
                arguments.append(self.read_constant())
            else:
                arguments.append(self.read_type())
        return arguments

    def read_type(self) -> str:
        """Return a type."""
        self._enter()
        tag = self._take()
        if tag in _BASIC:
            text = _BASIC[tag]
        elif tag == "A":
            text = f"[{self.read_type()}; {self.read_constant()}]"
        elif tag == "S":
            text = f"[{self.read_type()}]"
        elif tag == "T":
            parts = []
            while not self._eat("E"):
                parts.append(self.read_type())
            text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        elif tag in "RQ":
            if self._eat("L"):
                self._read_base62()
            text = f"&{'mut ' if tag == 'Q' else ''}{self.read_type()}"
        elif tag in "PO":
            text = f"*{'const' if tag == 'P' else 'mut'} {self.read_type()}"
        elif tag == "F":
            text = self._read_function()
        elif tag == "D":
            text = self._read_dynamic()
        elif tag == "B":
            text = self._read_reference(self.read_type)
        else:
            self.at -= 1
            text = self.read_path(False)
        return self._leave(text)

    def _read_function(self) -> str:
        if self._eat("G"):
            self._read_base62()
        unsafe = "unsafe " if self._eat("U") else ""
        abi = ""
        if self._eat("K"):
            abi = 'extern "C" ' if self._eat("C") else f'extern "{self._read_identifier().replace("_", "-")}" '
        parts = []
        while not self._eat("E"):
            parts.append(self.read_type())
        result = self.read_type()
        arrow = "" if result == "()" else f" -> {result}"
        return f"{unsafe}{abi}fn({', '.join(parts)}){arrow}"

    def _read_dynamic(self) -> str:
        if self._eat("G"):
            self._read_base62()
        traits = []
        while not self._eat("E"):
            trait = self.read_path(False)
            bound = []
            while self._eat("p"):
                name = self._read_identifier()
                bound.append(f"{name} = {self.read_type()}")
            if bound:
                trait = (f"{trait[:-1]}, " if trait.endswith(">") else f"{trait}<") + ", ".join(bound) + ">"
            traits.append(trait)
        if self._eat("L"):
            self._read_base62()
        return "dyn " + " + ".join(traits)

    def read_constant(self) -> str:
        """Return a constant."""
        self._enter()
        try:
            if self._eat("p"):
                return "_"
            if self._eat("B"):
                return self._read_reference(self.read_constant)
            kind = self._take()
            sign = "-" if self._eat("n") else ""
            end = self.text.index("_", self.at)
            digits = self.text[self.at : end]
            self.at = end + 1
            value = int(digits or "0", 16)
            if kind == "b":
                return "true" if value else "false"
            if kind == "c":
                return repr(chr(value))
            return f"{sign}{value}"
        finally:
            self.depth -= 1
