"""The perf PMU `power`: present is not enough. Some guests offer an event that opens and never counts."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from pathlib import Path

from powerprof import paths
from powerprof.errors import PowerprofError
from powerprof.files import read_int, read_text, reason_of, try_text
from powerprof.host import kernel
from powerprof.host.capability import Capability, limited, none, ok
from powerprof.host.describe import virtualisation
from powerprof.sources.cpuidle import parse_cpu_list

_SYSCALL = {"x86_64": 298}  # perf_event_open; no other architecture has this PMU
_LOOK_S = 0.1  # RAPL counters move every millisecond


def _energy_grows(device: Path, event: Path) -> bool:
    """Whether the event counts while this process sleeps. Raises OSError where it does not open."""
    match = re.fullmatch(r"event=(0x[0-9a-f]+)", read_text(event))
    number = _SYSCALL.get(os.uname().machine)
    if match is None or number is None:
        raise PowerprofError(f"cannot read {event} (not an event of this architecture)")
    cpus = parse_cpu_list(try_text(device / "cpumask") or "0", device / "cpumask")
    # struct perf_event_attr, PERF_ATTR_SIZE_VER0: type, size, config, then zeros: counting since the opening.
    attributes = struct.pack("=IIQ", read_int(device / "type"), 64, int(match[1], 16)).ljust(64, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(number, attributes, -1, cpus[0] if cpus else 0, -1, 8)  # 8: PERF_FLAG_FD_CLOEXEC
    if handle < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(event))
    try:
        first = os.read(handle, 8)
        time.sleep(_LOOK_S)
        return os.read(handle, 8) != first
    finally:
        os.close(handle)


def perf_power() -> Capability:
    """RAPL by perf: `power/energy-*/`, each event opened and watched for a tenth of a second."""
    name = "perf-power"
    device = paths.sysfs() / "bus/event_source/devices/power"
    events = sorted(path for path in (device / "events").glob("energy-*") if not path.suffix)
    if not events:
        return none(name, f"no PMU named power {'in this guest' if virtualisation() else 'on this host'}")
    if not paths.is_this_host():
        return kernel.not_this_host(name)
    counting: list[str] = []
    silent: list[str] = []
    for event in events:
        try:
            (counting if _energy_grows(device, event) else silent).append(event.name)
        except PermissionError:
            return limited(name, f"only root may open {event.name}", kernel.run_as_root())
        except OSError as error:
            return limited(name, f"{event.name} cannot be opened ({reason_of(error)})")
    if not counting:
        return limited(name, f"{', '.join(silent)}: present but does not count")
    return ok(name, ", ".join(counting))
