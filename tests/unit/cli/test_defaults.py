# SPDX-License-Identifier: Apache-2.0
"""The default of --meter: an environment variable, or a file that only root and the caller can change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerprof.cli import defaults
from powerprof.cli.meter_options import EnergyOptions
from powerprof.system.errors import PowerprofError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("POWERPROF_METER", raising=False)
    monkeypatch.setattr(defaults, "_SYSTEM_FILE", tmp_path / "etc.toml")
    path = tmp_path / "powerprof/powerprof.toml"
    path.parent.mkdir()
    return path


def test_the_option_precedes_the_variable_and_the_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EnergyOptions().request.source == "auto"
    defaults._SYSTEM_FILE.write_text('meter = "ipmi"')
    assert EnergyOptions().request.source == "ipmi"
    file.write_text('meter = "hwmon"')
    assert EnergyOptions().request.source == "hwmon"
    monkeypatch.setenv("POWERPROF_METER", "rapl")
    assert EnergyOptions().request.source == "rapl"
    assert EnergyOptions(meter=EnergyOptions().request).request.source == "rapl"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("meter = [", "powerprof.toml: "),
        ("meter = 3", "powerprof.toml: meter is not a setting"),
        ('meters = "rapl"', "powerprof.toml: meters is not a setting"),
        ('meter = "nosuch"', "powerprof.toml: --meter nosuch: nosuch is not a choice"),
    ],
)
def test_a_wrong_file_is_named(file: Path, text: str, error: str) -> None:
    file.write_text(text)
    with pytest.raises(PowerprofError) as caught:
        _ = EnergyOptions().request
    assert error in caught.value.message


def test_a_file_that_others_can_change_is_refused(file: Path) -> None:
    file.write_text('meter = "rapl"')
    file.chmod(0o666)
    with pytest.raises(PowerprofError, match="can be changed by other users"):
        defaults.default_meter()
    file.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        with pytest.raises(PowerprofError, match="can be changed by other users"):
            defaults.default_meter()


def test_what_is_no_file_of_settings_is_not_read(file: Path) -> None:
    defaults._SYSTEM_FILE.write_text('meter = "ipmi"')
    os.mkfifo(file)  # its opening would wait for a writer
    assert defaults.default_meter() == ("ipmi", str(defaults._SYSTEM_FILE))
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("no folder")
    assert defaults.default_meter() == ("ipmi", str(defaults._SYSTEM_FILE))


def test_bytes_that_are_no_text_are_an_error(file: Path) -> None:
    file.write_bytes(b'meter = "\xff"')
    with pytest.raises(PowerprofError, match=r"powerprof\.toml: "):
        defaults.default_meter()
