# SPDX-License-Identifier: Apache-2.0
"""`doctor` and the automatic choice agree on every meter: the one that counts, and the reason against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from powerprof.energy.choice import open_meters
from powerprof.energy.request import AUTO
from powerprof.host.meter_probes import PROBED, probe_meter
from tests.conftest import REPOSITORY
from tests.unit.energy.host_faults import break_channel
from tests.unit.energy.host_table import TABLE, list_families, read_hosts
from tests.unit.energy.simulated_host import Host, stub_perf

_PUBLIC = REPOSITORY / "tests/fixtures/public-hosts.txt"
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


def find_contradictions(host: str) -> list[str]:
    """Compare the meters that `doctor` and `energy` accept, and their reasons against the others."""
    found = {name: probe_meter(name) for name in PROBED}
    with open_meters("auto") as meters:
        why, names = meters.why, meters.names
    accepted = None if "which has no total" in why or not names else names[0]
    usable = [name for name in AUTO if name in found and found[name].status == "ok"]
    wrong = []
    if accepted != "turbostat" and accepted != (usable[0] if usable else None):
        wrong.append(f"{host}: doctor accepts {usable}, energy {accepted}")
    for name, capability in found.items():
        reason = capability.detail.rpartition(": no total, ")[2]
        if capability.status != "ok" and f"{name}: " in why and f"{name}: {reason}" not in why:
            wrong.append(f"{host}: doctor {capability.detail!r}, energy {why!r}")
        # `energy` stops at the first meter that it accepts.
        is_tried = accepted is None or AUTO.index(name) < AUTO.index(accepted)
        if is_tried and (capability.status == "ok" or f"{name}: " not in why) and "which has no total" not in why:
            wrong.append(f"{host}: doctor {capability}, energy tried it and gives no reason: {why!r}")
    return wrong


def _enter(host: Host, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(root, host)
    (root / "sys").mkdir(exist_ok=True)
    monkeypatch.setenv("POWERPROF_SYSFS", str(root / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(root / "proc"))


@pytest.mark.parametrize(("table", "family"), _FAMILIES, ids=[f"{t.stem}-{f}" for t, f in _FAMILIES])
def test_doctor_and_energy_have_one_reason_per_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Path, family: str
) -> None:
    wrong = []
    for number, host in enumerate(read_hosts(family, table)):
        with monkeypatch.context() as patch:
            _enter(host, tmp_path / str(number), patch)
            stub_perf(host, patch)
            wrong += find_contradictions(host.name)
    assert not wrong, "\n".join(wrong)


def test_two_machines_in_one_have_one_reason_per_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the meters of one drawn host beside those of another: each reason is that of its own meter."""
    draw, wrong = Random("two machines 1"), []
    hosts = [h for table, family in _FAMILIES for h in read_hosts(family, table) if not h.sensors]
    for number in range(60):
        first, second = draw.sample(hosts, 2)
        merged = replace(second, files={**first.files, **second.files}, name=f"{first.name} + {second.name}")
        break_channel(merged, draw)
        _enter(merged, tmp_path / str(number), monkeypatch)
        wrong += find_contradictions(merged.name)
    assert not wrong, "\n".join(wrong)
