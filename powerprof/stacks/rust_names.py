# SPDX-License-Identifier: Apache-2.0
"""Rust symbol names: the legacy scheme (a C++ name with a hash) and v0 (RFC 2603)."""

from __future__ import annotations

import re

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
        return _V0Reader(name[2:].partition(".")[0]).path(True)
    except (ValueError, IndexError, OverflowError):
        return None


class _V0Reader:
    """A recursive reader of one name, with limits of depth and output."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.made = 0

    def _deeper(self) -> None:
        self.depth += 1
        # Every step counts, because back references can expand without bound.
        self.made += 1
        if self.depth > _MAX_DEPTH or self.made > _MAX_OUTPUT:
            raise ValueError("too deep")

    def _shallower(self, text: str) -> str:
        self.depth -= 1
        # Each level copies the text of its parts.
        self.made += len(text) // 64
        if len(text) > _MAX_OUTPUT or self.made > _MAX_OUTPUT:
            raise ValueError("too long")
        return text

    def _next(self) -> str:
        letter = self.text[self.at]
        self.at += 1
        return letter

    def _eat(self, letter: str) -> bool:
        if self.text[self.at : self.at + 1] == letter:
            self.at += 1
            return True
        return False

    def _base62(self) -> int:
        if self._eat("_"):
            return 0
        value = 0
        while (letter := self._next()) != "_":
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

    def _identifier(self) -> str:
        if self._eat("s"):
            self._base62()
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

    def _back(self, reader: str) -> str:
        target = self._base62()
        start = self.at
        if target >= start - 1:
            raise ValueError("reference forward")
        self.at = target
        text: str = getattr(self, reader)(False) if reader == "path" else getattr(self, reader)()
        self.at = start
        return text

    def path(self, value: bool) -> str:
        """Return a path; with `value`, generics are written as `::<>`."""
        self._deeper()
        tag = self._next()
        if tag == "C":
            text = self._identifier()
        elif tag == "M":
            self._impl()
            text = f"<{self.type()}>"
        elif tag in "XY":
            if tag == "X":
                self._impl()
            kind = self.type()
            text = f"<{kind} as {self.path(False)}>"
        elif tag == "N":
            space = self._next()
            outer = self.path(value)
            disambiguator = 0
            if self.text[self.at] == "s":
                mark = self.at
                self.at += 1
                disambiguator = self._base62() + 1
                self.at = mark
            name = self._identifier()
            if space.isupper():
                kind = {"C": "closure", "S": "shim"}.get(space, space)
                text = f"{outer}::{{{kind}{':' + name if name else ''}#{disambiguator}}}"
            else:
                text = f"{outer}::{name}" if name else outer
        elif tag == "I":
            outer = self.path(value)
            text = f"{outer}{'::' if value else ''}<{', '.join(self._arguments())}>"
        elif tag == "B":
            text = self._back("path")
        else:
            raise ValueError("path")
        return self._shallower(text)

    def _impl(self) -> None:
        if self._eat("s"):
            self._base62()
        self.path(False)

    def _arguments(self) -> list[str]:
        arguments = []
        while not self._eat("E"):
            if self._eat("L"):
                self._base62()
                arguments.append("'_")
            elif self._eat("K"):
                arguments.append(self.constant())
            else:
                arguments.append(self.type())
        return arguments

    def type(self) -> str:
        """Return a type."""
        self._deeper()
        tag = self._next()
        if tag in _BASIC:
            text = _BASIC[tag]
        elif tag == "A":
            text = f"[{self.type()}; {self.constant()}]"
        elif tag == "S":
            text = f"[{self.type()}]"
        elif tag == "T":
            parts = []
            while not self._eat("E"):
                parts.append(self.type())
            text = f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        elif tag in "RQ":
            if self._eat("L"):
                self._base62()
            text = f"&{'mut ' if tag == 'Q' else ''}{self.type()}"
        elif tag in "PO":
            text = f"*{'const' if tag == 'P' else 'mut'} {self.type()}"
        elif tag == "F":
            text = self._function()
        elif tag == "D":
            text = self._dynamic()
        elif tag == "B":
            text = self._back("type")
        else:
            self.at -= 1
            text = self.path(False)
        return self._shallower(text)

    def _function(self) -> str:
        if self._eat("G"):
            self._base62()
        unsafe = "unsafe " if self._eat("U") else ""
        abi = ""
        if self._eat("K"):
            abi = 'extern "C" ' if self._eat("C") else f'extern "{self._identifier().replace("_", "-")}" '
        parts = []
        while not self._eat("E"):
            parts.append(self.type())
        result = self.type()
        arrow = "" if result == "()" else f" -> {result}"
        return f"{unsafe}{abi}fn({', '.join(parts)}){arrow}"

    def _dynamic(self) -> str:
        if self._eat("G"):
            self._base62()
        traits = []
        while not self._eat("E"):
            trait = self.path(False)
            bound = []
            while self._eat("p"):
                name = self._identifier()
                bound.append(f"{name} = {self.type()}")
            if bound:
                trait = (f"{trait[:-1]}, " if trait.endswith(">") else f"{trait}<") + ", ".join(bound) + ">"
            traits.append(trait)
        if self._eat("L"):
            self._base62()
        return "dyn " + " + ".join(traits)

    def constant(self) -> str:
        """Return a constant."""
        self._deeper()
        try:
            if self._eat("p"):
                return "_"
            if self._eat("B"):
                return self._back("constant")
            kind = self._next()
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
