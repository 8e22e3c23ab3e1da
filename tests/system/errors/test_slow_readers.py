# SPDX-License-Identifier: Apache-2.0
"""Readers of stdout and stderr that are slow or leave, on pipes that a parent made non-blocking."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Cli, CliResult

SAVED = REPOSITORY / "tests/fixtures/saved"
# Every form goes through another writer: Rich, print, Typer's help, and bytes.
COMMANDS = {
    "report": ["report", str(SAVED / "attribute-0001")],
    "json": ["report", str(SAVED / "attribute-0001"), "--json", "-"],
    "json by name": ["report", str(SAVED / "attribute-0001"), "--json", "/dev/stdout"],
    "markdown": ["report", str(SAVED / "run-0001"), "-o", "md:-"],
    "html": ["report", str(SAVED / "run-0001"), "-o", "html:-"],
    "csv": ["report", str(SAVED / "attribute-0001"), "-o", "csv:-"],
    "help": ["attribute", "--help"],
    "list": ["workloads"],
    "lines": ["--runs-dir", str(SAVED), "runs"],
    "measured": ["residency", "--duration", "0.1", "--no-save", "--json", "-"],
}


@dataclass
class Pipe:
    """A pipe of 4 KiB that does not block and is full."""

    reader: int
    writer: int

    @classmethod
    def full(cls) -> Pipe:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writer, False)
        assert os.write(writer, b"." * 5000) == 4096
        return cls(reader, writer)

    def read(self) -> bytes:
        """Read all after the filling, up to the end."""
        data = b""
        while chunk := os.read(self.reader, 1000):
            data += chunk
        os.close(self.reader)
        return data[4096:]


def buffered(cli: Cli) -> dict[str, str]:
    """The environment of a command, in which Python buffers its output as it does for users."""
    return {name: value for name, value in cli.environment().items() if name != "PYTHONUNBUFFERED"}


def run(
    cli: Cli, command: list[str], pipe: Pipe, stream: str = "stdout", wait_s: float = 0.5
) -> tuple[int, bytes, bytes]:
    """Run a command and begin to read after a while: (code, the pipe's bytes, the other stream's bytes)."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: pipe.writer}
    environment = buffered(cli)
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", *command], env=environment, cwd=REPOSITORY, **streams
    )
    os.close(pipe.writer)
    time.sleep(wait_s)
    read = pipe.read()
    other = process.communicate(timeout=60)[1 if stream == "stdout" else 0]
    return process.returncode, read, other


def run_plainly(cli: Cli, command: list[str]) -> CliResult:
    """Run a command with a patient reader, called as `run` calls it: next steps repeat the path of the program."""
    process = cli.start(command)
    out, err = process.communicate(timeout=60)
    return CliResult(process.returncode, out, err)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_everything(powerprof_cli: Cli, name: str) -> None:
    command = COMMANDS[name]
    code, read, err = run(powerprof_cli, command, Pipe.full())
    assert (code, err) == (0, b"")
    if name == "measured":
        assert json.loads(read)["command"] == "residency"
        return
    assert read.decode().replace("\r", "") == run_plainly(powerprof_cli, command).out
    assert len(read) > 50


@pytest.mark.parametrize(
    ("command", "code", "end"),
    [
        (["report", "/no/such/run"], 2, None),
        (["residency", "--duration", "x" * 9000], 2, None),
        (["workloads", "--no-such-option"], 2, f"{shlex.quote(sys.executable)} -m powerprof workloads --help\n"),
    ],
)
def test_errors_on_a_stderr_that_does_not_block_are_whole(
    powerprof_cli: Cli, command: list[str], code: int, end: str | None
) -> None:
    plain = run_plainly(powerprof_cli, command)
    assert plain.code == code
    assert run(powerprof_cli, command, Pipe.full(), "stderr") == (code, plain.err.encode(), plain.out.encode())
    assert end is None or plain.err.endswith(end)


@pytest.mark.parametrize("name", ["report", "json", "help", "list"])
def test_a_reader_that_leaves_ends_the_command_without_an_error(powerprof_cli: Cli, name: str) -> None:
    pipe = Pipe.full()
    environment = buffered(powerprof_cli)
    process = subprocess.Popen(
        [sys.executable, "-m", "powerprof", *COMMANDS[name]],
        env=environment,
        cwd=REPOSITORY,
        stdout=pipe.writer,
        stderr=subprocess.PIPE,
    )
    os.close(pipe.writer)
    read = 0
    while read <= 4096 and (chunk := os.read(pipe.reader, 4096)):
        read += len(chunk)
    os.close(pipe.reader)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["report", "json", "help", "list", "lines"])
def test_a_full_disk_is_one_error(powerprof_cli: Cli, name: str) -> None:
    environment = buffered(powerprof_cli)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "powerprof", *COMMANDS[name]],
            env=environment,
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    error, hint = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert error.startswith("error: ") and "cannot write" in error and "no space left on device" in error
    assert hint.startswith("hint: ")
