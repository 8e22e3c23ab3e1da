# SPDX-License-Identifier: Apache-2.0
"""The cells of the matrix: which kernel, which machine, which settings. A new cell is a new line of CELLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# On the host's kernel others may load BPF programs too: that nothing is left can be told in a machine only.
HERE_STEPS = ("doctor", "tick", "attribute", "functions", "on-cpu", "queries", "idle")
ALL_STEPS = (*HERE_STEPS, "nothing-left")
# Where only CPUs and idle states are others: what counts calls and samples does not meet them.
IDLE_STEPS = ("doctor", "tick", "attribute", "idle", "nothing-left")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One machine (`kernel` is a suite of Debian) or one root on this host's kernel (`kernel` is None)."""

    name: str
    why: str
    root: str = "bookworm"
    kernel: str | None = "bookworm"
    arch: str = "amd64"
    # As in Debian's names of kernels: amd64, cloud-amd64, rt-amd64, arm64.
    flavour: str = "amd64"
    cpus: int = 2
    sockets: int = 1
    memory_mib: int = 2048
    append: str = ""
    # Number of idle states in the machine's ACPI tables (x86 only). With any, the cpuidle driver is acpi_idle.
    idle_states: int = 0
    # The tables contain frequencies too: the cpufreq driver is acpi-cpufreq.
    frequencies: bool = False
    cgroup: int = 2
    tracefs: bool = True
    # What happens once within the window of `attribute` (world.MEANWHILE).
    meanwhile: str = ""
    time_namespace: bool = False
    # pid, UTS, IPC and cgroup namespaces of its own, on the host's kernel.
    container: bool = False
    sysctls: Mapping[str, str] = field(default_factory=dict)
    # Files of the machine that are written before anything is measured.
    writes: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[str, ...] = ALL_STEPS
    window_s: float = 10.0
    idle_window_s: float = 4.0
    # Of the whole cell; one that takes longer is killed.
    limit_s: float = 900.0
    # Every change has to pass it. No emulated machine has: with one thread for all CPUs none was seen green yet.
    quick: bool = False
    # Its time is the number of instructions that it executed: what else the host does is in none of its figures. One
    # CPU: the start of a second one never ends then.
    counted_time: bool = False
    # Left out unless it is asked for by its name.
    by_name: bool = False


_HARDENED = {
    "kernel.kptr_restrict": "2",
    "kernel.perf_event_paranoid": "3",
    "kernel.unprivileged_bpf_disabled": "2",
    "kernel.dmesg_restrict": "1",
}

_SWEEP = Cell(
    name="6.1-sweep",
    why="OLTP over clients under Debian 12's kernel, its time counted in instructions",
    idle_states=1,
    counted_time=True,
    cpus=1,
    steps=("sweep",),
    limit_s=1800.0,
    by_name=True,
)
CELLS: tuple[Cell, ...] = (
    Cell(name="6.1", why="Debian 12's kernel in a guest without a cpuidle driver"),
    Cell(name="6.1-cpuidle", why="the same with a cpuidle driver", idle_states=1, steps=IDLE_STEPS),
    Cell(name="6.1-cloud", why="Debian 12's kernel for clouds", flavour="cloud-amd64"),
    Cell(name="6.1-rt", why="Debian 12's realtime kernel", flavour="rt-amd64", idle_states=1),
    Cell(name="6.1-1cpu", why="a single CPU, and control groups of version 1", cpus=1, cgroup=1, steps=IDLE_STEPS),
    Cell(
        name="6.1-hardened",
        why="lockdown=integrity, kptr_restrict=2 and its kind, tracefs not mounted",
        append="lsm=lockdown,capability lockdown=integrity",
        sysctls=_HARDENED,
        tracefs=False,
    ),
    Cell(
        name="6.1-hotplug",
        why="a CPU is removed and added within the window",
        cpus=4,
        idle_states=1,
        meanwhile="hotplug",
        window_s=40.0,
        steps=("doctor", "tick", "attribute", "nothing-left"),
    ),
    Cell(
        name="6.1-suspend",
        why="the host is suspended to memory within the window",
        idle_states=1,
        meanwhile="suspend",
        window_s=40.0,
        steps=("doctor", "tick", "attribute", "nothing-left"),
    ),
    Cell(name="6.1-timens", why="in a time namespace with clocks one day ahead", time_namespace=True, steps=IDLE_STEPS),
    Cell(
        name="5.10",
        why="Debian 11's kernel, where functions and profile are refused",
        kernel="bullseye",
        steps=("doctor", "tick", "attribute", "refused", "queries", "idle", "nothing-left"),
    ),
    Cell(name="6.12", why="Debian 13", root="trixie", kernel="trixie", idle_states=1),
    Cell(
        name="6.12-off",
        why="Debian 13, cpuidle switched off by hand",
        root="trixie",
        kernel="trixie",
        idle_states=1,
        append="cpuidle.off=1",
        steps=IDLE_STEPS,
    ),
    Cell(
        name="6.12-polling",
        why="Debian 13, with CPUs that poll instead of halting because of a latency limit",
        root="trixie",
        kernel="trixie",
        idle_states=1,
        steps=("doctor", "tick", "polling", "attribute", "nothing-left"),
    ),
    Cell(
        name="6.12-deep",
        why="Debian 13 with three idle states and a cpufreq driver",
        root="trixie",
        kernel="trixie",
        idle_states=3,
        frequencies=True,
        steps=("doctor", "tick", "limits", "replay", "settings", "guard", "killed", "nothing-left"),
    ),
    Cell(
        name="6.12-16cpu",
        why="16 CPUs in 2 sockets",
        root="trixie",
        kernel="trixie",
        cpus=16,
        sockets=2,
        memory_mib=3072,
        idle_states=1,
        steps=IDLE_STEPS,
    ),
    Cell(
        name="6.12-64cpu",
        why="64 CPUs in 4 sockets, no cpuidle driver",
        root="trixie",
        kernel="trixie",
        flavour="cloud-amd64",
        cpus=64,
        sockets=4,
        memory_mib=4096,
        steps=("doctor", "tick", "attribute", "nothing-left"),
    ),
    Cell(name="7.2", why="Debian sid", root="sid", kernel="sid"),
    Cell(
        name="arm64",
        why="Debian sid on AArch64, where functions and profile are refused",
        root="sid",
        kernel="sid",
        arch="arm64",
        flavour="arm64",
        steps=("attribute", "idle", "doctor", "tick", "refused", "queries", "nothing-left"),
        limit_s=1500.0,
    ),
    # One root under two kernels: what parts between their sweeps is the kernel's (`make matrix-kernels`).
    _SWEEP,
    replace(
        _SWEEP, name="6.12-sweep", why="the same, with Debian 12's programs, under Debian 13's kernel", kernel="trixie"
    ),
    Cell(name="bookworm", why="Debian 12 on the host's kernel", kernel=None, steps=HERE_STEPS),
    Cell(name="trixie", why="Debian 13 on the host's kernel", root="trixie", kernel=None, steps=HERE_STEPS, quick=True),
    Cell(
        name="container",
        why="Debian 13 in a container's namespaces, with process ids of its own",
        root="trixie",
        kernel=None,
        steps=("contained", "functions"),
        container=True,
    ),
    Cell(name="sid", why="Debian sid on the host's kernel", root="sid", kernel=None, steps=HERE_STEPS),
)


def chosen(names: list[str], *, quick: bool) -> list[Cell]:
    """The cells of these names, else all but those by name only, else the quick ones.

    Raises ValueError for a name that is none.
    """
    known = {cell.name: cell for cell in CELLS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [cell for cell in CELLS if not cell.by_name and (cell.quick or not quick)]
