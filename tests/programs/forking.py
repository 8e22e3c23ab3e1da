# SPDX-License-Identifier: Apache-2.0
"""Run `powerprof` command lines in forks of a process that has imported it.

A start of the interpreter with powerprof's modules takes half a second of CPU time, a fork takes some milliseconds.
Each command is still a process with its own environment, folder, outputs, signals and exit code.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# Numeric libraries would start threads, and a fork copies the calling thread only.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# The interpreter and the loader read these when they start.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_")


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether no variable has an effect that only a new interpreter shows."""
    names = {name for name in {*environment, *os.environ} if name.startswith(_READ_AT_START)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


class Forker:
    """A process that has imported powerprof and forks for each command line."""

    def __init__(self, folder: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="forker-", dir="/tmp")
        self._address = str(Path(self._scratch.name, "socket"))
        environment = {**os.environ, **_ONE_THREAD}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.forking", self._address],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def start(self, args: Sequence[str], environment: Mapping[str, str], folder: Path) -> ForkedCommand:
        """Start a command line. The caller waits for it."""
        return ForkedCommand(self._address, args, environment, folder)

    def is_running(self) -> bool:
        """Return whether the process lives."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process; commands that run go on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._scratch.cleanup()


class ForkedCommand:
    """A command line that runs in a fork, with its outputs in pipes."""

    def __init__(self, address: str, args: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel.connect(address)
        (self._out, out), (self._err, err) = os.pipe(), os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            socket.send_fds(self._channel, [b"f"], [nothing.fileno(), out, err])
        os.close(out)
        os.close(err)
        order = json.dumps([list(args), dict(environment), str(folder)]).encode("utf-8", "surrogateescape")
        self._channel.sendall(len(order).to_bytes(8, "little") + order)
        self.pid = int.from_bytes(_read_all(self._channel, 8), "little")

    def communicate(self, timeout: float) -> tuple[str, str, int]:
        """Return both outputs and the exit code; raise TimeoutExpired if the command takes longer than `timeout` s."""
        texts: dict[int, bytes] = {self._out: b"", self._err: b""}
        waiting, deadline = set(texts), time.monotonic() + timeout
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired("powerprof", timeout)
            for descriptor in ready:
                data = os.read(descriptor, 1 << 16)
                texts[descriptor] += data
                if not data:
                    waiting.remove(descriptor)
        self._channel.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            status = int.from_bytes(_read_all(self._channel, 8), "little")
        except TimeoutError:
            raise subprocess.TimeoutExpired("powerprof", timeout) from None
        for descriptor in texts:
            os.close(descriptor)
        self._channel.close()
        code = os.waitstatus_to_exitcode(status)
        # As a text file does: any end of a line is read as a newline.
        out, err = (
            data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
            for data in (texts[self._out], texts[self._err])
        )
        return out, err, code


def _read_all(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise ConnectionError("the forked command's parent has ended")
        data += part
    return data


def _serve(address: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    _import_all()
    # Else each collection of a fork copies the pages of all modules: 50 ms of CPU time per command.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: _reap_ended())
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(channel)
        channel.close()


def _reap_ended() -> None:
    """Wait for the ended parents of commands, so that the CPU time of the commands is known as that of children."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(channel: socket.socket) -> None:
    """Fork the command, report its number and its end, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
    size = int.from_bytes(_read_all(channel, 8), "little")
    args, environment, folder = json.loads(_read_all(channel, size).decode("utf-8", "surrogateescape"))
    child = os.fork()
    if child == 0:
        channel.close()
        _become(args, environment, folder, descriptors)
    for descriptor in (0, 1, 2, *descriptors):
        os.close(descriptor)
    channel.sendall(child.to_bytes(8, "little"))
    _, status = os.waitpid(child, 0)
    channel.sendall(status.to_bytes(8, "little"))
    os._exit(0)


def _become(args: list[str], environment: dict[str, str], folder: str, descriptors: Sequence[int]) -> None:
    """Be the command: outputs, environment, folder and signals as after a start of the interpreter."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["powerprof", *args]
    code: Any = 1
    try:
        from powerprof.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120
    os._exit(code)


def _import_all() -> None:
    import importlib
    import pkgutil

    import powerprof

    for module in pkgutil.walk_packages(powerprof.__path__, "powerprof."):
        if not module.name.endswith(("__main__", "reader_child", "compiler", "keeper", "janitor")):
            importlib.import_module(module.name)
    for name in ("numpy", "rich.console", "rich.table", "drgn", "pymysql", "jinja2", "capstone"):
        importlib.import_module(name)
    # What each command that traces statements would import and compute again, always with the same result.
    from powerprof.model import identities, statements

    for family in ("mysql", "postgresql"):
        identities.build_tables(family)
        statements._make_tokenizer(family)


if __name__ == "__main__":
    _serve(sys.argv[1])
