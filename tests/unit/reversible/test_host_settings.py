# SPDX-License-Identifier: Apache-2.0
"""Settings of idle states and frequencies: files of sysfs, the latency limit, and TuneD's profile."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerprof.measure.cpuidle import read_latency_us
from powerprof.reversible import host_settings
from powerprof.reversible.groups import command_together, describe_values, group_settings, join_values, name_together
from powerprof.reversible.host_settings import FileAway, HostFile, LatencyLimit, TunedProfile, list_tuned_profiles
from powerprof.reversible.kinds import Setting
from powerprof.system.errors import PowerprofError


def _file(place: Path, text: str = "schedutil") -> HostFile:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}\n")
    return HostFile("the governor", str(place), "powersave")


def test_the_file_of_a_cpu_is_read_and_written(tmp_path: Path) -> None:
    setting = _file(tmp_path / "cpu12/cpufreq/scaling_governor")
    assert (setting.read(), setting.name) == ("schedutil", "the governor on CPU 12")
    assert setting.write("powersave") == "powersave" == Path(setting.path).read_text()
    assert _file(tmp_path / "cpuidle/current_governor").name == "the governor"


def test_a_missing_file_is_away_and_another_failure_is_not(tmp_path: Path) -> None:
    setting = _file(tmp_path / "cpu3/x")
    Path(setting.path).unlink()
    for attempt in (setting.read, partial(setting.write, "y")):
        with pytest.raises(FileAway, match=r"the governor on CPU 3 is missing \(.*cpu3/x: no such file\)") as error:
            attempt()
        assert error.value.hint == "set CPU 3 online"
    Path(setting.path).mkdir()
    with pytest.raises(PowerprofError, match="is a directory") as refused:
        setting.read()
    assert not isinstance(refused.value, FileAway)


def test_a_file_that_refuses_a_value_is_present(tmp_path: Path, refuse: Callable[[Path], None]) -> None:
    setting = _file(tmp_path / "cpu3/x")
    refuse(Path(setting.path))
    with pytest.raises(PowerprofError, match="the kernel refuses y for the governor on CPU 3") as refused:
        setting.write("y")
    assert not isinstance(refused.value, FileAway) and setting.read() == "schedutil"


@given(
    value=st.text(st.characters(codec="ascii", exclude_characters="\0\r"), min_size=1, max_size=20),
    count=st.integers(1, 3),
)
def test_the_printed_command_writes_all_files(value: str, count: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("it's $(id)")
    settings: list[Setting] = [_file(folder / f"cpu{number}/x") for number in range(count)]
    command = command_together(settings, value)
    subprocess.run(["/bin/bash", "-c", command.replace("echo ", "printf '%s\\n' ", 1)], check=True, capture_output=True)
    assert [setting.read() for setting in settings] == [value.strip()] * count


def test_files_with_one_label_and_key_are_one_group(tmp_path: Path) -> None:
    settings: list[Setting] = [_file(tmp_path / f"cpu{cpu}/x") for cpu in (0, 1, 2, 5)]
    settings += [TunedProfile("a"), HostFile("the flag", "/cpu1/y", "1"), TunedProfile("a")]
    groups = group_settings(settings, ["a", "a", "b", "a", "a", "a", "a"])
    assert groups == [[0, 1, 3], [2], [4], [5], [6]]
    assert name_together([settings[each] for each in groups[0]]) == "the governor on CPUs 0-1,5"
    assert name_together(settings[4:5]) == "the TuneD profile"
    assert describe_values(settings, list("aabaaaa")).startswith(
        "the governor on CPUs 0-1,5 to a, the governor on CPU 2"
    )
    assert (join_values(["a", "a"]), join_values(["a", "b", "a"])) == ("a", "a,b,a")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a file in place of the device: its content is the limit of all processes."""
    place = tmp_path / "cpu_dma_latency"
    place.write_bytes(struct.pack("i", 2_000_000_000))
    monkeypatch.setattr(host_settings, "LATENCY_DEVICE", place)
    monkeypatch.setattr(host_settings, "read_latency_us", partial(read_latency_us, place))
    yield place
    place.touch()
    with suppress(PowerprofError):
        LatencyLimit("none").write("none")


def _is_open(place: Path) -> bool:
    return str(place) in [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]


def test_a_limit_is_held_in_microseconds_until_it_is_restored(device: Path) -> None:
    setting = LatencyLimit("37")
    assert setting.read() == "none"
    assert setting.write("37") == "37"
    assert device.read_bytes() == struct.pack("i", 37)
    assert _is_open(device)
    assert setting.write("37") == "37"
    # The kernel drops the limit with the descriptor. The limit of another process stays.
    device.write_bytes(struct.pack("i", 150))
    assert setting.write("150") == "150"
    assert not _is_open(device) and device.read_bytes() == struct.pack("i", 150)


def test_no_limit_and_an_unreadable_one_differ_from_a_limit_of_zero(device: Path) -> None:
    assert LatencyLimit("none").write("none") == "none"
    assert not _is_open(device)
    assert LatencyLimit("0").write("0") == "0"
    device.unlink()
    with pytest.raises(PowerprofError, match="cannot read the CPU latency limit"):
        LatencyLimit("0").read()


# `tuned-adm active` and `profile_mode` of TuneD 2.20 with a post-loaded profile; the profile is in $1.
_TUNED = """#!/bin/sh
place=$(dirname "$0")
case $1 in
active) printf 'Current active profile: %s\\nCurrent post-loaded profile: common\\n' "$(cat $place/profile)";;
profile_mode) printf 'Profile selection mode: %s\\n' "$(cat $place/mode)";;
auto_profile) echo auto >$place/mode; echo balanced common >$place/profile;;
profile) shift; echo manual >$place/mode; echo "$* common" >$place/profile; echo $# >$place/words; [ "$1" != missing ];;
list) printf 'Available profiles:\\n- balanced   - General\\n- powersave  - Low\\nCurrent active profile: balanced\\n';;
esac
"""


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "tuned-adm"
    program.write_text(_TUNED)
    program.chmod(0o755)
    (tmp_path / "profile").write_text("balanced common")
    (tmp_path / "mode").write_text("manual")
    monkeypatch.setattr(host_settings, "TUNED_ADM", program)
    return tmp_path


def test_a_profile_is_restored_without_the_common_one(tuned: Path) -> None:
    setting = TunedProfile("powersave battery")
    assert setting.read() == "balanced"
    assert setting.write(setting.value) == "powersave battery"
    assert (tuned / "words").read_text() == "2\n", "each profile is a word"
    assert setting.write("balanced") == "balanced"
    assert setting.by_hand("balanced") == "tuned-adm profile balanced"
    assert list_tuned_profiles() == ["balanced", "powersave"]


def test_an_automatic_profile_is_automatic_again(tuned: Path) -> None:
    (tuned / "mode").write_text("auto")
    setting = TunedProfile("powersave")
    assert setting.read() == "balanced (auto)"
    assert setting.write("powersave") == "powersave"
    assert setting.write("balanced (auto)") == "balanced (auto)"
    assert setting.by_hand("balanced (auto)") == "tuned-adm auto_profile"


def test_a_profile_that_tuned_lacks_is_an_error(tuned: Path) -> None:
    with pytest.raises(PowerprofError, match="tuned-adm profile missing failed"):
        TunedProfile("missing").write("missing")
    (tuned / "tuned-adm").write_text("#!/bin/sh\necho No current active profile.; exit 1\n")
    with pytest.raises(PowerprofError, match="TuneD has no active profile"):
        TunedProfile("x").read()
