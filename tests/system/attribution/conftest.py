# SPDX-License-Identifier: Apache-2.0
"""Runs `powerprof attribute` on ground-truth programs, and adds up what it says by function."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from powerprof.attribution import capture
from powerprof.system.program_search import need
from powerprof.system.programs import start, stop
from tests.conftest import Cli, CliResult
from tests.programs import ground_truth
from tests.programs.built import build_once

HERE = Path(__file__).resolve().parent
_NOTE = np.dtype([("at_ns", "<i8"), ("tid", "<i4"), ("who", "<i4")])
_FUNCTIONS = (
    *("first_twin", "second_twin", "rare_sleep", "born_sleep", "fast_sleep", "pairs_send", "pairs_receive"),
    *("many_sleep", "next_sleep"),
)


@dataclass(frozen=True)
class Attributed:
    """One window: its JSON and its saved capture."""

    record: dict[str, Any]
    run: Path
    result: CliResult
    took_s: float
    ended_ns: int

    @property
    def captured(self) -> capture.Capture:
        return capture.load(self.run / capture.FILE)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows with and without idle exits."""
        return [*self.record["wakeups"], *self.record["wakings_without_exit"]]

    def wakings(self, functions: Iterable[str]) -> dict[str, Counter[str]]:
        """function → origin → wakings, by the innermost frame that is one of `functions`; None is the rest."""
        wanted = set(functions)
        found: dict[str, Counter[str]] = {}
        for row in self.rows:
            if not row["wakings_count"]:
                continue  # nobody woke it: it was runnable
            named = (frame["function"] for frame in row["stack"])
            who = next((name for name in named if name in wanted), "other")
            found.setdefault(who, Counter())[row["origin"]] += row["wakings_count"]
        return found

    def share_of_exits(self, part: str, name: str) -> float:
        """Return a share of the host's or the target's idle exits; 100 if no exit of the target has a stack."""
        percent: float | None = self.record[part][name]
        # On a busy host only threads that were moved end idle periods, and these have no stack.
        assert percent is not None or not any(row["stack"] for row in self.record["wakeups"])
        return 100.0 if percent is None else percent

    def exits(self, function: str) -> int:
        """Idle exits blamed on a function."""
        return sum(
            row["count"] for row in self.record["wakeups"] if function in {frame["function"] for frame in row["stack"]}
        )


def _is_tracing(pid: int) -> bool:
    """Whether its programs are attached."""
    try:
        return any("raw-tracepoint" in os.readlink(one) or "bpf_link" in os.readlink(one) for one in _descriptors(pid))
    except FileNotFoundError:
        return False


def _descriptors(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


def _disturbed(cli: Cli, args: Sequence[str], after_s: float, action: Callable[[], object]) -> CliResult:
    """Run it, and act so long after its programs were attached."""
    process = cli.start(args)
    try:
        while process.poll() is None and not _is_tracing(process.pid):
            time.sleep(0.02)
        time.sleep(after_s)
        action()
        out, err = process.communicate(timeout=120)
    finally:
        stop(process)
    return CliResult(process.returncode, out, err)


@pytest.fixture(scope="session")
def attribute(
    root_bpf: None, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> Callable[..., Attributed]:
    """`attribute(pid, *more, duration=…)`: the command itself, with one cache for all tests.

    `halfway` is called in the middle of the window, however long loading takes.
    """
    cli = Cli(tmp_path_factory.mktemp("attribute"), shared_cache)

    def run(
        target: int | str,
        *more: str,
        duration: float = 3.0,
        by: str = "--pid",
        command: str = "attribute",
        halfway: Callable[[], object] | None = None,
        code: int = 0,
    ) -> Attributed:
        began = time.monotonic()
        runs = tmp_path_factory.mktemp("runs")
        words = ["--runs-dir", str(runs), command, by, str(target), "--duration", f"{duration:g}"]
        words += ["--meter", "none"] if command == "attribute" else []
        # On a busy host the default bound would trace slices, and these tests hold counts to the truth.
        words += ["--max-cost", "none"] if command == "attribute" and "--max-cost" not in more else []
        args = [*words, "--json", "-", *more]
        result = cli(args) if halfway is None else _disturbed(cli, args, duration / 2, halfway)
        took_s, ended_ns = time.monotonic() - began, time.monotonic_ns()
        assert result.code == code, result.err
        return Attributed(json.loads(result.out), runs / "attribute-0001", result, took_s, ended_ns)

    return run


@pytest.fixture(scope="session")
def programs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ground-truth programs are compiled, once a session."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def built(programs_dir: Path) -> Callable[[str], Path]:
    """`built("sleepers")`: a program of tests/programs."""
    return lambda name: ground_truth.build(name, programs_dir)


@dataclass(frozen=True)
class Wakes:
    """A running `wakes` and its notes."""

    pid: int
    notes: Path
    process: subprocess.Popen[bytes]

    def noted(self, window: capture.Capture) -> Counter[str]:
        """How often each function woke in the window, by its own account."""
        inside = self._inside(window)
        return Counter(_FUNCTIONS[who] for who in inside["who"].tolist())

    def noted_by_thread(self, window: capture.Capture) -> Counter[int]:
        """How often each thread woke in the window."""
        return Counter(self._inside(window)["tid"].tolist())

    def _inside(self, window: capture.Capture) -> npt.NDArray[Any]:
        notes = np.fromfile(self.notes, dtype=_NOTE)
        low, high = window.counted_from_ns, window.counted_to_ns
        found: npt.NDArray[Any] = notes[(notes["at_ns"] >= low) & (notes["at_ns"] <= high)]
        return found


def compile_c(name: str, folder: Path) -> Path:
    """Compile a C program of this folder."""
    target = folder / name
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-fomit-frame-pointer"]
    words, source = [need("gcc", "gcc"), *flags], HERE / f"{name}.c"
    return build_once(
        target, words, [source], lambda program: subprocess.run([*words, "-o", program, source], check=True)
    )


@contextmanager
def running(*words: object) -> Iterator[dict[str, Any]]:
    """Run a program and yield the JSON object of its first line."""
    process = start([*map(str, words)], stdout=subprocess.PIPE, measured=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="session")
def wakes_program(programs_dir: Path) -> Path:
    """wakes.c, compiled."""
    return compile_c("wakes", programs_dir)


@pytest.fixture
def wakes(wakes_program: Path, tmp_path: Path) -> Callable[..., Any]:
    """`with wakes("twins=89", …, duration=…) as running:`"""

    @contextmanager
    def run(*modes: str, duration: float = 300.0) -> Iterator[Wakes]:
        notes = tmp_path / "notes"
        process = start([wakes_program, notes, f"{duration:g}", *modes], stdout=subprocess.PIPE, measured=True)
        try:
            assert process.stdout is not None
            yield Wakes(json.loads(process.stdout.readline())["pid"], notes, process)
        finally:
            stop(process)
            if process.stdout is not None:
                process.stdout.close()

    return run


def functions_of(rows: Sequence[dict[str, Any]]) -> set[str | None]:
    """Every function in the stacks of these rows."""
    return {frame["function"] for row in rows for frame in row["stack"]}


def slept(found: Attributed, tid: int) -> list[dict[str, Any]]:
    """A thread's rows but those for which it had not slept: the scheduler moves a runnable thread to an idle CPU now
    and then, and that has no stack. They are few.
    """
    rows = [row for row in found.rows if row["thread"]["tid"] == tid]
    moved = [row for row in rows if row["origin"] == "runnable"]
    assert all(row["wakings_count"] == 0 and not row["stack"] for row in moved)
    assert sum(row.get("count", 0) for row in moved) <= max(2.0, 0.05 * sum(row.get("count", 0) for row in rows))
    return [row for row in rows if row["origin"] != "runnable"]


def own_count(found: Attributed, log: Path, truth: dict[str, Any], name: str) -> int:
    """How often a thread of `sleepers log=FILE` slept and woke in the window, by its own account.

    On a busy host it does not sleep where it is late for its next deadline.
    """
    window = found.captured
    place = list(truth["threads"]).index(name)
    return ground_truth.sleeps(log, place, window.counted_from_ns, window.counted_to_ns)


# Where other programs take all CPUs no sleeper ends an idle period, and there is none to report: it gets more windows.
_WINDOWS = 8


class Taken:
    """A saved run, the JSON that its command wrote, and how the command ended."""

    def __init__(self, run: Path, json: bytes, result: CliResult) -> None:
        self.run, self.json, self.result = run, json, result


@pytest.fixture(scope="session")
def taken(root_bpf: None, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Taken:
    """`powerprof attribute` on sleepers for 1.5 s; the program and its file are gone afterwards."""
    base = tmp_path_factory.mktemp("taken")
    program = ground_truth.build("sleepers", base)
    with ground_truth.running(program) as truth:
        for number in range(_WINDOWS):
            one = _take(Cli(base / "home", shared_cache), base / f"window-{number}", str(truth["pid"]))
            if "wait_nanosleep" in _functions(one):
                break
    program.unlink()
    return one


def _take(cli: Cli, folder: Path, pid: str) -> Taken:
    folder.mkdir()
    out, runs = folder / "out.json", folder / "runs"
    words = ["--duration", "1.5", "--meter", "none", "--max-cost", "none", "--json", str(out)]
    result = cli(["--runs-dir", str(runs), "attribute", "--pid", pid, *words])
    assert result.code == 0, result.err
    return Taken(runs / "attribute-0001", out.read_bytes(), result)


def _functions(taken: Taken) -> set[str | None]:
    """Those that ended idle periods."""
    return {frame["function"] for row in json.loads(taken.json)["wakeups"] for frame in row["stack"]}
