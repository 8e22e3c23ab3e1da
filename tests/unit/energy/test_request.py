# SPDX-License-Identifier: Apache-2.0
"""The text of --meter as a request for meters."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.request import EnergyRequest, parse_meter
from powerprof.system.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", EnergyRequest()),
        ("rapl, ipmi", EnergyRequest(source="rapl,ipmi")),
        ("hwmon:hwmon0/server+hwmon1/server", EnergyRequest(source="hwmon:hwmon0/server+hwmon1/server")),
        ("host:http://h:9100/metrics#vm.1", EnergyRequest(source="host:http://h:9100/metrics#vm.1")),
        ("model", EnergyRequest(source="model")),
        ("model@core", EnergyRequest(source="model", vcpu="core")),
        ("model:EPYC 7763", EnergyRequest(source="model", cpu_model="EPYC 7763")),
        ("model:EPYC 7763:256@thread", EnergyRequest(source="model", cpu_model="EPYC 7763:256", vcpu="thread")),
        ("LOG.csv#watts", EnergyRequest(source="meter_log", meter_log=Path("LOG.csv#watts"))),
        ("auto,LOG.csv", EnergyRequest(source="auto", meter_log=Path("LOG.csv"))),
        ("./LOG.csv,rapl", EnergyRequest(source="rapl", meter_log=Path("LOG.csv"))),
    ],
)
def test_a_text_is_a_request(
    text: str, expected: EnergyRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("LOG.csv").touch()
    assert parse_meter(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nosuch", "--meter nosuch: nosuch is not a choice"),
        ("rapl,rapl", "--meter rapl,rapl names rapl twice"),
        ("auto,rapl", "--meter auto,rapl: auto stands alone"),
        ("a.csv,b.csv", "--meter a.csv,b.csv names two logs"),
        ("model@socket", "--meter model@socket: a CPU of a guest is a thread or a core"),
        ("model:EPYC 7764", '--meter "model:EPYC 7764": no published result'),
        ("rapl,model:EPYC 7763", "--meter rapl,model:EPYC 7763: model:EPYC 7763 is not a choice"),
    ],
)
def test_a_wrong_text_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_meter(text)
    assert caught.value.message.startswith(error)


def test_a_log_is_read_before_anything_is_measured() -> None:
    with pytest.raises(DataError, match=r"nosuch\.csv: no such file"):
        parse_meter("./nosuch.csv")
