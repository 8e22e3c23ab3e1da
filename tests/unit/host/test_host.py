# SPDX-License-Identifier: Apache-2.0
"""What a host can do is a value, for every host: this one, a recorded one, and one with nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from powerprof.host.capabilities import Capability, limited, missing, none, ok
from powerprof.host.describe import describe_host
from powerprof.host.meter_probes import judge_energy
from powerprof.host.survey import survey_host
from powerprof.report.doctor import capability_text

Make = Callable[[Mapping[str, str]], Path]

GUEST = (
    "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : EPYC\n"
    "stepping : 8\nflags : fpu hypervisor\n"
)
METAL = GUEST.replace(" hypervisor", "")
CPU = "sys/devices/system/cpu"
RAPL = "sys/class/powercap/intel-rapl:0"


def survey() -> dict[str, Capability]:
    return {capability.name: capability for capability in survey_host()}


def test_a_host_with_nothing_is_surveyed_all_the_same(fake_tree: Make) -> None:
    fake_tree({})
    found = survey()
    assert found["residency"].status == "missing"
    assert found["energy"] == Capability(
        name="energy", status="none", detail="no meter on this host; estimates only", remedy=None
    )
    assert found["tracing"].status == "none"
    assert found["btf"].status == "missing"
    assert len(found) == 21


def test_residency_names_the_driver_and_each_set_of_states(fake_tree: Make) -> None:
    states = {f"{CPU}/cpuidle/current_driver": "intel_idle\n", f"{CPU}/online": "0-1\n"}
    for cpu, names in ((0, ["POLL", "C1", "C6"]), (1, ["POLL", "C1"])):
        for index, name in enumerate(names):
            for file, text in (("name", name), ("time", "1"), ("usage", "1")):
                states[f"{CPU}/cpu{cpu}/cpuidle/state{index}/{file}"] = text
    fake_tree(states)
    assert survey()["residency"] == ok("residency", "cpuidle, driver intel_idle: POLL, C1 · POLL, C1, C6")


def test_without_a_driver_residency_is_limited_to_proc_stat(fake_tree: Make) -> None:
    fake_tree({f"{CPU}/online": "0\n", "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 0\n"})
    found = survey()["residency"]
    assert (found.status, found.detail) == ("limited", "no cpuidle driver: idle time from /proc/stat, states unknown")


def test_rapl_of_a_host_and_of_a_guest(fake_tree: Make) -> None:
    fake_tree({"proc/cpuinfo": GUEST})
    found = survey()["rapl"]
    assert (found.status, found.detail.partition(" in /")[0]) == ("none", "no RAPL energy counters")
    fake_tree(
        {
            "proc/cpuinfo": METAL,
            f"{RAPL}/name": "package-0\n",
            f"{RAPL}/energy_uj": "12\n",
            f"{RAPL}/max_energy_range_uj": "262143328850\n",
            f"{RAPL}:0/name": "core\n",
            f"{RAPL}:0/energy_uj": "3\n",
        }
    )
    found = survey()
    assert found["rapl"] == ok("rapl", "core, package-0")
    assert found["energy"] == ok("energy", "measured by rapl")


def test_battery_counts_only_while_it_discharges(fake_tree: Make) -> None:
    supply = "sys/class/power_supply/BAT0"
    fake_tree({f"{supply}/type": "Battery\n", f"{supply}/status": "Charging\n"})
    assert survey()["battery"].status == "limited"
    fake_tree({f"{supply}/status": "Discharging\n"})
    assert survey()["battery"].detail == "BAT0 has neither power_now nor current_now"
    fake_tree({f"{supply}/power_now": "9000000\n"})
    assert survey()["battery"] == ok("battery", "BAT0")


def test_hwmon_names_chips_with_power_only(fake_tree: Make) -> None:
    chips = "sys/class/hwmon"
    fake_tree(
        {
            f"{chips}/hwmon0/name": "coretemp\n",
            f"{chips}/hwmon0/temp1_input": "40000\n",
            f"{chips}/hwmon1/name": "power_meter\n",
            f"{chips}/hwmon1/power1_average": "95000000\n",
        }
    )
    assert survey()["hwmon"] == ok("hwmon", "server")


def test_tracefs_is_found_where_it_is_mounted(fake_tree: Make) -> None:
    fake_tree({"proc/mounts": "tracefs /sys/kernel/tracing tracefs rw 0 0\n"})
    assert survey()["tracefs"] == ok("tracefs", "mounted at /sys/kernel/tracing")


@pytest.mark.parametrize(
    ("mask", "status", "lacking"),
    [
        ("000001ffffffffff", "ok", ""),
        ("0000000000280000", "ok", ""),
        ("0000000000200000", "missing", "CAP_SYS_PTRACE"),
        ("0000000000000000", "missing", "CAP_BPF, CAP_PERFMON"),
        ("000000c000080000", "ok", ""),
    ],
)
def test_privileges_by_capability_bits(fake_tree: Make, mask: str, status: str, lacking: str) -> None:
    fake_tree({"proc/self/status": f"Name:\tx\nCapEff:\t{mask}\n"})
    found = survey()["privileges"]
    assert found.status == status
    assert lacking in found.detail


def test_describe_reads_one_tree_only(fake_tree: Make) -> None:
    fake_tree(
        {
            "proc/cpuinfo": GUEST,
            "proc/meminfo": "MemTotal:  1234567 kB\nMemFree: 77 kB\n",
            "proc/sys/kernel/hostname": "db7\n",
            "proc/sys/kernel/osrelease": "6.1.0-9\n",
            f"{CPU}/online": "0-3,8\n",
            f"{CPU}/smt/active": "1\n",
            f"{CPU}/cpuidle/current_driver": "none\n",
            f"{CPU}/cpuidle/current_governor_ro": "menu\n",
            f"{CPU}/vulnerabilities/mds": "Not affected\n",
            f"{CPU}/vulnerabilities/retbleed": "Vulnerable\n",
            "sys/class/dmi/id/sys_vendor": "QEMU\n",
        }
    )
    host = describe_host()
    assert (host.hostname, host.kernel, host.cpus, host.memory_bytes) == ("db7", "6.1.0-9", 5, 1_234_567 * 1024)
    assert (host.cpu_vendor, host.cpu_family, host.cpu_model_number) == ("AuthenticAMD", 25, 17)
    assert (host.cpu_model, host.cpu_stepping) == ("EPYC", 8)
    assert (host.idle_driver, host.idle_governor, host.smt_active) == (None, "menu", True)
    assert host.virtualisation == "hypervisor (QEMU)"
    assert host.mitigations == {"retbleed": "Vulnerable"}
    assert (host.machine, host.distribution, host.boot_id, host.container) == (None, None, None, None)


def test_a_host_without_a_hypervisor_is_metal(fake_tree: Make) -> None:
    fake_tree({"proc/cpuinfo": METAL, "sys/class/dmi/id/sys_vendor": "Dell Inc.\n"})
    assert describe_host().virtualisation is None


def test_the_doctor_keeps_to_80_columns_and_commands_whole() -> None:
    command = "apt install linux-headers-amd64"
    text = capability_text(
        [
            ok("residency", "a driver and " + "state, " * 30),
            missing("tracing", "kernel headers for bcc are not installed", command),
            missing("x", "short", "fix"),
        ]
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith(f"→ {command}") for line in lines)
    assert lines[-1] == "x          missing  short → fix"


@pytest.mark.parametrize(("text", "smt"), [("1\n", True), ("0\n", False), (None, None)])
def test_smt_is_on_off_or_unknown(fake_tree: Make, text: str | None, smt: bool | None) -> None:
    fake_tree({} if text is None else {f"{CPU}/smt/active": text})
    assert describe_host().smt_active is smt


def test_one_unreadable_zone_limits_rapl(fake_tree: Make) -> None:
    root = fake_tree({f"{RAPL}/name": "package-0\n", f"{RAPL}/energy_uj": "5\n", "proc/cpuinfo": METAL})
    (root / "sys/class/powercap/intel-rapl:1/energy_uj").mkdir(parents=True)
    (root / "sys/class/powercap/intel-rapl:1/name").write_text("package-1\n")
    found = survey()["rapl"]
    assert (found.status, found.remedy) == ("limited", None)
    assert found.detail.startswith("package-0, package-1: no total, package-1 cannot be read")


def test_cards_are_no_sensor_of_the_host(fake_tree: Make) -> None:
    fake_tree({"sys/class/hwmon/hwmon0/name": "amdgpu\n", "sys/class/hwmon/hwmon0/power1_average": "9000000\n"})
    found = survey()["hwmon"]
    assert (found.status, found.detail.rpartition(" reports ")[2]) == (
        "none",
        "the host's energy or power, only parts: amdgpu",
    )


def test_energy_is_measured_only_by_meters_that_work() -> None:
    meters = [none("rapl", "x"), limited("hwmon", "no total"), limited("battery", "on mains", "unplug it")]
    assert judge_energy(meters) == limited("energy", "battery: on mains", "unplug it")
    assert judge_energy([*meters, ok("ipmi", "y"), ok("perf_power", "z")]) == ok(
        "energy", "measured by ipmi, perf_power"
    )
    assert judge_energy(meters[:2]).status == "none"
