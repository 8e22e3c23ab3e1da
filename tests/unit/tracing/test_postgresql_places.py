# SPDX-License-Identifier: Apache-2.0
"""The messages of PostgreSQL by the code after the call that reports them, on code made by hand."""

from __future__ import annotations

import struct

import pytest

from powerprof.stacks.elf import Elf, parse_elf
from powerprof.stacks.symtab import read_symbols
from powerprof.tracing.bpf.shared_numbers import Message
from powerprof.tracing.function_calls import find_call_returns
from powerprof.tracing.postgresql_places import classify_report_sites
from tests.unit.stacks.elves import Part, make, symbol

BASE = 0x78  # of the first part of the file, whose segment begins at 0
NAMES = ("report", "ParallelQueryMain", "exec_replication_command", "pg_parse_query", "CreateDestReceiver")


class Code:
    """Machine code with calls of `report`; `sites` are the return addresses of these calls by name."""

    def __init__(self) -> None:
        self.data = bytearray(b"PARSE\0BIND\0\0\0" + b"\xc3" * 3)
        self.starts = {"report": BASE + 13, "pg_parse_query": BASE + 14, "CreateDestReceiver": BASE + 15}
        self.ends: dict[str, int] = {}
        self.sites: dict[str, int] = {}

    @property
    def here(self) -> int:
        return BASE + len(self.data)

    def call(self, target: int) -> None:
        self.data += b"\xe8" + struct.pack("<i", target - self.here - 5)

    def title(self, at: int) -> None:
        """Add `lea rdi, [rip + distance]`."""
        self.data += b"\x48\x8d\x3d" + struct.pack("<i", at - self.here - 7)

    def report(self, name: str) -> None:
        self.call(self.starts["report"])
        self.sites[name] = self.here

    def elf(self) -> Elf:
        strings, rows = bytearray(b"\0"), [bytes(24)]
        for name, start in self.starts.items():
            rows.append(symbol(len(strings), start, self.ends.get(name, start + 1) - start))
            strings += name.encode() + b"\0"
        table = Part(".symtab", 2, b"".join(rows), link=3, entry_bytes=24)
        return parse_elf(make([Part(".text", 1, bytes(self.data)), table, Part(".strtab", 3, bytes(strings))]), "x")


def server(*, executes: bool = True) -> Code:
    code = Code()
    code.report("parse")
    code.title(BASE)  # the title is before the code
    code.data += b"\xc3"
    code.report("bind")
    code.data += b"\xeb\x02\xc3\xc3"  # jmp over two returns
    after = code.here + 7 + 1
    code.title(after)  # the title is after the code
    code.data += b"\xc3BIND\0\0"
    code.report("branch")
    code.data += b"\x74\x09\x90\x90\x90"  # je to the title; otherwise, after three more instructions, another mark
    code.call(code.starts["pg_parse_query"])
    code.data += b"\xc3"
    code.title(BASE + 6)
    code.data += b"\xc3"
    if executes:
        code.report("execute")
        code.call(code.starts["CreateDestReceiver"])
        code.data += b"\xc3"
    code.report("whole")
    code.call(code.starts["pg_parse_query"])
    code.data += b"\xc3"
    code.report("unmarked")
    code.data += b"\xc3"
    for name, function in (("worker", "ParallelQueryMain"), ("replication", "exec_replication_command")):
        code.starts[function] = code.here
        code.report(name)
        code.title(BASE)
        code.data += b"\xc3"
        code.ends[function] = code.here
    return code


EXPECTED = {
    "parse": Message.PARSE,
    "bind": Message.BIND,
    "branch": Message.BIND,
    "execute": Message.EXECUTE,
    "whole": Message.WHOLE,
    "unmarked": Message.WHOLE,
    "worker": Message.WORKER,
    "replication": Message.WHOLE,
}


@pytest.mark.parametrize("executes", [True, False])
def test_messages_are_known_by_the_nearest_mark(executes: bool) -> None:
    """If one of the three messages of the extended protocol is not found, every site that could be one is unsure."""
    code = server(executes=executes)
    elf = code.elf()
    found = classify_report_sites(elf, read_symbols(elf), code.starts["report"])
    expected = {name: kind for name, kind in EXPECTED.items() if executes or name != "execute"}
    if not executes:
        expected = {
            name: kind if name in ("worker", "replication") else Message.UNSURE for name, kind in expected.items()
        }
    assert {name: found.get(site) for name, site in code.sites.items()} == expected
    assert set(found) == set(code.sites.values())


def test_return_addresses_follow_the_calls() -> None:
    code = server()
    found = list(find_call_returns(code.elf(), (code.starts["report"], code.starts["CreateDestReceiver"])))
    assert [place for place, function in found if function == code.starts["report"]] == sorted(code.sites.values())
    assert [place for place, function in found if function == code.starts["CreateDestReceiver"]] == [
        code.sites["execute"] + 5
    ]
