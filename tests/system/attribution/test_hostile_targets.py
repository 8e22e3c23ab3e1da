# SPDX-License-Identifier: Apache-2.0
"""Targets that end, turn into other programs, lie about themselves, or are too much for the buffers."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.reader_process import ReaderProcess, Unreadable
from powerprof.system.targets import resolve
from powerprof.tracing.idle import trace_stacks
from tests.conftest import Cli
from tests.programs import ground_truth
from tests.system.attribution.conftest import Attributed, functions_of, own_count, slept

Attribute = Callable[..., Attributed]


def _one_line_notes(found: Attributed) -> list[str]:
    notes: list[str] = found.record["notes"]
    # Our own command for names stands on a line of its own.
    lines = [note.replace("To get the names:\n", "") for note in notes]
    assert [line for line in lines if "\n" in line or "Traceback" in line] == []
    if not found.result.code:
        assert found.result.err == ""
    return notes


def test_process_that_ends_in_the_window_is_counted(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("twins=50", duration=120) as running:
        found = attribute(running.pid, duration=3, halfway=running.process.kill, code=1)
    assert found.record["ended"]["how"] == "target_ended" and found.record["ended"]["pid"] == running.pid
    _one_line_notes(found)
    said = rf"error: wakes \({running.pid}\) ended [0-9.]+ s after the window began\nhint: .* saved as attribute-0001\n"
    assert re.fullmatch(said, found.result.err)
    assert {"first_twin", "second_twin"} <= functions_of(found.rows)
    noted, counted = running.noted(found.captured), found.wakings(["first_twin", "second_twin"])
    for function, times in noted.items():
        assert abs(counted[function].total() - times) <= 2
    assert found.share_of_exits("stacks", "exits_complete_percent") >= 99.0


def test_exec_in_the_window_is_followed(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("twins=50", "next", duration=120) as running:
        found = attribute(running.pid, duration=3, halfway=lambda: running.process.send_signal(signal.SIGUSR1))
    assert {"first_twin", "second_twin", "next_sleep"} <= functions_of(found.rows)
    noted, counted = running.noted(found.captured), found.wakings(["first_twin", "second_twin", "next_sleep"])
    for function, times in noted.items():
        # The thread that executes kills the others in their sleep.
        assert abs(counted[function].total() - times) <= 3, (function, times, counted)
    _one_line_notes(found)
    assert found.record["conservation"]["lost_count"] == 0


@pytest.mark.parametrize(("number", "said"), [(errno.EACCES, "permission denied"), (0, "could not be read in time")])
def test_unreadable_process_is_not_reported_as_ended(
    root_bpf: None, wakes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(_self: ReaderProcess, pid: int) -> None:
        raise Unreadable(f"process {pid} cannot be read ({said})", number)

    with wakes("twins=50") as running, trace_stacks(resolve([str(running.pid)])) as (_tracer, looks):
        looks.members.require_one()
    monkeypatch.setattr(ReaderProcess, "maps", refuse)
    with (
        wakes("twins=50") as running,
        trace_stacks(resolve([str(running.pid)])) as (_tracer, looks),
        pytest.raises(PowerprofError, match=said) as refused,
    ):
        looks.members.require_one()
    assert isinstance(refused.value, CapabilityError) == bool(number)


def _corrupt(program: Path) -> Path:
    """The same program with section headers that point nowhere and an unwind table of nonsense."""
    data = bytearray(program.read_bytes())
    listed = subprocess.run(["readelf", "-SW", program], check=True, capture_output=True, encoding="utf-8").stdout
    for line in listed.splitlines():
        words = line.replace("[ ", "[").split()
        if len(words) > 6 and words[1] == ".eh_frame":
            at, size = int(words[4], 16), int(words[5], 16)
            data[at + 24 : at + size] = b"\xfe" * (size - 24)
    data[0x28:0x30] = (len(data) - 100).to_bytes(8, "little")
    target = program.with_name("corrupt")
    target.write_bytes(bytes(data))
    target.chmod(0o755)
    return target


def test_hostile_programs_are_counted_without_stacks(
    attribute: Attribute, built: Callable[[str], Path], programs_dir: Path
) -> None:
    with ExitStack() as running:
        programs = [built("sleepers-no-eh"), built("sleepers-fp-no-eh"), _corrupt(built("sleepers"))]
        logs = [program.with_suffix(".log") for program in programs]
        truths: list[Any] = [
            running.enter_context(ground_truth.running(program, 60.0, f"log={log}"))
            for program, log in zip(programs, logs, strict=True)
        ]
        hostile = Path(f"/tmp/perf-{truths[0]['pid']}.map")
        running.callback(hostile.unlink, missing_ok=True)
        with hostile.open("wb") as file:
            file.write(b"0 ffffffffffffffff everything\nnot a line\n" + b"a" * 1_000_000)
            file.truncate(1 << 30)
        garbage = programs_dir / "garbage.so"
        garbage.write_bytes(b"\x7fELF\x02\x01\x01" + os.urandom(8192))
        mapped = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import mmap, sys, time; f = open(sys.argv[1], 'rb')\n"
                "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)\n"
                "while True: time.sleep(0.02)",
                garbage,
            ]
        )
        running.callback(mapped.wait)
        running.callback(mapped.kill)
        time.sleep(0.2)
        pids = [*(truth["pid"] for truth in truths), mapped.pid]
        found = attribute(",".join(map(str, pids)), duration=2)
    _one_line_notes(found)
    assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
    for truth, log in zip(truths, logs, strict=True):
        # Counts need no stacks: they are exact whatever the program looks like.
        thread = truth["threads"]["nanosleep"]
        rows = slept(found, thread["tid"])
        counted = sum(row["wakings_count"] for row in rows)
        own = own_count(found, log, truth, "nanosleep")
        assert abs(counted - own) <= 2, (counted, own)
        assert own > thread["rate_hz"]  # in 2 s
        assert functions_of(rows) >= {"clock_nanosleep"}
    by_tid = {truth["threads"]["nanosleep"]["tid"]: program for truth, program in zip(truths, programs, strict=True)}
    for row in found.rows:
        program = by_tid.get(row["thread"]["tid"])
        # Without tables stacks are followed by the code; with tables that lie they are cut.
        if program is not None and program.name == "corrupt":
            assert not row["stack_complete"]
        # Nobody is told that the hostile map's one function covers everything.
        assert "everything" not in functions_of([row])
    asleep = slept(found, mapped.pid)
    assert asleep
    assert [row for row in asleep if not row["stack_complete"]] == []


def test_small_stack_buffer_loses_stacks_with_a_note(attribute: Attribute, wakes: Callable[..., Any]) -> None:
    with wakes("many=200") as running:
        found = attribute(running.pid, "--stack-buffer", "4", duration=1.5)
    stacks, notes = found.record["stacks"], _one_line_notes(found)
    assert stacks["lost_count"] > 50
    assert any("stacks were lost to a full buffer" in note and "--stack-buffer" in note for note in notes)
    assert stacks["exits_complete_percent"] is None or stacks["exits_complete_percent"] < 80
    assert found.record["tool"]["lost_count"] >= stacks["lost_count"]
    # What is counted does not depend on the buffer for stacks.
    assert found.record["conservation"]["lost_count"] == 0
    assert found.share_of_exits("conservation", "coverage_percent") >= 99.0
    counted = sum(row["wakings_count"] for row in found.rows)
    assert abs(counted - running.noted(found.captured).total()) <= 6


def _is_loading(pid: int) -> bool:
    """Whether it has made a BPF map: its programs follow."""
    try:
        return any("bpf-map" in os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_process_that_ends_during_loading_is_an_error(root_bpf: None, powerprof_cli: Cli) -> None:
    process = subprocess.Popen(["sleep", "60"])
    tracer = powerprof_cli.start(["--quiet", "attribute", "--pid", str(process.pid), "--duration", "0.2"])
    try:
        limit_s = time.monotonic() + 60
        while not _is_loading(tracer.pid) and tracer.poll() is None and time.monotonic() < limit_s:
            time.sleep(0.001)
        process.kill()
        process.wait()
        _, err = tracer.communicate(timeout=60)
    finally:
        process.kill()
        tracer.kill()
    assert tracer.returncode in (1, 2)
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2
