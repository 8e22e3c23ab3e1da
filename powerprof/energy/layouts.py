# SPDX-License-Identifier: Apache-2.0
"""The recognised layouts of meters. A total needs a set of meters that matches them; any other set has no total.

`LAYOUTS` has one row per channel that measures the host or a part of it, with its evidence. Roles of sensor channels
and scopes of RAPL zones come from this table, and `find_flaws` compares a meter's domains with it and with the sockets
and dies of the CPU topology. docs/reference/meters.md prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from powerprof.model.records import Scope
from powerprof.system import paths
from powerprof.system.files import try_int, try_text

Count = Literal["one", "one per socket", "one per die", "any", "-"]


class Layout(msgspec.Struct, frozen=True):
    """One channel of one kind of meter.

    Attributes:
        sources: the meters that read it.
        driver: the names of the chips or of the kernel's interface, as a regular expression.
        channel: the labels or zone names, as a regular expression. `#1` is the first channel of a chip.
        domain: the name in readings. `{}` stands for the group in `channel`, or for the label.
        scope: the measured part of the host.
        count: the number of such channels that a complete set has. `-` for parts in no sum.
        inside: the domain of the same chip that includes it.
        vendor: the vendors of the CPU, as a regular expression. Empty for all.
        condition: a further condition, for the documentation.
    """

    sources: tuple[str, ...]
    driver: str
    channel: str
    domain: str
    scope: Scope
    count: Count
    evidence: str
    inside: str | None = None
    vendor: str = ""
    condition: str = ""


# All packages together, if a meter does not tell them apart.
ALL_PACKAGES = "packages"
_HWMON = ("hwmon",)
_RAPL = ("rapl", "perf_power", "turbostat")
_POWERCAP = "drivers/powercap/intel_rapl_common.c (rapl_add_package_cpuslocked, rapl_init_domains)"
_PSYS = (
    "powercap/intel_rapl: enumerate Psys RAPL domain together with package RAPL domain (Linux f1e8d7560d30), "
    "perf/x86/rapl: Fix psys-energy event on Intel SPR platform (838342a6d6b7): valid in one master package"
)
_PERF = "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs: one counter per socket; codecarbon issue 1274"
_DIES = r"package-(\d+)-die-(\d+)"
# One counter per socket (Linux, "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs"; a Threadripper 1950X in
# codecarbon's issue 1274). Powercap and perf list it once per die.
MIRRORED_VENDORS = "AuthenticAMD|HygonGenuine"
# PMBus power supplies, by the names in their drivers' i2c_device_id, or by the device tree's name without the maker, as
# hwmon shows it. Other PMBus chips feed parts of a board.
SUPPLIES = (
    r"(ibm_)?cffps[12]?|ipsps1|dps920ab|ym2151e|yh5151e|pfe(1100|3000)|(acbel_)?fsg032|(intel_)?crps185"
    r"|bp[ad][-_]rs600|aps[-_]379|d1u74t|hac300s"
)
_SUPPLY_DRIVERS = (
    "Documentation/hwmon/pmbus.rst; ibm-cffps.c, inspur-ipsps.c, dps920ab.c, fsp-3y.c, bel-pfe.c, acbel-fsg032.c, "
    "crps.c, bpa-rs600.c, aps-379.c, d1u74t.c, hac300s.c"
)
_AMD_CORES = "Documentation/hwmon/amd_energy.rst"
_AMD_ENERGY = f"{_AMD_CORES} (Linux 5.8 to 5.17); zenergy.c of github.com/BoukeHaarsma23/zenergy"
_FAM15H = "drivers/hwmon/fam15h_power.c (fam15h_power_is_internal_node0): the first node of a socket"
_BATTERY = "Documentation/power/power_supply_class.rst; Documentation/ABI/testing/sysfs-class-power"
_ACPI_METER = "Documentation/hwmon/acpi_power_meter.rst"
_WHOLE_METER = "names no part in power1_oem_info or measures/, and is not a battery's"
_NO_BATTERY = "no Total System Power, and no battery that it may charge"
_TEGRA = "the device tree names nvidia,tegra"
_TEGRA264 = "the device tree names nvidia,tegra264"
_DISCHARGING = "all discharge, no supply is online, serial numbers differ"
_SMPRO = "drivers/hwmon/smpro-hwmon.c: independent regulators of a socket, 3 and 4 feed the memory"
_XGENE = "Documentation/hwmon/xgene-hwmon.rst; drivers/hwmon/xgene-hwmon.c (acpi_hwmon_match: Altra's AMPC0005)"
_GRACE = (
    "NVIDIA Grace Performance Tuning Guide, Power Telemetry: a socket with its memory, by power1_oem_info; "
    "SysIO and CPU Power are inside, Module Power includes the GPU"
)
_THOR = "github.com/rbonghi/jetson_stats pull request 900: INA238 on VIN of the carrier board"
_JETSON = "NVIDIA Jetson Linux Developer Guide, Platform Power and Performance; SYS_VIN_HV is one of two inputs"
_MACSMC = "Documentation/hwmon/macsmc-hwmon.rst; arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi"
# Sensors of servers and of power supplies on controllers without DCMI: Dell, HPE, Lenovo, IBM, Intel, Huawei, MegaRAC.
_IPMI_SERVER = r"System Level|Pwr Consumption|Total[ _]Power|Sys(tem)?[ _]Power|Power Meter|Power|Current Power"
_IPMI_SUPPLIES = r"P(S|SU|MB)\d[ _]?(Input[ _]Power|Power([ _]In)?|PIN|Input)|Power\d"
IPMI_SENSORS: tuple[tuple[Scope, str], ...] = (("server", _IPMI_SERVER), ("supply", _IPMI_SUPPLIES))
_IPMI = "home-assistant-ipmi issues 13, 25, 27; go-ipmi issue 33; check_ipmi_sensor_v3 issue 26"
_NO_DCMI = "no DCMI power reading"
LAYOUTS: tuple[Layout, ...] = (
    Layout(_RAPL, "intel-rapl, power PMU", r"package-(\d+)", "", "package", "one per socket", _POWERCAP),
    Layout(_RAPL, "intel-rapl, power PMU", _DIES, "", "package", "one per die", _POWERCAP),
    Layout(_RAPL, "intel-rapl, power PMU", _DIES, "", "package", "one per socket", _PERF, vendor=MIRRORED_VENDORS),
    Layout(_RAPL, "intel-rapl, power PMU", "dram", "", "dram", "one per socket", "Intel SDM 15.10.1: outside package"),
    Layout(_RAPL, "intel-rapl, power PMU", r"psys(-(\d+|%d))?", "", "psys", "one", _PSYS),
    Layout(
        _RAPL, "intel-rapl, power PMU", "core|uncore", "", "core", "-", "Intel SDM 15.10.1: PP0 and PP1", "package-N"
    ),
    Layout(("turbostat",), "summary row", ALL_PACKAGES, "", "package", "one", "turbostat(8): the row of all CPUs"),
    Layout(_HWMON, "power_meter", r"Grace Power Socket (\d+)", "package-{}", "package", "one per socket", _GRACE),
    Layout(_HWMON, "power_meter", "#1", "server", "server", "one", _ACPI_METER, condition=_WHOLE_METER),
    Layout(_HWMON, "amd_energy|zenergy", r"Esocket(\d+)", "package-{}", "package", "one per socket", _AMD_ENERGY),
    Layout(_HWMON, "amd_energy|zenergy", r"Ecore(\d+)", "core{}", "core", "-", _AMD_CORES, "package-0"),
    Layout(_HWMON, "fam15h_power", "#1", "package-0", "package", "one per socket", _FAM15H),
    *(
        Layout(_HWMON, "zenpower", label, label, "rail", "one per socket", "zenpower's README: independent supplies")
        for label in ("SVI2_P_Core", "SVI2_P_SoC")
    ),
    *(
        Layout(_HWMON, "apm_xgene", f"#{n}", name, "rail", "one per socket", _XGENE)
        for n, name in enumerate(("CPU power", "IO power"), 1)
    ),
    *(
        Layout(_HWMON, "smpro(_hwmon)?", f"#{n}", name, "rail", "one per socket", _SMPRO)
        for n, name in enumerate(("Core VRD", "SoC VRD", "DIMM VRD1", "DIMM VRD2", "RCA VRD"), 1)
    ),
    Layout(_HWMON, "macsmc_hwmon", "Total System Power", "server", "server", "one", _MACSMC),
    Layout(_HWMON, "macsmc_hwmon", "AC Input Power", "server", "server", "one", _MACSMC, condition=_NO_BATTERY),
    Layout(_HWMON, "macsmc_hwmon", ".+", "{}", "rail", "-", _MACSMC, "server"),
    Layout(_HWMON, "corsairpsu", "#1", "supply", "supply", "any", "Documentation/hwmon/corsair-psu.rst"),
    Layout(
        _HWMON, "corsairpsu", ".+", "supply {}", "rail", "-", "Documentation/hwmon/corsair-psu.rst: rails", "supply"
    ),
    Layout(_HWMON, "ibmpowernv", "System", "server", "server", "one", "Documentation/hwmon/ibmpowernv.rst"),
    Layout(_HWMON, "ibmpowernv", ".+", "{}", "rail", "-", "Documentation/hwmon/ibmpowernv.rst", "server"),
    Layout(_HWMON, "ina3221", "VDD_IN|POM_5V_IN", "server", "server", "one", _JETSON, condition=_TEGRA),
    Layout(_HWMON, "ina3221", ".+", "{}", "rail", "-", _JETSON, "server", condition="as above"),
    Layout(_HWMON, "ina238", "#1", "server", "server", "one", _THOR, condition=_TEGRA264),
    Layout(_HWMON, SUPPLIES, r"pin\d*", "supply", "supply", "any", _SUPPLY_DRIVERS),
    Layout(_HWMON, SUPPLIES, r"pout\d*", "supply {}", "supply", "any", _SUPPLY_DRIVERS, "supply", condition="no pin"),
    Layout(("battery",), "power_supply", ".+", "", "battery", "any", _BATTERY, condition=_DISCHARGING),
    Layout(("ipmi",), "ipmitool, ipmi-dcmi", "server", "", "server", "one", "DCMI 1.5, 6.6.1 Get Power Reading"),
    Layout(("ipmi",), "ipmitool sensor", _IPMI_SERVER, "server", "server", "one", _IPMI, condition=_NO_DCMI),
    Layout(("ipmi",), "ipmitool sensor", _IPMI_SUPPLIES, "supply {}", "supply", "any", _IPMI, condition=_NO_DCMI),
    Layout(("host",), "exporter", ".+", "", "server", "one", "powerprof's and Kepler's documentation"),
    Layout(("meter_log",), "CSV", ".+", "", "wall", "one", "the user names the log"),
)
# The sums need scopes of these; `core`, `device`, `other` and `model` are in no measured sum.
SUMMED: tuple[Scope, ...] = ("wall", "server", "supply", "battery", "psys", "package", "dram", "rail")


class Topology(msgspec.Struct, frozen=True):
    """The dies of each CPU package, and the vendor of the CPUs. Empty and None if the host does not show them."""

    dies: Mapping[int, frozenset[int]] = msgspec.field(default_factory=dict)
    vendor: str | None = None


UNKNOWN_TOPOLOGY = Topology()


def read_topology() -> Topology:
    """Return the topology of this host, or of the recorded host in POWERPROF_SYSFS."""
    folder = paths.sysfs() / "devices/system/cpu"
    # A recorded sysfs without its procfs has no vendor: /proc/cpuinfo would be another host's.
    procfs = paths.procfs() if paths.has_one_host() else None
    return _read_topology(str(folder), None if procfs is None else str(procfs), try_text(folder / "online") or "")


@lru_cache(maxsize=8)
def _read_topology(folder: str, procfs: str | None, online: str) -> Topology:
    from pathlib import Path

    dies: dict[int, set[int]] = {}
    for cpu in Path(folder).glob("cpu[0-9]*/topology"):
        package = try_int(cpu / "physical_package_id")
        if package is not None and package >= 0:
            dies.setdefault(package, set()).add(max(try_int(cpu / "die_id") or 0, 0))
    text = "" if procfs is None else (try_text(Path(procfs) / "cpuinfo") or "")
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.M)
    return Topology({n: frozenset(ids) for n, ids in dies.items()}, vendor[1] if vendor else None)


def rapl_scope(name: str) -> Scope:
    """Return the scope of a RAPL zone by its name, as in powercap's `name` files. `other` for names of no kernel."""
    rows = [row for row in LAYOUTS if "turbostat" in row.sources and re.fullmatch(row.channel, name)]
    return rows[0].scope if rows else "other"
