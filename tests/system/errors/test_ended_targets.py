# SPDX-License-Identifier: Apache-2.0
"""Targets that end, stop or restart in the window of a command: drawn commands, targets, events and moments."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from powerprof.database import sql
from powerprof.database.private_server import PrivateServer
from tests.conftest import Cli
from tests.programs import ground_truth
from tests.programs.announced import Announced

LENGTH_S = 2.0
_TIME = ["--duration", f"{LENGTH_S:g}"]
_SERVERS = ("mariadb", "postgresql")
_ANY = (*_SERVERS, "program")
# The command, its targets, and the function that `functions` counts in each.
COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "attribute": (["attribute", "--meter", "none", *_TIME], _ANY),
    "deep-idle": (["deep-idle", *_TIME], _ANY),
    "profile": (["profile", *_TIME], _ANY),
    "offcpu": (["offcpu", *_TIME], _ANY),
    "syscalls": (["syscalls", *_TIME], _ANY),
    "functions": (["functions", *_TIME], _ANY),
    "queries": (["queries", "--method", "probes", "--meter", "none", *_TIME], _SERVERS),
    "samples": (["queries", "--method", "samples", "--meter", "none", *_TIME], _SERVERS),
    "diagnose": (["diagnose", *_TIME], _SERVERS),
}
_FUNCTIONS = {"mariadb": "*dispatch_command*", "postgresql": "standard_ExecutorRun", "program": "wait_*"}
_LOADS = {
    "mariadb": "SELECT BENCHMARK(2000, SHA2('x', 256))",
    "postgresql": "SELECT count(*) FROM generate_series(1, 2000) n",
}
MOMENTS = {"first tenth": (0.02, 0.1), "middle": (0.4, 0.6), "last tenth": (0.9, 0.95)}
EVENTS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "TERM": signal.SIGTERM, "backend": signal.SIGKILL}
_WORDS = {
    "KILL": r"ended \d\.\d+ s after the window began",
    "TERM": r"ended \d\.\d+ s after the window began",
    "STOP": r"was stopped by a signal or a debugger at the latest \d\.\d+ s after the window began",
    "backend": r"restarted all its processes \d\.\d+ s after the window began",
}
_HOWS = {"KILL": "target_ended", "TERM": "target_ended", "STOP": "target_stopped", "backend": "target_restarted"}
_COUNTS = (
    ("count", "rate_hz"),
    ("calls_count", "calls_hz"),
    ("sleeps_count", "sleeps_hz"),
    ("target_count", "target_hz"),
)


def draw_cases(seed: int) -> Iterator[tuple[str, str, str, str]]:
    """Draw a target, an event and a moment for each command."""
    draw = random.Random(seed)
    for command, (_, kinds) in COMMANDS.items():
        kind = draw.choice(kinds)
        events = [event for event in EVENTS if event != "backend" or kind == "postgresql"]
        event = draw.choice(events)
        # A shutdown that begins in the last tenth can take longer than the window.
        moments = [moment for moment in MOMENTS if event != "TERM" or moment != "last tenth"]
        yield command, kind, event, draw.choice(moments)


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[tuple[int, Callable[[], int]]]:
    """A target at work: its first process, and a function that finds a process of one client."""
    if kind == "program":
        with ground_truth.running(ground_truth.build("sleepers", folder), 60.0, "nanosleep=89") as truth:
            pid = int(str(truth["pid"]))
            yield pid, lambda: pid
        return
    with ExitStack() as stack:
        server = stack.enter_context(PrivateServer(family=kind))
        over = threading.Event()

        def ask() -> None:
            with suppress(Exception), server.connect() as connection:
                while not over.is_set():
                    sql.fetch_rows(connection, _LOADS[kind])
                    time.sleep(0.005)

        client = threading.Thread(target=ask)
        client.start()
        assert server.pid is not None
        try:
            yield server.pid, lambda: _find_backend(server)
        finally:
            over.set()
            for process in _family(server.pid):
                with suppress(psutil.Error):
                    process.resume()
            client.join()


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [psutil.Process(pid), *psutil.Process(pid).children()]
    return []


def _find_backend(server: PrivateServer) -> int:
    return next(process.pid for process in _family(server.pid or 0) if "[local]" in " ".join(process.cmdline()))


def check_rates(value: Any, window_s: float) -> int:
    """Check each rate of a record against its count and the time of the window; return how many there were."""
    if isinstance(value, list):
        return sum(check_rates(each, window_s) for each in value)
    if not isinstance(value, dict):
        return 0
    checked = 0
    for count, rate in _COUNTS:
        if value.get(count) is not None and value.get(rate) is not None:
            assert value[rate] == pytest.approx(value[count] / window_s, rel=0.02, abs=1e-9), (count, value)
            checked += 1
    return checked + sum(check_rates(each, window_s) for each in value.values())


def try_case(cli: Cli, folder: Path, case: tuple[str, str, str, str]) -> None:
    """Let a target end in the window of a command, and check all that the command says."""
    command, kind, event, moment = case
    low, high = MOMENTS[moment]
    at_s = LENGTH_S * random.Random(str(case)).uniform(low, high)
    page, saved = folder / "report.md", folder / "record.json"
    with serving(kind, folder) as (pid, find_backend):
        words = [*COMMANDS[command][0], "--pid", str(pid), "--no-save"]
        words += [_FUNCTIONS[kind]] if command == "functions" else []
        running = Announced([*words, "--json", str(saved), "-o", str(page)], cli.environment())
        began_s = running.until_window()
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        # PostgreSQL waits for its clients after SIGTERM.
        fast = event == "TERM" and kind == "postgresql"
        os.kill(find_backend() if event == "backend" else pid, signal.SIGINT if fast else EVENTS[event])
        done = running.end()
    assert done.code == 1, (done.out, done.err)
    errors = [line for line in done.err.splitlines() if "error: " in line]
    # An event before the window's first reading is before the window.
    words_of_event = f"({_WORDS[event]}|{_WORDS[event].partition(' ')[0]}.* before the window began|restarted .*)"
    assert len(errors) == 1 and re.search(rf"error: \S+ \({pid}\) {words_of_event}$", errors[0]), done.err
    assert not re.search(r"Traceback|Error\(|Errno", done.out + done.err), done.err
    if "after the window" not in errors[0]:
        assert done.out == ""
        return
    if command == "diagnose" and event != "STOP":
        assert done.out == ""  # An ended server has no findings.
        return
    printed = " ".join(done.out.split())
    assert re.match(rf"\S+ \({pid}\) {_WORDS[event]}\. The figures end there\. ", printed), printed
    assert page.read_text().startswith("> ") and f"({pid})" in page.read_text().splitlines()[0]
    record = json.loads(saved.read_text())
    ended = record["ended"]
    assert (ended["how"], ended["pid"]) == (_HOWS[event], pid)
    assert ended["after_s"] <= LENGTH_S + 0.2
    if command == "diagnose":
        assert record["findings"][0]["rule"] == "stopped_server"
        return
    assert record["window_s"] == pytest.approx(ended["after_s"], abs=0.4)
    if event in ("KILL", "STOP") and moment == "middle":
        # The announcement comes before the edges of the window.
        assert record["window_s"] <= at_s + (1.2 if event == "STOP" else 0.3)
    checked = check_rates(record, record["window_s"])
    # On a busy host no idle period has a cause, and in the first moments a client may send nothing.
    assert checked or command not in ("profile", "offcpu", "functions", "queries") or moment == "first tenth"
    if kind == "program" and command == "offcpu" and event == "KILL" and record["window_s"] > 0.5:
        sleeps = [row["sleeps_hz"] for row in record["threads"]]
        assert any(rate == pytest.approx(89, rel=0.1) for rate in sleeps), sleeps


@pytest.mark.parametrize("case", draw_cases(66), ids="-".join)
def test_a_command_says_that_its_target_ended(
    root_bpf: None, mariadbd: Path, powerprof_cli: Cli, tmp_path: Path, case: tuple[str, str, str, str]
) -> None:
    try_case(powerprof_cli, tmp_path, case)


@pytest.fixture
def group(root_bpf: None) -> Iterator[Path]:
    """A control group of the unified hierarchy, which is thawed and removed at the end."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (root / "cgroup.controllers").exists():
            break
    else:
        pytest.skip("this host has no unified hierarchy of control groups")
    folder = root / f"powerprof-test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        (folder / "cgroup.freeze").write_text("0")
        (folder / "cgroup.kill").write_text("1")
        while "populated 1" in (folder / "cgroup.events").read_text():
            time.sleep(0.01)
        folder.rmdir()


@pytest.mark.parametrize("command", ["attribute --cgroup", "offcpu --cgroup", "profile --pid", "diagnose --pid"])
def test_a_frozen_control_group_ends_the_window(group: Path, powerprof_cli: Cli, command: str) -> None:
    """`docker pause` freezes the group of a container. Its processes are asleep for /proc, not stopped."""
    verb, option = command.split()
    process = subprocess.Popen(["sleep", "60"])
    (group / "cgroup.procs").write_text(str(process.pid))
    words = [verb, option, str(group) if option == "--cgroup" else str(process.pid), *_TIME]
    try:
        running = Announced([*words, "--no-save"], powerprof_cli.environment())
        running.until_window()
        time.sleep(0.5)
        (group / "cgroup.freeze").write_text("1")
        done = running.end()
        refused = powerprof_cli([*words, "--no-save"]) if verb != "diagnose" else None
    finally:
        process.kill()
        (group / "cgroup.freeze").write_text("0")
        process.wait()
    errors = [line for line in done.err.splitlines() if "error: " in line]
    assert (done.code, len(errors)) == (1, 1), done
    assert re.search(r"was frozen by its control group at the latest \d\.\d+ s after the window began$", errors[0])
    assert "cgroup.freeze" in done.err
    if refused is not None:
        assert refused.code == 1
        assert "was frozen by its control group" in refused.err and f"echo 0 > {group}/cgroup.freeze" in refused.err


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for seed in range(8) for case in draw_cases(seed)], ids="-".join)
def test_more_commands_say_that_their_target_ended(
    root_bpf: None, mariadbd: Path, powerprof_cli: Cli, tmp_path: Path, case: tuple[str, str, str, str]
) -> None:
    try_case(powerprof_cli, tmp_path, case)
