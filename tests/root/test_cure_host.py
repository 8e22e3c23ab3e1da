# SPDX-License-Identifier: Apache-2.0
"""Settings of this host in a cure: changed, measured, and restored however powerprof ends."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerprof.experiment.host_settings import ConditionHost, plan_host_settings
from powerprof.measure.cpuidle import LATENCY_DEVICE, CpuidleReader, read_latency_us
from powerprof.system.errors import PowerprofError
from powerprof.system.files import read_text
from powerprof.system.paths import sysfs
from tests.conftest import Cli
from tests.root.test_cure import keeper_of, wait_for, with_own_journal

pytestmark = pytest.mark.usefixtures("root_bpf")
GOVERNOR = sysfs() / "devices/system/cpu/cpuidle/current_governor"
POLL = sysfs() / "module/haltpoll/parameters/guest_halt_poll_ns"


@pytest.fixture
def target() -> Iterator[int]:
    """Yield the id of a process that sleeps."""
    process = subprocess.Popen(["sleep", "300"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def own_journal(powerprof_cli: Cli, tmp_path: Path) -> Cli:
    return with_own_journal(powerprof_cli, tmp_path)


def cure(target: int, setting: str, *more: str) -> list[str]:
    return ["cure", "--pid", str(target), "--host", setting, "--yes", "--no-save", *more]


def test_a_latency_limit_of_0_makes_the_cpus_poll_and_is_released(target: int, own_journal: Cli) -> None:
    result = own_journal(cure(target, "latency-limit=0", "--pairs", "3", "--window", "0.5"))
    assert result.code == 0, result.err
    assert "→ 100.00 %" in result.out and "The power is unknown: no meter measures it." in " ".join(result.out.split())
    assert "verified: none" in " ".join(result.out.split())
    assert read_latency_us() is None


def test_a_limit_of_another_process_is_named_and_not_raised(target: int, own_journal: Cli) -> None:
    holder = os.open(LATENCY_DEVICE, os.O_WRONLY)
    try:
        os.write(holder, struct.pack("i", 20))
        residency = own_journal(["doctor"])
        refused = own_journal(cure(target, "latency-limit=none"))
    finally:
        os.close(holder)
    assert refused.code == 2
    assert f"{Path(sys.executable).resolve().name} {os.getpid()} holds the limit 20 µs" in refused.err
    assert f"latency limit of 20 µs, held by {Path(sys.executable).resolve().name} {os.getpid()}" in " ".join(
        residency.out.split()
    )


@pytest.mark.parametrize(
    ("place", "setting", "value"), [(GOVERNOR, "idle-governor=menu", "menu"), (POLL, "halt-poll=1000", "1000")]
)
def test_the_next_start_restores_after_the_end_of_both(
    target: int, own_journal: Cli, place: Path, setting: str, value: str
) -> None:
    before = read_text(place)
    assert before != value
    process = own_journal.start(cure(target, setting, "--window", "30"))
    try:
        # It is tried once before the windows.
        wait_for(lambda: read_text(place) == value, "the setting is not changed")
        keeper = keeper_of(process)
        process.send_signal(signal.SIGSTOP)
        keeper.kill()
        process.kill()
        process.communicate(timeout=60)
        left = read_text(place)
        result = own_journal(["runs"])
        assert left in (before, value)
        assert read_text(place) == before
        assert left == before or f"is {before} again" in result.err
    finally:
        process.kill()
        place.write_text(before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_keeper_restores_after_the_end_of_powerprof(target: int, own_journal: Cli, number: int) -> None:
    before = read_text(GOVERNOR)
    process = own_journal.start(cure(target, "idle-governor=menu", "--window", "30"))
    try:
        wait_for(lambda: read_text(GOVERNOR) == "menu", "the governor is not changed")
        process.send_signal(number)
        process.communicate(timeout=60)
        wait_for(lambda: read_text(GOVERNOR) == before, "the governor is not restored")
    finally:
        process.kill()
        GOVERNOR.write_text(before)


def test_a_condition_changes_the_host_for_its_windows() -> None:
    """A setting that this host lacks is skipped with its reason. A change by another program is an error."""
    before = read_text(GOVERNOR)
    words = ["latency-limit=7", "idle-governor=menu", "disable-state=C99"]
    host = ConditionHost()
    try:
        assert plan_host_settings(words).skipped == ["disable-state=C99: this host has no idle state of this name"]
        host.apply(words)
        assert (read_text(GOVERNOR), read_latency_us()) == ("menu", 7)
        host.apply(["latency-limit=5"])
        assert (read_text(GOVERNOR), read_latency_us()) == (before, 5)
        host.apply([])
        assert (read_text(GOVERNOR), read_latency_us()) == (before, None)
        with pytest.raises(PowerprofError, match="nothing to change: this host has these settings now"):
            host.apply([f"idle-governor={before}"])
        host.apply(["idle-governor=menu"])
        GOVERNOR.write_text("ladder")
        with pytest.raises(PowerprofError, match="another program set the idle governor to ladder"):
            host.close()
        assert read_text(GOVERNOR) == "ladder"
    finally:
        GOVERNOR.write_text(before)


_HOLD = """
import os, signal, sys
from powerprof.experiment.host_settings import ConditionHost
from powerprof.system import signals
signals.install()
host = ConditionHost()
try:
    host.apply(["idle-governor=menu"])
    print("changed", flush=True)
    signal.pause()
finally:
    host.close()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_settings_of_a_condition_are_restored_after_a_signal(number: int) -> None:
    before = read_text(GOVERNOR)
    process = subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"changed\n"
        assert read_text(GOVERNOR) == "menu"
        process.send_signal(number)
        process.communicate(timeout=60)
        wait_for(lambda: read_text(GOVERNOR) == before, "the governor is not restored")
    finally:
        process.kill()
        GOVERNOR.write_text(before)


def test_counters_stay_readable_after_a_change_of_the_governor() -> None:
    """The kernel removes the counter files and makes them again, so open descriptors end."""
    before = read_text(GOVERNOR)
    with CpuidleReader() as reader:
        first = reader.snapshot()
        try:
            GOVERNOR.write_text("menu")
            second = reader.snapshot()
        finally:
            GOVERNOR.write_text(before)
        third = reader.snapshot()
    assert first.cpus.keys() == second.cpus.keys() == third.cpus.keys() != set()
    for cpu, reading in third.cpus.items():
        assert reading.entries_count >= first.cpus[cpu].entries_count
