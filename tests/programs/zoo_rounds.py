# SPDX-License-Identifier: Apache-2.0
"""Commands beside the zoo: end them at a moment, and measure what they take and what remains of them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import Cli
from tests.programs.remains import Footprint, held
from tests.programs.zoo import Zoo, zoo

# Of a signalled command, without the time in which its processes waited for a CPU.
SIGNALLED_S = 2.0
# Of a whole command: its time without the zoo, and the reader's budgets for waits and for CPU time.
BUDGET_S = 20.0 + 20.0
MAX_RSS_MIB = 300
# A host that gives no CPU time makes no test fail before this.
_GIVE_UP_S = 120.0
_STEP_S = 0.05
_CRASH = re.compile(r"Traceback|\w+Warning:|Exception ignored")


@dataclass
class Command:
    """A running command with its processes: the longest waits for a CPU, the most memory, the readers among them."""

    process: subprocess.Popen[str]
    footprint: Footprint
    began_s: float = field(default_factory=time.monotonic)
    rss_mib: int = 0
    readers: set[int] = field(default_factory=set)
    _waited_ns: dict[int, int] = field(default_factory=dict)
    _output: list[threading.Thread] = field(default_factory=list)
    _err: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A full pipe would stop the command.
        for stream, lines in ((self.process.stdout, []), (self.process.stderr, self._err)):
            self._output.append(threading.Thread(target=lines.extend, args=(stream,), daemon=True))
            self._output[-1].start()

    def messages(self) -> str:
        """Return its messages. No process that it left behind keeps its outputs open."""
        for thread in self._output:
            thread.join(30.0)
            assert not thread.is_alive(), f"a process keeps the output open: {self.sleeps_in()}"
        return "".join(self._err)

    def note(self) -> None:
        """Look at all processes of the command."""
        self.footprint.note()
        for pid in (self.process.pid, *self.footprint.processes):
            with suppress(OSError, IndexError, ValueError):
                base = Path(f"/proc/{pid}")
                status = (base / "status").read_text()
                if re.search(r"^State:\s+[ZX]", status, re.M):
                    continue
                for task in (base / "task").iterdir():
                    self._waited_ns[int(task.name)] = int((task / "schedstat").read_text().split()[1])
                peak = re.search(r"VmHWM:\s+(\d+)", status)
                if peak and status.startswith(("Name:\tpython", "Name:\tpowerprof")):
                    self.rss_mib = max(self.rss_mib, int(peak[1]) // 1024)
                if pid not in self.readers and b"reader_child" in (base / "cmdline").read_bytes():
                    self.readers.add(pid)

    def waited_s(self) -> float:
        """Return the time for which its processes were runnable without a CPU, all together."""
        return sum(self._waited_ns.values()) / 1e9

    def wait(self, limit_s: float) -> float:
        """Return the seconds until the command's end, at most this many and its waits for a CPU; inf if it goes on."""
        began_s, waited_s = time.monotonic(), self.waited_s()
        while self.process.poll() is None:
            self.note()
            took_s = time.monotonic() - began_s - (self.waited_s() - waited_s)
            if (took_s > limit_s and self.process.poll() is None) or time.monotonic() - began_s > _GIVE_UP_S + limit_s:
                return float("inf")
            time.sleep(_STEP_S)
        return max(0.0, time.monotonic() - began_s - (self.waited_s() - waited_s))

    def sleeps_in(self) -> str:
        """Return the places in the kernel at which its processes sleep, for a message."""
        places = []
        for pid in (self.process.pid, *self.footprint.processes):
            with suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                stack = [line.split()[-1] for line in Path(f"/proc/{pid}/stack").read_text().splitlines()[:4]]
                places.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()} {state} {' < '.join(stack)}")
        return "; ".join(places)

    def left(self) -> list[str]:
        """Return what remains of it. An abandoned reader without BPF objects may wait until the zoo ends."""
        abandoned = {f"process {pid}" for pid in self.readers if not any(held(pid))}
        return [one for one in self.footprint.left() if one not in abandoned]

    def in_state_d(self) -> list[int]:
        """Return its processes in state D, without abandoned readers."""
        found = []
        for pid, process in self.footprint.processes.items():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_DISK_SLEEP and (pid not in self.readers or held(pid)):
                    found.append(pid)
        return found


@dataclass
class Visitor:
    """Starts commands beside a zoo, which is made again before its inhabitants end by themselves."""

    cli: Cli
    room: Path
    place: Path
    mappers: int
    places: dict[str, str]
    readers: set[psutil.Process] = field(default_factory=set)
    _stack: ExitStack = field(default_factory=ExitStack)
    _zoo: Zoo | None = None

    def open(self) -> Zoo:
        """Return a zoo that lives for minutes."""
        if self._zoo is not None and self._zoo.is_old:
            self.close()
        if self._zoo is None:
            self._zoo = self._stack.enter_context(zoo(self.place, mappers=self.mappers))
        return self._zoo

    def close(self) -> None:
        """End the zoo. No abandoned reader survives it."""
        self._stack.close()
        self._zoo = None
        psutil.wait_procs(self.readers, timeout=30)
        assert [one for one in self.readers if one.is_running()] == []
        self.readers.clear()

    def start(self, line: str) -> Command:
        """Start a command line. Words in capitals are places, or the process of an inhabitant."""
        values = {**self.places, "ROOM": str(self.room)}
        if self._zoo:
            values |= {kind.upper(): str(pid) for kind, pid in self._zoo.pids.items()}
        words = re.sub("[A-Z]{3,}", lambda word: values[word[0]], line).split()
        process = self.cli.start(words, {"TMPDIR": str(self.room)})
        return Command(process, Footprint(process.pid, (self.room,)))

    def end(self, command: Command) -> str:
        """Return the command's messages after its end, and keep its readers in mind."""
        self.readers |= {command.footprint.processes[pid] for pid in command.readers & set(command.footprint.processes)}
        return command.messages()


def run_whole(visitor: Visitor, line: str, budget_s: float, stop_after_s: float | None) -> float:
    """Run a command to its end; one that has none is stopped after some seconds. Return its duration."""
    command = visitor.start(line)
    try:
        if stop_after_s is not None:
            command.wait(stop_after_s)
            command.process.send_signal(signal.SIGTERM)
        took_s = command.wait(budget_s)
        assert took_s <= budget_s, f"{line} does not end in {budget_s:.0f} s: {command.sleeps_in()}"
    finally:
        command.process.kill()
        command.process.wait()
    code, err = command.process.returncode, visitor.end(command)
    assert code in (0, 1) and not _CRASH.search(err), (line, code, err)
    if code:
        print(f"{line}: {err.strip().splitlines()[-1]}", flush=True)
    assert command.rss_mib < MAX_RSS_MIB, f"{line}: {command.rss_mib} MiB"
    _expect_nothing(command, line)
    return took_s + (stop_after_s or 0.0)


def end_by_signal(visitor: Visitor, line: str, name: str, moment_s: float) -> str:
    """Send INT, TERM or KILL to a command at a moment. Return what came of it; raise AssertionError."""
    command = visitor.start(line)
    where = f"{name} to {line} after {moment_s:.2f} s"
    try:
        command.wait(moment_s)
        command.note()
        command.process.send_signal(getattr(signal, f"SIG{name}"))
        took_s = command.wait(SIGNALLED_S)
        assert took_s <= SIGNALLED_S, f"{where}: it goes on: {command.sleeps_in()}"
    finally:
        command.process.kill()
        command.process.wait()
    code, err = command.process.returncode, visitor.end(command)
    if name != "KILL":
        assert not _CRASH.search(err), f"{where}: {err}"
    until_s = time.monotonic() + SIGNALLED_S
    while (waiting := command.in_state_d()) and time.monotonic() < until_s:
        time.sleep(_STEP_S)
    assert waiting == [], f"{where}: in state D: {command.sleeps_in()}"
    if name == "KILL" and "export" in line.split():
        # The name of its socket stays. The next start removes it, as it does for itself here.
        with suppress(FileNotFoundError):
            (visitor.room / "export.sock").unlink()
    _expect_nothing(command, where)
    assert command.rss_mib < MAX_RSS_MIB, f"{where}: {command.rss_mib} MiB"
    return f"{where}: {code}, {took_s:.2f} s, {command.rss_mib} MiB, {len(command.readers)} readers"


def _expect_nothing(command: Command, where: str) -> None:
    until_s = time.monotonic() + 30.0
    while (left := command.left()) and time.monotonic() < until_s:
        time.sleep(0.1)
    for room in command.footprint.rooms:  # the next round starts without it
        for path in room.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert left == [], f"{where}: left: {left}: {command.sleeps_in()}"


@contextmanager
def visitor(cli: Cli, place: Path, places: dict[str, str], mappers: int) -> Iterator[Visitor]:
    """Yield a visitor with a folder of its own for temporary files."""
    # A test that is repeated in one process may have left its folder.
    room = Path(tempfile.mkdtemp(prefix="visitor-", dir="/tmp"))
    room.chmod(0o755)
    found = Visitor(cli, room, place, mappers, places)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(room, ignore_errors=True)
