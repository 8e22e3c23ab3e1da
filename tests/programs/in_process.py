# SPDX-License-Identifier: Apache-2.0
"""The command line in this process, up to the first thing that measures, starts or asks something: hundreds of command
lines in the time that starting Python for a few of them takes.
"""

from __future__ import annotations

import contextlib
import io
import signal
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerprof.cli import app
from powerprof.measure.sampling import WindowMeter
from powerprof.system import capabilities, program_search, signals
from powerprof.tracing.bpf.btf import Btf
from powerprof.tracing.bpf.loaded import LoadedProgram

# A host that has them is asked by them for its meters; one test's host is as good as another's without.
_METERS = {"turbostat", "powertop", "perf", "ipmitool", "ipmi-dcmi"}
# None of these command lines has anything to wait for.
PATIENCE_S = 20


class Began(BaseException):
    """Where it would have begun; no Exception, so that nothing takes it for a failure."""


class _TookTooLong(BaseException):
    """No Exception, as Began is none."""


@dataclass(frozen=True)
class Ended:
    """How a command line ended; `began` says what it would have done next, `broke` what it should never have done."""

    code: int | None
    out: str
    err: str
    began: str | None = None
    broke: str | None = None


Run = Callable[[Sequence[str]], Ended]


def _run(arguments: Sequence[str]) -> Ended:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace", write_through=True) for _ in range(2))
    code, began, broke = None, None, None
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(PATIENCE_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app.run_app(arguments)
    except Began as begun:
        began = str(begun)
    except BaseException as error:
        broke = "".join(traceback.format_exception_only(error)).strip()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ended(code, *said, began, broke)


def _too_long(*_: object) -> None:
    raise _TookTooLong(f"did not end in {PATIENCE_S} s")


@pytest.fixture(scope="module")
def the_commands() -> object:
    """The application, built once: it is most of what a refused command line costs."""
    return app.build_root()


@pytest.fixture
def up_to_the_first_window(the_commands: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """`run(["idle", "--clients", "x"])` → Ended, in a folder and a home of the test's own."""

    def begins(what: str) -> Callable[..., None]:
        def begin(*_: object, **__: object) -> None:
            raise Began(what)

        return begin

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and timeout > 0.2:
            raise Began("waits")
        return waits(event, timeout)

    def pause(seconds: float) -> None:
        # A host without an idle driver tries its counter with sleeps of 0.1 ms.
        if seconds >= 0.001:
            raise Began("a pause")
        sleep(seconds)

    find, waits, sleep = program_search.find_program, threading.Event.wait, time.sleep
    monkeypatch.setattr(program_search, "find_program", lambda name: (None, None) if name in _METERS else find(name))
    monkeypatch.setattr(app, "build_root", lambda: the_commands)
    monkeypatch.setattr(WindowMeter, "begin", begins("a window"))
    monkeypatch.setattr(Btf, "__init__", begins("a trace"))
    monkeypatch.setattr(LoadedProgram, "__init__", begins("a trace"))
    # For good: the tests that follow need their rights.
    monkeypatch.setattr(capabilities, "drop_capabilities", begins("giving up rights"))
    monkeypatch.setattr(subprocess.Popen, "__init__", begins("a program"))
    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(signals, "wakeup_descriptor", begins("a pause"))
    monkeypatch.setattr("os.fork", begins("a process"))
    monkeypatch.setattr(socket.socket, "connect", begins("a connection"))
    monkeypatch.setattr(threading.Event, "wait", wait)
    for kind in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield _run
