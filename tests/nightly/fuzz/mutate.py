# SPDX-License-Identifier: Apache-2.0
"""Bends sound bytes: what parsers trip over, at random places, the same for the same number."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_NUMBERS = tuple(
    str(n).encode()
    for n in (0, -1, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**18, 10**40)
)
_WORDS = (
    *_NUMBERS,
    *(b"9" * 5000, b"0x" + b"f" * 5000, b"-" * 300, b"1e999", b"-1e308", b"nan", b"NaN", b"inf", b"1_000"),
    *(b"1e-400", "²".encode(), "١٢".encode(), "\u202e".encode(), "\u2028".encode(), "\x85".encode(), b"\x1b[31m"),
    *(b"\x9b31m", b"\0", b"\r", b"\n", b"\r\n", b"\t", b";", b",", b"|", b":", b"=", b"'", b'"', b"`", b"\\"),
    *(b"/*", b"*/", b"--", b"[", b"]", b"{", b"}", b"(", b"]]", b"[[", b"=cmd|' /C calc'!A0", b"../.."),
    *(b"/dev/zero", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xfe\xff", b"\xef\xbb\xbf", b"null", b"true", b"[]"),
    *(b"{}", b"\x01", b"\x7f", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"\xdb\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8),
)


def bent(seeds: Sequence[bytes], number: int) -> bytes:
    """Input `number` of a loader: a seed with one to eight changes; every 50th is made of noise or repeats."""
    chance = random.Random(number)
    if number % 50 == 49:
        return _noise(seeds, chance)
    data = bytearray(chance.choice(seeds))
    for _ in range(min(8, 1 + int(chance.expovariate(0.6)))):
        _change(data, seeds, chance)
    return bytes(data[: 1 << 20])


def _noise(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    kind = chance.randrange(3)
    if kind == 0:
        return chance.randbytes(chance.choice((0, 1, 3, 40, 300, 3000)))
    if kind == 1:
        return b"".join(chance.choice(_WORDS) for _ in range(chance.randrange(1, 60)))
    # Repeats show what is not linear.
    seed = chance.choice(seeds)
    at = chance.randrange(len(seed) or 1)
    piece = chance.choice((seed[at : at + chance.randrange(1, 40)], chance.choice(_WORDS)[:40])) or b"["
    return piece * min(chance.choice((100, 2000, 20_000)), (1 << 18) // len(piece))


def _change(data: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    size = len(data)
    at = chance.randrange(size + 1)
    kind = chance.randrange(9)
    if kind == 0 and size:
        data[at % size] ^= 1 << chance.randrange(8)
    elif kind == 1:
        data[at:at] = chance.choice(_WORDS)
    elif kind == 2:
        del data[at : at + chance.choice((1, 1, 4, 20, 200))]
    elif kind == 3:
        piece = data[at : at + chance.choice((1, 8, 40, 400))]
        data[at:at] = piece * chance.choice((1, 1, 2, 50))
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        other = chance.choice(seeds)
        begin = chance.randrange(len(other) + 1)
        data[at : at + chance.randrange(50)] = other[begin : begin + chance.randrange(200)]
    elif kind == 6 and size > 8:
        width = chance.choice(("<H", "<I", "<Q"))
        value = chance.choice((0, 1, 7, 0x7F, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1, size))
        length = struct.calcsize(width)
        at = min(at, size - length)
        data[at : at + length] = struct.pack(width, value & ((1 << 8 * length) - 1))
    elif kind == 7:
        _replace_number(data, at, chance)
    elif size:
        data[at % size] = chance.randrange(256)


def _replace_number(data: bytearray, at: int, chance: random.Random) -> None:
    """A run of digits after `at` becomes another number."""
    window = bytes(data[at : at + 400])
    start = next((place for place, byte in enumerate(window) if 48 <= byte <= 57), None)
    if start is None:
        return
    end = start
    while end < len(window) and 48 <= window[end] <= 57:
        end += 1
    data[at + start : at + end] = chance.choice(_WORDS)
