# SPDX-License-Identifier: Apache-2.0
"""The description of a host in the record of a run.

Runs are comparable only if the descriptions agree.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from powerprof.host.idle_limits import IdleLimits, limit_lines, read_idle_limits
from powerprof.measure.cpuidle import online_cpus, read_driver
from powerprof.system import paths
from powerprof.system.errors import PowerprofError
from powerprof.system.files import try_text
from powerprof.system.virtualisation import read_virtualisation

_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/run/systemd/container"))


class HostDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A host. Unreadable values are None; `virtualisation` is None without a visible hypervisor.

    `idle_limits` are the settings that forbid deep idle states, as phrases.
    """

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
    idle_limits: list[str] | None
    frequency_driver: str | None
    frequency_governor: str | None
    smt_active: bool | None
    mitigations: dict[str, str]


def _read_fields(path: Path) -> dict[str, str]:
    """Return the `name: value` lines of a file of procfs; of repeated names the first."""
    fields: dict[str, str] = {}
    for line in (try_text(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _parse_number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def _read_distribution() -> str | None:
    for line in (try_text(Path("/etc/os-release")) or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return None


def _count_cpus() -> int | None:
    try:
        return len(online_cpus()) or None
    except PowerprofError:
        return None


def _read_mitigations() -> dict[str, str]:
    """Return the kernel's mitigation of each flaw of the CPU, without "Not affected"."""
    folder = paths.sysfs() / "devices/system/cpu/vulnerabilities"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return {}
    texts = {name: try_text(folder / name) for name in names}
    return {name: text for name, text in texts.items() if text and text != "Not affected"}


def _read_limits() -> IdleLimits | None:
    try:
        return read_idle_limits()
    except PowerprofError:
        return None


def describe_host() -> HostDescription:
    """Return the description of this host, or of the recording in POWERPROF_SYSFS and POWERPROF_PROCFS."""
    system, kernel = paths.sysfs() / "devices/system/cpu", paths.procfs() / "sys/kernel"
    cpu = _read_fields(paths.procfs() / "cpuinfo")
    memory_kib = _parse_number(_read_fields(paths.procfs() / "meminfo").get("MemTotal", "").partition(" ")[0])
    limits = _read_limits()
    settings = {} if limits is None else limits.settings
    smt = try_text(system / "smt/active")
    is_here = paths.is_this_host()
    return HostDescription(
        hostname=try_text(kernel / "hostname"),
        kernel=try_text(kernel / "osrelease"),
        machine=os.uname().machine if is_here else None,
        distribution=_read_distribution() if is_here else None,
        boot_id=try_text(kernel / "random/boot_id"),
        cpu_vendor=cpu.get("vendor_id") or cpu.get("CPU implementer"),
        cpu_model=cpu.get("model name") or cpu.get("Model"),
        cpu_family=_parse_number(cpu.get("cpu family")),
        cpu_model_number=_parse_number(cpu.get("model")),
        cpu_stepping=_parse_number(cpu.get("stepping")),
        cpus=_count_cpus(),
        memory_bytes=None if memory_kib is None else memory_kib * 1024,
        virtualisation=read_virtualisation(),
        container=any(mark.exists() for mark in _CONTAINER_MARKS) if is_here else None,
        idle_driver=read_driver(),
        idle_governor=settings.get("idle governor"),
        idle_limits=None if limits is None else limit_lines(limits),
        frequency_driver=settings.get("frequency driver"),
        frequency_governor=settings.get("frequency governor"),
        smt_active=None if smt is None else smt == "1",
        mitigations=_read_mitigations(),
    )


def host_record() -> dict[str, Any]:
    """Return the description of this host as saved runs contain it."""
    record: dict[str, Any] = msgspec.to_builtins(describe_host())
    return record
