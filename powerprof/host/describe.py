# SPDX-License-Identifier: Apache-2.0
"""What a host is, for the record of a run: two runs are comparable only where these agree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from powerprof.measure import cpuidle
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_text

_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/run/systemd/container"))


class HostDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A host. What cannot be read is None; `virtualisation` None means that no hypervisor shows itself."""

    hostname: str | None
    kernel: str | None
    machine: str | None
    distribution: str | None
    boot_id: str | None
    cpu_vendor: str | None
    cpu_model: str | None
    cpu_family: int | None
    cpu_model_number: int | None
    cpu_stepping: int | None
    cpus: int | None
    memory_bytes: int | None
    virtualisation: str | None
    container: bool | None
    idle_driver: str | None
    idle_governor: str | None
    frequency_driver: str | None
    frequency_governor: str | None
    smt_active: bool | None
    mitigations: dict[str, str]


def _cpuinfo() -> dict[str, str]:
    """The fields of the first CPU; the names differ per architecture, absent ones are absent."""
    text = try_text(paths.procfs() / "cpuinfo") or ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def virtualisation() -> str | None:
    """Who runs this guest, as far as it can be known; None on bare metal."""
    system = paths.sysfs()
    flagged = "hypervisor" in _cpuinfo().get("flags", "").split()
    kind = try_text(system / "hypervisor/type")
    # Only KVM's guests have this clock; the flag alone does not name the hypervisor.
    clocks = try_text(system / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    if not kind and "kvm-clock" in clocks:
        kind = "kvm"
    if not flagged and not kind:
        return None
    dmi = [try_text(system / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    maker = " ".join(word for word in dmi if word)
    return f"{kind or 'hypervisor'}{f' ({maker})' if maker else ''}"


def _distribution() -> str | None:
    if not paths.is_this_host():
        return None
    for line in (try_text(Path("/etc/os-release")) or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return None


def _memory_bytes() -> int | None:
    for line in (try_text(paths.procfs() / "meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            kibibytes = _number(line.split()[1]) if len(line.split()) > 1 else None
            return None if kibibytes is None else kibibytes * 1024
    return None


def _cpus() -> int | None:
    try:
        return len(cpuidle.online_cpus()) or None
    except PowerprofError:
        return None


def _mitigations() -> dict[str, str]:
    """What the kernel does against each flaw of the CPU; "Not affected" is left out."""
    folder = paths.sysfs() / "devices/system/cpu/vulnerabilities"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return {}
    texts = {name: try_text(folder / name) for name in names}
    return {name: text for name, text in texts.items() if text and text != "Not affected"}


def describe() -> HostDescription:
    """This host, or the recorded one that POWERPROF_SYSFS and POWERPROF_PROCFS show. Never fails."""
    system, kernel = paths.sysfs() / "devices/system/cpu", paths.procfs() / "sys/kernel"
    fields = _cpuinfo()
    governors = [try_text(system / f"cpuidle/current_governor{suffix}") for suffix in ("", "_ro")]
    smt = try_text(system / "smt/active")
    here = paths.is_this_host()
    return HostDescription(
        hostname=try_text(kernel / "hostname"),
        kernel=try_text(kernel / "osrelease"),
        machine=os.uname().machine if here else None,
        distribution=_distribution(),
        boot_id=try_text(kernel / "random/boot_id"),
        cpu_vendor=fields.get("vendor_id") or fields.get("CPU implementer"),
        cpu_model=fields.get("model name") or fields.get("Model"),
        cpu_family=_number(fields.get("cpu family")),
        cpu_model_number=_number(fields.get("model")),
        cpu_stepping=_number(fields.get("stepping")),
        cpus=_cpus(),
        memory_bytes=_memory_bytes(),
        virtualisation=virtualisation(),
        container=any(mark.exists() for mark in _CONTAINER_MARKS) if here else None,
        idle_driver=cpuidle.read_driver(),
        idle_governor=next((governor for governor in governors if governor), None),
        frequency_driver=try_text(system / "cpu0/cpufreq/scaling_driver"),
        frequency_governor=try_text(system / "cpu0/cpufreq/scaling_governor"),
        smt_active=None if smt is None else smt == "1",
        mitigations=_mitigations(),
    )


def host_record() -> dict[str, Any]:
    """`describe` as a saved run keeps it."""
    record: dict[str, Any] = msgspec.to_builtins(describe())
    return record


# One capability of a host as a value.

Status = Literal["ok", "missing", "none", "limited"]


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this host can do one thing.

    `ok`: it was tried or read and works. `missing`: the `remedy` (a command to type) provides it. `none`:
    this host has no such hardware, nothing to fix. `limited`: it works in part, or only for root.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Capability:
    """It works."""
    return Capability(name=name, status="ok", detail=detail)


def missing(name: str, detail: str, remedy: str | None = None) -> Capability:
    """It could be there and is not."""
    return Capability(name=name, status="missing", detail=detail, remedy=remedy)


def none(name: str, detail: str) -> Capability:
    """This host has no such thing."""
    return Capability(name=name, status="none", detail=detail)


def limited(name: str, detail: str, remedy: str | None = None) -> Capability:
    """It works in part."""
    return Capability(name=name, status="limited", detail=detail, remedy=remedy)
