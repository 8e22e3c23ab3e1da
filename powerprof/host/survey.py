# SPDX-License-Identifier: Apache-2.0
"""Every capability in the order of a reader's questions: can it measure, trace, meter; then the programs."""

from __future__ import annotations

from collections.abc import Callable

from powerprof.errors import PowerprofError
from powerprof.files import reason_of
from powerprof.host import bpf, kernel, meters, tools
from powerprof.host.capability import Capability, missing


def _look(name: str, probe: Callable[[], Capability]) -> Capability:
    """A capability is a value even where looking for it fails."""
    try:
        return probe()
    except PowerprofError as error:
        return missing(name, error.message, error.hint)
    except OSError as error:
        return missing(name, f"cannot look for it: {reason_of(error)} ({error.filename})")


def capabilities() -> list[Capability]:
    """What this host can do: about a second, most of it the BPF program that is tried. Changes nothing."""
    of_energy = [
        _look("rapl", meters.rapl),
        _look("perf_power", meters.perf_power),
        _look("hwmon", meters.hwmon),
        _look("battery", meters.battery),
        _look("ipmi", meters.ipmi),
    ]
    return [
        _look("residency", kernel.residency),
        _look("tracing", bpf.tracing),
        _look("stacks", bpf.stacks),
        _look("energy", lambda: meters.energy(of_energy)),
        _look("mariadbd", tools.mariadbd),
        _look("sysbench", tools.sysbench),
        _look("privileges", kernel.privileges),
        _look("bcc", bpf.bcc),
        _look("headers", bpf.headers),
        _look("btf", kernel.btf),
        _look("tracefs", kernel.tracefs),
        *of_energy,
        _look("powertop", tools.powertop),
        _look("turbostat", tools.turbostat),
        _look("bpftrace", tools.bpftrace),
        _look("dtrace", tools.dtrace),
    ]
