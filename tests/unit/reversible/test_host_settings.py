# SPDX-License-Identifier: Apache-2.0
"""Settings of idle states and frequencies: files of sysfs, the latency limit, and TuneD's profile."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from powerprof.measure.cpuidle import read_latency_us
from powerprof.reversible import host_settings
from powerprof.reversible.host_settings import HostFiles, LatencyLimit, TunedProfile, list_tuned_profiles
from powerprof.system.errors import PowerprofError


def _files(folder: Path, *texts: str) -> HostFiles:
    places = [folder / str(number) for number in range(len(texts))]
    for place, text in zip(places, texts, strict=True):
        place.write_text(f"{text}\n")
    return HostFiles("the governor", [str(place) for place in places], "powersave")


def test_files_with_different_values_are_restored_each(tmp_path: Path) -> None:
    setting = _files(tmp_path, "schedutil", "performance", "schedutil")
    before = setting.read()
    assert before == "schedutil,performance,schedutil"
    assert setting.write("powersave") == "powersave"
    assert [Path(path).read_text() for path in setting.paths] == ["powersave"] * 3
    assert setting.write(before) == before
    assert setting.by_hand("x") == f"echo x | tee {tmp_path}/0 {tmp_path}/1 {tmp_path}/2"


def test_files_that_are_missing_or_too_few_are_errors(tmp_path: Path) -> None:
    setting = _files(tmp_path, "a", "b")
    Path(setting.paths[1]).unlink()
    with pytest.raises(PowerprofError, match="no such file"):
        setting.read()
    with pytest.raises(PowerprofError, match="the kernel refuses x for the governor"):
        setting.write("x")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        _files(tmp_path, "a", "b").write("1,2,3")
    with pytest.raises(PowerprofError, match="has no file"):
        HostFiles("x", [], "y").read()


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
