# SPDX-License-Identifier: Apache-2.0
"""`doctor` and the automatic choice agree: the first meter that doctor calls ok is the one that `energy` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.choice import open_meters
from powerprof.energy.request import AUTO
from powerprof.host.meter_probes import probe_battery, probe_hwmon, probe_rapl
from tests.conftest import REPOSITORY
from tests.unit.energy.host_table import TABLE, list_families, read_hosts
from tests.unit.energy.simulated_host import Host

_PUBLIC = REPOSITORY / "tests/fixtures/public-hosts.txt"
_PROBES = {"rapl": probe_rapl, "hwmon": probe_hwmon, "battery": probe_battery}
_FAMILIES = [(table, family) for table in (TABLE, _PUBLIC) for family in list_families(table)]


def write_files(root: Path, host: Host) -> None:
    for name, signal in host.files.items():
        text = signal(0.0)
        if text is None:
            continue
        path = root / "sys" / name
        if text == "<unreadable>":
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    (root / "proc").mkdir(parents=True)
    for name, content in host.processes.items():
        (root / "proc" / name).write_text(content)


@pytest.mark.parametrize(("table", "family"), _FAMILIES, ids=[f"{t.stem}-{f}" for t, f in _FAMILIES])
def test_doctor_and_energy_have_one_reason_per_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Path, family: str
) -> None:
    wrong = []
    for number, host in enumerate(read_hosts(family, table)):
        if host.sensors:
            continue
        root = tmp_path / str(number)
        write_files(root, host)
        (root / "sys").mkdir(exist_ok=True)
        monkeypatch.setenv("POWERPROF_SYSFS", str(root / "sys"))
        monkeypatch.setenv("POWERPROF_PROCFS", str(root / "proc"))
        found = {name: probe() for name, probe in _PROBES.items()}
        usable = next((name for name in AUTO if name in found and found[name].status == "ok"), None)
        with open_meters("auto") as meters:
            chosen = None if "which has no total" in meters.why or not meters.names else meters.names[0]
            why = meters.why
        if usable != chosen:
            wrong.append(f"{host.name}: doctor {usable}, energy {chosen}")
        for name, capability in found.items():
            reason = capability.detail.rpartition("no total, ")[2]
            if capability.status == "limited" and f"{name}: " in why and reason not in why:
                wrong.append(f"{host.name}: doctor {capability.detail!r}, energy {why!r}")
    assert not wrong, "\n".join(wrong)
