# SPDX-License-Identifier: Apache-2.0
"""Java and Node: each wake-up has the names of the methods that waited, by what the program itself noted; and where
they can be had if they are not there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from powerprof.system.program_search import need
from powerprof.system.programs import start, stop
from tests.system.attribution.conftest import Attributed, attribute

__all__ = ["attribute"]

pytestmark = pytest.mark.usefixtures("root_bpf")
PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
Attribute = Callable[..., Attributed]


class Running:
    """A program that says its pid, and when its input ends, what it noted."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self.pid: int = json.loads(process.stdout.readline())["pid"]

    def end(self) -> dict[str, list[int]]:
        out, _ = self._process.communicate(timeout=30)
        noted: dict[str, list[int]] = json.loads(out)
        return noted


@contextmanager
def running(words: Sequence[str | Path]) -> Iterator[Running]:
    process = start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, measured=True)
    try:
        yield Running(process)
    finally:
        stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    javac = need("javac", "default-jdk-headless")
    subprocess.run([javac, "-d", folder, PROGRAMS / "Sleepers.java"], check=True)
    return folder


def java(classes: Path, *options: str) -> list[str | Path]:
    # Compiled once and for all: what is compiled again later has no name in a map of before.
    quietly = ("-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Sleepers::*")
    once = ("-Xcomp", "-XX:TieredStopAtLevel=1", *quietly)
    program = need("java", "default-jdk-headless")
    return [program, "-XX:+PreserveFramePointer", *(options or once), "-cp", classes, "Sleepers"]


def of_thread(found: Attributed, comm: str) -> list[dict[str, Any]]:
    rows = [row for row in found.rows if row["thread"]["comm"] == comm and row["wakings_count"]]
    return [row for row in rows if row["origin"] != "runnable"]


def wakings(rows: Sequence[dict[str, Any]]) -> int:
    return sum(row["wakings_count"] for row in rows)


def in_order(row: dict[str, Any], chain: Sequence[str]) -> bool:
    names = [frame["function"] or "" for frame in row["stack"]]
    places = [next((at for at, name in enumerate(names) if wanted in name), -1) for wanted in chain]
    return places[0] >= 0 and places == sorted(places) and -1 not in places


def agree(found: Attributed, comm: str, noted: Sequence[int], chain: Sequence[str]) -> None:
    window = found.captured
    expected = sum(window.counted_from_ns <= at <= window.counted_to_ns for at in noted)
    rows = of_thread(found, comm)
    named = wakings([row for row in rows if in_order(row, chain)])
    assert expected > 20
    assert named >= 0.99 * wakings(rows), [[frame["function"] for frame in row["stack"]] for row in rows]
    assert abs(named - expected) <= max(1, 0.02 * expected), (named, expected)


def hints(found: Attributed, name: str) -> list[str]:
    return [note for note in found.record["notes"] if note.startswith(f"{name}: ")]


def test_methods_of_java_from_its_map(attribute: Attribute, classes: Path) -> None:
    with running(java(classes)) as program:
        without = attribute(program.pid, duration=2)
        said = hints(without, "Java")
        assert len(said) == 1
        frames = [frame for row in of_thread(without, "parker") for frame in row["stack"]]
        assert {frame["module"] for frame in frames if frame["function"] is None} == {"[Java code]"}
        command = said[0].partition("`")[2].partition("`")[0].split()
        assert command == ["jcmd", str(program.pid), "Compiler.perfmap"]
        # The very command that was printed.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = attribute(program.pid, duration=4)
        noted = program.end()
    agree(found, "parker", noted["parker"], ["Sleepers.parkInner", "Sleepers.parkOuter", "Sleepers.parkThread"])
    agree(found, "waiter", noted["waiter"], ["Sleepers.waitInner", "Sleepers.waitOuter", "Sleepers.waitThread"])
    assert not any("jcmd" in note for note in hints(found, "Java"))


def test_what_java_interprets_is_said_to_be(attribute: Attribute, classes: Path) -> None:
    with running(java(classes, "-Xint")) as program:
        subprocess.run(["jcmd", str(program.pid), "Compiler.perfmap"], check=True, stdout=subprocess.DEVNULL)
        found = attribute(program.pid, duration=2)
    frames = [frame["function"] for row in of_thread(found, "parker") for frame in row["stack"]]
    assert "[Java interpreter]" in frames
    assert None not in frames
    assert len(hints(found, "Java")) == 1


def test_functions_of_node_from_its_map(attribute: Attribute) -> None:
    node = need("node", "nodejs")
    script = PROGRAMS / "sleepers.js"
    options = ["--perf-basic-prof", "--interpreted-frames-native-stack", "--max-inlined-bytecode-size=0"]
    with running([node, *options, script]) as program:
        found = attribute(program.pid, duration=4)
        noted = program.end()
    agree(found, "node", noted["inner"], ["inner", "outer", "again"])
    sources = {f["source"] for row in of_thread(found, "node") for f in row["stack"] if f["function"] == "inner"}
    assert sources == {f"{script}:14"}
    assert hints(found, "Node") == []
    with running([node, script]) as program:
        without = attribute(program.pid, duration=2)
    said = hints(without, "Node")
    assert len(said) == 1
    assert all(option in said[0] for option in options[:2])
