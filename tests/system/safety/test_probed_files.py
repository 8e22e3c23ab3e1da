# SPDX-License-Identifier: Apache-2.0
"""Processes that map a probed file and keep the lock of their memory map: no fork of the host waits for them."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from powerprof.cure.latencies import StatementLatencies
from powerprof.database.private_server import PrivateServer
from powerprof.live.statements import ServedServer
from powerprof.measure.window import OpenWindow
from powerprof.queries.probes import Probes
from powerprof.queries.samples import Samples
from powerprof.tracing.bpf.btf import read_kernel_btf
from powerprof.tracing.bpf.kernel_memory import KernelMemory
from powerprof.tracing.bpf.mapped_files import MappedFile, UnfitFileError, wait_until_free
from powerprof.tracing.functions import FunctionTracer
from tests.conftest import Cli
from tests.programs.map_locking import build, forking, locking

pytestmark = pytest.mark.usefixtures("root_bpf")
# No account has them.
OWN, OTHER = 54321, 54322
# A fork that waits for a locked map sleeps for most of LOCK_S.
MOST_FORK_S = 0.1
_TICKING = "#include <unistd.h>\n__attribute__((noinline)) void tick(void) { usleep(2000); }\n"
_TICKING += "int main(void) { for (;;) tick(); }\n"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    place = build(Path("/tmp"))
    words = ["gcc", "-O1", "-x", "c", "-o", str(place / "ticking"), "-"]
    subprocess.run(words, input=_TICKING, text=True, check=True)
    yield place
    shutil.rmtree(place)


@contextmanager
def ticking(place: Path) -> Iterator[tuple[int, Path]]:
    """A process of OWN with a file of its own, so that tests at the same time map another one."""
    with ExitStack() as stack:
        program = place / f"ticking-{os.urandom(4).hex()}"
        shutil.copy(place / "ticking", program)
        stack.callback(program.unlink)
        process = subprocess.Popen([program], user=OWN, group=OWN, extra_groups=[])
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield process.pid, program


def count_ticks(pid: int, *, multi: bool = True, before: Callable[[], None] = lambda: None) -> int:
    """Calls in a short window. `before` is called directly before the probes are placed."""
    with FunctionTracer([pid], "tick", multi=multi) as tracer:
        before()
        return tracer.measure(0.3).functions[0].calls


def breakpoints(pid: int, program: Path) -> bool:
    """Whether the program's code in memory differs from its file."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    words = next(line.split() for line in maps if line.endswith(program.name) and " r-xp " in line)
    start, end = (int(word, 16) for word in words[0].split("-"))
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory, program.open("rb") as file:
        code = os.pread(file.fileno(), end - start, int(words[2], 16))
        return os.pread(memory.fileno(), end - start, start)[: len(code)] != code


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


CASES = list(
    itertools.product((OWN, OTHER), ([], ["overlay"]), ([], ["writer"]), ("mapped", "locked", "ended"), (True, False))
)


@pytest.mark.parametrize("case", random.Random(62).sample(CASES, 6), ids=str)
def test_probes_are_placed_only_if_no_process_can_stop_forks(
    place: Path, case: tuple[int, list[str], list[str], str, bool]
) -> None:
    uid, path, writer, moment, multi = case
    with ticking(place) as (pid, program), locking(place, program, uid, *path, *writer, moment) as locker:
        lock = locker.lock if moment != "mapped" else lambda: None
        with forking() as forks:
            if uid == OWN and moment == "mapped":
                assert count_ticks(pid, multi=multi) > 0
            else:
                who = f"process {locker.pid} of account {uid}" if moment != "ended" else "a process that is ending"
                reason = "could stop" if uid == OTHER and moment != "ended" else "keeps its memory map locked"
                with pytest.raises(UnfitFileError, match=f"{who} .*{reason}"):
                    count_ticks(pid, multi=multi, before=lock)
            if moment != "mapped":
                locker.wait()
        assert forks.longest_s is not None and forks.longest_s < MOST_FORK_S
        assert not breakpoints(pid, program)
    with ticking(place) as (pid, _):
        assert count_ticks(pid, multi=multi) > 0


@pytest.mark.parametrize("uid", [OWN, OTHER])
def test_a_map_that_is_locked_in_the_window_delays_only_a_helper(place: Path, uid: int) -> None:
    with ticking(place) as (pid, program), forking() as forks, ExitStack() as stack:
        with FunctionTracer([pid], "tick") as tracer:
            window = OpenWindow(tracer)
            locker = stack.enter_context(locking(place, program, uid, "writer"))
            locker.lock()
            trace = tracer.collect(window.end(None))
        assert any("a helper process removes the probes" in note for note in trace.notes)
        assert breakpoints(pid, program)
        locker.wait()
        wait_until(lambda: not breakpoints(pid, program))
        forks.stop()
        assert forks.longest_s is not None and forks.longest_s < MOST_FORK_S


def test_an_interrupt_ends_the_command_beside_a_locked_map(place: Path, powerprof_cli: Cli, tmp_path: Path) -> None:
    """With the few capabilities that are left in the window, the helper still removes the probes."""
    file = tmp_path / "record.json"
    with ticking(place) as (pid, program), forking() as forks, ExitStack() as stack:
        words = ["functions", "tick", "--pid", str(pid), "--duration", "100", "--no-save", "--json", str(file)]
        process = powerprof_cli.start(words)
        stack.callback(process.kill)
        wait_until(lambda: breakpoints(pid, program))
        locker = stack.enter_context(locking(place, program, OTHER, "writer"))
        locker.lock()
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert json.loads(file.read_text())["functions"][0]["calls_count"] > 0
        locker.wait()
        wait_until(lambda: not breakpoints(pid, program))
        forks.stop()
        assert forks.longest_s is not None and forks.longest_s < MOST_FORK_S


def test_the_lock_and_the_account_of_each_mapper_are_seen(place: Path) -> None:
    """Of an overlay of the account's own too: /proc/PID/maps shows its number, not the file's."""
    with ticking(place) as (pid, program), ExitStack() as stack:
        lockers = {}
        for uid, options in ((OTHER, ()), (OTHER + 1, ("overlay",)), (OTHER + 2, ("overlay", "writer"))):
            lockers[uid] = stack.enter_context(locking(place, program, uid, *options))
        memory = stack.enter_context(KernelMemory(read_kernel_btf()))
        with program.open("rb") as file:
            mapped = MappedFile.find(memory, file.fileno())
        expected = {(OWN, pid), *((uid, locker.pid) for uid, locker in lockers.items())}
        assert {(max(mapper.uids), mapper.pid) for mapper in mapped.look()} == expected
        for locker in lockers.values():
            locker.lock()
            assert {mapper.pid for mapper in mapped.look() if mapper.is_locked and mapper.pid != pid} >= {locker.pid}
            assert not wait_until_free([mapped], lambda: None)
        for locker in lockers.values():
            locker.wait()
        wait_until(lambda: wait_until_free([mapped], lambda: None))


@pytest.mark.usefixtures("mariadbd")
def test_queries_use_samples_beside_a_process_that_could_stop_forks(place: Path, powerprof_cli: Cli) -> None:
    program = place / "mariadbd"
    shutil.copy(shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin") or "", program)
    with PrivateServer(binary=program) as server:
        words = ["queries", "--pid", str(server.pid), "--duration", "0.5", "--no-save", "--json", "-"]

        def methods() -> tuple[str, list[str]]:
            result = powerprof_cli(words)
            assert result.code == 0, result.err
            record = json.loads(result.out)
            return record["method"], [str(note) for note in record["notes"] if "is not probed" in str(note)]

        assert methods() == ("probes", [])
        with ServedServer(str(server.pid)) as served:
            assert isinstance(served._method, Probes)
        with locking(place, program, OTHER, "overlay") as locker, forking() as forks:
            locker.lock()
            method, notes = methods()
            assert method == "samples" and len(notes) == 1
            assert re.search(rf"mariadbd is not probed: process {locker.pid} of account {OTHER} maps it", notes[0])
            refused = powerprof_cli([*words, "--method", "probes"])
            assert refused.code == 1 and "--method samples" in refused.err
            with ServedServer(str(server.pid)) as served:
                assert isinstance(served._method, Samples)
            with StatementLatencies(server.pid) as latencies:
                assert latencies.unavailable is not None and "is not probed" in latencies.unavailable
        assert forks.longest_s is not None and forks.longest_s < MOST_FORK_S
        assert methods() == ("probes", [])
