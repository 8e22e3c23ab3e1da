# SPDX-License-Identifier: Apache-2.0
"""Threads of a few milliseconds have the names that they had at their end, in every verb that names threads."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.programs.remains import held
from tests.programs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("root_bpf")
_PROGRAM = Path(__file__).parents[2] / "programs/short_threads.c"
_THREADS = 150


@pytest.fixture
def short_threads(tmp_path: Path, compilers: Sequence[str]) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The waiting program with its process id; a line on its standard input starts the threads."""
    program = tmp_path / "short_threads"
    subprocess.run([compilers[0], "-O1", "-pthread", "-o", program, _PROGRAM], check=True, timeout=60)
    with subprocess.Popen(
        [program, str(_THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def _names(record: Any) -> dict[int, set[str]]:
    """Return all names of threads in a record by thread id."""
    found: dict[int, set[str]] = {}
    parts = [record]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            name = part.get("comm") or part.get("thread")
            if "tid" in part and isinstance(name, str):
                found.setdefault(part["tid"], set()).add(name)
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return found


@pytest.mark.parametrize("verb", ["attribute", "offcpu", "syscalls"])
def test_every_short_thread_has_its_last_name(
    verb: str, short_threads: tuple[int, subprocess.Popen[str]], powerprof_cli: Cli, tmp_path: Path
) -> None:
    pid, process = short_threads
    page = tmp_path / "record.json"
    # On a busy host the default bound would trace slices.
    words = ["--pid", str(pid), "--duration", "60", "--no-save", "--json", str(page), "--max-cost", "none"]
    command = powerprof_cli.start([verb, *words])
    try:
        wait_until(lambda: any(kind == "link_id" for kind, _ in held(command.pid)), "attached programs")
        time.sleep(3.0)  # The window begins shortly after.
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        truth = {int(tid): name for tid, name in json.loads(process.stdout.readline()).items()}
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    finally:
        if command.poll() is None:
            command.kill()
            command.wait()
    assert command.returncode == 130, err
    assert len(truth) == _THREADS
    found = _names(json.loads(page.read_text()))
    assert {tid: found.get(tid) for tid in truth} == {tid: {name} for tid, name in truth.items()}
