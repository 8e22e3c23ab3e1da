# SPDX-License-Identifier: Apache-2.0
"""The recognised layouts of meters. A total needs a set of meters that matches them; any other set has no total.

`LAYOUTS` has one row per channel that measures the host or a part of it, with its evidence. Roles of sensor channels
and scopes of RAPL zones come from this table, and `find_flaws` compares a meter's domains with it and with the sockets
and dies of the CPU topology. docs/reference/meters.md prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from powerprof.model.records import Scope
from powerprof.model.text import join_words
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
_PERF = "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs: one counter per socket; codecarbon issue 1274"
_DIES = r"package-(\d+)-die-(\d+)"
# One counter per socket (Linux, "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs"; a Threadripper 1950X in
# codecarbon's issue 1274). Powercap and perf list it once per die.
MIRRORED_VENDORS = "AuthenticAMD|HygonGenuine"
# PMBus power supplies, by the names in their drivers' i2c_device_id, or by the device tree's name without the maker, as
# hwmon shows it. Other PMBus chips feed parts of a board.
_SUPPLIES = (
    r"(ibm_)?cffps[12]?|ipsps1|dps920ab|ym2151e|yh5151e|pfe(1100|3000)|(acbel_)?fsg032|(intel_)?crps185"
    r"|bp[ad][-_]rs600|aps[-_]379|d1u74t|hac300s"
)
_SUPPLY_DRIVERS = (
    "Documentation/hwmon/pmbus.rst; ibm-cffps.c, inspur-ipsps.c, dps920ab.c, fsp-3y.c, bel-pfe.c, acbel-fsg032.c, "
    "crps.c, bpa-rs600.c, aps-379.c, d1u74t.c, hac300s.c"
)
_AMD_CORES = "Documentation/hwmon/amd_energy.rst"
_AMD_ENERGY = f"{_AMD_CORES} (Linux 5.8 to 5.17)"
_FAM15H = "drivers/hwmon/fam15h_power.c (fam15h_power_is_internal_node0): the first node of a socket"
_BATTERY = "Documentation/power/power_supply_class.rst; Documentation/ABI/testing/sysfs-class-power"
_ACPI_METER = "Documentation/hwmon/acpi_power_meter.rst"
_WHOLE_METER = "names no part in power1_oem_info or measures/, and is not a battery's"
_NO_BATTERY = "no Total System Power, and no battery that it may charge"
_TEGRA = "the device tree names nvidia,tegra"
_DISCHARGING = "all discharge, no supply is online, serial numbers differ"
_SMPRO = "drivers/hwmon/smpro-hwmon.c: independent regulators of a socket, 3 and 4 feed the memory"
_JETSON = "NVIDIA Jetson Linux Developer Guide, Platform Power and Performance; SYS_VIN_HV is one of two inputs"
_MACSMC = "Documentation/hwmon/macsmc-hwmon.rst; arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi"

LAYOUTS: tuple[Layout, ...] = (
    Layout(_RAPL, "intel-rapl, power PMU", r"package-(\d+)", "", "package", "one per socket", _POWERCAP),
    Layout(_RAPL, "intel-rapl, power PMU", _DIES, "", "package", "one per die", _POWERCAP),
    Layout(_RAPL, "intel-rapl, power PMU", _DIES, "", "package", "one per socket", _PERF, vendor=MIRRORED_VENDORS),
    Layout(_RAPL, "intel-rapl, power PMU", "dram", "", "dram", "one per socket", "Intel SDM 15.10.1: outside package"),
    Layout(_RAPL, "intel-rapl, power PMU", r"psys(-(\d+|%d))?", "", "psys", "one per socket", _POWERCAP),
    Layout(
        _RAPL, "intel-rapl, power PMU", "core|uncore", "", "core", "-", "Intel SDM 15.10.1: PP0 and PP1", "package-N"
    ),
    Layout(("turbostat",), "summary row", ALL_PACKAGES, "", "package", "one", "turbostat(8): the row of all CPUs"),
    Layout(_HWMON, "power_meter", "#1", "server", "server", "one", _ACPI_METER, condition=_WHOLE_METER),
    Layout(_HWMON, "amd_energy", r"Esocket(\d+)", "package-{}", "package", "one per socket", _AMD_ENERGY),
    Layout(_HWMON, "amd_energy", r"Ecore(\d+)", "core{}", "core", "-", _AMD_CORES, "package-0"),
    Layout(_HWMON, "fam15h_power", "#1", "package-0", "package", "one per socket", _FAM15H),
    *(
        Layout(_HWMON, "zenpower", label, label, "rail", "one per socket", "zenpower's README: independent supplies")
        for label in ("SVI2_P_Core", "SVI2_P_SoC")
    ),
    *(
        Layout(_HWMON, "apm_xgene", f"#{n}", name, "rail", "one", "Documentation/hwmon/xgene-hwmon.rst")
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
    Layout(_HWMON, _SUPPLIES, r"pin\d*", "supply", "supply", "any", _SUPPLY_DRIVERS),
    Layout(_HWMON, _SUPPLIES, r"pout\d*", "supply {}", "supply", "any", _SUPPLY_DRIVERS, "supply", condition="no pin"),
    Layout(("battery",), "power_supply", ".+", "", "battery", "any", _BATTERY, condition=_DISCHARGING),
    Layout(("ipmi",), "ipmitool", ".+", "", "server", "one", "DCMI 1.5, 6.6.1 Get Power Reading"),
    Layout(("host",), "exporter", ".+", "", "server", "one", "powerprof's and Kepler's documentation"),
    Layout(("meter_log",), "CSV", ".+", "", "wall", "one", "the user names the log"),
)

# Cards, disks and fans (drivers/acpi/fan_hwmon.c) are shown and never counted as CPUs. An SFP's power is its light's.
_DEVICES = re.compile(
    r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp|nfp|acpi_fan", re.I
)
# PMBus monitors, hot-swap controllers and regulators of boards (Documentation/hwmon, drivers/hwmon/pmbus).
_BOARD_CHIPS = re.compile(
    r"adm1\d+|lm25\d+|lm506\d|ltc?\d+|ltm\d+|tps\d+|isl\d+|raa\d+|xdpe\w+|mpq?\d+|ir\w+|max\d+|ucd\d+|zl\d+|tda\d+"
    r"|q54sj\w+|pim\d+|lx\d+|bmr\d+|ina\d+|pxe1610|pli1209\w*|pm6764\w*|stpddc\w*|sbrmi|occ|aem\d?",
    re.I,
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


# Roles of hwmon channels.


class Role(msgspec.Struct, frozen=True):
    """The meaning of a channel.

    Attributes:
        domain: the name in readings.
        inside: the domain of the same chip that includes it.
        flaw: the reason why its tier has no total.
    """

    domain: str
    scope: Scope
    inside: str | None = None
    flaw: str | None = None


def find_roles(chip: str, labels: Mapping[str, str | None], *, doubt: str | None = None) -> dict[str, Role]:
    """Return the roles of a chip's channels by number. `labels` has None for a channel without a label.

    With `doubt` the machine uses the chip for another purpose than the table lists: all channels are in no sum.
    """
    rows = [row for row in LAYOUTS if row.sources == _HWMON and re.fullmatch(row.driver, chip)]
    if not rows or doubt is not None:
        return {number: _unlisted_role(chip, number, label) for number, label in labels.items()}
    matches: dict[Layout, list[str]] = {}
    roles: dict[str, Role] = {}
    for number, label in labels.items():
        row = next((row for row in rows if _is_channel(row, number, label, _needs_labels(rows))), None)
        if row is not None:
            matches.setdefault(row, []).append(number)
            continue
        # A label of no row is a known part. A channel without a label may be a part of the sum.
        roles[number] = Role(f"other/{chip} {label or number}", "other")
        if label is None and _needs_labels(rows):
            flaw = f"channel {number} of {chip} has no label, so its part of the machine is unknown"
            roles[number] = Role(f"{chip} channel {number}", _summed_rows(rows)[0].scope, flaw=flaw)
    for row, numbers in matches.items():
        for number in numbers:
            roles[number] = _make_role(row, rows, number, labels, matches)
    missing = [row for row in rows if row.scope == "rail" and row.count != "-" and row not in matches]
    if missing and len(missing) < len(rows):
        flaw = f"{chip} shows no {join_words([row.domain for row in missing])}, a part of the socket"
        roles = {n: Role(r.domain, r.scope, r.inside, r.flaw or flaw) for n, r in roles.items()}
    return roles


def _make_role(
    row: Layout,
    rows: Sequence[Layout],
    number: str,
    labels: Mapping[str, str | None],
    matches: Mapping[Layout, list[str]],
) -> Role:
    label = labels[number] or number
    numbers = matches[row]
    named = re.fullmatch(row.channel, label)
    text = str(int(named[1])) if named is not None and named.groups() and named[1].isdigit() else label
    domain = row.domain.format(text)
    if row.count == "-":
        inside = {other.domain.format("0") for other in matches if other.count != "-"}
        if row.scope == "core":
            sockets = [n for other, ns in matches.items() if other.scope == "package" for n in ns]
            return Role(domain, "core", row.inside if len(sockets) == 1 and row.inside in inside else None)
        return Role(domain, "rail", row.inside) if row.inside in inside else Role(f"other/{domain}", "other")
    if row.inside is not None:  # the output of a supply
        if any(other.domain == row.inside for other in matches):
            return Role(domain, "rail", row.inside)
        if [labels[n] for n in numbers].count(labels[number]) > 1:
            return Role(f"{domain} {number}", row.scope, flaw=f"one chip has several channels {label}")
        return Role(f"{row.inside} output" if len(numbers) == 1 else domain, row.scope)
    first = next(other for other in rows if other in matches and other.scope == row.scope)
    if row.scope == "server" and row is not first:
        return Role(f"other/{label}", "other")
    if len(numbers) > 1 and "{}" not in row.domain:
        names = join_words([labels[n] or n for n in numbers])
        flaw = f"one chip has {len(numbers)} channels of one kind ({names}): they may add up or be one"
        return Role(f"{domain} {number}", row.scope, flaw=flaw)
    return Role(domain, row.scope)


def _is_channel(row: Layout, number: str, label: str | None, needs_label: bool) -> bool:
    if row.channel.startswith("#"):
        return row.channel == f"#{number}"
    return re.fullmatch(row.channel, label or ("" if needs_label else number)) is not None


def _summed_rows(rows: Sequence[Layout]) -> list[Layout]:
    return [row for row in rows if row.count != "-"]


def _needs_labels(rows: Sequence[Layout]) -> bool:
    return bool(_summed_rows(rows)) and not any(row.channel.startswith("#") for row in rows)


def _unlisted_role(chip: str, number: str, label: str | None) -> Role:
    if _DEVICES.match(chip):
        return Role(f"device/{label or chip}", "device")
    name = f"{chip} {label}" if label else chip if number == "1" else f"{chip} {number}"
    return Role(f"other/{name}", "other")


def is_supply(chip: str) -> bool:
    """Return whether a chip is a power supply of a known driver."""
    return re.fullmatch(_SUPPLIES, chip) is not None


def is_unknown_supply(chip: str, label: str | None) -> bool:
    """Return whether a channel may be the input of a power supply of an unknown driver."""
    is_known = re.fullmatch(_SUPPLIES, chip) or _BOARD_CHIPS.fullmatch(chip) or _DEVICES.match(chip)
    return not is_known and re.fullmatch(r"pin\d*", label or "") is not None


# Complete sets.


def find_flaws(source: str, domains: Sequence[tuple[str, Scope]], topology: Topology) -> dict[Scope, str]:
    """Return the reason per scope why a meter's domains (name, scope) are no recognised layout. Empty if they are one.

    A set of packages without its dram, or the reverse, is judged as one tier: a flaw of either is of both.
    """
    by_scope: dict[Scope, list[str]] = {}
    for domain, scope in domains:
        if scope in SUMMED:
            by_scope.setdefault(scope, []).append(_base(domain))
    flaws: dict[Scope, str] = {}
    for scope, names in by_scope.items():
        unlisted = [name for name in names if _row_of(source, scope, name) is None]
        flaw = f"{join_words(unlisted)} by {source} is in no recognised layout" if unlisted else None
        flaw = flaw or _check_count(source, scope, names, by_scope, topology)
        if flaw is not None:
            flaws[scope] = flaw
    if "package" in flaws or "dram" in flaws:
        flaws.setdefault("dram", flaws.get("package", ""))
        flaws.setdefault("package", flaws["dram"])
    return flaws


def _base(domain: str) -> str:
    """Return a domain's name without the prefix and suffix that make it unique."""
    return domain.rsplit("/", 1)[-1].split("@", 1)[0]


def _row_of(source: str, scope: Scope, name: str) -> Layout | None:
    for row in LAYOUTS:
        pattern = re.escape(row.domain).replace(r"\{\}", ".+") + r"( \S+)?" if row.domain else row.channel
        if source in row.sources and row.scope == scope and re.fullmatch(pattern, name):
            return row
    # A channel without a label has the chip's name, and a flaw.
    return next((row for row in LAYOUTS if source in row.sources and row.scope == scope and " channel " in name), None)


def _check_count(
    source: str, scope: Scope, names: Sequence[str], by_scope: Mapping[Scope, Sequence[str]], topology: Topology
) -> str | None:
    row = _row_of(source, scope, names[0])
    sockets = len(topology.dies)
    if row is None or row.count == "any":
        return None
    if row.count == "one" and scope != "rail":
        return None if len(names) == 1 else f"{len(names)} meters each measure a whole machine"
    if scope == "package" and len(set(names)) == len(names):
        return _check_packages(names, topology)
    if scope == "dram":
        sockets = len(by_scope.get("package", ())) or sockets
    elif scope == "psys":
        sockets = sockets or len({re.sub(r"-die-\d+", "", name) for name in by_scope.get("package", ())})
    counts = {names.count(name) for name in names} if scope == "rail" else {len(names)}
    expected = 1 if row.count == "one" else sockets
    if len(counts) > 1 or (expected and counts != {expected}):
        shown = min(counts)
        if expected and shown < expected:
            return f"{scope} is shown for {shown} of {expected} sockets"
        return f"{max(counts)} {scope} channels for {expected or shown} sockets"
    return None


def _check_packages(names: Sequence[str], topology: Topology) -> str | None:
    dies: dict[int, list[int | None]] = {}
    for name in names:
        match = re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", name)
        if match is not None:
            dies.setdefault(int(match[1]), []).append(None if match[2] is None else int(match[2]))
    # Sockets are numbered from 0 in a recording without a topology.
    expected = set(topology.dies) or set(range(max(dies, default=0) + 1))
    missing, extra = sorted(expected - set(dies)), sorted(set(dies) - expected)
    if missing:
        return f"{join_words([f'package-{n}' for n in missing])} of {len(expected)} sockets has no counter here"
    if extra:
        return f"{join_words([f'package-{n}' for n in extra])} is not a socket of this host"
    for package, numbers in dies.items():
        if numbers == [None]:
            continue
        wanted = topology.dies.get(package) or frozenset(range(len(numbers)))
        if set(numbers) != wanted:
            return f"package-{package} has {len(wanted)} dies and counters of {len(numbers)}"
    return None
