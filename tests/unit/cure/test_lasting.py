# SPDX-License-Identifier: Apache-2.0
"""Timer slack that stays: kept, released, inherited across exec, and the texts for systemd."""

from __future__ import annotations

import configparser
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.cli.app import run_app
from powerprof.cure import threads
from powerprof.cure.threads import SlackChoice, loop_warning
from powerprof.model.attribution import Thread
from powerprof.system.errors import UsageError
from powerprof.system.targets import Target

_SLEEPER = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(1, flush=True); "
_LOOP = "import select; e = select.epoll(); print(1, flush=True); e.poll(60)"
_PR_SET_TIMERSLACK = 29
CHOICE = SlackChoice("governor", 50_000_000)


def start(code: str, slack_ns: int = 0) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        if slack_ns:
            libc.prctl(_PR_SET_TIMERSLACK, slack_ns)

    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, preexec_fn=prepare)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def slacks(pid: int) -> set[str]:
    tids = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    return {Path(f"/proc/{tid}/timerslack_ns").read_text().strip() for tid in tids}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = start(_SLEEPER + "time.sleep(60)")
    yield process
    end(process)


def test_refuse_an_unknown_thread_after_the_wait(sleeper: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UsageError, match="has no thread 'nobody'"):
        threads.keep_slack(str(sleeper.pid), SlackChoice("nobody", 1), 0.1)


def test_command_keeps_slack_and_releases_it(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cure", "--pid", str(sleeper.pid), "--thread", str(sleeper.pid)]
    assert run_app([*words, "--slack", "50ms", "--keep"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(": 50us → 50ms, verified.")
    assert "powerprof cure --pid" in printed[-1] and printed[-1].endswith("--release")
    assert slacks(sleeper.pid) == {"50000", "50000000"}
    assert run_app([*words, "--release"]) == 0
    assert capsys.readouterr().out.endswith(": 50ms → 50us, verified.\n")
    assert slacks(sleeper.pid) == {"50000"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--keep --release", "--keep and --release exclude each other"),
        ("--keep --slack 1ms", "--keep needs a thread"),
        ("--keep --thread x", "--thread needs --slack"),
        ("--keep --thread x --slack 1ms --pairs 9 --yes", "--pairs and --yes have no effect with --keep"),
        ("--keep --set a=1", "--set has no effect with --keep"),
        ("--release", "--release needs a thread"),
        ("--release --thread x --slack 1ms", "--slack has no effect with --release"),
        ("--thread x --slack 1ms --print-unit", "--print-unit has no effect without --keep"),
        (
            "--keep --thread x --slack 1ms --print-unit --print-drop-in",
            "--print-unit and --print-drop-in exclude each other",
        ),
        ("--keep --thread x --slack 1ms --print-unit --wait 9", "--wait has no effect with --print-unit"),
    ],
)
def test_refuse_options_without_effect_on_kept_slack(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["cure", "--pid", "1", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_removed_command_names_its_successors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["slack", "50ms", "--pid", "1", "--thread", "x"]) == 2
    assert capsys.readouterr().err == (
        "error: no such command: slack\n"
        "hint: powerprof cure --thread NAME --slack TIME --keep, or cure --thread NAME --release\n"
    )


def test_threads_inherit_slack_across_exec() -> None:
    process = start(_SLEEPER + "time.sleep(60)", 50_000_000)
    try:
        assert slacks(process.pid) == {"50000000"}
    finally:
        end(process)


def test_warn_about_an_event_loop() -> None:
    loop = start(_LOOP)
    try:
        while not (said := loop_warning(loop.pid, Thread(tid=loop.pid, comm="python"))):
            assert loop.poll() is None
        assert "is an event loop: this delays every timer of its program" in said
    finally:
        end(loop)


def texts(monkeypatch: pytest.MonkeyPatch, unit: str | None, pid: str = "mysqld", name: str = "governor") -> str:
    monkeypatch.setattr(threads, "service_of", lambda _pid: unit)
    thread = Thread(tid=7, comm="ib_log", server_name=None)
    return threads.unit_text("/usr/bin/powerprof", pid, SlackChoice(name, 50_000_000), Target((5,), "mysqld"), thread)


def test_service_follows_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    read = configparser.RawConfigParser()
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(texts(monkeypatch, "mysql.service"))
    assert read["Unit"]["BindsTo"] == read["Unit"]["After"] == read["Install"]["WantedBy"] == "mysql.service"
    assert (
        read["Service"]["ExecStart"]
        == "/usr/bin/powerprof cure --pid mysqld --thread governor --slack 50ms --keep --wait 120"
    )
    by_number = texts(monkeypatch, "mysql.service", "5", "7")
    assert "cure --pid mysqld --thread ib_log --slack" in by_number  # numbers change at a restart


def test_refuse_targets_unsuitable_for_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is not part of a systemd service"):
        texts(monkeypatch, None)
    with pytest.raises(UsageError, match="is not allowed in a unit"):
        texts(monkeypatch, "mysql.service", name="a\nExecStart=/bin/sh")


def test_drop_in_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "service_of", lambda _pid: "mysql.service")
    text = threads.drop_in_text(CHOICE, Target((5,), "mysqld"))
    assert text.endswith("[Service]\nTimerSlackNSec=50ms\n")
    assert "systemctl edit mysql.service" in text
