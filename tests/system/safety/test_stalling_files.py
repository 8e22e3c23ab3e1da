# SPDX-License-Identifier: Apache-2.0
"""Files and memory of another account that never come: every command ends, and leaves no BPF program behind."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from powerprof.database.base import Login
from powerprof.database.postgres_wire import PostgresConnection as Connection
from powerprof.diagnosis.collect import read_log_end
from powerprof.stacks.image import ProcessImage, snapshot
from powerprof.stacks.perf_map import read_perf_map
from powerprof.system import reader_waits
from powerprof.system.fork import SendPart, run_in_fork
from powerprof.system.processes import language_of, owner_of
from powerprof.system.reader_child import MAX_MAPPINGS
from powerprof.system.reader_process import Opened, ReaderProcess, link_of, shared
from powerprof.system.reader_waits import OF_PEOPLE, ReaderWaits
from tests.conftest import REPOSITORY
from tests.programs.stalling import GETATTR, LOOKUP, OPEN, READ, UID, build, stalling
from tests.unit.layers import sources

# A busy host takes several times what a command takes alone; a reader in D state would take for ever.
DEADLINE_S = 60.0
# A server by its name, which no server of this host has.
NAME = "mariadbd-forged"
POWERPROF = Path(sys.executable).parent / "powerprof"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """The programs that keep readers waiting."""
    if os.geteuid() != 0:
        pytest.skip("needs root: other accounts, and the files of their processes")
    place = build(Path("/tmp"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def fresh() -> Iterator[ReaderProcess]:
    """This process's reader, which no process has kept waiting yet."""
    shared().waits = ReaderWaits()
    yield shared()
    shared().waits = ReaderWaits()
    shared().close()


@pytest.fixture(scope="module")
def hostile(place: Path) -> Iterator[int]:
    """A process called a server whose files stall, two of another account, one with a FIFO and a leased perf map."""
    with ExitStack() as stack:
        stalled = stack.enter_context(stalling(place, OPEN, GETATTR, LOOKUP, READ, name=NAME))
        stack.enter_context(stalling(place, GETATTR, uid=UID + 1))
        stack.enter_context(stalling(place, OPEN, uid=UID + 1))
        fifo = place / "log"
        os.mkfifo(fifo)
        log = os.open(fifo, os.O_RDWR)
        stack.callback(os.close, log)
        process = subprocess.Popen([place / "waker"], stderr=log, user=UID, group=UID, extra_groups=[])
        stack.callback(process.wait)
        stack.callback(process.kill)
        perf_map = Path(f"/tmp/perf-{process.pid}.map")
        perf_map.write_text("1000 10 name\n")
        stack.callback(perf_map.unlink)
        handle = os.open(perf_map, os.O_RDWR)
        stack.callback(os.close, handle)
        stack.callback(signal.signal, signal.SIGIO, signal.signal(signal.SIGIO, signal.SIG_IGN))
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield stalled.pid


def readers_with_bpf() -> list[int]:
    """Children that read for powerprof, abandoned ones too, and hold a BPF program or a perf event."""
    holders = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        if (link_of(entry) or "").startswith(("anon_inode:bpf", "anon_inode:[perf_event")):
            holders.add(int(entry.parts[2]))
    lines = {pid: shared().proc_file(pid, "cmdline", 4096) or b"" for pid in holders}
    return [pid for pid, line in lines.items() if b"reader_child" in line]


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [POWERPROF, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    )


def ended(process: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
    """Exit code and output; a command that does not end fails the test, with the place where it sleeps."""
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        where = Path(f"/proc/{process.pid}/wchan").read_text()
        process.kill()
        pytest.fail(f"{process.args} does not end: it sleeps in {where}")
    assert readers_with_bpf() == []
    return process.returncode, out, err


_COMMANDS = (
    "attribute --system --duration 1 --no-save",
    "watch --no-ask --count 1 --interval 1",  # an exporter asks below
    "diagnose --pid PID --duration 1 --no-save",
    "cure --pid PID --thread NAME --slack 50ms --keep",
    "queries --pid PID --duration 1 --no-save",
    "functions m* --pid PID --duration 1 --no-save",
    "doctor",
)
# These look at a target in the same way.
_NIGHTLY = (
    "attribute --pid NAME --duration 1 --no-save",
    "doctor --pid PID",
    "profile --pid PID --duration 1 --no-save",
    "profile --system --duration 1 --no-save",
    "offcpu --pid PID --duration 1 --no-save",
    "syscalls --pid PID --duration 1 --no-save",
    "residency --duration 1",
)


@pytest.mark.parametrize("words", [*_COMMANDS, *(pytest.param(words, marks=pytest.mark.nightly) for words in _NIGHTLY)])
def test_a_command_ends_beside_processes_whose_files_stall(hostile: int, words: str) -> None:
    code, _, err = ended(start(*words.replace("PID", str(hostile)).replace("NAME", NAME).split()))
    assert code in (0, 1, 2, 3), err
    assert "Traceback" not in err


def test_the_report_names_what_it_left_out_and_the_functions_of_other_accounts(hostile: int) -> None:
    code = "#include <unistd.h>\nvoid sleep_a_little(void) { usleep(4000); }\n"
    code += "int main(void) { for (;;) sleep_a_little(); }\n"
    program = Path(f"/tmp/other-{os.getpid()}")
    words = ["gcc", "-O0", "-g", "-x", "c", "-o", str(program), "-"]
    subprocess.run(words, input=code, text=True, check=True)
    other = subprocess.Popen([program], user=UID + 7, group=UID + 7, extra_groups=[])
    try:
        words = [
            "attribute",
            "--max-cost",
            "none",
            "--pid",
            f"{hostile},{other.pid}",
            "--duration",
            "2",
            "--no-save",
            "--json",
            "-",
        ]
        code, out, err = ended(start(*words))
        assert code == 0, err
        record = json.loads(out)
        frames = [
            frame["function"]
            for wakeup in [*record["wakeups"], *record["wakings_without_exit"]]
            if wakeup["thread"]["pid"] == other.pid
            for frame in wakeup["stack"]
        ]
        assert "main" in frames, [wakeup["thread"] for wakeup in record["wakeups"]]
        assert re.search(rf"processes .*{hostile}.* were left out", out)
    finally:
        other.kill()
        other.wait()
        program.unlink()


@pytest.mark.usefixtures("asks_every_server")
def test_an_exporter_answers_and_ends_by_a_signal(hostile: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    exporter = start("export", "--listen", f"127.0.0.1:{port}", "--interval", "1", "--statements", NAME)
    try:
        until_s, page = time.monotonic() + DEADLINE_S, ""
        while "powerprof_wakeups_total{" not in page:
            assert exporter.poll() is None and time.monotonic() < until_s
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    page = answer.read().decode()
            except OSError:
                time.sleep(0.2)
    finally:
        exporter.send_signal(signal.SIGTERM)
    code, _, err = ended(exporter)
    assert "Traceback" not in err and code in (0, 1, 143, 130, -15)


@pytest.mark.parametrize("opcode", [LOOKUP, GETATTR, pytest.param(OPEN, marks=pytest.mark.nightly), READ])
def test_each_look_at_a_process_ends(place: Path, fresh: ReaderProcess, opcode: int) -> None:
    with stalling(place, opcode, name="mariadbd") as stalled:
        pid, base = stalled.pid, Path(f"/proc/{stalled.pid}")
        for look in (
            lambda: snapshot(pid),
            lambda: owner_of(pid),
            lambda: language_of(pid),
            lambda: read_log_end(pid),
            lambda: fresh.open_files(pid),
            lambda: fresh.status(base / "cwd"),
            lambda: fresh.open_in_root(pid, base / "root", os.readlink(base / "exe")),
            lambda: fresh.read(pid, base / "exe", 100),
        ):
            fresh.waits = ReaderWaits()
            began_s = time.monotonic()
            look()
            assert time.monotonic() - began_s < 20
        fresh.waits = ReaderWaits()
        began_s = time.monotonic()
        with suppress(OSError):
            fresh.connect(base / "root" / os.readlink(base / "cwd").lstrip("/") / "s").close()
        assert time.monotonic() - began_s < 20


def test_stalling_processes_cost_one_wait_each_and_hide_none_of_a_system_account(
    place: Path, fresh: ReaderProcess
) -> None:
    with ExitStack() as stack:
        pids = [stack.enter_context(stalling(place, OPEN, GETATTR)).pid for _ in range(3)]
        began_s = time.monotonic()
        for pid in [*pids, *pids]:
            fresh.status(Path(f"/proc/{pid}/exe"))
        assert time.monotonic() - began_s < 15
        assert fresh.waits.silent == pids
        assert fresh.waits.of_people.left_behind == 3
        with stalling(place, OPEN, uid=UID + 3, armed=False) as other:
            assert fresh.status(Path(f"/proc/{other.pid}/exe")) is not None
            fresh.waits.of_people.left_behind = OF_PEOPLE.left_behind
            assert fresh.status(Path(f"/proc/{other.pid}/exe")) is None
        own = fresh.status(Path("/proc/self/exe"))
        assert own is not None and own.inode == Path("/proc/self/exe").stat().st_ino


@pytest.mark.parametrize(("delay_ms", "count"), [(700, 100), (45, 1000)])
def test_answers_that_are_only_slow_cost_no_more_than_the_total_limit(
    place: Path, fresh: ReaderProcess, monkeypatch: pytest.MonkeyPatch, delay_ms: int, count: int
) -> None:
    """Each comes before the patience of the reader ends."""
    limits = msgspec.structs.replace(OF_PEOPLE, waited_s=5.0)
    monkeypatch.setattr(reader_waits, "OF_PEOPLE", limits)
    with stalling(place, GETATTR, delay_ms=delay_ms) as stalled:
        began_s = time.monotonic()
        statuses = [fresh.status(Path(f"/proc/{stalled.pid}/exe")) for _ in range(count)]
        assert statuses[0] is not None and statuses[-1] is None
        assert time.monotonic() - began_s < 3 * limits.waited_s
        assert fresh.status(Path("/proc/self/exe")) is not None


_MANY_MAPPINGS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for number in range(int(sys.argv[1])):
    assert libc.mmap(None, 4096, 5 if number % 2 else 1, 0x22, -1, 0) not in (None, 2**64 - 1)
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def many_mappings(count: int) -> Iterator[int]:
    """A process of another account with that many mappings, each second one executable."""
    words = [sys.executable, "-I", "-S", "-c", _MANY_MAPPINGS, str(count)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, user=UID, group=UID, extra_groups=[])
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_work_on_many_mappings_costs_no_more_than_the_total_limit(
    place: Path, fresh: ReaderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_waits, "OF_PEOPLE", msgspec.structs.replace(OF_PEOPLE, worked_s=0.3))
    with many_mappings(2 * MAX_MAPPINGS - 1000) as pid:
        lines = fresh.maps(pid)[0].splitlines()
        assert len(lines) > MAX_MAPPINGS - 1000 and all(b"xp " in line for line in lines)
        with pytest.raises(Exception, match="kept their reader waiting or busy"):
            for _ in range(1000):
                snapshot(pid)
        assert fresh.waits.silent == [pid] and fresh.waits.of_people.worked_s < 1.5
        assert fresh.maps(os.getpid())
    fresh.waits = ReaderWaits()
    with many_mappings(2 * MAX_MAPPINGS + 2) as pid, pytest.raises(Exception, match="more than 16,384 executable"):
        snapshot(pid)


def test_a_file_of_a_file_system_in_user_space_comes_as_a_copy(place: Path, fresh: ReaderProcess) -> None:
    """Its reads may stall later, so no descriptor of it enters this process."""
    with stalling(place, READ, armed=False) as stalled:
        base = Path(f"/proc/{stalled.pid}")
        opened = fresh.open_in_root(stalled.pid, base / "root", os.readlink(base / "exe"))
        assert isinstance(opened, Opened)
        with opened:
            assert opened.is_copy and not opened.is_trusted
            assert (link_of(f"/proc/self/fd/{opened.fd}") or "").startswith("/memfd:")
            assert os.pread(opened.fd, 1 << 20, 0) == (place / "waker").read_bytes()
        ours = fresh.open_in_root(os.getpid(), Path("/proc/self/root"), os.path.realpath(sys.executable))
        assert isinstance(ours, Opened)
        with ours:
            assert not ours.is_copy and ours.is_trusted


def test_a_lease_and_a_pipe_are_errors_at_once(tmp_path: Path, fresh: ReaderProcess) -> None:
    leased, fifo = tmp_path / "leased", tmp_path / "fifo"
    leased.write_text("x")
    os.mkfifo(fifo)
    handle = os.open(leased, os.O_RDWR)
    try:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert fresh.read(0, leased, 10) is None
        assert fresh.open_in_root(0, tmp_path, "fifo") == "not a regular file"
        assert fresh.waits.silent == []
    finally:
        os.close(handle)
        signal.signal(signal.SIGIO, signal.SIG_DFL)


def test_a_fork_that_no_signal_ends_is_abandoned(place: Path) -> None:
    with stalling(place, GETATTR) as stalled:

        def work(say: SendPart) -> None:
            say(b"begun")
            os.stat(f"/proc/{stalled.pid}/exe")  # noqa: PTH116 - without the owner of the rule

        began_s = time.monotonic()
        done = run_in_fork(work, 0.5)
        assert (done.parts, done.ended) == ([b"begun"], False)
        assert time.monotonic() - began_s < 10


def test_a_fork_uses_the_same_reader_and_hands_back_the_waits(place: Path, fresh: ReaderProcess) -> None:
    """A monitor names stacks in a fork; it starts no reader there unless a process keeps that one waiting."""
    fresh.maps(os.getpid())
    first = fresh._child

    def work(say: SendPart) -> None:
        fresh.maps(os.getppid())
        assert fresh._child is first
        say(b"")

    with fresh.lent():
        assert run_in_fork(work, 10.0).ended
        fresh.take_back(fresh.waits)
    assert fresh._child is first and fresh.maps(os.getpid())
    with stalling(place, GETATTR) as stalled:

        def wait(say: SendPart) -> None:
            assert fresh.status(Path(f"/proc/{stalled.pid}/exe")) is None
            say(msgspec.msgpack.encode(fresh.waits))

        with fresh.lent():
            done = run_in_fork(wait, 30.0)
            fresh.take_back(msgspec.msgpack.decode(done.parts[0], type=ReaderWaits))
    assert fresh.waits.silent == [stalled.pid] and fresh.waits.of_people.left_behind == 1
    assert fresh.maps(os.getpid()) and fresh._child is not first


def test_a_postgresql_server_that_answers_no_look_up_is_an_error(place: Path, fresh: ReaderProcess) -> None:
    with stalling(place, LOOKUP, name="postgres") as stalled:
        base = Path(f"/proc/{stalled.pid}")
        place_of_socket = base / "root" / os.readlink(base / "cwd").lstrip("/") / ".s.PGSQL.5432"
        login = Login(user="root", socket=place_of_socket, pid=stalled.pid, family="postgresql")
        from powerprof.database import sql

        began_s = time.monotonic()
        with pytest.raises(Exception, match="cannot connect"):
            Connection(login, 3.0, sql.LOOK_LIMITS)
        assert time.monotonic() - began_s < 20


def test_a_perf_map_is_read_in_the_child(place: Path, fresh: ReaderProcess) -> None:
    with stalling(place, LOOKUP) as stalled:
        image = ProcessImage(pid=stalled.pid, started_ticks=1, executable="/x", mappings=())
        assert read_perf_map(image).starts == ()


# What opens, follows or lists a path. A read of a link of /proc/PID is harmless: the kernel keeps the name.
OPENING = {"open", "stat", "lstat", "exists", "is_file", "is_dir", "is_socket", "samefile", "resolve", "realpath"}
OPENING |= {
    "read_bytes",
    "read_text",
    "open_regular",
    "read_outside_text",
    "read_outside_table",
    "scandir",
    "listdir",
    "iterdir",
    "connect",
}
OPENING |= {"try_text", "try_int", "read_int", "read_fields"}
# The second group of files takes the memory map, or the lock of an exec (mm_access, lock_trace and do_io_accounting in
# fs/proc). Any of them of our own process waits for nobody.
FOREIGN = re.compile(
    r"""(?<!proc/self)(?<!thread-self)(?<!pressure)["'/](exe|map_files|cwd|root|fd/\w+"""
    r"""|mem|environ|cmdline|maps|smaps|smaps_rollup|numa_maps|auxv|pagemap|io|syscall|stack|personality)["'/]"""
    r"""|/proc/\{\w+\}/(exe|root|cwd|stat)\b|(?:str\(\w+\)|folder|base) / ["'](stat)["']"""
)
OWNERS = {"system/reader_child.py"}
# dtrace's keeper reads and writes its own child's memory.
EXCEPTIONS = {*(("tracing/dtrace_keeper.py", name) for name in ("mem", "maps", "auxv"))}
# Folders of fetched servers are called that.
EXCEPTIONS.add(("database/debian_packages.py", "root"))
# For system accounts, and for the reader itself.
EXCEPTIONS |= {("system/process_stat.py", "stat"), ("system/reader_waits.py", "stat")}


def direct_opens(path: str, text: str) -> list[str]:
    """Places that open a path of another process: in a call itself, or by a name that was given such a path."""
    found: list[str] = []
    if not FOREIGN.search(text):
        return found
    for scope in ast.walk(sources.parse(text)):
        if not isinstance(scope, ast.FunctionDef):
            continue
        named = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and FOREIGN.search(ast.unparse(node.value))
            for target in node.targets
            if isinstance(target, ast.Name) and not isinstance(node.value, ast.Call | ast.Await)
        }
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            verb = called.rpartition(".")[2]
            if verb not in OPENING or called.startswith(("shared()", "reader.", "aside.")):
                continue
            words = ast.unparse(node)
            hit = FOREIGN.search(words)
            if hit or named & {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}:
                part = hit[hit.lastindex or 0] if hit else "name"
                if (path, part) not in EXCEPTIONS:
                    found.append(f"{path}:{node.lineno}: {words[:80]}")
    return found


def test_no_other_module_opens_a_path_of_another_process() -> None:
    package = REPOSITORY / "powerprof"
    found = [
        place
        for path in sorted(package.rglob("*.py"))
        if (name := str(path.relative_to(package))) not in OWNERS
        for place in direct_opens(name, path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        '(paths.procfs() / str(pid) / "exe").stat()',
        'os.open(base / "map_files" / f"{start:x}-{end:x}", os.O_RDONLY)',
        'outside_files.open_regular(base / "fd/2")',
        'open(f"/proc/{pid}/root/etc/passwd")',
        'place = base / "root" / name\n    return place.read_bytes()',
        'channel.connect(str(base / "root" / name))',
        '(base / "cwd").resolve()',
        'os.open(f"/proc/{pid}/mem", os.O_RDONLY)',
        'try_text(procfs() / str(pid) / "task" / str(tid) / "syscall")',
        'read_fields(procfs() / str(pid) / "io")',
        'try_text(procfs() / str(pid) / "stat")',
        'place = procfs() / str(pid) / "auxv"\n    return try_text(place)',
    ],
)
def test_a_planted_open_is_found(planted: str) -> None:
    assert len(direct_opens("x.py", f"def look(pid, base, name):\n    {planted}\n")) == 1
