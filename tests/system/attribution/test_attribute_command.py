# SPDX-License-Identifier: Apache-2.0
"""`powerprof attribute` keeps its promises: JSON, errors in one line, exit codes, replays the same to the byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from powerprof.attribution import capture
from powerprof.system.errors import DataError
from powerprof.tracing.idle_data import CAUSE, RUN_TIME
from tests.conftest import REPOSITORY, Cli
from tests.programs.in_window import until_in_window
from tests.programs.remains import held
from tests.programs.unprivileged import NOBODY, as_nobody
from tests.programs.waiting import wait_until
from tests.system.attribution.conftest import Taken


def test_rows_add_up_and_are_distinct(taken: Taken) -> None:
    record = json.loads(taken.json)
    assert record["schema"] == "powerprof.attribution/1"
    conservation = record["conservation"]
    rows = record["wakeups"]
    assert [row["count"] for row in rows] == sorted((row["count"] for row in rows), reverse=True)
    for row in rows:
        assert row["mechanism"] in {"timer", "device", "ipi", "no_ipi", "tick", "unknown"}
        assert row["origin"] in {"own_timer", "other_thread", "other_process", "device", "kernel", "runnable"}
        # What an idle CPU took from the queue of another one was not woken there.
        assert row["count"] > 0
        assert row["wakings_count"] >= (0 if row["origin"] == "runnable" else row["count"])
        assert row["rate_hz"] == pytest.approx(row["count"] / record["window_s"])
        for frame in row["stack"]:
            assert re.fullmatch("0x[0-9a-f]+", frame["address"])
    keys = [(row["thread"]["tid"], str(row["stack"]), row["origin"], row["mechanism"]) for row in rows]
    assert len(set(keys)) == len(keys)
    # The target's exits are part of all, never more.
    assert sum(row["count"] for row in rows) <= conservation["idle_exits_count"]


def test_the_report_says_the_same(taken: Taken) -> None:
    record, text = json.loads(taken.json), taken.result.out
    mine = sum(row["count"] for row in record["wakeups"])
    expected = f"wakes the CPUs {mine / record['window_s']:.1f} times a second"
    if not mine:  # other programs kept all CPUs from idling
        woken = sum(row["wakings_count"] for row in record["wakings_without_exit"])
        expected = f"was woken {woken / record['wakings_window_s']:.1f} times a second, while the CPUs were running"
    assert text.startswith(f"sleepers ({record['target']['pid']}) {expected}")
    joined = " ".join(text.split())
    checked = {"cpuidle": "cpuidle counted", "perf": "the kernel's cpu_idle tracepoint counted", None: "not checked"}
    by = checked[record["conservation"]["checked_against"]]
    assert f"= {record['conservation']['idle_exits_count']:,} idle exits; {by}" in joined
    assert "powerprof itself:" in text
    assert "wait_nanosleep ← nanosleep_level2" in joined
    assert joined.endswith("Saved as attribute-0001.")
    assert max(map(len, text.splitlines())) <= 80
    assert taken.result.err == ""


def test_it_uses_little_memory(taken: Taken) -> None:
    # Some 110 MB; a compiler in this process would be 135 MB more.
    assert json.loads(taken.json)["tool"]["memory_bytes"] < 200e6


def test_a_replay_is_the_same_to_the_byte_for_nobody_without_the_program(taken: Taken) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Path(folder)
        shutil.copytree(taken.run, home / taken.run.name)
        for path in (home, home / taken.run.name, *(home / taken.run.name).iterdir()):
            os.chown(path, NOBODY, NOBODY)
        done = subprocess.run(
            [
                *as_nobody(),
                sys.executable,
                "-m",
                "powerprof",
                "attribute",
                "--from",
                home / taken.run.name,
                "--json",
                "-",
            ],
            env={**Cli(home).environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=REPOSITORY,
            capture_output=True,
            check=False,
        )
    assert done.stderr == b""
    assert done.stdout == taken.json
    assert done.stdout == (taken.run / "run.json").read_bytes()


def _refused(path: Path) -> str:
    with pytest.raises(DataError) as refused:
        capture.load(path)
    return refused.value.reason


def _altered(taken: Taken, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    fields = msgspec.msgpack.decode(zlib.decompress((taken.run / capture.FILE).read_bytes()))
    change(fields)
    path.write_bytes(zlib.compress(msgspec.msgpack.encode(fields)))
    return path


def test_damaged_captures_are_refused_in_one_line(taken: Taken, powerprof_cli: Cli, tmp_path: Path) -> None:
    whole = (taken.run / capture.FILE).read_bytes()
    path = tmp_path / capture.FILE
    for data, reason in (
        (b"", "cut off"),
        (whole[: len(whole) // 2], "cut off"),
        (os.urandom(4096), "damaged (Error -3 while decompressing data: "),
        (zlib.compress(b"\xc1" * 64), "damaged (MessagePack data is malformed: "),
        (zlib.compress(b"\x91" * 100_000), ("damaged (", "not a capture")),
    ):
        path.write_bytes(data)
        assert _refused(path).startswith(reason)
    packer = zlib.compressobj(1)
    path.write_bytes(b"".join(packer.compress(bytes(1 << 20)) for _ in range(1100)) + packer.flush())
    result = powerprof_cli(["attribute", "--from", str(path), "--json", "-"])
    assert (result.code, result.out) == (1, "")
    first, *rest = result.err.splitlines()
    assert first.startswith(f"error: --from {path}: ") and "larger than" in first and len(rest) <= 1


def _every_edge(value: int) -> Callable[[dict[str, Any]], object]:
    return lambda fields: [edge.__setitem__(0, value) for edge in fields["edges"]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fields: fields.update(exits=fields["exits"][:-1]), "another version"),
        (lambda fields: fields.update(version=5), "another version"),
        (lambda fields: fields.update(causes=fields["causes"][:-1]), "another version"),
        (lambda fields: fields.update(causes=b"\xff" * len(fields["causes"])), "impossible sums"),
        (lambda fields: fields.update(version=2), "another version"),
        (lambda fields: fields.update(ran=fields["ran"] + b"-"), "another version"),
        (lambda fields: fields.update(ran=b"\xff" * 24), "an impossible running time"),
        (lambda fields: fields.update(ran_others_ns=-1), "an impossible running time"),
        (lambda fields: fields.update(ran_target_ns=1 << 62), "an impossible running time"),
        (lambda fields: fields.update(window_s=0.0), "a window without length"),
        (lambda fields: fields.update(window_s=float("nan")), "a window without length"),
        (lambda fields: fields.update(counted_to_ns=-(1 << 62)), "a window without length"),
        (_every_edge(1 << 40), "an impossible window"),
        (_every_edge(-1), "an impossible window"),
        (lambda fields: fields["named"]["sites"][0].__setitem__(7, [1 << 30]), "a frame that is not there"),
        (lambda fields: fields["named"]["sites"][0].__setitem__(7, [-1]), "a frame that is not there"),
        (lambda fields: fields["sites"][0].__setitem__(8, bytes(1 << 20)), "a stack of more than"),
        (lambda fields: fields["sites"][0].__setitem__(7, b"short"), "registers of another machine"),
    ],
)
def test_captures_that_contradict_themselves_are_refused(
    change: Callable[[dict[str, Any]], object], reason: str, taken: Taken, tmp_path: Path
) -> None:
    assert reason in _refused(_altered(taken, tmp_path / capture.FILE, change))


def test_numbers_out_of_range_in_exits_do_no_harm(taken: Taken, powerprof_cli: Cli, tmp_path: Path) -> None:
    def noise(fields: dict[str, Any]) -> None:
        fields["exits"] = os.urandom(len(fields["exits"]))
        entries = np.frombuffer(os.urandom(len(fields["causes"])), dtype=CAUSE).copy()
        for name in ("count", "running_ns", "idle_ns", "own_ns", "kernel_ns"):
            entries[name] >>= 20  # or they would be refused
        fields["causes"] = entries.tobytes()
        ran = np.frombuffer(os.urandom(len(fields["ran"])), dtype=RUN_TIME).copy()
        ran["ns"] >>= 20
        both = min(len(ran), len(entries))
        ran["tid"][:both], ran["pid"][:both] = entries["next_tid"][:both], entries["next_tgid"][:both]
        fields["ran"] = ran.tobytes()
        fields["named"] = None

    path = _altered(taken, tmp_path / capture.FILE, noise)
    result = powerprof_cli(["attribute", "--from", str(path), "--json", "-"])
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["conservation"]["idle_exits_count"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no target was named"),
        (("--pid", "1", "--system"), 2, "exclude each other"),
        (("--pid", "4194999"), 2, "no process has this id"),
        (("--pid", "1", "--stack-buffer", "12"), 2, "not a power of two"),
        (("--from", "attribute-0001", "--pid", "1"), 2, "--from"),
        (("--pid", "1", "--by", "moon"), 2, "--by"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    words: tuple[str, ...], code: int, said: str, root: None, powerprof_cli: Cli
) -> None:
    window = () if "--from" in words else ("--duration", "0.1")
    # Without a target the only server of the host is taken. Other tests start servers, which this namespace has not.
    alone = () if words else ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    result = replace(powerprof_cli, within=alone)(["attribute", *words, *window])
    assert (result.code, result.out) == (code, "")
    assert said in result.err.splitlines()[0]
    assert len(result.err.splitlines()) <= 2


def test_nobody_is_told_what_is_missing(root: None) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        done = subprocess.run(
            [*as_nobody(), sys.executable, "-m", "powerprof", "attribute", "--pid", "1", "--duration", "0.1"],
            env={**Cli(Path(folder)).environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=REPOSITORY,
            capture_output=True,
            check=False,
            encoding="utf-8",
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "error: cannot load BPF programs: not permitted"
    assert done.stderr.splitlines()[1].startswith("hint: run as root")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_window_is_saved_and_reported(number: int, root_bpf: None, powerprof_cli: Cli) -> None:
    target = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.02)"])
    command = powerprof_cli.start(["attribute", "--pid", str(target.pid), "--duration", "60"])
    try:
        wait_until(lambda: any(kind == "link_id" for kind, _ in held(command.pid)), "attached programs")
        until_in_window(command, 60, whole=False)
        time.sleep(1.0)
        command.send_signal(number)
        out, err = command.communicate(timeout=30)
    finally:
        target.kill()
        target.wait()
        if command.poll() is None:
            command.kill()
            command.wait()
    assert command.returncode == 130
    assert err.splitlines() == ["error: interrupted", "hint: the measured part is saved as attribute-0001"]
    assert "Interrupted: partial results." in out
    saved = json.loads((powerprof_cli.home / "state/powerprof/runs/attribute-0001/run.json").read_text())
    assert saved["ended"]
    assert 0.2 < saved["window_s"] < 30
    # Whether the CPU idled before each or not.
    rows = [*saved["wakeups"], *saved["wakings_without_exit"]]
    assert sum(row["wakings_count"] for row in rows) >= 5
