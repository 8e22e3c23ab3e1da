# SPDX-License-Identifier: Apache-2.0
"""Whether a CPU without a sibling is a whole core: on metal, and in clouds whose guests show the host's threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerprof.energy.domains import EnergyRequest
from powerprof.energy.model import model_for_this_host
from powerprof.experiment.metrics import note_below_idle
from powerprof.report.labels import word_notes

AZURE = "7783-7084-3265-9085-8269-3286-77"


def write_host(root: Path, *, smt: str | None, cpus: int, guest: bool, vendor: str | None, tag: str = "") -> None:
    """A Genoa host as /sys and /proc show it."""
    files = {
        "sys/devices/system/cpu/smt/active": smt,
        "sys/class/dmi/id/sys_vendor": vendor,
        "sys/class/dmi/id/chassis_asset_tag": tag,
    }
    for name, text in files.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{text}\n")
    flags = "fpu vme hypervisor lahf_lm" if guest else "fpu vme lahf_lm"
    numbers = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1"
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(
        "\n".join(f"processor\t: {cpu}\n{numbers}\nflags\t\t: {flags}\n" for cpu in range(cpus))
    )


# smt, CPUs, guest, vendor, asset tag: is one CPU a core (True), perhaps (None), or a thread (False)?
HOSTS = {
    "EC2, m7i: threads": (("1", 8, True, "Amazon EC2", ""), False),
    "EC2, m7a: cores": (("0", 8, True, "Amazon EC2", ""), True),
    "EC2, one thread per core chosen": (("0", 1, True, "Amazon EC2", ""), True),
    "EC2, metal": (("1", 96, False, "Amazon EC2", ""), False),
    "EC2 of the Xen kind": (("0", 2, True, "Xen", ""), None),
    "Google, n2: threads": (("1", 2, True, "Google", ""), False),
    "Google, t2d: cores": (("0", 2, True, "Google", ""), True),
    "Google, one CPU": (("0", 1, True, "Google", ""), None),
    "Azure, D4s v5: threads": (("1", 4, True, "Microsoft Corporation", AZURE), False),
    "Azure, F2: cores": (("0", 2, True, "Microsoft Corporation", AZURE), True),
    "Azure, one CPU": (("0", 1, True, "Microsoft Corporation", AZURE), None),
    "Hyper-V at home": (("0", 4, True, "Microsoft Corporation", "None"), None),
    "QEMU": (("0", 4, True, "QEMU", ""), None),
    "VMware": (("0", 4, True, "VMware, Inc.", ""), None),
    "a guest without DMI": (("0", 4, True, None, ""), None),
    "metal, threads switched off": (("0", 32, False, "Dell Inc.", ""), True),
    "metal with threads": (("1", 64, False, "Supermicro", ""), False),
    "metal without DMI": (("0", 4, False, None, ""), True),
    "a kernel without the file": ((None, 4, True, "Amazon EC2", ""), False),
    "a vendor with a line too many": (("0", 4, True, "Amazon EC2 \n", ""), True),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_cpu_is_a_core_only_where_that_is_known(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (smt, cpus, guest, vendor, tag), is_core = HOSTS[name]
    write_host(tmp_path, smt=smt, cpus=cpus, guest=guest, vendor=vendor, tag=tag)
    monkeypatch.setenv("POWERPROF_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("POWERPROF_PROCFS", str(tmp_path / "proc"))
    chosen = model_for_this_host(EnergyRequest())
    assert chosen.scale == (2.0 if is_core else 1.0)
    assert chosen.cores_per_cpu == (2.0 if is_core is None else 1.0)
    # The user's answer counts before any evidence.
    assert model_for_this_host(EnergyRequest(vcpu="thread")).scale == 1.0


@pytest.mark.parametrize(
    ("ends", "noted"),
    [
        ([("joules_per_query_net", -0.1)], True),
        ([("joules_per_query_net", 0.0)], False),
        ([("joules_per_query_net", None)], False),
        ([("joules_per_query", 0.2), ("c0_ms_per_query_net", -1.0)], True),
        ([("watts:package-0", -1.0)], False),
        ([], False),
    ],
)
def test_an_interval_below_idle_has_a_note(ends: list[tuple[str, float | None]], noted: bool) -> None:
    assert bool(note_below_idle(ends)) == noted
    if noted:
        assert word_notes(note_below_idle(ends))[0].startswith("an interval net of idle starts below 0")
