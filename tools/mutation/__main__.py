# SPDX-License-Identifier: Apache-2.0
"""Plant faults in the product, one at a time, and see whether a unit test fails: `python -m tools.mutation`.

The lists in tools/mutation/faults have one file per room. A fault is planted in a copy of the checkout, and only tests
that execute its lines run, the fastest first. For this the unit tests of the room (with `--all`: every unit test) run
once under coverage. `--write` keeps the results in tools/mutation/results.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"
RESULTS = Path(__file__).parent / "results"
UNIT = "tests/unit"
ESCAPED = "escaped"
# A fault may make a loop endless.
_MOST_S = 300
# Imported before a process of pytest is forked: they take longer than most tests.
_HEAVY = ("pytest", "hypothesis", "numpy", "scipy.stats", "drgn", "jinja2", "msgspec", "psutil", "sqlglot", "typer")
# Python's bytecode is compared with whole seconds of its source, so each planted text is a second younger.
_SECONDS = count(1)


@dataclass(frozen=True)
class Fault:
    """A text of one module and the wrong text that takes its place."""

    name: str
    module: str
    kind: str
    old: str
    new: str

    @property
    def room(self) -> str:
        """Return the package of the module."""
        return Path(self.module).parts[1]

    def plant(self, text: str) -> str:
        """Return the module's text with the fault. Raises ValueError unless the old text occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.module} has {text.count(self.old)} places with {self.old!r}")
        return text.replace(self.old, self.new)


def read_faults(room: str) -> list[Fault]:
    """Return the faults of a room. Raises ValueError if two have one name."""
    faults = [Fault(**fields) for fields in tomllib.loads((FAULTS / f"{room}.toml").read_text())["fault"]]
    if len({fault.name for fault in faults}) != len(faults):
        raise ValueError(f"{room}: two faults have one name")
    return faults


def list_rooms() -> list[str]:
    """Return the rooms that have a list of faults."""
    return sorted(path.stem for path in FAULTS.glob("*.toml"))


@dataclass(frozen=True)
class TestMap:
    """The tests that executed each line of the product, and the seconds that each test took."""

    lines: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]

    def find_tests(self, fault: Fault, text: str) -> Iterator[list[str]]:
        """Yield the tests that execute a line of the fault, then those that execute another line of its module.

        Code that runs at import or is cached belongs to no test, or to the first one. The fastest come first.
        """
        start = text.index(fault.old)
        first = text.count("\n", 0, start) + 1
        lines = range(first, first + fault.old.rstrip().count("\n") + 1)
        of_module = self.lines.get(fault.module, {})
        near = {test for line in lines for test in of_module.get(line, ())}
        others = {test for tests in of_module.values() for test in tests} - near
        for tests in filter(None, (near, others)):
            yield sorted(tests, key=lambda test: self.seconds.get(test, 0))


def map_tests(checkout: Path, files: Sequence[str]) -> TestMap:
    """Run test files once under coverage."""
    found = checkout.parent / "map"
    failed = run_pytest(checkout, [*files, "-p", "tools.mutation.recording"], MUTATION_MAP=str(found))
    if failed:
        print(f"without a fault {failed} fails:\n{(checkout.parent / 'report').read_text()[-2000:]}", file=sys.stderr)
    recorded = json.loads(found.read_text())
    lines = {module: {int(line): tests for line, tests in of.items()} for module, of in recorded["lines"].items()}
    return TestMap(lines, recorded["seconds"])


@contextmanager
def copied_checkout() -> Iterator[Path]:
    """Copy the files that git knows or would add into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).is_file():
                target = Path(folder, "checkout", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, target)
        yield Path(folder, "checkout")


def run_pytest(checkout: Path, words: Sequence[str], **environment: str) -> str | None:
    """Run pytest in a forked process until a test fails; return the failed test, None if all pass."""
    report = checkout.parent / "report"
    process = os.fork()
    if process == 0:
        os.environ.update(environment)
        _become_pytest(checkout, words, report)
    end = time.monotonic() + _MOST_S
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        time.sleep(0.05)
        if time.monotonic() > end and not environment:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return f"no end after {_MOST_S} s"
    code = os.waitstatus_to_exitcode(ended[1])
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", report.read_text(errors="replace"), re.MULTILINE)
    return None if code == 0 else failed[1] if failed else f"pytest ended with {code}"


def _become_pytest(checkout: Path, words: Sequence[str], report: Path) -> NoReturn:
    os.setpgid(0, 0)
    os.chdir(checkout)
    sys.path[:] = [str(checkout), *(path for path in sys.path if path not in ("", str(REPOSITORY)))]
    # The package itself was imported from the checkout that the runner is in.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
        del sys.modules[name]
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(checkout.parent / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    with report.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    import pytest

    stop = [] if "MUTATION_MAP" in os.environ else ["-x"]
    code = pytest.main(
        [
            *stop,
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            "not (nightly or simulation)",
            "--tb=no",
            *words,
        ]
    )
    sys.stdout.flush()
    os._exit(int(code))


def judge(fault: Fault, checkout: Path, tests: TestMap) -> str:
    """Plant a fault, run the tests that execute it, and return the one that fails, else `ESCAPED`."""
    path = checkout / fault.module
    text = path.read_text(encoding="utf-8")
    planted = fault.plant(text)
    _write(path, planted)
    try:
        failed = (run_pytest(checkout, chosen) for chosen in tests.find_tests(fault, text))
        return next(filter(None, failed), ESCAPED)
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    later = path.stat().st_mtime + next(_SECONDS)
    os.utime(path, (later, later))


def judge_all(faults: Sequence[Fault], whole: bool) -> dict[str, str]:
    """Judge each fault of a room in its turn and print its result."""
    results: dict[str, str] = {}
    with copied_checkout() as checkout:
        rooms = {UNIT} if whole else {f"{UNIT}/{fault.room}" for fault in faults}
        tests = map_tests(checkout, sorted(room for room in rooms if (checkout / room).is_dir()))
        for fault in faults:
            results[fault.name] = judge(fault, checkout, tests)
            said = "ESCAPED" if results[fault.name] == ESCAPED else f"caught by {results[fault.name]}"
            print(f"{fault.room} {fault.name}: {said}", flush=True)
    return results


def read_results(room: str) -> dict[str, str]:
    """Return the kept result of each fault of a room by its name."""
    path = RESULTS / f"{room}.toml"
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def write_results(room: str, results: dict[str, str]) -> None:
    """Keep the results of a room, one line per fault; faults that did not run keep their line."""
    kept = read_results(room)
    names = [fault.name for fault in read_faults(room)]
    lines = [f'{name} = "{results.get(name) or kept[name]}"\n' for name in names if name in results or name in kept]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{room}.toml").write_text("".join(lines))


def main() -> None:
    """Judge the chosen faults; exit 1 if more than a fifth of them escape."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("--room", action="append", choices=list_rooms(), help="only faults of this room; repeatable")
    parser.add_argument("--fault", action="append", help="only the fault of this name; repeatable")
    parser.add_argument("--escaped", action="store_true", help="only faults that escaped in the kept results")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth fault of a room")
    parser.add_argument("--all", action="store_true", help="run every unit test, not only those of the room")
    parser.add_argument("--write", action="store_true", help="keep the results in tools/mutation/results")
    words = parser.parse_args()
    for name in _HEAVY:
        importlib.import_module(name)
    results: dict[str, str] = {}
    for room in words.room or list_rooms():
        kept = read_results(room)
        chosen = [
            fault
            for fault in read_faults(room)[:: words.every]
            if (not words.fault or fault.name in words.fault) and (not words.escaped or kept.get(fault.name) == ESCAPED)
        ]
        # Without files, pytest would run every test.
        judged = judge_all(chosen, words.all) if chosen else {}
        if words.write:
            write_results(room, judged)
        results |= judged
    caught = sum(result != ESCAPED for result in results.values())
    print(f"{caught} of {len(results)} planted faults were caught")
    sys.exit(0 if caught >= 0.8 * len(results) else 1)


if __name__ == "__main__":
    main()
