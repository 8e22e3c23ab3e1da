# SPDX-License-Identifier: Apache-2.0
"""Whether this host is a virtual machine, and of which hypervisor."""

from __future__ import annotations

from powerprof.system import paths
from powerprof.system.files import try_text


def read_cpu_flags() -> list[str]:
    """Return the flags of the first CPU in /proc/cpuinfo; an empty list where it has none (arm64)."""
    lines = (try_text(paths.procfs() / "cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])


def read_virtualisation() -> str | None:
    """Return the hypervisor of this guest, as far as it is visible; None on bare metal."""
    system = paths.sysfs()
    has_flag = "hypervisor" in read_cpu_flags()
    kind = try_text(system / "hypervisor/type")
    # Only guests of KVM have this clock; the flag does not name the hypervisor.
    clocks = try_text(system / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    if not kind and "kvm-clock" in clocks:
        kind = "kvm"
    if not has_flag and not kind:
        return None
    names = [try_text(system / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    maker = " ".join(name for name in names if name)
    return f"{kind or 'hypervisor'}{f' ({maker})' if maker else ''}"
