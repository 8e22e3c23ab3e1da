# SPDX-License-Identifier: Apache-2.0
"""Runs and recordings of other people's: whatever is in them, one line and exit code 1."""

from __future__ import annotations

import copy
import json
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerprof.measure.residency_recordings import read_recording
from powerprof.report.kinds import lines_of, load_saved
from powerprof.system.errors import DataError, PowerprofError
from tests.system.errors.conftest import Refused

STATE = {"name": "C1", "residency_percent": 99.0, "average_residency_ms": 50.0, "entries_hz": 20.0}
WINDOW = {
    "started_at": "2026-01-01T00:00:00.000Z",
    "window_s": 1.0,
    "cpus": 2,
    "c0_percent": 1.0,
    "idle_percent": 99.0,
    "wakeups_hz": 20.0,
    "states": [STATE],
}
CAUSE = {
    "mechanism": "timer",
    "name": "hrtimer_wakeup",
    "process": "mariadbd",
    "pid": 7,
    "thread": "mysys/statement_timer",
    "wakeups_hz": 2.5,
    "percent": 100.0,
    "count": 20,
    "period_ms": 400.0,
}
BALANCE = {
    "idle_exits_count": 20,
    "cpuidle_usage_delta_count": 20,
    "classified_count": 20,
    "unknown_count": 0,
    "lost_count": 0,
    "coverage_percent": 100.0,
}


def phase(name: str) -> dict[str, Any]:
    """One phase of a small sound run."""
    window = {key: value for key, value in WINDOW.items() if key != "started_at"}
    return {
        "name": name,
        **copy.deepcopy(window),
        "windows": [copy.deepcopy(WINDOW)],
        "causes": [dict(CAUSE)],
        "conservation": dict(BALANCE),
        "energy": [
            {"source": "model", "domain": "cpus", "kind": "estimated", "scope": "model", "joules": 1.0, "watts": 1.0}
        ],
    }


def sound() -> dict[str, Any]:
    """A small run that `report` shows."""
    change = {
        "metric": "c0_percent",
        "from_phase": "baseline",
        "to_phase": "clients",
        "difference": {"mean": 0.1, "low": 0.0, "high": 0.2},
    }
    return {
        "schema": "powerprof.run/1",
        "id": "idle-0001",
        "command": "idle",
        "started_at": "2026-01-01T00:00:00.000Z",
        "host": {"idle_driver": "haltpoll"},
        "tool": {"version": "0.1.0", "cpu_s": 0.1, "wakeups_hz": 1.0},
        "phases": [phase("baseline"), phase("server"), phase("clients")],
        "deltas": [change],
        "drift": [change],
        "options": {"clients_count": 16},
        "server": {"version": "MariaDB 10.11.19", "private": True},
    }


def written(tmp_path: Path, content: bytes | dict[str, Any]) -> str:
    """A file with that content."""
    path = tmp_path / "run.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def changed(**fields: Any) -> dict[str, Any]:
    """The sound run with some fields replaced; None removes one."""
    run = {**sound(), **fields}
    return {key: value for key, value in run.items() if value is not None}


def test_a_sound_run_is_shown(tmp_path: Path) -> None:
    lines = lines_of(load_saved(written(tmp_path, sound())), 80)
    said = "An idle server with 16 silent connections has no measurable cost: less than +0.20 points of C0 (95 %)."
    assert " ".join(lines).startswith(said)


_TEXT = json.dumps(sound())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Input data was truncated"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), r"not text|malformed|invalid"),
        (b"[" * 1_000_000, r"not a record of powerprof"),
        (b'{"schema":' + b'{"a":' * 200_000, r"not a record of powerprof"),
        (_TEXT[:-1].encode() + b',"extra":' + b"[" * 200_000 + b"]" * 200_000 + b"}", r"recursion"),
        (_TEXT[:300].encode(), r"truncated"),
        (_TEXT.replace("99.0", "NaN", 1).encode(), r"malformed"),
        (_TEXT.replace("99.0", "1e999", 1).encode(), r"malformed|range|not a"),
        (_TEXT.replace("idle-0001", r"\ud800", 1).encode(), r"malformed"),
        (changed(schema=None), r"missing required field `schema`"),
        (changed(schema="powerprof.run/99"), r"no report exists for 'powerprof\.run/99'"),
        (changed(schema="\x1b[31m" * 1000), r"no report exists for"),
        (changed(schema=5), r"Expected `str`, got `int`"),
        (changed(phases=None), r"missing required field `phases`"),
        (changed(phases=[]), r"a run without phases"),
        (changed(phases={}), r"Expected `array`"),
        (changed(phases=[{**phase("baseline"), "cpus": "two"}]), r"Expected `int`"),
        (changed(phases=[{**phase("baseline"), "causes": [{**CAUSE, "mechanism": "magic"}]}]), r"Invalid enum value"),
        (changed(command="residency", phases=[{**phase("window"), "windows": []}]), r"without windows"),
        (b"null", r"Expected `object`"),
        (b'"' + b"x" * 100_000 + b'"', r"Expected `object`"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_damaged_runs(tmp_path: Path, content: bytes | dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        lines_of(load_saved(written(tmp_path, content)), 80)


def test_a_file_larger_than_the_limit(refused: Refused, tmp_path: Path) -> None:
    """Sparse: 300 MB of zeros on no disk."""
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(300 << 20)
    refused(1, r"run\.json: larger than 64 MiB", ["report", str(path)])
    refused(1, r"run\.json: (larger than \d+ MiB|.*)", ["residency", "--from", str(path)])


def test_a_damaged_run_among_others_is_listed(refused: Refused, tmp_path: Path) -> None:
    for number, text in enumerate(('{"schema": 1}', "", json.dumps(sound())), 1):
        folder = tmp_path / f"idle-000{number}"
        folder.mkdir()
        (folder / "run.json").write_text(text)
    done = refused.cli(["--runs-dir", str(tmp_path), "runs"])
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 6  # each run, and what it said or why it cannot be read
    assert done.out.count("not a record of powerprof") == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"."),
        (b"\0" * 4096, r"."),
        (bytes(range(256)) * 40, r"."),
        (b"x," * 200_000, r"."),
        (b"/sys/devices/system/cpu/cpu0/cpuidle/state0/time|NaN\n", r"."),
        (b"/sys/devices/system/cpu/cpu0/cpuidle/state0/time|" + b"9" * 5000 + b"\n", r"."),
        (b"/sys/devices/system/cpu/cpu99999999999/cpuidle/state0/time|1\n", r"."),
        (b"usec\tTime_Of_Day_Seconds\tCore\tCPU\n1\t2\n", r"."),
        (b'{"deep":' * 50_000, r"."),
        (b"____________________________________________________________________\nPowerTOP Report\n", r"."),
    ],
    ids=lambda value: str(value)[:24],
)
def test_damaged_recordings(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "recording"
    path.write_bytes(content)
    for after in (None, path):
        with pytest.raises(DataError) as error:
            read_recording(path, after, source=None, elapsed_s=None, read_at="2026-01-01T00:00:00.000Z")
        assert str(path) in error.value.message
        assert "\n" not in error.value.message


_ODD = [
    None,
    0,
    -1,
    1e308,
    -1e308,
    10**18,
    2**64,
    10**400,
    "",
    "x" * 3000,
    "\x1b[31m",
    [],
    {},
    True,
    [None],
    {"a": 1},
    "\u202e",
]


def _keys(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from _keys(value, (*path, key))


def test_any_field_of_a_run_may_be_anything(tmp_path: Path) -> None:
    """Every field of a run replaced by every odd value, and removed: it is refused or it is shown in 80 columns."""
    rows = [(keys, odd) for keys in _keys(sound()) for odd in [*_ODD, KeyError]]
    random.Random(5).shuffle(rows)
    wrong = []
    for keys, odd in rows[:1500]:
        run = sound()
        *way, last = keys
        place: Any = run
        for key in way:
            place = place[key]
        if odd is KeyError:
            del place[last]
        else:
            place[last] = odd
        try:
            lines = lines_of(load_saved(written(tmp_path, run)), 80)
            assert max(map(len, lines)) <= 80
        except PowerprofError as error:
            assert "\n" not in error.message
        except Exception as error:
            wrong.append((keys, str(odd)[:20], traceback.format_exception_only(error)[-1][:80]))
    assert wrong == []
