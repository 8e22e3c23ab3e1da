# SPDX-License-Identifier: Apache-2.0
"""Made-up hosts: hybrid CPUs, CPUs that are offline, drivers of all kinds, containers and files that cannot be read.

The right answers follow from the kernel: a latency limit never excludes the first state that is not disabled, and a
limit of 0 leaves state 0 alone (drivers/cpuidle/governors); haltpoll knows states 0 and 1.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from powerprof.host import idle_limits
from powerprof.host.describe import describe_host
from powerprof.host.idle_limits import limit_lines, read_idle_limits
from powerprof.host.kernel_probes import probe_deep_idle
from powerprof.system.processes import label_of

Make = Callable[[Mapping[str, str]], Path]
States = tuple[tuple[str, int | None], ...]
CPU = "sys/devices/system/cpu"
P_CORE: States = (("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 220))
E_CORE: States = (("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 170))
LP_CORE: States = (("POLL", 0), ("C1", 5))
ARM: States = (("WFI", 1), ("cpu-sleep", 300), ("cluster-sleep", 1000))
AMD: States = (("POLL", 0), ("C1", 1), ("C2", 400))
GUEST: States = (("POLL", 0), ("haltpoll idle", 60))
POWER: States = (("snooze", 0), ("CEDE", 10))
NO_LIMIT = 2_000_000_000


@dataclass(frozen=True)
class Host:
    """One host and the right answers. `limit`: bytes of the device, None without one. `tree`: files, by CPU folder."""

    cpus: tuple[States, ...] = (P_CORE, P_CORE)
    driver: str = "intel_idle"
    limit: int | bytes | None = NO_LIMIT
    online: str = ""
    cmdline: str = "quiet"
    tree: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    status: str = "ok"


def cpufreq(cpus: range, **files: str) -> dict[str, str]:
    return {f"cpu{cpu}/cpufreq/{leaf}": text for cpu in cpus for leaf, text in files.items()}


HYBRID = (P_CORE, P_CORE, E_CORE, E_CORE)
# A file that cannot be read, also as root: a folder.
UNREADABLE = "/"
HOSTS = {
    "hybrid, a limit between two C6": Host(
        HYBRID, limit=200, lines=("latency limit of 200 µs on CPU 0-1 excludes C6",), status="limited"
    ),
    "hybrid, a limit above both": Host(HYBRID, limit=250, status="limited"),
    "a CPU with one idle state": Host(
        (*[P_CORE] * 2, LP_CORE),
        limit=2,
        lines=(
            "latency limit of 2 µs on CPU 0-1 excludes C6",
            "latency limit of 2 µs on CPU 2 excludes all idle states: CPUs poll",
        ),
        status="limited",
    ),
    "Arm at 0: WFI stays": Host(
        (ARM, ARM),
        "psci_idle",
        limit=0,
        lines=("latency limit of 0 µs excludes cpu-sleep and cluster-sleep",),
        status="limited",
    ),
    "Arm between": Host(
        (ARM,), "psci_idle", limit=500, lines=("latency limit of 500 µs excludes cluster-sleep",), status="limited"
    ),
    "Arm with nohlt": Host(
        (ARM,),
        "psci_idle",
        cmdline="nohlt console=ttyAMA0",
        lines=("boot option nohlt excludes all idle states: CPUs poll",),
        status="limited",
    ),
    "POLL disabled: C1 stays": Host(
        (AMD,),
        "acpi_idle",
        limit=1,
        tree={"cpu0/cpuidle/state0/disable": "1", "cpu0/cpuidle/state1/latency": "3"},
        lines=("latency limit of 1 µs excludes C2",),
        status="limited",
    ),
    "one CPU has all states disabled": Host(
        tree={f"cpu1/cpuidle/state{number}/disable": "1" for number in (1, 2, 3)},
        lines=("C1, C1E and C6 are disabled on CPU 1: CPUs poll",),
        status="limited",
    ),
    "the settings of a CPU that is offline": Host(
        online="0", tree={"cpu1/cpuidle/state3/disable": "1", "cpu1/power/pm_qos_resume_latency_us": "5"}
    ),
    "CPU 0 is offline": Host(
        online="1",
        tree=cpufreq(range(1, 2), scaling_driver="acpi-cpufreq", scaling_governor="performance"),
        settings={"frequency driver": "acpi-cpufreq", "frequency governor": "performance"},
    ),
    "two governors and preferences": Host(
        HYBRID,
        tree=cpufreq(range(2), scaling_governor="performance", energy_performance_preference="performance")
        | cpufreq(range(2, 4), scaling_governor="powersave", energy_performance_preference="balance_power"),
        settings={
            "frequency governor": "performance on CPU 0-1, powersave on CPU 2-3",
            "energy preference (EPP)": "performance on CPU 0-1, balance_power on CPU 2-3",
        },
    ),
    "intel_pstate active": Host(
        tree={"intel_pstate/no_turbo": "0"}
        | cpufreq(
            range(2),
            scaling_driver="intel_pstate",
            scaling_governor="powersave",
            energy_performance_preference="balance_performance",
        ),
        settings={
            "frequency driver": "intel_pstate",
            "frequency governor": "powersave",
            "energy preference (EPP)": "balance_performance",
            "turbo off": "0",
        },
    ),
    "intel_pstate passive": Host(
        tree=cpufreq(range(2), scaling_driver="intel_cpufreq", scaling_governor="schedutil"),
        settings={"frequency driver": "intel_cpufreq", "frequency governor": "schedutil"},
    ),
    "amd-pstate-epp with boost by CPU": Host(
        (AMD, AMD),
        "acpi_idle",
        tree=cpufreq(
            range(2),
            scaling_driver="amd-pstate-epp",
            scaling_governor="powersave",
            energy_performance_preference="power",
            boost="1",
        ),
        settings={
            "frequency driver": "amd-pstate-epp",
            "frequency governor": "powersave",
            "energy preference (EPP)": "power",
            "boost": "1",
        },
    ),
    "intel_idle's option on AMD": Host((AMD,), "acpi_idle", cmdline="intel_idle.max_cstate=1"),
    "acpi_idle's option on Intel": Host(cmdline="processor.max_cstate=1"),
    "acpi_idle's option on AMD": Host(
        (AMD,),
        "acpi_idle",
        cmdline="processor.max_cstate=2",
        lines=("boot option processor.max_cstate=2: the excluded idle states are unknown",),
        status="limited",
    ),
    "cpuidle.off=0": Host(cmdline="cpuidle.off=0"),
    "a haltpoll guest with a limit of a CPU": Host(
        (GUEST, GUEST),
        "haltpoll",
        tree={"cpuidle/current_governor": "haltpoll", "cpu1/power/pm_qos_resume_latency_us": "50"},
        settings={"idle governor": "haltpoll"},
    ),
    "haltpoll over deep states": Host(
        tree={"cpuidle/current_governor": "haltpoll"},
        lines=("idle governor haltpoll excludes C1E and C6",),
        settings={"idle governor": "haltpoll"},
        status="limited",
    ),
    "a container without the device": Host(
        limit=None, unread=("the latency limit ({device}: a container hides it?)",), status="limited"
    ),
    "no cpuidle and no device": Host((), "none", limit=None, status="none"),
    "no cpuidle and a limit": Host((), "none", limit=10, status="none"),
    "the kernel command line is unreadable": Host(
        cmdline=UNREADABLE, unread=("the kernel command line",), status="limited"
    ),
    "a CPU's limit is unreadable": Host(
        tree={"cpu1/power/pm_qos_resume_latency_us": UNREADABLE},
        unread=("the latency limit of CPU 1",),
        status="limited",
    ),
    "a governor is unreadable": Host(
        tree=cpufreq(range(2), scaling_driver="acpi-cpufreq", scaling_governor=UNREADABLE),
        settings={"frequency driver": "acpi-cpufreq"},
        unread=("the frequency governor",),
        status="limited",
    ),
    "half a limit": Host(limit=b"\0\0", unread=("the latency limit ({device}: no data available)",), status="limited"),
    "unknown latencies of some CPUs": Host(
        (P_CORE, (*P_CORE[:3], ("C6", None))),
        limit=50,
        lines=(
            "latency limit of 50 µs on CPU 0 excludes C6",
            "latency limit of 50 µs on CPU 1: the excluded idle states are unknown",
        ),
        status="limited",
    ),
    "PowerPC at 0": Host(
        (POWER,),
        "pseries_idle",
        limit=0,
        lines=("latency limit of 0 µs excludes all idle states: CPUs poll",),
        status="limited",
    ),
}


def build(host: Host, make: Make, folder: Path) -> Path:
    """Make a host of files. Return the latency device."""
    tree = {f"{CPU}/online": host.online or (f"0-{len(host.cpus) - 1}" if host.cpus else "0"), "proc/version": ""}
    tree[f"{CPU}/cpuidle/current_driver"] = host.driver
    for cpu, states in enumerate(host.cpus):
        for number, (name, latency) in enumerate(states):
            place = f"{CPU}/cpu{cpu}/cpuidle/state{number}"
            leaves: dict[str, object] = {"name": name, "residency": 1, "time": 5, "usage": 5, "disable": 0}
            leaves |= {} if latency is None else {"latency": latency}
            tree |= {f"{place}/{leaf}": str(value) for leaf, value in leaves.items()}
    tree |= {f"{CPU}/{name}": text for name, text in host.tree.items()} | {"proc/cmdline": host.cmdline}
    root = make({name: text for name, text in tree.items() if text != UNREADABLE})
    for name, text in tree.items():
        if text == UNREADABLE:
            (root / name).mkdir(parents=True)
    device = folder / "cpu_dma_latency"
    if host.limit is not None:
        device.write_bytes(host.limit if isinstance(host.limit, bytes) else struct.pack("i", host.limit))
    return device


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS.keys())
def test_made_up_hosts(fake_tree: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    device = build(host, fake_tree, tmp_path)
    found = read_idle_limits(device)
    assert limit_lines(found) == list(host.lines)
    assert found.settings == {"idle driver": host.driver} | host.settings
    unread = [text.format(device=device) for text in host.unread]
    # Holders are processes, which a recorded host does not have.
    has_limit = any(limit.setting == "cpu_dma_latency" for limit in found.limits)
    assert found.unread == unread + [f"the processes that hold {device}"] * has_limit
    monkeypatch.setattr(idle_limits.read_idle_limits, "__defaults__", (device,))
    assert probe_deep_idle().status == host.status
    assert describe_host().frequency_governor == host.settings.get("frequency governor")


@pytest.mark.parametrize(("program", "applied"), [(None, True), ("no-such-program", False)])
def test_profiles_stay_in_their_files_when_the_programs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, applied: bool
) -> None:
    program = program or label_of(os.getpid())
    tuned, daemon = tmp_path / "active_profile", tmp_path / "state.ini"
    tuned.write_text("postgresql\n")
    daemon.write_text("[State]\nCpuDriver=amd_pstate\nProfile=power-saver\n")
    places = {"TuneD profile": (tuned, "", program), "daemon's": (daemon, "Profile=", program)}
    monkeypatch.setattr(idle_limits, "_PROFILES", places | {"none": (tmp_path / "none", "", program)})
    end = "" if applied else f" (not applied: {program} does not run)"
    settings = read_idle_limits().settings
    assert {name: settings.get(name) for name in (*places, "none")} == {
        "TuneD profile": f"postgresql{end}",
        "daemon's": f"power-saver{end}",
        "none": None,
    }


def test_a_script_of_python_runs_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon of TuneD is one: its program is the interpreter."""
    script, file = tmp_path / "tuned-7315", tmp_path / "active_profile"
    script.write_text(f"#!{Path(sys.executable).resolve()}\nprint(flush=True)\ninput()\n")
    script.chmod(0o755)
    file.write_text("balanced\n")
    monkeypatch.setattr(idle_limits, "_PROFILES", {"TuneD profile": (file, "", script.name)})
    with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline()
        assert read_idle_limits().settings["TuneD profile"] == "balanced"
        daemon.kill()
