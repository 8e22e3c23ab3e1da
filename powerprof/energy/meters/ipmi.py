# SPDX-License-Identifier: Apache-2.0
"""IPMI as a meter: the whole server's power by its management controller, seconds old and rounded to watts.

One sample runs `ipmitool dcmi power reading`.
"""

from __future__ import annotations

import re
from pathlib import Path

from powerprof.energy.meters.meter import DomainEnergy, SampledMeter, UnusableMeterError, require_this_host
from powerprof.measure.energy_series import PowerSample, power_energy
from powerprof.system import program_search, programs
from powerprof.system.errors import CapabilityError, PowerprofError

_IPMI_INTERVAL_S = 5.0  # the controllers' sampling period (DCMI 1.5, 6.6.1)
_TIMEOUT_S = 10.0
_DCMI_POWER = re.compile(r"^\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.I | re.M)
_DCMI_STATE = re.compile(r"^\s*Power reading state is:\s*(\w+)", re.I | re.M)
_NO_DCMI = re.compile(r"DCMI request failed", re.I)


def find_server_watts(text: str) -> float | None:
    """Return the server's watts in the output of `ipmitool dcmi power reading`. None without a valid reading."""
    power = _DCMI_POWER.search(text)
    # A running server draws some power: 0 stands for no reading.
    return float(power[1]) or None if power and _find_state(text) == "activated" else None


def _find_state(text: str) -> str:
    state = _DCMI_STATE.search(text)
    return "activated" if state is None else state[1].lower()


class IpmiMeter(SampledMeter[PowerSample]):
    """The management controller of this host. One sample runs ipmitool (about 50 ms)."""

    name = "ipmi"
    max_interval_s: float | None = _IPMI_INTERVAL_S

    def __init__(self, program: Path) -> None:
        super().__init__(
            1, ["ipmi: the controller's figures are seconds old and rounded: use windows of 30 s and more"]
        )
        self._program = program

    def sample(self, now_s: float) -> None:
        try:
            watts = find_server_watts(_read_power(self._program))
        except PowerprofError:
            watts = None
        self._samples[0].append(PowerSample(now_s, watts))

    def is_counting(self) -> bool | None:
        return any(s.watts for s in self._samples[0]) if self._samples[0] else None

    def energies(self, start_s: float, end_s: float) -> list[DomainEnergy]:
        return [DomainEnergy("server", "server", power_energy(self._samples[0], start_s, end_s, 3 * _IPMI_INTERVAL_S))]


def _read_power(program: Path) -> str:
    return programs.run([program, "dcmi", "power", "reading"], timeout_s=_TIMEOUT_S).stdout


def open_ipmi() -> IpmiMeter:
    """Open the management controller. Raise CapabilityError without ipmitool, the device or a reading."""
    require_this_host("ipmi: it reads the running machine")
    program = program_search.need("ipmitool", "ipmitool")
    try:
        text = _read_power(program)
    except PowerprofError as error:
        if _NO_DCMI.search(error.message):
            raise UnusableMeterError(
                f"ipmi: the controller has no DCMI power reading ({error.message})",
                "its sensors may have one: write it to a CSV log with the columns time,watts and add --meter FILE",
            ) from error
        raise UnusableMeterError(
            f"ipmi: no management controller answers ({error.message})", "modprobe ipmi_devintf ipmi_si; run as root"
        ) from error
    if (state := _find_state(text)) != "activated":
        raise UnusableMeterError(
            f"ipmi: the controller's power reading is {state}", "ipmitool dcmi power activate, or another meter"
        )
    if find_server_watts(text) is None:
        raise CapabilityError("ipmi: the controller reports no power (0 W)", "use another meter (--meter FILE)")
    return IpmiMeter(program)
