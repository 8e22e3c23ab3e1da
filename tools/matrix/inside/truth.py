# SPDX-License-Identifier: Apache-2.0
"""What the truth programs counted of themselves, and how far powerprof's answers are from it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_LOG_ENTRIES = 1 << 18  # sleepers.c
# Within 3 % of the program's count; at the two edges of a window a waking and the return from it may part.
_RELATIVE, _EDGES = 0.03, 2
# Calls as functions_truth.c makes them.
CALLS = {
    "truth_leaf": 600,
    "truth_outer": 50,
    "truth_inner": 150,
    "truth_recurse": 400,
    "truth_sleeper": 40,
    "truth_tail_first": 60,
    "truth_tail_second": 60,
}
# What oncpu_truth.c logs its CPU time of, in this order.
BURNERS = ("truth_one", "truth_two", "truth_kernel")


def slept(log: Path, names: Iterable[str], from_ns: int, to_ns: int) -> dict[str, int]:
    """Sleeps that ended in the window, by the program's own log."""
    data = log.read_bytes()
    counts = {}
    for number, name in enumerate(names):
        begin = number * _LOG_ENTRIES * 8
        (length,) = struct.unpack_from("<Q", data, begin)
        entries = struct.unpack_from(f"<{min(length, _LOG_ENTRIES - 1)}Q", data, begin + 8)
        counts[name] = sum(from_ns <= at_ns < to_ns for at_ns in entries)
    return counts


def spent(log: Path) -> dict[str, float]:
    """Shares of CPU time that the program itself counted in each function, in percent."""
    used = struct.unpack(f"<{len(BURNERS)}Q", log.read_bytes())
    return {name: 100 * one / max(1, sum(used)) for name, one in zip(BURNERS, used, strict=True)}


def function_of(name: str) -> str:
    """The function in which a thread of sleepers.c sleeps."""
    return f"wake_{name.removesuffix('_waker')}" if name.endswith("_waker") else f"wait_{name}"


def woken(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    """Wakings that powerprof saw in each thread's own function."""
    counts = dict.fromkeys(names, 0)
    for row in [*record["wakeups"], *record["wakings_without_exit"]]:
        name = row["thread"]["comm"]
        if name in counts and any(frame["function"] == function_of(name) for frame in row["stack"]):
            counts[name] += row["wakings_count"] or 0
    return counts


def compare(found: Mapping[str, int], truth: Mapping[str, int]) -> tuple[float | None, list[str]]:
    """The largest distance in percent, and what is further off than is allowed."""
    if not all(truth.values()):
        return None, [f"the program did not sleep: {dict(truth)}"]
    wrong = [
        f"{name} {found[name]} of {count}"
        for name, count in truth.items()
        if abs(found[name] - count) > max(_EDGES, _RELATIVE * count)
    ]
    worst = max(100 * abs(found[name] - count) / count for name, count in truth.items())
    return round(worst, 2), [f"wakings found of the program's own count: {', '.join(wrong)}"] if wrong else []


def _symbols(program: Path) -> dict[str, int]:
    """Names and values of .symtab (elf(5), 64 bits, little-endian)."""
    data = program.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    # type, offset, length, and the section with the names
    sections = [struct.unpack_from("<4xI16xQQI", data, table + size * number) for number in range(count)]
    symtab = next(section for section in sections if section[0] == 2)
    names = sections[symtab[3]][1]
    found = {}
    for at in range(symtab[1], symtab[1] + symtab[2], 24):
        name, value = struct.unpack_from("<I4xQ", data, at)
        found[data[names + name : data.index(b"\0", names + name)].decode()] = value
    return found


def addresses(program: Path, pid: int, functions: Iterable[str]) -> dict[str, int]:
    """Where the functions of a running position-independent program are in its memory."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    base = int(next(line for line in maps if line.endswith(str(program))).split("-")[0], 16)
    symbols = _symbols(program)
    return {name: base + symbols[name] for name in functions}


def instructions(pid: int, places: Mapping[str, int]) -> dict[str, bytes]:
    """The first bytes of each function, as they are in memory now."""
    found = {}
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for name, address in places.items():
            memory.seek(address)
            found[name] = memory.read(4)
    return found
