# SPDX-License-Identifier: Apache-2.0
"""Every capability in the order of a reader's questions: can it measure, trace, meter; then the programs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from powerprof.energy.rapl import open_perf_power
from powerprof.energy.sensors import find_channels
from powerprof.host.describe import Capability, limited, missing, none, ok, virtualisation
from powerprof.measure import cpuidle
from powerprof.stacks.registers import this_machine
from powerprof.system import paths, programs
from powerprof.system.errors import CapabilityError, PowerprofError
from powerprof.system.files import reason_of, try_text
from powerprof.system.tasks import check_process_ids
from powerprof.tracing.bpf import features, objects
from powerprof.tracing.bpf.headers import find_kernel_headers
from powerprof.tracing.bpf.loaded import LoadedProgram
from powerprof.tracing.bpf.types import read_kernel_btf
from powerprof.tracing.idle import build_idle_definitions

# What the kernel offers: idle states, tracepoints, type information, and what this process may do.

# include/uapi/linux/capability.h
_SYS_PTRACE, _SYS_ADMIN, _PERFMON, _BPF = 19, 21, 38, 39
_WANTED = {"CAP_BPF": _BPF, "CAP_PERFMON": _PERFMON, "CAP_SYS_PTRACE": _SYS_PTRACE}


def effective_capabilities() -> int:
    """The bits of CapEff of this process; where procfs does not say, all for root and none otherwise."""
    for line in (try_text(paths.procfs() / "self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                return int(line.split()[1], 16)
            except (IndexError, ValueError):
                break
    return (1 << 64) - 1 if os.geteuid() == 0 else 0


def is_privileged() -> bool:
    """Whether this process is root."""
    return os.geteuid() == 0


def run_as_root() -> str:
    """The command for what only root may do: sudo does not search a venv."""
    script = Path(sys.argv[0])
    return f"sudo {script if script.name == 'powerprof' else 'powerprof'} …"


def privileges() -> Capability:
    """May this process load BPF programs and read other processes' memory?"""
    bits = effective_capabilities()
    lacking = [name for name, bit in _WANTED.items() if not bits >> bit & 1]
    # Before Linux 5.8 CAP_SYS_ADMIN was all of them, and it still stands for the two new ones.
    if bits >> _SYS_ADMIN & 1:
        lacking = [name for name in lacking if name == "CAP_SYS_PTRACE"]
    who = "root" if is_privileged() else f"user {os.geteuid()}"
    if not lacking:
        return ok("privileges", f"{who} with {', '.join(_WANTED)}")
    words = ", ".join(lacking)
    if is_privileged():
        flags = " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in lacking)
        return missing("privileges", f"root without {words} (a container?)", f"docker run {flags} …")
    return missing("privileges", f"{who} without {words}; residency needs none of them", run_as_root())


def residency() -> Capability:
    """Idle states by cpuidle, or else idle time by /proc/stat."""
    driver = cpuidle.read_driver()
    with cpuidle.CpuidleReader() as reader:
        sets = {tuple(state.name for state in reader.states(cpu)) for cpu in reader.cpus}
    if sets:
        states = " · ".join(", ".join(names) for names in sorted(sets))
        return ok("residency", f"cpuidle, driver {driver or 'unknown'}: {states}")
    if not (try_text(paths.procfs() / "stat") or "").startswith("cpu"):
        return missing("residency", f"neither cpuidle states nor {paths.procfs() / 'stat'}")
    detail = "no cpuidle driver: idle time from /proc/stat, states unknown"
    if virtualisation() or not paths.is_this_host():
        return limited("residency", detail)
    return limited("residency", detail, "boot without cpuidle.off=1, idle=poll and nomwait")


def tracefs() -> Capability:
    """Only bpftrace and perf read it: powerprof's own programs are raw tracepoints."""
    for line in (try_text(paths.procfs() / "mounts") or "").splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == "tracefs":
            return ok("tracefs", f"mounted at {words[1]}")
    return missing(
        "tracefs",
        "optional: not mounted; only bpftrace and perf need it",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )


def btf() -> Capability:
    """Type information of the running kernel, and the tracepoints that powerprof attaches to."""
    try:
        types = read_kernel_btf()
    except CapabilityError as error:
        return missing("btf", error.message, error.hint)
    except PowerprofError as error:
        return missing("btf", error.message)
    needed = ("cpu_idle", "sched_switch", "sched_waking", "irq_handler_entry", "hrtimer_expire_entry")
    absent = [name for name in needed if not types.has_tracepoint(name)]
    if absent:
        return limited("btf", f"this kernel lacks the tracepoint{'s'[: len(absent) > 1]} {', '.join(absent)}")
    return ok("btf", "of the running kernel, with the tracepoints that idle exits need")


def not_this_host(name: str) -> Capability:
    """For what only the running kernel can do, while sysfs or procfs show another one."""
    return none(name, "not looked for: POWERPROF_SYSFS or POWERPROF_PROCFS show another host")


# Whether BPF programs can be loaded, carried ones or compiled here: a real one tried, bcc and kernel headers.

_BCC = "apt install python3-bpfcc"
_SYSTEM_SITE = "make setup"


def carried_fit() -> bool:
    """Whether powerprof carries the programs of `attribute`, `idle`, `watch` and `export` for the running kernel."""
    try:
        return objects.find_carried("idle.bpf.c", build_idle_definitions(read_kernel_btf())) is not None
    except PowerprofError:
        return False


def _without(name: str, found: Capability) -> Capability:
    """What compiles programs is missing: nothing to mend where carried ones fit."""
    if found.status != "missing":
        return found
    if not features.may_load_programs():
        return none(name, f"{found.detail}: not needed where carried programs fit, which this process may not try")
    if not carried_fit():
        return found
    return none(name, f"{found.detail}: not needed, the programs that powerprof carries fit this kernel")


def bcc() -> Capability:
    """Debian's python3-bpfcc, where it is needed; a package of the same name on PyPI has nothing to do with it."""
    return _without("bcc", _bcc())


def _bcc() -> Capability:
    spec = find_spec("bcc")
    if spec is None or not spec.origin:
        debian = Path("/usr/lib/python3/dist-packages/bcc/libbcc.py")
        if debian.exists():
            return missing("bcc", "installed, but this Python does not see Debian's packages", _SYSTEM_SITE)
        return missing("bcc", "the Python bindings of BPF are not installed", _BCC)
    folder = Path(spec.origin).parent
    if not (folder / "libbcc.py").exists():
        return missing("bcc", f"{folder} is another package of that name", f"pip uninstall bcc && {_BCC}")
    return ok("bcc", f"{folder}")


def headers() -> Capability:
    """Kernel headers that bcc can compile against, where it is needed."""
    if not paths.is_this_host():
        return not_this_host("headers")
    return _without("headers", _headers())


def _headers() -> Capability:
    running = os.uname().release
    try:
        tree = find_kernel_headers()
    except CapabilityError as error:
        return missing("headers", error.message, error.hint)
    except PowerprofError as error:
        return limited("headers", error.message, "set XDG_CACHE_HOME to a writable folder")
    if tree is None:
        return ok("headers", f"of the running kernel {running}")
    # The merged tree's name ends with a fingerprint.
    version = re.sub(r"-[0-9a-f]{12}$", "", tree.name.removeprefix("linux-headers-"))
    return ok("headers", f"{version} stands in for {running}")


def stacks() -> Capability:
    """Whether the stacks of sleeping threads can be had, and how their registers are found."""
    if not paths.is_this_host():
        return not_this_host("stacks")
    try:
        machine = this_machine()
    except CapabilityError as error:
        return none("stacks", f"{error.message}: idle exits and their causes are known without them")
    for feature in (features.RING_BUFFER, features.TASK_REGISTERS):
        if features.has_feature(feature) is None:
            return missing("stacks", "cannot try BPF: not permitted", privileges().remedy)
    if not features.has_feature(features.RING_BUFFER):
        return none("stacks", f"this kernel has no BPF ring buffer (Linux {features.RING_BUFFER.since})")
    if not features.has_feature(features.TASK_REGISTERS):
        since = f"{features.TASK_REGISTERS.name}, Linux {features.TASK_REGISTERS.since}"
        return limited("stacks", f"{machine.name}: without {since}: registers are searched for on the kernel's stacks")
    return ok("stacks", f"{machine.name}, registers by {features.TASK_REGISTERS.name}")


def _not_permitted() -> Capability:
    """By capabilities; or by a container's seccomp profile or lockdown, which refuse root too."""
    error, lacking = features.not_permitted_error(), privileges()
    return missing("tracing", error.message, lacking.remedy if lacking.status != "ok" else error.hint)


def tracing() -> Capability:
    """Loads, attaches and removes the smallest BPF program: a carried one, or one that bcc compiles now.

    That takes 0.7 s, and minutes where the host is overloaded.
    """
    if not paths.is_this_host():
        return not_this_host("tracing")
    if not features.may_load_programs():
        return _not_permitted()
    carried = carried_fit()
    for needed in () if carried else (_bcc(), _headers()):
        if needed.status not in ("ok", "limited"):
            return missing("tracing", needed.detail, needed.remedy)
    try:
        with LoadedProgram("trial.bpf.c", {}, cached=carried):
            pass
    except PowerprofError as error:
        if privileges().status != "ok" or error.message == features.not_permitted_error().message:
            return _not_permitted()
        return missing("tracing", error.message, error.hint)
    try:
        check_process_ids()
    except CapabilityError as error:
        return limited("tracing", f"functions only: {error.message}", error.hint)
    which = "carried, not compiled here" if carried else "compiled by bcc"
    return ok("tracing", f"a BPF program was loaded and attached to a raw tracepoint ({which})")


# Which meters of energy this host has, and whether they can be read and count.

_LOOK_S = 0.1  # RAPL counters move every millisecond


def _readable(path: Path) -> bool:
    """Whether a reading can really be taken: modes do not tell for root in a container."""
    return try_text(path) is not None


def rapl() -> Capability:
    """RAPL by the powercap interface. `energy_uj` is for root only since Linux 5.10 (CVE-2020-8694)."""
    zones = sorted((paths.sysfs() / "class/powercap").glob("*/energy_uj"))
    if not zones:
        if virtualisation():
            return none("rapl", "no RAPL in this guest")
        if not paths.is_this_host():
            return none("rapl", "no powercap zone with a counter")
        return missing("rapl", "no powercap zone with a counter", "modprobe intel_rapl_msr")
    names = sorted({try_text(zone.parent / "name") or zone.parent.name for zone in zones})
    if not all(_readable(zone) for zone in zones):
        return limited("rapl", f"only root may read {', '.join(names)}", run_as_root())
    return ok("rapl", f"powercap: {', '.join(names)}")


def perf_power() -> Capability:
    """RAPL by perf. Present is not enough: some guests offer an event that opens and never counts."""
    name = "perf_power"
    events = (paths.sysfs() / "bus/event_source/devices/power/events").glob("energy-*")
    names = ", ".join(sorted(path.name for path in events if not path.suffix))
    if not names:
        return none(name, f"no PMU named power {'in this guest' if virtualisation() else 'on this host'}")
    if not paths.is_this_host():
        return not_this_host(name)
    try:
        meter = open_perf_power()
    except CapabilityError as error:
        if not is_privileged():
            return limited(name, f"only root may open {names}", run_as_root())
        return limited(name, error.message.removeprefix(f"{name}: "))
    try:
        meter.sample(time.monotonic())
        time.sleep(_LOOK_S)
        meter.sample(time.monotonic())
        if not meter.is_counting():
            return limited(name, f"{names}: present but does not count")
    finally:
        meter.close()
    return ok(name, names)


def hwmon() -> Capability:
    """Sensors of power (µW) or energy (µJ) on boards and power supplies, of which it is known what they measure."""
    channels = find_channels(paths.sysfs() / "class/hwmon")
    host = [channel.chip for channel in channels if channel.is_host]
    if host:
        return ok("hwmon", ", ".join(dict.fromkeys(host)))
    others = ", ".join(dict.fromkeys(channel.chip for channel in channels))
    return none("hwmon", f"{others}: not the host's, or unknown" if others else "no sensor of power or energy")


def battery() -> Capability:
    """A battery measures the whole machine, while it discharges."""
    supplies = sorted((paths.sysfs() / "class/power_supply").glob("*/type"))
    batteries = [path.parent for path in supplies if try_text(path) == "Battery"]
    if not batteries:
        return none("battery", "no battery")
    states = {try_text(folder / "status") or "unknown" for folder in batteries}
    names = ", ".join(folder.name for folder in batteries)
    if "Discharging" in states:
        return ok("battery", f"{names}, discharging")
    return limited("battery", f"{names} counts only while it discharges", "unplug the power supply")


def ipmi() -> Capability:
    """Watts of the whole server by the management controller (DCMI)."""
    devices = [path for path in map(Path, ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")) if path.exists()]
    if not paths.is_this_host():
        return not_this_host("ipmi")
    if not devices and virtualisation():
        return none("ipmi", "no management controller in this guest")
    if not devices:
        return none("ipmi", "no management controller that the kernel knows (modprobe ipmi_devintf ipmi_si)")
    if programs.which("ipmitool") is None:
        return missing("ipmi", f"optional: {devices[0]} is there, ipmitool is not", "apt install ipmitool")
    if not is_privileged():
        return limited("ipmi", f"only root may use {devices[0]}", run_as_root())
    return ok("ipmi", f"{devices[0]}; seconds old when it is read")


def energy(meters: Sequence[Capability]) -> Capability:
    """What an energy figure of this host will be: measured, or estimated."""
    working = [meter.name for meter in meters if meter.status == "ok"]
    if working:
        return ok("energy", f"measured by {', '.join(working)}")
    mendable = next((meter for meter in meters if meter.status == "limited" and meter.remedy), None)
    if mendable is not None:
        return limited("energy", f"{mendable.name}: {mendable.detail}", mendable.remedy)
    where = "in this guest" if virtualisation() else "on this host"
    return none("energy", f"no meter {where}; estimates only")


# The programs that powerprof runs or can take figures from.


def _version(program: Path, option: str = "--version") -> str:
    """The first version number that the program says of itself, or its path where it says none."""
    try:
        done = programs.run([program, option], timeout_s=10, check=False)
    except PowerprofError:
        return str(program)
    number = re.search(r"\d+\.[\w.:+~-]*\w", f"{done.stdout} {done.stderr}")
    return f"{number[0]} ({program})" if number else str(program)


def _installed(name: str, absent: str) -> Capability:
    """A program of a package of the same name, and its version."""
    program = programs.which(name)
    return ok(name, _version(program)) if program is not None else missing(name, absent, f"apt install {name}")


def mariadbd() -> Capability:
    """The server that is started privately; MySQL's mysqld serves as well."""
    for name in ("mariadbd", "mysqld"):
        program = programs.which(name)
        if program is not None:
            return ok("mariadbd", _version(program))
    return missing("mariadbd", "neither mariadbd nor mysqld is installed", "apt install mariadb-server")


def sysbench() -> Capability:
    """The load generator of `run` and `compare`."""
    return _installed("sysbench", "not installed; most loads of run, compare and sweep need it")


def powertop() -> Capability:
    """Optional: another view of residency and wake-ups."""
    program = programs.which("powertop")
    if program is None:
        return missing("powertop", "optional: not installed", "apt install powertop")
    if not is_privileged():
        return limited("powertop", "optional: only root may run it", run_as_root())
    return ok("powertop", _version(program))


def turbostat() -> Capability:
    """Optional: the residency that the hardware achieved. Present is not enough, it is run once."""
    program = programs.which("turbostat")
    if program is None:
        return missing("turbostat", "optional: not installed", "apt install linux-cpupower")
    if not paths.is_this_host():
        return not_this_host("turbostat")
    if not any(Path("/dev/cpu").glob("[0-9]*/msr")):
        # turbostat itself would run modprobe; to look must not change the host.
        if virtualisation():
            return none("turbostat", "installed, but this guest has no /dev/cpu/*/msr")
        return missing("turbostat", "optional: installed, but there is no /dev/cpu/*/msr", "modprobe msr")
    if not is_privileged():
        return limited("turbostat", "optional: only root may run it", run_as_root())
    try:
        tried = programs.run([program, "--quiet", "--num_iterations", "1", "--interval", "0.1"], timeout_s=10)
    except PowerprofError as error:
        return limited("turbostat", f"optional: it does not work here: {error.message}")
    if len(tried.stdout.splitlines()) < 2:
        return limited("turbostat", "optional: it runs here but prints no figures")
    return ok("turbostat", _version(program))


def bpftrace() -> Capability:
    """Optional: runs the shipped one-file probes."""
    return _installed("bpftrace", "optional: not installed")


def dtrace() -> Capability:
    """Optional: runs the shipped D scripts. SystemTap ships a header generator under the same name."""
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
    if not is_privileged():
        return limited("dtrace", "optional: only root may trace with it", run_as_root())
    return ok("dtrace", _version(program, "-Vv"))


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
        _look("rapl", rapl),
        _look("perf_power", perf_power),
        _look("hwmon", hwmon),
        _look("battery", battery),
        _look("ipmi", ipmi),
    ]
    return [
        _look("residency", residency),
        _look("tracing", tracing),
        _look("stacks", stacks),
        _look("energy", lambda: energy(of_energy)),
        _look("mariadbd", mariadbd),
        _look("sysbench", sysbench),
        _look("privileges", privileges),
        _look("bcc", bcc),
        _look("headers", headers),
        _look("btf", btf),
        _look("tracefs", tracefs),
        *of_energy,
        _look("powertop", powertop),
        _look("turbostat", turbostat),
        _look("bpftrace", bpftrace),
        _look("dtrace", dtrace),
    ]
