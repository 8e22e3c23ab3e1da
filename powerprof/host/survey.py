# SPDX-License-Identifier: Apache-2.0
"""The capabilities of a host: can it measure, trace and meter, and which programs are installed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from powerprof.energy.choice import find_open_flaw
from powerprof.energy.meters.battery import open_battery
from powerprof.energy.meters.hwmon import find_channels, open_hwmon
from powerprof.energy.meters.meter import Meter
from powerprof.energy.meters.perf_power import open_perf_power
from powerprof.energy.meters.rapl import open_rapl
from powerprof.host.describe import limit_lines, limit_text, read_idle_limits, read_virtualisation
from powerprof.measure import cpuidle
from powerprof.stacks.registers import this_machine
from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import reason_of, try_text
from powerprof.system.next_steps import command_line
from powerprof.system.tasks import check_process_ids
from powerprof.tracing.bpf import features, objects
from powerprof.tracing.bpf.headers import find_kernel_headers
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.types import read_kernel_btf
from powerprof.tracing.idle_program import build_idle_definitions

# Bits of include/uapi/linux/capability.h.
_SYS_PTRACE, _SYS_ADMIN, _PERFMON, _BPF = 19, 21, 38, 39
_NEEDED_CAPABILITIES = {"CAP_BPF": _BPF, "CAP_PERFMON": _PERFMON, "CAP_SYS_PTRACE": _SYS_PTRACE}
_INSTALL_BCC = "apt install python3-bpfcc"
_METER_TRIAL_S = 0.1  # RAPL counters move every millisecond


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this host can do one thing.

    `ok`: it was tried or read and works. `missing`: the `remedy` (a command to type) provides it. `none`:
    this host has no such hardware, nothing to fix. `limited`: it works in part, or only for root.
    """

    name: str
    status: Literal["ok", "missing", "none", "limited"]
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Capability:
    """Return a capability that works."""
    return Capability(name=name, status="ok", detail=detail)


def missing(name: str, detail: str, remedy: str | None = None) -> Capability:
    """Return a capability that the remedy provides."""
    return Capability(name=name, status="missing", detail=detail, remedy=remedy)


def none(name: str, detail: str) -> Capability:
    """Return a capability that this host cannot have."""
    return Capability(name=name, status="none", detail=detail)


def limited(name: str, detail: str, remedy: str | None = None) -> Capability:
    """Return a capability that works in part."""
    return Capability(name=name, status="limited", detail=detail, remedy=remedy)


def _other_host(name: str) -> Capability:
    """Return the value of a capability of the running kernel if sysfs or procfs show another host."""
    return none(name, "not looked for: POWERPROF_SYSFS or POWERPROF_PROCFS show another host")


# The kernel: privileges, idle states, tracepoints, type information.


def effective_capabilities() -> int:
    """Return CapEff of this process as bits; without procfs, all bits for root and none otherwise."""
    for line in (try_text(paths.procfs() / "self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                return int(line.split()[1], 16)
            except (IndexError, ValueError):
                break
    return (1 << 64) - 1 if _is_root() else 0


def _is_root() -> bool:
    return os.geteuid() == 0


def probe_privileges() -> Capability:
    """Return whether this process may load BPF programs and read the memory of other processes."""
    bits = effective_capabilities()
    absent = [name for name, bit in _NEEDED_CAPABILITIES.items() if not bits >> bit & 1]
    # CAP_SYS_ADMIN includes the two capabilities that Linux 5.8 added.
    if bits >> _SYS_ADMIN & 1:
        absent = [name for name in absent if name == "CAP_SYS_PTRACE"]
    account = "root" if _is_root() else f"user {os.geteuid()}"
    if not absent:
        return ok("privileges", f"{account} with {', '.join(_NEEDED_CAPABILITIES)}")
    names = ", ".join(absent)
    if _is_root():
        flags = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in absent)
        return missing("privileges", f"root without {names} (a container?)", f"docker run {flags} …")
    return missing("privileges", f"{account} without {names}; residency needs none of them", command_line("doctor"))


def probe_residency() -> Capability:
    """Return whether there are idle states of cpuidle, or else idle times in /proc/stat."""
    driver = cpuidle.read_driver()
    with cpuidle.CpuidleReader() as reader:
        sets = {tuple(state.name for state in reader.states(cpu)) for cpu in reader.cpus}
    if sets:
        states = " · ".join(", ".join(names) for names in sorted(sets))
        return ok("residency", f"cpuidle, driver {driver or 'unknown'}: {states}")
    if not (try_text(paths.procfs() / "stat") or "").startswith("cpu"):
        return missing("residency", f"neither cpuidle states nor {paths.procfs() / 'stat'}")
    detail = "no cpuidle driver: idle time from /proc/stat, states unknown"
    if read_virtualisation() or not paths.is_this_host():
        return limited("residency", detail)
    return limited("residency", detail, "boot without cpuidle.off=1, idle=poll and nomwait")


def probe_deep_idle() -> Capability:
    """Return whether the host's settings permit its deepest idle states."""
    limits = read_idle_limits()
    settings = ", ".join(f"{name} {value}" for name, value in limits.settings.items())
    lines = limit_lines(limits)
    unread = [f"{what} is unknown" for what in limits.unread]
    if not limits.states:
        return none("deep_idle", "; ".join(["no idle states", *lines, *unread, settings]))
    if lines:
        return limited("deep_idle", "; ".join([*lines, *unread, settings]))
    if unread:
        return limited("deep_idle", "; ".join([*unread, settings]), command_line("doctor"))
    without_effect = [f"{limit_text(limit)}; " for limit in limits.limits]
    return ok("deep_idle", f"no setting forbids an idle state; {''.join(without_effect)}{settings}")


def probe_tracefs() -> Capability:
    """Return whether tracefs is mounted. Only bpftrace and perf need it; powerprof uses raw tracepoints."""
    for line in (try_text(paths.procfs() / "mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "tracefs":
            return ok("tracefs", f"mounted at {words[1]}")
    return missing(
        "tracefs",
        "optional: not mounted; only bpftrace and perf need it",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def probe_btf() -> Capability:
    """Return whether the running kernel has type information and the tracepoints of idle exits."""
    try:
        types = read_kernel_btf()
    except PowerprofError as error:
        return missing("btf", error.message, error.hint if isinstance(error, CapabilityError) else None)
    needed = ("cpu_idle", "sched_switch", "sched_waking", "irq_handler_entry", "hrtimer_expire_entry")
    absent = [name for name in needed if not types.has_tracepoint(name)]
    if absent:
        return limited("btf", f"this kernel lacks the tracepoint{'s'[: len(absent) > 1]} {', '.join(absent)}")
    return ok("btf", "of the running kernel, with the tracepoints that idle exits need")


# BPF programs: carried ones, or bcc and kernel headers to compile them; a real program is loaded.


def has_carried_programs() -> bool:
    """Return whether the carried programs of `attribute`, `idle`, `watch` and `export` fit the running kernel."""
    try:
        return objects.find_carried("idle.bpf.c", build_idle_definitions(read_kernel_btf())) is not None
    except PowerprofError:
        return False


def _or_not_needed(name: str, capability: Capability) -> Capability:
    """Return a missing part of the compiler as `none` if the carried programs fit, or may fit."""
    if capability.status != "missing":
        return capability
    detail = capability.detail
    if not features.may_load_programs():
        return none(name, f"{detail}: not needed where carried programs fit, which this process may not try")
    if not has_carried_programs():
        return capability
    return none(name, f"{detail}: not needed, the programs that powerprof carries fit this kernel")


def _find_bcc() -> Capability:
    # PyPI has an unrelated package of the same name.
    spec = find_spec("bcc")
    if spec is None or not spec.origin:
        if Path("/usr/lib/python3/dist-packages/bcc/libbcc.py").exists():
            return missing("bcc", "installed, but this Python does not see Debian's packages", "make setup")
        return missing("bcc", "the Python bindings of BPF are not installed", _INSTALL_BCC)
    folder = Path(spec.origin).parent
    if not (folder / "libbcc.py").exists():
        return missing("bcc", f"{folder} is another package of that name", f"pip uninstall bcc && {_INSTALL_BCC}")
    return ok("bcc", f"{folder}")


def _find_headers() -> Capability:
    running = os.uname().release
    try:
        tree = find_kernel_headers()
    except CapabilityError as error:
        return missing("headers", error.message, error.hint)
    except PowerprofError as error:
        return limited("headers", error.message, "set XDG_CACHE_HOME to a writable folder")
    if tree is None:
        return ok("headers", f"of the running kernel {running}")
    # The name of a merged tree ends with a fingerprint.
    version = re.sub(r"-[0-9a-f]{12}$", "", tree.name.removeprefix("linux-headers-"))
    return ok("headers", f"{version} stands in for {running}")


def probe_stacks() -> Capability:
    """Return whether stacks of sleeping threads can be read, and the source of their registers."""
    if not paths.is_this_host():
        return _other_host("stacks")
    try:
        machine = this_machine()
    except CapabilityError as error:
        return none("stacks", f"{error.message}: idle exits and their causes are known without them")
    for feature in (features.RING_BUFFER, features.TASK_REGISTERS):
        if features.has_feature(feature) is None:
            return missing("stacks", "cannot try BPF: not permitted", probe_privileges().remedy)
    if not features.has_feature(features.RING_BUFFER):
        return none("stacks", f"this kernel has no BPF ring buffer (Linux {features.RING_BUFFER.since})")
    if not features.has_feature(features.TASK_REGISTERS):
        since = f"{features.TASK_REGISTERS.name}, Linux {features.TASK_REGISTERS.since}"
        return limited("stacks", f"{machine.name}: without {since}: registers are searched for on the kernel's stacks")
    return ok("stacks", f"{machine.name}, registers by {features.TASK_REGISTERS.name}")


def _tracing_not_permitted() -> Capability:
    # The seccomp profile of a container, or lockdown, refuse root too.
    error, privileges = features.not_permitted_error(), probe_privileges()
    return missing("tracing", error.message, privileges.remedy if privileges.status != "ok" else error.hint)


def probe_tracing() -> Capability:
    """Return whether the smallest BPF program can be loaded, attached and removed.

    The program is a carried one, or bcc compiles it now: 0.7 s, and minutes if the host is overloaded.
    """
    if not paths.is_this_host():
        return _other_host("tracing")
    if not features.may_load_programs():
        return _tracing_not_permitted()
    is_carried = has_carried_programs()
    for needed in () if is_carried else (_find_bcc(), _find_headers()):
        if needed.status not in ("ok", "limited"):
            return missing("tracing", needed.detail, needed.remedy)
    try:
        with LoadedProgram("trial.bpf.c", {}, cached=is_carried):
            pass
    except PowerprofError as error:
        if probe_privileges().status != "ok" or error.message == features.not_permitted_error().message:
            return _tracing_not_permitted()
        return missing("tracing", error.message, error.hint)
    try:
        check_process_ids()
    except CapabilityError as error:
        return limited("tracing", f"functions only: {error.message}", error.hint)
    origin = "carried, not compiled here" if is_carried else "compiled by bcc"
    return ok("tracing", f"a BPF program was loaded and attached to a raw tracepoint ({origin})")


# Meters of energy.


def probe_rapl() -> Capability:
    """Return whether powercap has RAPL. `energy_uj` is for root only since Linux 5.10 (CVE-2020-8694)."""
    zones = sorted((paths.sysfs() / "class/powercap").glob("*/energy_uj"))
    if not zones:
        if read_virtualisation():
            return none("rapl", "no RAPL in this guest")
        if not paths.is_this_host():
            return none("rapl", "no powercap zone with a counter")
        return missing("rapl", "no powercap zone with a counter", "modprobe intel_rapl_msr")
    names = ", ".join(sorted({try_text(zone.parent / "name") or zone.parent.name for zone in zones}))
    # The counter is read: for root in a container the file mode is not enough.
    if any(try_text(zone) is None for zone in zones):
        return limited("rapl", f"only root may read {names}", command_line("doctor"))
    return _judge_total("rapl", f"powercap: {names}", open_rapl)


def _judge_total(name: str, detail: str, open_meter: Callable[[], Meter]) -> Capability:
    """Return whether a meter with figures has a total: its domains are a recognised layout."""
    try:
        meter = open_meter()
    except CapabilityError as error:
        return limited(name, error.message.removeprefix(f"{name}: "))
    try:
        flaw, _ = find_open_flaw(meter)
    finally:
        meter.close()
    return ok(name, detail) if flaw is None else limited(name, f"{detail}: no total, {flaw}")


def probe_perf_power() -> Capability:
    """Return whether perf has RAPL that counts: some guests offer an event that opens and never counts."""
    name = "perf_power"
    events = (paths.sysfs() / "bus/event_source/devices/power/events").glob("energy-*")
    names = ", ".join(sorted(path.name for path in events if not path.suffix))
    if not names:
        return none(name, f"no PMU named power {'in this guest' if read_virtualisation() else 'on this host'}")
    if not paths.is_this_host():
        return _other_host(name)
    try:
        meter = open_perf_power()
    except CapabilityError as error:
        if not _is_root():
            return limited(name, f"only root may open {names}", command_line("doctor"))
        return limited(name, error.message.removeprefix(f"{name}: "))
    try:
        meter.sample(time.monotonic())
        time.sleep(_METER_TRIAL_S)
        meter.sample(time.monotonic())
        if not meter.is_counting():
            return limited(name, f"{names}: present but does not count")
    finally:
        meter.close()
    return ok(name, names)


def probe_hwmon() -> Capability:
    """Return whether a sensor of power (µW) or energy (µJ) measures the host."""
    channels = find_channels(paths.sysfs() / "class/hwmon")
    chips = dict.fromkeys(channel.chip for channel in channels if channel.is_host)
    if chips:
        return _judge_total("hwmon", ", ".join(chips), open_hwmon)
    others = ", ".join(dict.fromkeys(channel.chip for channel in channels))
    return none("hwmon", f"{others}: not the host's, or unknown" if others else "no sensor of power or energy")


def probe_battery() -> Capability:
    """Return whether a battery discharges: only then it measures the whole machine."""
    supplies = sorted((paths.sysfs() / "class/power_supply").glob("*/type"))
    batteries = [path.parent for path in supplies if try_text(path) == "Battery"]
    if not batteries:
        return none("battery", "no battery")
    names = ", ".join(folder.name for folder in batteries)
    if any(try_text(folder / "status") == "Discharging" for folder in batteries):
        return _judge_total("battery", f"{names}, discharging", open_battery)
    return limited("battery", f"{names} counts only while it discharges", "unplug the power supply")


def probe_ipmi() -> Capability:
    """Return whether the management controller reports the watts of the server (DCMI)."""
    devices = [path for path in map(Path, ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")) if path.exists()]
    if not paths.is_this_host():
        return _other_host("ipmi")
    if not devices and read_virtualisation():
        return none("ipmi", "no management controller in this guest")
    if not devices:
        return none("ipmi", "no management controller that the kernel knows (modprobe ipmi_devintf ipmi_si)")
    if programs.which("ipmitool") is None:
        return missing("ipmi", f"optional: {devices[0]} is there, ipmitool is not", "apt install ipmitool")
    if not _is_root():
        return limited("ipmi", f"only root may use {devices[0]}", command_line("doctor"))
    return ok("ipmi", f"{devices[0]}; seconds old when it is read")


def _judge_energy(meters: Sequence[Capability]) -> Capability:
    """Return whether energy is measured on this host, or estimated."""
    working = [meter.name for meter in meters if meter.status == "ok"]
    if working:
        return ok("energy", f"measured by {', '.join(working)}")
    fixable = next((meter for meter in meters if meter.status == "limited" and meter.remedy), None)
    if fixable is not None:
        return limited("energy", f"{fixable.name}: {fixable.detail}", fixable.remedy)
    place = "in this guest" if read_virtualisation() else "on this host"
    return none("energy", f"no meter {place}; estimates only")


# Programs.


def _read_version(program: Path, option: str = "--version") -> str:
    """Return the first version number that the program prints, with its path; else the path."""
    try:
        done = programs.run([program, option], timeout_s=10, check=False)
    except PowerprofError:
        return str(program)
    number = re.search(r"\d+\.[\w.:+~-]*\w", f"{done.stdout} {done.stderr}")
    return f"{number[0]} ({program})" if number else str(program)


def _probe_program(name: str, absent: str) -> Capability:
    program = programs.which(name)
    return ok(name, _read_version(program)) if program is not None else missing(name, absent, f"apt install {name}")


def probe_server() -> Capability:
    """Return whether there is a server to start privately: mariadbd, or mysqld of MySQL."""
    program = programs.which("mariadbd") or programs.which("mysqld")
    if program is None:
        return missing("mariadbd", "neither mariadbd nor mysqld is installed", "apt install mariadb-server")
    return ok("mariadbd", _read_version(program))


def probe_powertop() -> Capability:
    """Return whether PowerTOP can report residency and wake-ups."""
    program = programs.which("powertop")
    if program is None:
        return missing("powertop", "optional: not installed", "apt install powertop")
    if not _is_root():
        return limited("powertop", "optional: only root may run it", command_line("doctor"))
    return ok("powertop", _read_version(program))


def probe_turbostat() -> Capability:
    """Return whether turbostat prints the residency that the hardware achieved. It is run once."""
    program = programs.which("turbostat")
    if program is None:
        return missing("turbostat", "optional: not installed", "apt install linux-cpupower")
    if not paths.is_this_host():
        return _other_host("turbostat")
    if not any(Path("/dev/cpu").glob("[0-9]*/msr")):
        # turbostat would run modprobe; the survey must not change the host.
        if read_virtualisation():
            return none("turbostat", "installed, but this guest has no /dev/cpu/*/msr")
        return missing("turbostat", "optional: installed, but there is no /dev/cpu/*/msr", "modprobe msr")
    if not _is_root():
        return limited("turbostat", "optional: only root may run it", command_line("doctor"))
    try:
        done = programs.run([program, "--quiet", "--num_iterations", "1", "--interval", "0.1"], timeout_s=10)
    except PowerprofError as error:
        return limited("turbostat", f"optional: it does not work here: {error.message}")
    if len(done.stdout.splitlines()) < 2:
        return limited("turbostat", "optional: it runs here but prints no figures")
    return ok("turbostat", _read_version(program))


def probe_dtrace() -> Capability:
    """Return whether DTrace can run the shipped D scripts. SystemTap has a header generator of the same name."""
    program = programs.which("dtrace")
    if program is None:
        return none("dtrace", "optional: not installed; Debian packages it from release 14 on")
    try:
        with program.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        is_script = False
    if is_script:
        return none("dtrace", f"optional: {program} is SystemTap's header generator, not the tracer")
    if not _is_root():
        return limited("dtrace", "optional: only root may trace with it", command_line("doctor"))
    return ok("dtrace", _read_version(program, "-Vv"))


def _try(name: str, probe: Callable[[], Capability]) -> Capability:
    """Return the result of the probe, also if it fails."""
    try:
        return probe()
    except PowerprofError as error:
        return missing(name, error.message, error.hint)
    except OSError as error:
        return missing(name, f"cannot look for it: {reason_of(error)} ({error.filename})")


def survey_host() -> list[Capability]:
    """Return the capabilities of this host. Takes about a second, mostly for a BPF program; changes nothing."""
    is_here = paths.is_this_host()
    meters = [
        _try("rapl", probe_rapl),
        _try("perf_power", probe_perf_power),
        _try("hwmon", probe_hwmon),
        _try("battery", probe_battery),
        _try("ipmi", probe_ipmi),
    ]
    return [
        _try("residency", probe_residency),
        _try("deep_idle", probe_deep_idle),
        _try("tracing", probe_tracing),
        _try("stacks", probe_stacks),
        _try("energy", lambda: _judge_energy(meters)),
        _try("mariadbd", probe_server),
        _try(
            "sysbench",
            lambda: _probe_program("sysbench", "not installed; most loads of run, compare and sweep need it"),
        ),
        _try("privileges", probe_privileges),
        _try("bcc", lambda: _or_not_needed("bcc", _find_bcc())),
        _try("headers", lambda: _or_not_needed("headers", _find_headers()) if is_here else _other_host("headers")),
        _try("btf", probe_btf),
        _try("tracefs", probe_tracefs),
        *meters,
        _try("powertop", probe_powertop),
        _try("turbostat", probe_turbostat),
        _try("bpftrace", lambda: _probe_program("bpftrace", "optional: not installed")),
        _try("dtrace", probe_dtrace),
    ]
