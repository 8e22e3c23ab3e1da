# SPDX-License-Identifier: Apache-2.0
"""Settings of this host in a cure: changed, measured, and restored however powerprof ends."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from powerprof.experiment.host_settings import ConditionHost, plan_host_settings
from powerprof.measure.cpuidle import LATENCY_DEVICE, CpuidleReader, read_latency_us
from powerprof.system.errors import PowerprofError
from powerprof.system.files import read_text
from powerprof.system.paths import sysfs
from tests.conftest import Cli
from tests.programs.waiting import wait_until
from tests.system.cure.test_cure import kill_both, with_own_journal

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("root_bpf")]
GOVERNOR = sysfs() / "devices/system/cpu/cpuidle/current_governor"
GOVERNORS = sysfs() / "devices/system/cpu/cpuidle/available_governors"
POLL = sysfs() / "module/haltpoll/parameters/guest_halt_poll_ns"


def other_governors() -> list[str]:
    """Return the idle governors that this host has and does not use, with `menu` first."""
    return sorted(set(read_text(GOVERNORS).split()) - {read_text(GOVERNOR)}, key=lambda name: (name != "menu", name))


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


@pytest.mark.cpuidle
def test_a_latency_limit_of_0_makes_the_cpus_poll_and_is_released(
    target: int, own_journal: Cli, tmp_path: Path
) -> None:
    page = tmp_path / "record.json"
    result = own_journal(cure(target, "latency-limit=0", "--pairs", "3", "--duration", "0.5", "--json", str(page)))
    assert result.code == 0, result.err
    # Other programs may use the CPUs without the limit too: then the comparison is inconclusive, and the figure is not.
    (running,) = [one for one in json.loads(page.read_text())["metrics"] if one["name"] == "c0_percent"]
    assert running["b"]["mean"] == pytest.approx(100.0, abs=0.1)
    said = " ".join(result.out.split())
    assert "The power is unknown: no meter measures it." in said and "verified: none" in said
    assert read_latency_us() is None


@pytest.fixture
def held_limit() -> Iterator[str]:
    """Hold a limit of 20 µs, and yield the name and id of the holder."""
    holder = os.open(LATENCY_DEVICE, os.O_WRONLY)
    os.write(holder, struct.pack("i", 20))
    yield f"{Path(sys.executable).resolve().name} {os.getpid()}"
    os.close(holder)


def test_a_limit_of_another_process_is_not_raised(target: int, own_journal: Cli, held_limit: str) -> None:
    refused = own_journal(cure(target, "latency-limit=none"))
    assert refused.code == 2 and f"{held_limit} holds the limit 20 µs" in refused.err


@pytest.mark.cpuidle
def test_doctor_names_the_holder_of_a_limit(own_journal: Cli, held_limit: str) -> None:
    printed = " ".join(own_journal(["doctor"]).out.split())
    assert f"latency limit of 20 µs, held by {held_limit}" in printed


@pytest.mark.parametrize(("place", "setting"), [(GOVERNOR, "idle-governor"), (POLL, "halt-poll")])
def test_the_next_start_restores_after_the_end_of_both(
    target: int, own_journal: Cli, place: Path, setting: str
) -> None:
    before, value = read_text(place), other_governors()[0] if place == GOVERNOR else "1000"
    assert before != value
    process = own_journal.start(cure(target, f"{setting}={value}", "--duration", "30"))
    try:
        kill_both(process, lambda: read_text(place) == value)
        assert f"is {before} again" in own_journal(["runs"]).err
        assert read_text(place) == before
    finally:
        process.kill()
        place.write_text(before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_keeper_restores_after_the_end_of_powerprof(target: int, own_journal: Cli, number: int) -> None:
    before, other = read_text(GOVERNOR), other_governors()[0]
    process = own_journal.start(cure(target, f"idle-governor={other}", "--duration", "30"))
    try:
        wait_until(lambda: read_text(GOVERNOR) == other, "the governor is not changed")
        process.send_signal(number)
        process.communicate(timeout=60)
        wait_until(lambda: read_text(GOVERNOR) == before, "the governor is not restored")
    finally:
        process.kill()
        GOVERNOR.write_text(before)


def test_a_condition_changes_the_host_for_its_windows() -> None:
    """A setting that this host lacks is skipped with its reason. A change by another program is an error."""
    before = read_text(GOVERNOR)
    other, third = other_governors()[:2]
    words = ["latency-limit=7", f"idle-governor={other}", "disable-state=C99"]
    host = ConditionHost()
    try:
        assert plan_host_settings(words).skipped == ["disable-state=C99: this host has no idle state of this name"]
        host.apply(words)
        assert (read_text(GOVERNOR), read_latency_us()) == (other, 7)
        host.apply(["latency-limit=5"])
        assert (read_text(GOVERNOR), read_latency_us()) == (before, 5)
        host.apply([])
        assert (read_text(GOVERNOR), read_latency_us()) == (before, None)
        with pytest.raises(PowerprofError, match="nothing to change: this host has these settings now"):
            host.apply([f"idle-governor={before}"])
        host.apply([f"idle-governor={other}"])
        GOVERNOR.write_text(third)
        with pytest.raises(PowerprofError, match=f"another program set the idle governor to {third}"):
            host.close()
        assert read_text(GOVERNOR) == third
    finally:
        GOVERNOR.write_text(before)


_HOLD = """
import signal, sys
from powerprof.experiment.host_settings import ConditionHost
from powerprof.system import signals
signals.install()
host = ConditionHost()
try:
    host.apply([f"idle-governor={sys.argv[1]}"])
    print("changed", flush=True)
    signal.pause()
finally:
    host.close()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_settings_of_a_condition_are_restored_after_a_signal(number: int) -> None:
    before, other = read_text(GOVERNOR), other_governors()[0]
    process = subprocess.Popen([sys.executable, "-c", _HOLD, other], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"changed\n"
        assert read_text(GOVERNOR) == other
        process.send_signal(number)
        process.communicate(timeout=60)
        wait_until(lambda: read_text(GOVERNOR) == before, "the governor is not restored")
    finally:
        process.kill()
        GOVERNOR.write_text(before)


@pytest.fixture
def small_journal(own_journal: Cli, tmp_path: Path) -> Iterator[Cli]:
    """The journal is on a disk of 64 KiB."""
    place = tmp_path / "changed"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", place], check=True)
    yield own_journal
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_old_value_returns_from_a_full_disk(target: int, small_journal: Cli, tmp_path: Path) -> None:
    """The disk fills up after the first change, and both processes are killed after the second."""
    before, other = read_text(GOVERNOR), other_governors()[0]
    process = small_journal.start(cure(target, f"idle-governor={other}", "--duration", "0.5", "--pairs", "99"))
    try:
        wait_until(lambda: read_text(GOVERNOR) == other, "the governor is not changed")
        with suppress(OSError), (tmp_path / "changed/full").open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)
        wait_until(lambda: read_text(GOVERNOR) == before, "the governor is not restored")
        kill_both(process, lambda: read_text(GOVERNOR) == other)
        small_journal(["runs"])
        assert read_text(GOVERNOR) == before
        assert [path.name for path in (tmp_path / "changed").rglob("*") if path.is_file()] == ["full"]
    finally:
        process.kill()
        GOVERNOR.write_text(before)


_TUNED_ADM = """#!/bin/sh
# The answers of tuned-adm 2.20; its state is in {place}.
echo "$@" >> {place}/calls
case "$1" in
active) name=$(cat {place}/profile); [ -n "$name" ] || {{ echo "No current active profile."; exit 1; }}
    echo "Current active profile: $name";;
profile_mode) echo "Profile selection mode: $(cat {place}/mode)";;
list) printf 'Available profiles:\\n- balanced   - General\\n- postgresql   - Server\\nCurrent active profile: x\\n';;
profile) echo "$2" > {place}/profile; echo manual > {place}/mode;;
auto_profile) echo balanced > {place}/profile; echo auto > {place}/mode;;
esac
"""
_WITH_TUNED = (
    'mount -t tmpfs none "$0"/over && mkdir "$0"/over/up "$0"/over/work && mount -t overlay -o '
    'lowerdir=/usr/sbin,upperdir="$0"/over/up,workdir="$0"/over/work none /usr/sbin && '
    'install -m 755 -o "$(stat -c %u "$0"/tuned-adm)" "$0"/tuned-adm /usr/sbin/tuned-adm && '
    'mkdir -m 700 -p /var/lib/powerprof-changed && mount --bind "$0"/changed /var/lib/powerprof-changed && exec "$@"'
)


@pytest.fixture
def tuned(powerprof_cli: Cli, tmp_path: Path) -> Cli:
    """A made-up tuned-adm with the active profile balanced, and a journal of its own."""
    for folder, mode in (("over", 0o755), ("changed", 0o700)):
        (tmp_path / folder).mkdir(mode)
    (tmp_path / "tuned-adm").write_text(_TUNED_ADM.format(place=tmp_path))
    (tmp_path / "profile").write_text("balanced\n")
    (tmp_path / "mode").write_text("manual\n")
    within = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _WITH_TUNED, str(tmp_path))
    return replace(powerprof_cli, within=within)


def test_a_profile_of_tuned_is_tried_and_restored(target: int, tuned: Cli, tmp_path: Path) -> None:
    """A profile that TuneD has chosen is chosen by it again."""
    (tmp_path / "mode").write_text("auto\n")
    result = tuned(cure(target, "profile=postgresql", "--pairs", "3", "--duration", "0.5"))
    assert result.code == 0, result.err
    calls = (tmp_path / "calls").read_text().splitlines()
    switches = [line for line in calls if line.startswith(("profile ", "auto_profile"))]
    assert switches == ["profile postgresql", "auto_profile"] * (len(switches) // 2)
    assert ((tmp_path / "profile").read_text(), (tmp_path / "mode").read_text()) == ("balanced\n", "auto\n")


def test_the_next_start_restores_the_profile(target: int, tuned: Cli, tmp_path: Path) -> None:
    process = tuned.start(cure(target, "profile=postgresql", "--duration", "30"))
    try:
        kill_both(process, lambda: (tmp_path / "profile").read_text() == "postgresql\n")
        assert "the TuneD profile is balanced again" in tuned(["runs"]).err
        assert (tmp_path / "profile").read_text() == "balanced\n"
    finally:
        process.kill()


def test_a_profile_is_refused_before_the_trial(target: int, tuned: Cli, powerprof_cli: Cli, tmp_path: Path) -> None:
    unknown = tuned(cure(target, "profile=postgre"))
    assert unknown.code == 2 and "profile=postgre: TuneD has no such profile" in unknown.err
    assert "balanced or postgresql" in unknown.err
    missing = powerprof_cli(cure(target, "profile=postgresql"))
    assert missing.code == 2 and "TuneD is not installed (/usr/sbin/tuned-adm is missing)" in missing.err
    (tmp_path / "profile").write_text("\n")
    inactive = tuned(cure(target, "profile=postgresql"))
    assert inactive.code == 1 and "TuneD has no active profile" in inactive.err
    os.chown(tmp_path / "tuned-adm", 1, 1)
    foreign = tuned(cure(target, "profile=postgresql"))
    assert foreign.code == 1 and "/usr/sbin/tuned-adm is not run as root" in foreign.err
    assert "profile postgresql" not in (tmp_path / "calls").read_text()


@pytest.mark.cpuidle
def test_counters_stay_readable_after_a_change_of_the_governor() -> None:
    """The kernel removes the counter files and makes them again, so open descriptors end."""
    before, other = read_text(GOVERNOR), other_governors()[0]
    with CpuidleReader() as reader:
        first = reader.snapshot()
        try:
            GOVERNOR.write_text(other)
            second = reader.snapshot()
        finally:
            GOVERNOR.write_text(before)
        third = reader.snapshot()
    assert first.cpus.keys() == second.cpus.keys() == third.cpus.keys() != set()
    for cpu, reading in third.cpus.items():
        assert reading.entries_count >= first.cpus[cpu].entries_count
