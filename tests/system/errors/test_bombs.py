# SPDX-License-Identifier: Apache-2.0
"""Saved runs that are made to fill memory: less than 300 MB, less than 5 s, and one line."""

from __future__ import annotations

import gzip
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from powerprof.model.attribution import Attribution, StackFrame, Thread, Wakeup
from powerprof.model.runs import decode_record, encode_record
from tests.conftest import Cli

MOST_KB, MOST_S = 300_000, 5.0
_HEAD = (
    b'{"schema":"powerprof.run/1","id":"idle-0001","command":"idle","started_at":"2026-01-01T00:00:00Z",'
    b'"tool":{"version":"1","cpu_s":null,"wakeups_hz":null},"phases":[],"host":'
)
# Its own high-water mark: what wait4 tells includes ours, from before the exec.
_MEASURED = """
import atexit, pathlib, sys
place = sys.argv.pop(1)
atexit.register(lambda: pathlib.Path(place).write_bytes(pathlib.Path("/proc/self/status").read_bytes()))
from powerprof.cli import main
main()
"""


def _of(host: bytes) -> bytes:
    return _HEAD + host + b"}"


def _lists(item: bytes, count: int) -> bytes:
    return _of(b"[" + b",".join([item] * count) + b"]").replace(b'"host":[', b'"host":{"a":[', 1) + b"}"


def _long_string() -> bytes:
    return _of(b'{"a":"' + b"x" * (30 << 20) + b'\\ud83d\\ude00"}')


def _strings() -> bytes:
    return _lists(b'"' + b"x" * 1000 + b'\\ud83d\\ude00"', 30_000)


# Each is what a limit on the file's size alone lets through.
BOMBS: dict[str, Callable[[], bytes]] = {
    "empty arrays": lambda: gzip.compress(_lists(b"[]", 11_000_000), 6),
    "empty objects": lambda: gzip.compress(_lists(b"{}", 11_000_000), 6),
    "nested objects": lambda: gzip.compress(_lists(b'{"":{"":{}}}', 2_500_000), 6),
    "small objects": lambda: _lists(b'{"":1.5}', 5_000_000),
    "a wide object": lambda: _of(b"{" + b",".join(b'"%x":1.5' % number for number in range(3_000_000)) + b"}"),
    "a long string": _long_string,
    "a long string of escapes": lambda: _of(b'{"a":"' + b'\\"' * (15 << 20) + b'"}'),
    "many strings": _strings,
    "1000:1": lambda: gzip.compress(_of(b'{"a":"' + b" " * (250 << 20) + b'"}'), 9),
    "members": lambda: gzip.compress(_HEAD) + gzip.compress(b" " * (1 << 20), 9) * 250,
    "small members": lambda: gzip.compress(_HEAD) + gzip.compress(b" ") * 1_000_000,
    "a deep nest": lambda: _of(b"[" * 1_000_000),
}


def cost(cli: Cli, *words: str) -> tuple[int, str, float, int]:
    """Exit code, what it said, seconds of CPU time and KB of a command in a process of its own."""
    status = cli.home.parent / "status"
    process = subprocess.Popen(
        [sys.executable, "-c", _MEASURED, str(status), *words],
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, ended, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert peak is not None
    return process.returncode, said, used.ru_utime + used.ru_stime, int(peak[1])


def refused_cheaply(cli: Cli, *words: str) -> None:
    code, said, took_s, used_kb = cost(cli, *words)
    assert code == 1, said
    assert said.startswith("error: ")
    assert len(said.splitlines()) <= 2
    assert took_s < MOST_S
    assert used_kb < MOST_KB


# Each of these resembles another one.
_NIGHTLY = {"empty objects", "nested objects", "a long string", "members"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in _NIGHTLY else []) for name in BOMBS]
)
def test_a_bomb_is_refused_before_it_is_decoded(powerprof_cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(BOMBS[name]())
    refused_cheaply(powerprof_cli, "report", str(path))


def test_every_reader_refuses_it(powerprof_cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep-0001"
    folder.mkdir()
    path = folder / "run.json"
    path.write_bytes(BOMBS["empty arrays"]())
    bomb, runs = str(path), ("--runs-dir", str(tmp_path))
    for words in (
        ("compare", bomb, bomb),
        ("report", bomb, "-o", str(tmp_path / "page.html")),
        (*runs, "runs", "sweep-0001", "--trend"),
        (*runs, "sweep", "--resume", "sweep-0001"),
    ):
        refused_cheaply(powerprof_cli, *words)
    code, _, took_s, used_kb = cost(powerprof_cli, *runs, "runs")
    assert (code in (0, 1, 3), took_s < MOST_S, used_kb < MOST_KB) == (True, True, True)


def test_the_attribution_of_2000_busy_connections_opens(tmp_path: Path) -> None:
    """Two rows each, with 20 frames; the one that was measured on two CPUs has 8 KB."""
    names = [f"THD::function_{number}(Protocol*, unsigned long)" for number in range(2000)]
    random.seed(1)
    rows = [
        Wakeup(
            mechanism="timer",
            origin="own_timer",
            count=number,
            rate_hz=random.random(),
            wakings_count=number,
            period_ms=random.random(),
            c0_ms=random.random(),
            thread=Thread(tid=number, comm="mariadbd", server_name="thread/sql/one_connection"),
            waker=None,
            stack=[
                StackFrame(function=random.choice(names), module="mariadbd", address=hex(random.getrandbits(48)))
                for _ in range(20)
            ],
            stack_complete=True,
        )
        for number in range(4000)
    ]
    fixture = Path(__file__).parents[2] / "fixtures/saved/attribute-0001/run.json"
    record = msgspec.structs.replace(decode_record(fixture, Attribution), wakeups=rows)
    path, data = tmp_path / "run.json", encode_record(record)
    for written in (data, gzip.compress(data)):
        path.write_bytes(written)
        assert len(decode_record(path, Attribution).wakeups) == 4000
