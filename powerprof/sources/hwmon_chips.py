# SPDX-License-Identifier: Apache-2.0
"""What the power and energy channels of hwmon chips measure, and what contains what: knowledge, not guesses at labels.

Sources are the kernel's Documentation/hwmon/NAME.rst and drivers, named at each entry. A chip that is not here is
listed as `other/…` and is in no sum: a label such as "total" says total of what only to its author.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from powerprof.records import Scope


@dataclass(frozen=True)
class Role:
    """The domain under which a channel is reported, what it measures, and the domain of its chip that includes it.

    Scope `server` is the whole machine's input; `supply` that of one of its power supplies; `package` a socket; `rail`
    a part beside the chip's other rails; `device` and `other` are in no sum.
    """

    domain: str
    scope: Scope
    inside: str | None = None


# A channel's number and label (None where it has none), and the labels of all of the chip's channels.
Reader = Callable[[str, str | None, Mapping[str, str]], Role]


def _server(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("server", "server")


def _amd_energy(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    socket = re.fullmatch(r"Esocket(\d+)", label or "")
    if socket:
        return Role(f"package-{int(socket[1])}", "package")
    core = re.fullmatch(r"Ecore(\d+)", label or "")
    if core is None:
        return Role(f"other/amd_energy {label or number}", "other")
    # Cores are numbered through all sockets: whose they are is known where there is one.
    sockets = [text for text in labels.values() if text.startswith("Esocket")]
    return Role(f"core{int(core[1])}", "core", "package-0" if sockets == ["Esocket0"] else None)


def _fam15h(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    return Role("package-0", "package") if number == "1" else Role(f"other/fam15h_power {number}", "other")


def _corsair(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    """Channel 1 is the total, the others lie inside it."""
    return Role("supply", "supply") if number == "1" else Role(f"supply {label or number}", "rail", "supply")


def _rails(names: Mapping[str, str]) -> Reader:
    """Rails beside each other, by channel number."""

    def read(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
        return Role(names[number], "rail") if number in names else Role(f"other/{label or number}", "other")

    return read


def _zenpower(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label in ("SVI2_P_Core", "SVI2_P_SoC"):
        return Role(label, "rail")
    return Role(f"other/zenpower {label or number}", "other")


def _macsmc(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    known = set(labels.values())
    if label == "Total System Power":
        return Role("server", "server")
    if label == "AC Input Power":
        # On a laptop it charges the battery as well: the machine's only where nothing better is there.
        return Role("other/AC Input Power", "other") if "Total System Power" in known else Role("server", "server")
    if {"Total System Power", "AC Input Power"} & known:
        return Role(label or number, "rail", "server")
    return Role(f"other/macsmc {label or number}", "other")


def _power_supply(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if re.fullmatch(r"pin\d*", label or ""):
        return Role("supply", "supply")
    has_input = any(re.fullmatch(r"pin\d*", text) for text in labels.values())
    if re.fullmatch(r"pout\d*", label or ""):
        # Without an input power the output is the nearest to the machine's; several outputs are rails of it.
        outputs = [text for text in labels.values() if text.startswith("pout")]
        if has_input:
            return Role(f"supply {label}", "rail", "supply")
        return Role("supply" if len(outputs) == 1 else f"supply {label}", "supply")
    return Role(f"other/supply {label or number}", "other")


def _jetson(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    whole = [text for text in labels.values() if text in _JETSON_INPUTS]
    if label in _JETSON_INPUTS:
        return Role("server", "server")
    return Role(label or number, "rail", "server") if whole else Role(f"other/ina3221 {label or number}", "other")


def _powernv(number: str, label: str | None, labels: Mapping[str, str]) -> Role:
    if label == "System":
        return Role("server", "server")
    if "System" in labels.values():
        return Role(label or number, "rail", "server")
    return Role(f"other/{label or number}", "other")


# NVIDIA Jetson Linux Developer Guide, "Platform Power and Performance", Power Monitor Channels: the module's input.
# SYS_VIN_HV of the AGX modules is one of two.
_JETSON_INPUTS = ("VDD_IN", "POM_5V_IN")

_CHIPS: dict[str, Reader] = {
    # acpi_power_meter.rst (prefix power_meter): the ACPI 4.0 meter of the whole machine, mean over an interval.
    "power_meter": _server,
    # amd_energy.rst (Linux 5.8 to 5.17): Ecore000 … and Esocket0 …, a socket includes its cores.
    "amd_energy": _amd_energy,
    # fam15h_power.rst: power1_input is the power of the processor's node.
    "fam15h_power": _fam15h,
    # zenpower (not in the kernel; its README): core and SoC supplies of a socket, beside each other.
    "zenpower": _zenpower,
    # xgene-hwmon.rst: power1 is all CPUs, power2 the I/O, beside each other.
    "apm_xgene": _rails({"1": "CPU power", "2": "IO power"}),
    # smpro-hwmon.c (Ampere Altra; its document says smpro): regulators beside each other; 3 and 4 feed the memory.
    "smpro_hwmon": _rails({"1": "Core VRD", "2": "SoC VRD", "3": "DIMM VRD1", "4": "DIMM VRD2", "5": "RCA VRD"}),
    # macsmc-hwmon.rst; labels from arch/arm64/boot/dts/apple/hwmon-common.dtsi and hwmon-laptop.dtsi.
    "macsmc_hwmon": _macsmc,
    # corsair-psu.rst: power1 total power usage, 2 to 4 its 12 V, 5 V and 3.3 V rails.
    "corsairpsu": _corsair,
    # ibmpowernv.rst: the label System is the machine's.
    "ibmpowernv": _powernv,
    # ina3221.rst: three rails each; what they feed is the board's to say, and only the Jetson's is known.
    "ina3221": _jetson,
}
# Power supplies by PMBus (labels pin and poutN), by the names in their drivers' i2c_device_id, or by the device tree's
# without the maker, which hwmon shows: ibm-cffps.c, inspur-ipsps.c, dps920ab.c, fsp-3y.c, bel-pfe.c, acbel-fsg032.c,
# crps.c (crps185), bpa-rs600.c, aps-379.c, d1u74t.c, hac300s.c. Other PMBus chips feed parts of a board.
_SUPPLIES = re.compile(
    r"(ibm_)?cffps[12]?|ipsps1|dps920ab|ym2151e|yh5151e|pfe(1100|3000)|(acbel_)?fsg032|(intel_)?crps185"
    r"|bp[ad][-_]rs600|aps[-_]379|d1u74t|hac300s"
)
# Cards, disks and fans (drivers/acpi/fan_hwmon.c): shown, and never the host's CPUs'. An SFP's power is its light's.
_DEVICES = re.compile(
    r"amdgpu|radeon|nouveau|i915|xe$|nvme|drivetemp|mlx|bnxt|nvidia|habanalabs|sfp|nfp|acpi_fan", re.I
)


def role_of(chip: str, number: str, label: str | None, labels: Mapping[str, str], *, usual: bool = True) -> Role:
    """What a channel of that chip measures. `labels` are those of all its power channels, by number.

    `usual`: whether this one is where the table has it, as far as the machine says.
    """
    chip = "smpro_hwmon" if chip == "smpro" else chip
    if chip in _CHIPS and usual:
        return _CHIPS[chip](number, label, labels)
    if _SUPPLIES.fullmatch(chip):
        return _power_supply(number, label, labels)
    if _DEVICES.match(chip):
        return Role(f"device/{label or chip}", "device")
    name = f"{chip} {label}" if label else chip if number == "1" else f"{chip} {number}"
    return Role(f"other/{name}", "other")
