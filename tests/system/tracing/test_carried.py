# SPDX-License-Identifier: Apache-2.0
"""The programs that powerprof carries do what compiled ones do, on a host that can compile nothing."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from powerprof.host import bpf_probes
from powerprof.stacks.registers import X86_64, this_machine
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.targets import Target
from powerprof.tracing import idle_program, offcpu
from powerprof.tracing.bpf import carried, compiled_cache, features, syscalls
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.objects import Compiled, MapPlan
from tests.conftest import Cli
from tests.programs import ground_truth

# Nothing that compiles: bcc, every tree of headers, and what the kernel itself carries. Ends with 99 where it cannot.
_HIDDEN = """
for folder in /usr/lib/python3/dist-packages/bcc /usr/src /lib/modules; do
    [ ! -d "$folder" ] || mount -t tmpfs none "$folder" || exit 99
done
[ ! -e /sys/kernel/kheaders.tar.xz ] || mount --bind /dev/null /sys/kernel/kheaders.tar.xz || exit 99
exec "$@"
"""
_THREADS = {"nanosleep": "wait_nanosleep", "poll": "wait_poll", "timerfd": "wait_timerfd", "pipe": "wait_pipe"}


def without_a_compiler(cli: Cli, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--mount", "sh", "-c", _HIDDEN, "sh", sys.executable, "-m", "powerprof", *arguments]
    return subprocess.run(command, env=cli.environment(env), capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def bare(tmp_path: Path) -> Cli:
    """With a cache in which nothing is."""
    return Cli(tmp_path / "home")


@contextmanager
def sleepers(folder: Path) -> Iterator[dict[str, Any]]:
    with ground_truth.running(ground_truth.build("sleepers", folder)) as truth:
        yield truth


def test_attribute_knows_each_function_at_its_rate_without_a_compiler(
    root_bpf: None, bare: Cli, tmp_path: Path
) -> None:
    """On kernels that no carried program fits it says what is missing instead."""
    with sleepers(tmp_path) as truth:
        words = (
            "attribute",
            "--max-cost",
            "none",
            "--pid",
            str(truth["pid"]),
            "--duration",
            "3",
            "--json",
            "-",
            "--no-save",
        )
        compiling = without_a_compiler(bare, *words, POWERPROF_CARRIED="0")
        done = without_a_compiler(bare, *words)
    assert compiling.returncode == 3
    assert "bcc is not installed" in compiling.stderr or "headers" in compiling.stderr
    if not bpf_probes.has_carried_programs():
        assert (done.returncode, done.stderr) == (3, compiling.stderr)
        return
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["conservation"]["lost_count"] == 0
    found: Counter[str] = Counter()
    for row in [*record["wakeups"], *record["wakings_without_exit"]]:
        names = {frame["function"] for frame in row["stack"]}
        for thread, function in _THREADS.items():
            found[thread] += row["wakings_count"] if function in names else 0
    for thread in _THREADS:
        expected = truth["threads"][thread]["rate_hz"] * record["wakings_window_s"]
        assert abs(found[thread] - expected) <= max(2.0, 0.03 * expected), (thread, found, expected)


def test_doctor_says_which_programs_are_used(root_bpf: None, bare: Cli) -> None:
    told = {}
    for switch in ("0", "1"):
        done = bare(["doctor", "--json", "-"], env={"POWERPROF_CARRIED": switch})
        rows = {row["name"]: row for row in json.loads(done.out)["capabilities"]}
        assert rows["tracing"]["status"] == rows["bcc"]["status"] == "ok"
        told[switch] = rows["tracing"]["detail"]
    assert "compiled by bcc" in told["0"]
    assert ("carried" in told["1"]) == bpf_probes.has_carried_programs()


def test_doctor_finds_nothing_missing_where_carried_programs_fit(root_bpf: None, bare: Cli) -> None:
    done = without_a_compiler(bare, "doctor", "--json", "-")
    rows = {row["name"]: row for row in json.loads(done.stdout)["capabilities"]}
    fit = bpf_probes.has_carried_programs()
    assert {rows[name]["status"] for name in ("bcc", "headers")} == {"none" if fit else "missing"}
    assert rows["tracing"]["status"] == ("ok" if fit else "missing")


def test_carried_programs_are_those_that_are_compiled_here(root_bpf: None) -> None:
    """Byte for byte, filled with this kernel's numbers. On arm64 only their names: objects are made on x86-64, where
    bcc lays variables out otherwise. bcc creates tables that are off, with one entry."""
    btf = read_kernel_btf()
    target = Target(pids=(1,), label="", roots=(1,))
    for name, definitions in (
        ("idle.bpf.c", idle_program.build_idle_definitions(btf)),
        ("idle.bpf.c", idle_program.build_stack_definitions(btf, this_machine(), target)),
        ("offcpu.bpf.c", offcpu.build_offcpu_definitions(btf, every_process=True)),
    ):
        definitions["OFFSET_upid_nr"] = 4  # It is 0 on every kernel, and the compiler drops an addition of 0.
        found = carried.find_carried(name, definitions)
        compiled = compiled_cache.find_compiled(name, definitions, cached=False)
        if this_machine() is X86_64:
            assert found is None or (found.programs, [_with_an_entry(plan) for plan in found.maps]) == (
                compiled.programs,
                compiled.maps,
            )
        else:
            assert found is None or [one.name for one in found.programs] == [one.name for one in compiled.programs]
        assert found is not None or not bpf_probes.has_carried_programs()


def _with_an_entry(plan: MapPlan) -> MapPlan:
    ring_buffer_bytes = resource.getpagesize() if plan.kind == syscalls.MAP_RING_BUFFER else 1
    return plan if plan.entries else structs.replace(plan, entries=ring_buffer_bytes)


_TRIAL = {**features.TRIAL_DEFINITIONS, "IS_ATTACHED": 1}


class _Refusing:
    """The kernel's verifier, which refuses the first object that it is shown."""

    def __init__(self) -> None:
        self.refused = 0
        self._load = syscalls.load_program

    def __call__(self, name: str, kind: int, code: bytes, **more: int) -> int:
        if not self.refused:
            self.refused = 1
            raise syscalls.RefusedError(22, "R1 invalid mem access 'scalar'\n")
        return self._load(name, kind, code, **more)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Refusing]:
    refusing = _Refusing()
    monkeypatch.setattr(syscalls, "load_program", refusing)
    yield refusing
    assert refusing.refused == 1


def test_a_carried_program_that_the_kernel_refuses_is_compiled(root_bpf: None, trial: _Refusing) -> None:
    with idle_program.LoadedProgram("trial.bpf.c", _TRIAL) as program:
        assert not program.is_carried


def test_without_a_compiler_the_refusal_is_what_is_said(
    root_bpf: None, trial: _Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str, definitions: object, *, cached: bool = True) -> Compiled:
        raise CapabilityError("bcc is not installed", "apt install python3-bpfcc")

    monkeypatch.setattr(compiled_cache, "find_compiled", nothing)
    with (
        pytest.raises(PowerprofError, match="R1 invalid mem access"),
        idle_program.LoadedProgram("trial.bpf.c", _TRIAL),
    ):
        pass


def test_a_refusal_is_named_however_many_instructions_were_verified(root_bpf: None) -> None:
    """A log of all of them would be larger than its buffer."""
    words = (
        (0xB7, 6, 0, 40_000),  # r6 = the turns
        (0x07, 6, 0, -1),
        (0x55, 6, -2, 0),  # back to the subtraction until r6 is 0
        (0x79, 0x60, 0, 0),  # r0 = what lies at the address r6
        (0x95, 0, 0, 0),
    )
    code = b"".join(syscalls.INSTRUCTION.pack(*word) for word in words)
    with pytest.raises(syscalls.RefusedError) as refused:
        syscalls.load_program("loop", syscalls.PROGRAM_RAW_TRACEPOINT, code)
    assert refused.value.errno == errno.EACCES
    assert "R6 invalid mem access" in refused.value.log
