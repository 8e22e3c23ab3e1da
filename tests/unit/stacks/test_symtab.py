# SPDX-License-Identifier: Apache-2.0
"""Symbol tables: sized functions, preferred names, and bounded memory."""

from __future__ import annotations

import lzma
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from powerprof.stacks import symtab
from powerprof.stacks.elf import parse_elf
from powerprof.stacks.symtab import read_symbols
from powerprof.system.errors import DataError
from tests.unit.stacks.elves import Part, make, wide_go_table, with_symbols


def table(entries):
    return read_symbols(parse_elf(with_symbols(entries), "x"))


def test_data_and_symbols_without_size_are_ignored():
    found = table([("label", 0x100, 0, 0x12), ("data", 0x200, 8, 0x11), ("ifunc", 0x300, 8, 0x1A)])
    assert found.lookup(0x100) is None
    assert found.lookup(0x200) is None
    assert found.lookup(0x300) == ("ifunc", 0x300, 0x308)


def test_public_alias_is_preferred_without_version():
    found = table(
        [
            ("__pthread_cond_timedwait", 0x100, 16, 0x12),
            ("pthread_cond_timedwait@@GLIBC_2.3.2", 0x100, 16, 0x12),
            ("local_alias", 0x200, 8, 0x02),
            ("weak", 0x200, 8, 0x22),
            ("global", 0x200, 8, 0x12),
        ]
    )
    assert found.lookup(0x100)[0] == "pthread_cond_timedwait"
    assert found.lookup(0x200)[0] == "global"


def test_minidebuginfo_adds_local_functions():
    inner = with_symbols([("hidden", 0x400, 32, 0x02)])
    outer = make([Part(".gnu_debugdata", 1, lzma.compress(inner))])
    assert read_symbols(parse_elf(outer, "x")).lookup(0x410) == ("hidden", 0x400, 0x420)


def test_inconsistent_cached_table_is_refused():
    good = table([("f", 0x100, 16, 0x12), ("g", 0x200, 16, 0x12)])
    bad = symtab.SymbolTable(starts=good.ends, ends=good.starts, offsets=good.offsets, names=good.names)
    with pytest.raises(DataError, match="damaged"):
        symtab.check_symbols(bad, "x")
    short = symtab.SymbolTable(starts=good.starts[:8], ends=good.ends, offsets=good.offsets, names=good.names)
    with pytest.raises(DataError, match="damaged"):
        symtab.check_symbols(short, "x")


_READ = """
import sys
from pathlib import Path
from powerprof.system.errors import DataError
from powerprof.stacks.elf import read_elf
from powerprof.stacks.symtab import check_symbols, read_symbols
from powerprof.stacks.time_budget import Budget
import numpy
def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10
with open(sys.argv[1], "rb") as file, Budget().meter(1) as meter:
    before = peak()
    try:
        count = check_symbols(read_symbols(read_elf(file.fileno(), sys.argv[1], meter)), "x").count
    except DataError as error:
        count = error.reason.replace(" ", "_")
    print(count, peak() - before)
"""


def many_symbols(count: int, start: Callable[[int], int]) -> bytes:
    rows = b"".join(struct.pack("<IBBHQQ", 1, 0x12, 0, 1, start(number), 4) for number in range(count))
    return make([Part(".symtab", 2, rows, link=2, entry_bytes=24), Part(".strtab", 3, b"\0f\0")])


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (lambda: make([Part(".gopclntab", 1, wide_go_table(3_900_000))], memory_bytes=1 << 28), None),
        (lambda: make([Part(".gopclntab", 1, wide_go_table(860_000))], memory_bytes=1 << 28), 860_000),
        (lambda: many_symbols(1_740_000, lambda number: 8 * number), None),
        (lambda: many_symbols(860_000, lambda number: 0x1000), 1),
        (lambda: many_symbols(860_000, lambda number: 8 * (number * 999_983 % 860_000)), 860_000),
    ],
    ids=["go, 32 MB", "go, the most", "symtab, 40 MB", "symtab, one address", "symtab, unsorted"],
)
def test_symbols_of_other_accounts_take_less_than_100_mb(
    tmp_path: Path, made: Callable[[], bytes], known: int | None
) -> None:
    """The number of symbols counts against the budget of their process, besides the bytes of the file."""
    (tmp_path / "x").write_bytes(made())
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(tmp_path / "x")], capture_output=True, text=True, check=True, timeout=60
    )
    count, grown_mb = done.stdout.split()
    assert int(grown_mb) < (100 if known else 10)
    assert count == (str(known) if known else "left_out:_the_files_of_its_process_are_too_large")
