# SPDX-License-Identifier: Apache-2.0
"""Odd values of every option of every command: a line that names the option or the value, before anything begins.

Commands and options come from the application itself, so that a new option is tried without a new line here. What it
stands beside is in `BESIDE`, for the options that mean nothing by themselves.
"""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.system.foreign_text import printable
from tests.programs.in_process import Ended, Run, the_commands, up_to_the_first_window
from tools.pages.cli import Parameter, commands

__all__ = ["the_commands", "up_to_the_first_window"]

# What each command wants besides, so that it would begin.
BASE: dict[str, tuple[str, ...]] = {
    "attribute": ("--system",),
    "profile": ("--system",),
    "functions": ("x", "--pid", "1"),
    "offcpu": ("--pid", "1"),
    "compare": ("city:index", "city:no-index"),
    "cure": ("--pid", "1", "--thread", "nosuch", "--slack", "1ms"),
    "diagnose": ("--pid", "1"),
    "export": ("--listen", "127.0.0.1:0"),
    "queries": ("--pid", "1"),
    "report": ("nosuch",),
    "run": ("city:index",),
    "runs": ("nosuch",),
    "study": ("power-efficiency",),
    "syscalls": ("--pid", "1"),
    # Without a target it looks for servers, which other tests start and end.
    "watch": ("--system",),
    "sweep": ("city:index", "--clients", "1,2"),
}
# What an option wants instead of that.
BESIDE: dict[tuple[str, str], tuple[str, ...]] = {
    **{("attribute", option): () for option in ("--pid", "--cgroup", "--from")},
    **{("profile", option): () for option in ("--pid", "--cgroup")},
    **{("functions", option): ("x",) for option in ("--pid", "--cgroup")},
    **{("offcpu", option): () for option in ("--pid", "--cgroup")},
    **{("syscalls", option): () for option in ("--pid", "--cgroup")},
    **{("watch", option): () for option in ("--pid", "--cgroup")},
    ("compare", "--with"): ("compare-0001",),
    ("sweep", "--set"): ("city:index",),
    ("sweep", "--until"): ("city:index",),
    ("sweep", "--resume"): (),
    **{("runs", option): ("prune",) for option in ("--keep", "--older-than")},
    **{(command, "--pid"): () for command in ("diagnose", "queries")},
    **{("cure", option): ("--pid", "1") for option in ("--thread", "--slack", "--set")},
    ("cure", "--pid"): ("--thread", "nosuch", "--slack", "1ms"),
    ("cure", "--print"): ("--pid", "1", "--thread", "nosuch", "--slack", "1ms", "--keep"),
    ("cure", "--wait"): ("--pid", "1", "--thread", "nosuch", "--slack", "1ms", "--keep"),
    ("queries", "--count"): ("--pid", "1", "--watch"),
    **{("energy", option): ("--calibrate",) for option in ("--step", "--repeats", "--output", "--seed")},
    ("energy", "--elapsed"): ("--from", "file"),
    ("residency", "--elapsed"): ("--from", "file"),
    ("runs", "-o"): ("nosuch", "--trend"),
    **{("deep-idle", option): () for option in ("--pid", "--cgroup", "--from")},
}
NUMBERS = ("nan", "inf", "-inf", "-1", "1e999", "9" * 400, "x", "1,5", "1_0", "٣", " ")
WORDS = (" ", "x" * 5000, "a\nb", "\x1b[31m", "-1", "läuft", "\udcff", "a\0b")
NEVER = {" ", "\udcff", "a\0b"}
# No process can have that many open.
CLOSED = f"/dev/fd/{resource.getrlimit(resource.RLIMIT_NOFILE)[1]}"
# Options that write, into a file or a folder. What they cannot write to is refused, not found when all is measured.
WRITES = {**dict.fromkeys(("-o", "--json", "--output"), "file"), "--save-workload": "folder"}
UNWRITABLE = {"loop", "socket", "file/below", "/dev/full", "/proc/new", CLOSED, "theirs", "x" * 5000}


@pytest.fixture
def places(up_to_the_first_window: Run) -> Iterator[dict[str, str]]:
    """What may stand where a file is meant, in the working folder; the name says what it is."""
    Path("folder").mkdir()
    Path("file").write_text("nonsense\n")
    Path("binary").write_bytes(bytes(range(256)))
    Path("dangling").symlink_to("nowhere/at/all")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    os.mkfifo("theirs")
    if os.geteuid() == 0:
        os.chown("theirs", 65534, 65534)
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)  # without one it is waited for, as a shell does
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        names = (
            "folder",
            "file",
            "binary",
            "dangling",
            "loop",
            "pipe",
            "socket",
            "file/below",
            "theirs",
            "nowhere/at/all",
        )
        yield {name: name for name in (*names, "/dev/full", "/dev/zero", "/proc/new", "/proc/self/mem", CLOSED)}
    os.close(reader)


def problem_of(ended: Ended) -> str | None:
    """What is wrong with how it ended; None for one line and a hint of an error, and for what began."""
    if ended.broke is not None:
        return f"ended with {ended.broke}"
    if ended.began is not None or ended.code == 0:
        return None
    said = ended.err.splitlines()
    if not said or not said[0].startswith("error: ") or not all(line.startswith("hint: ") for line in said[1:]):
        return f"said {said}"
    if len(said) > 2 or len(ended.err) > 1000 or not all(char.isprintable() for line in said for char in line):
        return f"said too much: {ended.err[:1200]!r}"
    if ended.code not in (1, 2, 3) or ended.out:
        return f"ended with {ended.code}, and {ended.out[:100]!r}"
    # What is wrong within a file is said with its line, and what it ought to be.
    if len(said) < 2 and not re.match(r"error: (file|binary):", said[0]):
        return f"has no remedy: {said[0]}"
    return None


def _names(ended: Ended, option: str, value: str) -> bool:
    """Whether the error names the option, or the value as far as it can be shown."""
    return any(said in ended.err for said in (option, printable(value[:90]), repr(value[:40])[1:-1]))


def _kind(option: Parameter) -> str:
    if re.search(r"\b(int|float)\b", str(option.kind)):
        return "number"
    return "path" if "Path" in str(option.kind) or option.metavar in ("FILE", "DIR", "PATH") else "word"


def _values(option: Parameter, places: dict[str, str]) -> Iterator[str]:
    kind = _kind(option)
    yield from NUMBERS if kind == "number" else WORDS
    if kind == "path":
        yield from (f"json:{place}" if option.name == "-o" else place for place in places.values())


def _line(command: str, option: str, *value: str) -> list[str]:
    return [command, *BESIDE.get((command, option), BASE.get(command, ())), *([option, *value] if value else [])]


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_option_of(command: str, up_to_the_first_window: Run, places: dict[str, str]) -> None:
    wrong = []
    for option in commands()[command].options:
        if not option.takes_value:
            continue
        # Refused without the option, or for another reason than its value: where it ends so too, the value was taken.
        plain = up_to_the_first_window(_line(command, option.name)).err
        usual = up_to_the_first_window(_line(command, option.name, "usual"))
        elsewhere = (plain, *([] if _names(usual, option.name, "usual") else [usual.err]))
        for value in _values(option, places):
            ended = up_to_the_first_window(_line(command, option.name, value))
            problem = problem_of(ended)
            taken = ended.began is not None or ended.code == 0 or ended.err in elsewhere
            if problem is None and taken and _must_be_refused(option, value):
                problem = f"was taken: {ended}"
            if problem is None and not taken and not _names(ended, option.name, value):
                problem = f"does not name it: {ended.err}"
            if problem is not None:
                wrong.append(f"{command} {option.name} {value[:40]!r} {problem}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_option_given_twice(command: str, up_to_the_first_window: Run) -> None:
    """Of two values one would be ignored; only the options that say so take several."""
    wrong = []
    for option in commands()[command].options:
        if not option.takes_value or option.repeatable:
            continue
        line = [*_line(command, option.name), option.name, "3", f"{option.name}=4"]
        ended = up_to_the_first_window(line)
        if ended.code != 2 or problem_of(ended) or f"{option.name} was given twice" not in ended.err:
            wrong.append(f"{command} {option.name} {ended}")
    assert not wrong, "\n".join(wrong)


def test_an_empty_argument(up_to_the_first_window: Run) -> None:
    for line in (["workloads", ""], ["functions", "", "--pid", "1"], ["report", ""]):
        ended = up_to_the_first_window(line)
        assert (ended.code, ended.err.splitlines()[0]) == (2, "error: an argument is empty"), line


def test_a_files_error_names_the_option(up_to_the_first_window: Run, places: dict[str, str]) -> None:
    for line, said in (
        (["idle", "--meter", "./folder"], "error: --meter folder: not a regular file"),
        (["residency", "--from", "file"], "error: --from file: no cpuidle counters in it"),
        (["watch", "--defaults-file", "nosuch"], "error: --defaults-file nosuch: no such file"),
    ):
        ended = up_to_the_first_window(line)
        assert (ended.code, ended.err.splitlines()[0]) == (1, said), ended
        assert ended.err.splitlines()[1].startswith("hint: ")


def _must_be_refused(option: Parameter, value: str) -> bool:
    if value in NEVER or (_kind(option) == "number" and value not in ("-1", "x")):
        return True
    kind, value = WRITES.get(option.name), value.removeprefix("json:")
    if value == "theirs" and os.geteuid() != 0:
        return False
    return kind is not None and value in UNWRITABLE | ({"folder", "dangling"} if kind == "file" else {"file"})


@pytest.mark.parametrize("command", [name for name, command in sorted(commands().items()) if command.arguments])
def test_each_argument_of(command: str, up_to_the_first_window: Run, places: dict[str, str]) -> None:
    wrong = []
    for number, _ in enumerate(commands()[command].arguments, 1):
        for value in ("", *WORDS, *places.values()):
            problem = problem_of(up_to_the_first_window([command, *[value] * number]))
            if problem is not None:
                wrong.append(f"{command} {value[:40]!r} ({number} times) {problem}")
    assert not wrong, "\n".join(wrong)
