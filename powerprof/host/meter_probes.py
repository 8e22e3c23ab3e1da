# SPDX-License-Identifier: Apache-2.0
"""Probes of energy meters: each has the verdict and the reason of the automatic choice of `energy`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from powerprof.energy.choice import list_openers, try_meter
from powerprof.energy.meters.meter import Meter
from powerprof.host.capabilities import Capability, limited, missing, none, ok
from powerprof.system import paths
from powerprof.system.virtualisation import read_virtualisation

# turbostat has its own probe: its residency needs no meter.
PROBED = ("rapl", "perf_power", "hwmon", "battery", "ipmi")
_SHOWN_COUNT = 6
# Kernel modules that give a bare machine its meter.
_MODULES = {"rapl": "modprobe intel_rapl_msr"}


def probe_meter(name: str) -> Capability:
    """Return whether a meter has the host's total, or the reason that `energy` gives too."""
    trial = try_meter(name, list_openers())
    if trial.meter is not None:
        domains = _list_domains(trial.meter)
        trial.meter.close()
        return ok(name, domains) if trial.reason is None else limited(name, f"{domains}: no total, {trial.reason}")
    reason = trial.reason or ""
    if trial.remedy:
        return limited(name, reason, trial.remedy)
    if name in _MODULES and paths.is_this_host() and not read_virtualisation():
        return missing(name, reason, _MODULES[name])
    return none(name, reason)


def _list_domains(meter: Meter) -> str:
    now_s = time.monotonic()
    names = [item.domain for item in meter.energies(now_s - 1, now_s)]
    more = len(names) - _SHOWN_COUNT
    return ", ".join(names[:_SHOWN_COUNT]) + (f" and {more} more" if more > 0 else "")


def judge_energy(meters: Sequence[Capability]) -> Capability:
    """Return whether energy is measured on this host, or estimated."""
    working = [meter.name for meter in meters if meter.status == "ok"]
    if working:
        return ok("energy", f"measured by {', '.join(working)}")
    fixable = next((meter for meter in meters if meter.status == "limited" and meter.remedy), None)
    if fixable is not None:
        return limited("energy", f"{fixable.name}: {fixable.detail}", fixable.remedy)
    place = "in this guest" if read_virtualisation() else "on this host"
    return none("energy", f"no meter {place}; estimates only")
