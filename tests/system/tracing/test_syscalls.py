# SPDX-License-Identifier: Apache-2.0
"""System calls, bytes by file and waits for locks, against a program that counts its own and against strace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from powerprof.attribution.offcpu import SyscallProfile, build_syscall_profile
from powerprof.measure import window as runner
from powerprof.tracing.syscalls import SyscallTracer
from tests.conftest import Cli
from tests.programs.running import Running
from tests.programs.truth import compiled

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture
def target(tmp_path: Path, compilers: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    yield from started("syscalls_truth", tmp_path, compilers, monkeypatch)


@pytest.fixture
def mover(tmp_path: Path, compilers: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    yield from started("moved_truth", tmp_path, compilers, monkeypatch)


def started(name: str, folder: Path, compilers: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A program of this folder, in an empty working directory."""
    compiled(compilers[0], f"{name}.c", folder)
    monkeypatch.chdir(folder)
    running = Running(folder / name)
    yield running
    running.end()


def traced(target: Running) -> tuple[SyscallProfile, int, int]:
    """A window as long as the program's work; how long it waited by its clock, and its requests of io_uring."""
    with SyscallTracer([target.pid]) as tracer:
        window = runner.OpenWindow(tracer)
        target.begin()
        line = target.line()
        trace = tracer.collect(window.end())
    waited_ns, ringed = (int(word) for word in line.split()[1:])
    return build_syscall_profile(trace, {file.tid: file.comm for file in trace.files}), waited_ns, ringed


def counts_of(profile: SyscallProfile) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in profile.calls:
        counts[row.name] += row.count
    return counts


def test_calls_bytes_and_waits_are_the_programs_own(target: Running, tmp_path: Path) -> None:
    profile, waited_ns, ringed = traced(target)
    counts = counts_of(profile)
    known = {"pwrite64": 300, "fdatasync": 20, "pread64": 100, "preadv": 40, "getppid": 50}
    assert {name: counts[name] for name in known} == known
    failed = sum(row.errors_count for row in profile.calls if row.name == "openat")
    assert failed == 30
    assert profile.calls_count == sum(row.count for row in profile.calls)
    assert profile.lost_count == 0 and profile.bpf_s is not None and profile.bpf_s > 0

    files = {row.path: row for row in profile.files if row.kind == "file" and row.path.endswith(("written", "ringed"))}
    written = files[f"{tmp_path.name}/written"]
    assert (written.thread, written.writes_count, written.write_bytes) == ("writer", 300, 300 * 4096)
    assert (written.reads_count, written.read_bytes, written.syncs_count) == (140, 100 * 512 + 40 * 3000, 20)
    if ringed:
        # Still open at the end of the window: its whole path is known.
        rung = files[str(tmp_path / "ringed")]
        assert (rung.thread, rung.writes_count, rung.write_bytes) == ("ringer", ringed, ringed * 4096)

    # One wait a turn, but where the thread that wakes was there first, or came between two turns.
    waits = next(row for row in profile.lock_waits if row.waits_count >= 40)
    assert waits.waits_count == 60
    assert waits.total_ms == pytest.approx(waited_ns / 1e6, rel=0.1)


def test_calls_by_kind_are_those_of_strace(target: Running, tmp_path: Path) -> None:
    output = tmp_path / "strace.txt"
    words = ["strace", "-f", "-c", "-U", "calls,errors,name", "-o", str(output), "-p", str(target.pid)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None and "attached" in strace.stderr.readline()
        profile, _, _ = traced(target)
        strace.send_signal(signal.SIGINT)
        strace.communicate(timeout=30)
    theirs = {
        name: (int(calls), int(errors or 0))
        for calls, errors, name in re.findall(r"^\s*(\d+)\s+(\d*)\s+(\w+)$", output.read_text(), re.MULTILINE)
    }
    ours = counts_of(profile)
    errors: Counter[str] = Counter()
    for row in profile.calls:
        errors[row.name] += row.errors_count
    # What the window cuts at its edges: the read that waited for the line, and the pause after the answer.
    edges = {"total", "read", "write", "pause", "restart_syscall", "exit"}
    compared = (set(theirs) | set(ours)) - edges
    assert len(compared) >= 10
    assert {name: ours[name] for name in compared} == {name: theirs.get(name, (0, 0))[0] for name in compared}
    assert {name: errors[name] for name in compared} == {name: theirs.get(name, (0, 0))[1] for name in compared}


def test_moved_bytes_count_for_both_files(mover: Running, tmp_path: Path) -> None:
    """Calls that move bytes from one file to another, and 32-bit calls by their own numbers."""
    with SyscallTracer([mover.pid]) as tracer:
        window = runner.OpenWindow(tracer)
        mover.begin()
        assert mover.line().strip() == "done"
        profile = build_syscall_profile(tracer.collect(window.end()), {})
    is_compat = os.uname().machine == "x86_64"
    files = {Path(row.path).name: row for row in profile.files if row.kind == "file"}
    assert (files["source"].reads_count, files["source"].read_bytes) == (18 + 2 * is_compat, 840_000 + 2000 * is_compat)
    written = {name: (row.writes_count, row.write_bytes) for name, row in files.items() if row.writes_count}
    expected = {"sent": (5, 500_000), "copied": (3, 300_000), "spliced": (10, 40_000)}
    assert written == expected | ({"compat": (11, 5750)} if is_compat else {})
    pipes = [row for row in profile.files if row.kind == "pipe" and row.write_bytes != 5]
    moved = sorted((row.reads_count, row.read_bytes, row.writes_count, row.write_bytes) for row in pipes)
    # The third pipe is only filled. The first is read by tee and by splice.
    assert moved == [(0, 0, 4, 12_000), (10, 40_000, 10, 40_000), (20, 80_000, 10, 40_000)]
    sockets = [row for row in profile.files if row.kind == "socket"]
    assert sorted((row.read_bytes, row.write_bytes) for row in sockets) == [(0, 7000), (7000, 0)]
    counts = counts_of(profile)
    assert counts["getppid"] == 9
    if is_compat:
        known = {"getpid": 8, "nanosleep": 5, "write": 7, "writev": 3, "ia32 1234567": 4, "sendfile": 7}
        assert {name: counts[name] for name in known} == known
    assert not set(counts) & {"sync", "swapoff", "sched_get_priority_max", "stat"}


def test_the_name_of_a_file_may_have_any_bytes(tmp_path: Path, powerprof_cli: Cli) -> None:
    """No byte of it costs the result, in JSON or on a terminal."""
    folder = tmp_path / "odd"
    folder.mkdir()
    name = os.fsencode(folder) + b"/caf\xff\xe9\x1b[2J\n.log"
    code = "import os,sys\nf=os.open(os.fsencode(sys.argv[1]),os.O_RDWR|os.O_CREAT)\nwhile True: os.pwrite(f,b'x',0)"
    writer = subprocess.Popen([sys.executable, "-c", code, name])
    try:
        until_s = time.monotonic() + 20
        while not os.path.exists(name):  # noqa: PTH110 - bytes
            assert time.monotonic() < until_s
            time.sleep(0.01)
        words = ["syscalls", "--pid", str(writer.pid), "--duration", "1", "--no-save"]
        done = powerprof_cli([*words, "--json", "-"])
        assert done.code == 0, done.err
        assert any("caf\ufffd" in file["path"] for file in json.loads(done.out)["files"])
        done = powerprof_cli(words)
        assert done.code == 0, done.err
        assert "caf\ufffd" in done.out and "\x1b[2J" not in done.out
    finally:
        writer.kill()
        writer.wait()
