# SPDX-License-Identifier: Apache-2.0
"""Programs of another account whose files lie, under whole commands of root's."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from powerprof.stacks.elf import Elf, read_elf
from tests.conftest import Cli
from tests.system.safety.conftest import GID, UID, Attacker

_SHDR_BYTES, _ADDRESS_AT = 64, 16


def _eh_frame_at_the_end(data: bytearray, elf: Elf) -> None:
    """The kernel does not look at sections: the program runs as before."""
    (headers_at,) = struct.unpack_from("<Q", data, 40)
    number = next(at for at, section in enumerate(elf.sections) if section.name == ".eh_frame")
    struct.pack_into("<Q", data, headers_at + number * _SHDR_BYTES + _ADDRESS_AT, 0xFFFF_FFFF_FFFF_0000)


@contextmanager
def running(program: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([program, *words], user=UID, group=GID, extra_groups=[], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def attribute(cli: Cli, pid: int) -> dict[str, Any]:
    """Trace a program for 2.5 s, and return the record."""
    words = ["--max-cost", "none", "--pid", str(pid), "--duration", "2.5", "--meter", "none", "--json", "-"]
    done = cli(["attribute", *words])
    assert (done.code, "Traceback" in done.err) == (0, False), done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


def test_an_unwind_table_at_the_end_of_the_address_space_costs_its_own_names_only(
    attacker: Attacker, powerprof_cli: Cli
) -> None:
    program = attacker.home / "liar"
    shutil.copy(shutil.which("vmstat") or "/usr/bin/vmstat", program)
    with program.open("rb") as file:
        elf = read_elf(file.fileno(), str(program))
    data = bytearray(program.read_bytes())
    _eh_frame_at_the_end(data, elf)
    program.write_bytes(data)
    program.chmod(0o755)
    with running(program, "1", "60") as process:
        record = attribute(powerprof_cli, process.pid)
    assert record["target"]["pid"] == process.pid


def test_a_program_whose_name_is_no_text_is_reported_with_what_can_be_read_of_it(
    attacker: Attacker, powerprof_cli: Cli
) -> None:
    program = attacker.home / os.fsdecode(b"li\xff\xfear\n=1+1")
    shutil.copy(shutil.which("vmstat") or "/usr/bin/vmstat", program)
    program.chmod(0o755)
    with running(program, "1", "60") as process:
        record = attribute(powerprof_cli, process.pid)
    target = record["target"]
    assert target["executable"] == f"{attacker.home}/li\ufffd\ufffdar\n=1+1"
    assert target["build_id"], "the program is found among its mappings"
