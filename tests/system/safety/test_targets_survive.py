# SPDX-License-Identifier: Apache-2.0
"""The target outlives every ending of a trace: INT, TERM and KILL to powerprof, KILL to what works for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from powerprof.tracing.dtrace_keeper import LinkerCode
from tests.conftest import Cli
from tests.programs.interrupting import BACKENDS, interrupt, keepers, lives, tracer, wait_until_untraced
from tests.programs.running import Running
from tests.programs.truth import compiled
from tests.programs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("root_bpf")


@pytest.fixture(scope="module")
def throwing(tmp_path_factory: pytest.TempPathFactory, compilers: Sequence[str]) -> Path:
    return compiled(compilers[1], "throwing.cpp", tmp_path_factory.mktemp("survive"))


@pytest.fixture
def with_dtrace(dtrace_folder: Path) -> dict[str, str]:
    return {"PATH": f"{dtrace_folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.mark.parametrize("backend", ["uprobes", "dtrace"])
def test_no_interrupted_trace_kills_its_target(
    powerprof_cli: Cli, throwing: Path, with_dtrace: dict[str, str], backend: str
) -> None:
    """One trace each is ended by INT, TERM and KILL. Sampling changes nothing in its target."""
    assert interrupt(powerprof_cli, throwing, backend, 3, with_dtrace).unharmed == 3


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_interrupted_trace_of_a_hundred_kills_its_target(
    powerprof_cli: Cli, throwing: Path, with_dtrace: dict[str, str], backend: str
) -> None:
    seen = interrupt(powerprof_cli, throwing, backend, 100, with_dtrace, seed=2)
    print(seen)
    assert seen.unharmed == 100
    assert seen.attached > 50


def test_even_killing_dtrace_itself_leaves_no_breakpoint(
    powerprof_cli: Cli, throwing: Path, with_dtrace: dict[str, str]
) -> None:
    target = Running(throwing)
    try:
        linker = LinkerCode(target.pid)
        tracing = powerprof_cli.start(
            [*BACKENDS["dtrace"], "--pid", str(target.pid), "--duration", "60", "--no-save"], with_dtrace
        )
        dtrace = wait_until(lambda: tracer(target.pid), "a thread of DTrace")
        assert keepers(target.pid)
        time.sleep(5)  # its BEGIN has run, and its breakpoint is out again
        signal_to = Path(f"/proc/{dtrace}/status").read_text().partition("Tgid:")[2].split()[0]
        subprocess.run(["kill", "-KILL", signal_to], check=True)
        _, err = tracing.communicate(timeout=60)
        assert tracing.returncode == 1
        assert err.startswith("error: dtrace 2.0.7 failed: killed by signal 9")
        assert wait_until_untraced(target.pid)
        assert linker.mend() == 0
        assert lives(target)
        assert target.process.poll() is None
    finally:
        target.end()


@pytest.mark.parametrize(("victim", "code"), [("worker", 0), ("stand-by", 1)])
def test_killing_either_that_looks_after_dtrace_as_it_attaches_harms_nobody(
    powerprof_cli: Cli, throwing: Path, with_dtrace: dict[str, str], victim: str, code: int
) -> None:
    """Its breakpoint is in and its handlers do not stand yet: it must be ended by nobody before its BEGIN."""
    target = Running(throwing)
    try:
        tracing = powerprof_cli.start(
            [*BACKENDS["dtrace"], "--pid", str(target.pid), "--duration", "2", "--no-save"], with_dtrace
        )
        wait_until(lambda: tracer(target.pid), "a thread of DTrace")
        pair = keepers(target.pid)
        (worker,) = [pid for pid in pair if psutil.Process(pid).ppid() in pair]
        os.kill(worker if victim == "worker" else psutil.Process(worker).ppid(), signal.SIGKILL)
        _, err = tracing.communicate(timeout=120)
        assert tracing.returncode == code, err
        assert wait_until_untraced(target.pid)
        assert lives(target)
    finally:
        target.end()


def test_a_breakpoint_in_the_linker_is_put_back(throwing: Path) -> None:
    target = Running(throwing)
    try:
        linker = LinkerCode(target.pid)
        assert linker.mend() == 0
        start, code = linker._parts[0]
        with Path(f"/proc/{target.pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start + 0x60)
            memory.write(b"\xcc")
        assert linker.mend() == (0 if code[0x60] == 0xCC else 1)
        assert lives(target)
    finally:
        target.end()


def test_a_tracer_that_is_interrupted_says_what_it_has(
    powerprof_cli: Cli, throwing: Path, with_dtrace: dict[str, str]
) -> None:
    target = Running(throwing)
    try:
        tracing = powerprof_cli.start(
            [*BACKENDS["dtrace"], "--pid", str(target.pid), "--duration", "60", "--no-save"], with_dtrace
        )
        wait_until(lambda: tracer(target.pid), "a thread of DTrace")
        time.sleep(6)  # its BEGIN has run, and it has counted calls
        tracing.send_signal(signal.SIGINT)
        out, err = tracing.communicate(timeout=120)
        assert tracing.returncode == 130, err
        assert "Interrupted: partial results." in out
    finally:
        target.end()
