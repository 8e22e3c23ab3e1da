# SPDX-License-Identifier: Apache-2.0
"""The records of a run: frozen, with units in their names, the JSON of `powerprof.run/1`.

Measurements fill them, `runs` saves them, statistics and reports read them. An unknown value is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec


def sum_known(amounts: Iterable[float | None]) -> float | None:
    """Return the sum. None if one of the amounts is unknown: a smaller sum would mislead."""
    known = list(amounts)
    return None if None in known else math.fsum(amount for amount in known if amount is not None)


# System activity in a window: disks, network, faults, interrupts, CPUs.


class AchievedResidency(msgspec.Struct, frozen=True, kw_only=True):
    """Residency counted by the hardware, if a source knows it; `cpuidle` counts only requests.

    It is the mean over all units of the scope.
    """

    scope: Literal["cpu", "core", "package"]
    name: str
    residency_percent: float


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """One block device.

    Attributes:
        of_server: the server's files are on it.
        read_ms, write_ms: mean time of a read or a write. None without one.
        service_ms: mean time of a request from start to end, with its queue (iostat's await; Solaris' svc_t).
        queue_count: mean number of outstanding requests.
        busy_percent: share of time with at least one outstanding request.
    """

    name: str
    of_server: bool = False
    reads_hz: float
    writes_hz: float
    read_bytes_hz: float
    write_bytes_hz: float
    read_ms: float | None = None
    write_ms: float | None = None
    service_ms: float | None = None
    queue_count: float | None = None
    busy_percent: float


class DeviceInterrupts(msgspec.Struct, frozen=True, kw_only=True):
    """Interrupts of one device over all its vectors and queues, on all CPUs."""

    device: str
    rate_hz: float


class PState(msgspec.Struct, frozen=True, kw_only=True):
    """One frequency that cpufreq can request, and its share of time, idle or not."""

    mhz: float
    residency_percent: float


class CpuFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: its P-states, and its mean real frequency while it ran (APERF ÷ MPERF)."""

    cpu: int
    states: list[PState] = []
    busy_mhz: float | None = None


class FrequencyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The range that a driver may choose for these CPUs (the kernel's list: 0-3,8), and the hardware's range.

    `preference` is energy_performance_preference, for drivers that leave the choice to the hardware.
    """

    cpus: str
    driver: str | None = None
    governor: str | None = None
    preference: str | None = None
    minimum_mhz: float | None = None
    maximum_mhz: float | None = None
    hardware_minimum_mhz: float | None = None
    hardware_maximum_mhz: float | None = None
    base_mhz: float | None = None


class Frequencies(msgspec.Struct, frozen=True, kw_only=True):
    """P-states and frequencies of a window.

    Attributes:
        states: the mean over all CPUs, in sum 100 %. Empty if the driver does not count (intel_pstate, amd-pstate).
        busy_mhz: the mean over the time in which CPUs ran.
        status: the mode of intel_pstate or amd-pstate.
    """

    states: list[PState] = []
    cpus: list[CpuFrequency] = []
    limits: list[FrequencyLimits] = []
    busy_mhz: float | None = None
    status: str | None = None
    turbo: bool | None = None


class CpuLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: the non-idle share of its accounted time, and the mean number of tasks that waited for it."""

    cpu: int
    busy_percent: float
    waiting_tasks: float | None = None


class OsRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over one window. A figure that the kernel does not count is None.

    Attributes:
        disk_reads_hz: like all `disk_…` over all whole disks.
        waiting_tasks: the mean number of runnable tasks without a CPU.
        cpu_pressure_percent: the share of time with at least one such task (Documentation/accounting/psi.rst).
        io_pressure_percent: the same for I/O, with delays by control groups.
        migrations_hz: moves of tasks to another CPU.
        disks: whole disks, and the devices of the server's files.
    """

    disk_reads_hz: float | None = None
    disk_writes_hz: float | None = None
    disk_read_bytes_hz: float | None = None
    disk_write_bytes_hz: float | None = None
    disk_busy_percent: float | None = None
    network_receive_bytes_hz: float | None = None
    network_send_bytes_hz: float | None = None
    network_packets_hz: float | None = None
    page_faults_hz: float | None = None
    major_faults_hz: float | None = None
    waiting_tasks: float | None = None
    cpu_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    migrations_hz: float | None = None
    disks: list[DiskRates] = []
    interrupts: list[DeviceInterrupts] = []
    cpus: list[CpuLoad] = []
    frequencies: Frequencies | None = None


Kind = Literal["measured", "estimated"]
Mechanism = Literal["timer", "device", "ipi", "no_ipi", "tick", "unknown"]


class Note(msgspec.Struct, frozen=True):
    """A fact about a record for its reader, by name and figures. Reports word it before it is saved as a sentence."""

    name: str
    values: dict[str, float | str] = {}

    def __hash__(self) -> int:
        return hash((self.name, *self.values.items()))


Notes = Sequence[str | Note]


class StateResidency(msgspec.Struct, frozen=True, kw_only=True):
    """One idle state over all CPUs of a window.

    A polling state is a busy loop. Its time is `polling_percent`, which C0 includes, and its `residency_percent` is 0:
    C0 and all residencies sum to 100.

    Attributes:
        residency_percent: of the CPUs' wall time, or of their idle time (`Window.percent_of`).
        average_residency_ms: its time divided by its entries.
        entries_count: without the exits that reading the counters caused.
        above_hz: exits before the target residency of the state. A shallower state was the better choice.
        below_hz: stays that were long enough for a deeper state.
        rejected_hz: failed entries.
    """

    name: str
    residency_percent: float | None
    average_residency_ms: float | None
    entries_hz: float | None
    above_hz: float | None = None
    below_hz: float | None = None
    rejected_hz: float | None = None
    time_us: float = 0.0
    entries_count: int = 0
    polling: bool = False
    polling_percent: float | None = None


class EstimateRange(msgspec.Struct, frozen=True, kw_only=True):
    """The figures behind an estimate of this host, each with its interval.

    The watts are `idle_watts` if no CPU runs and `idle_watts + slope_watts` if all of them do. A difference depends
    only on the slope, a ratio on idle ÷ slope: `odds_low` and `odds_high` are its interval. They are None if unknown,
    and in records before 2026-12.
    """

    idle_watts: float
    idle_low_watts: float
    idle_high_watts: float
    slope_watts: float
    slope_low_watts: float
    slope_high_watts: float
    odds_low: float | None = None
    odds_high: float | None = None


Scope = Literal[
    "wall", "server", "supply", "battery", "psys", "package", "dram", "rail", "core", "device", "other", "model"
]


class EnergyReading(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of one domain of one meter in a window, or of a model.

    Attributes:
        contained_in: the domain of the same host that already includes this one. Never add both.
        low_watts, high_watts: the interval of an estimate; `range` has the figures behind it.
        scope: the part of the host that the domain measures. `device` and `other` are in no sum. None before
            2026-12.
        unsummed: the reason why the domains of this tier have no total. None if they are a recognised layout.
    """

    source: str
    domain: str
    kind: Kind
    joules: float | None
    watts: float | None
    contained_in: str | None = None
    low_watts: float | None = None
    high_watts: float | None = None
    model: str | None = None
    dropped_samples_count: int = 0
    range: EstimateRange | None = None
    scope: Scope | None = None
    unsummed: str | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits with one cause and the thread that ran because of it.

    Attributes:
        mechanism: `no_ipi` is a polling CPU that was woken by a flag.
        name: the function of the timer, the device of the interrupt, or the kind of IPI.
        process: `kernel` for kernel threads.
        thread: for server threads the name from performance_schema.
        percent: of all idle exits in the window.
        period_ms: the interval of regular exits.
        c0_ms: the time that the thread ran, and the kernel's time from these exits until then.
    """

    mechanism: Mechanism
    name: str | None
    process: str | None
    pid: int | None
    thread: str | None
    wakeups_hz: float
    percent: float
    count: int
    tid: int | None = None
    period_ms: float | None = None
    c0_ms: float | None = None


class Conservation(msgspec.Struct, frozen=True, kw_only=True):
    """classified + unknown + lost = idle exits, with the counts of an independent check.

    Attributes:
        checked_against: the kernel's counter of idle exits over the same windows: cpuidle's Δusage, else perf's
            count of the cpu_idle tracepoint. None without a counter.
        reference_count: the count of `checked_against`.
        idle_percent: /proc/stat's idle time in the window.
    """

    idle_exits_count: int
    cpuidle_usage_delta_count: int | None
    classified_count: int
    unknown_count: int
    lost_count: int
    coverage_percent: float | None
    checked_against: Literal["cpuidle", "perf"] | None = None
    reference_count: int | None = None
    idle_percent: float | None = None


class ServerExits(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits that the server's own threads caused in the traced window: a count, and its rate with the interval.

    Attributes:
        blocks_count: the counts in consecutive equal parts of the window.
        wakings_hz: wake-ups of its threads, whether or not a CPU idled. None if unknown.
        most_woken_hz: the wake-ups of the most frequent thread.
    """

    count: int
    window_s: float
    wakeups_hz: Estimate
    blocks_count: list[float] = []
    wakings_hz: float | None = None
    most_woken: str | None = None
    most_woken_hz: float | None = None


class ProcessTime(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of one named group (mysqld, client, powerprof, rest) in a window."""

    name: str
    cpu_s: float
    percent: float | None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One measured window. Percentages are of all CPUs' wall time; `wakeups_hz` is over all CPUs.

    Attributes:
        unknown_cpus_count: the CPUs whose counters are impossible or missing. They are in no figure and not in `cpus`.
        percent_of: "idle_time" for recordings without wall time: the states' percentages are shares of idle
            time and C0 is unknown.
        residual_percent: the correction that brought C0 to 0, if states sum to more than the wall time (idle
            periods open at an edge). 0 in a sound window.
        edge_exits_count: the idle exits that reading the counters caused. No other figure includes them.
        tool_cpu_s, tool_wakeups_count: CPU time and wake-ups of powerprof's own process.
    """

    started_at: str
    window_s: float | None
    cpus: int
    c0_percent: float | None
    idle_percent: float | None
    wakeups_hz: float | None
    states: list[StateResidency]
    steal_percent: float | None = None
    user_percent: float | None = None
    system_percent: float | None = None
    irq_percent: float | None = None
    interrupts_hz: float | None = None
    context_switches_hz: float | None = None
    frequency_mhz: float | None = None
    residual_percent: float | None = None
    edge_exits_count: int = 0
    percent_of: Literal["wall_time", "idle_time"] = "wall_time"
    residency_source: str = "cpuidle"
    unknown_cpus_count: int = 0
    achieved: list[AchievedResidency] = []
    tool_cpu_s: float | None = None
    tool_wakeups_count: int | None = None
    energy: list[EnergyReading] = []
    processes: list[ProcessTime] = []
    system: OsRates | None = None
    notes: Notes = []


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over repeated windows with its 95 % interval (None for a single window)."""

    mean: float
    low: float | None
    high: float | None


class EnergyPart(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's joules above the idle floor. `residual_joules` is the part that its children do not explain."""

    name: str
    joules: float
    percent: float | None
    c0_s: float
    wakeups_count: float
    children: list[EnergyPart] = []
    residual_joules: float | None = None


class EnergySplit(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of a window by consumer: `idle_joules` + Σ `parts` + `residual_joules` = `total_joules`.

    Attributes:
        idle_joules, active_joules: the energy of the idle host (the floor), and the energy above it.
        active_low_joules, active_high_joules: an interval, if the floor is a model's share of a measured total.
        rate_watts: the price of one running CPU above the floor.
        wakeup_joules: the price of one wake-up.
    """

    total_joules: float
    kind: Kind
    source: str
    idle_joules: float | None
    active_joules: float | None
    parts: list[EnergyPart]
    residual_joules: float
    rate_watts: float | None = None
    wakeup_joules: float | None = None
    active_low_joules: float | None = None
    active_high_joules: float | None = None
    notes: Notes = []


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of the windows of one phase of a run. Intervals are 95 % over the repeated windows.

    Plain figures are means over `windows`. Causes and their conservation come from a separate traced window
    (`traced_window_s`), so that no headline figure includes tracing.

    Attributes:
        name: `idle` has the phases `baseline`, `server`, `clients` and `baseline-after`.
        window_s: the mean length of the windows.
        steal_percent: time that the hypervisor gave to other guests.
        intervals: the interval of each metric; `residency_percent:C1` is one state.
        server_exits: None without a server on this host, or without tracing.
    """

    name: str
    window_s: float | None
    cpus: int
    c0_percent: float | None
    idle_percent: float | None
    wakeups_hz: float | None
    states: list[StateResidency]
    steal_percent: float | None = None
    energy: list[EnergyReading] = []
    energy_split: EnergySplit | None = None
    causes: list[Cause] = []
    conservation: Conservation | None = None
    traced_window_s: float | None = None
    server_exits: ServerExits | None = None
    system: OsRates | None = None
    intervals: dict[str, Estimate] = {}
    windows: list[Window] = []
    notes: Notes = []


def metric_name(quantity: str, *of: str) -> str:
    """Return the name of a metric with several instances: `residency_percent:C1`, `watts:rapl:package-0`."""
    return ":".join((quantity, *of))


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a figure from one phase to another, with its 95 % interval."""

    metric: str
    from_phase: str
    to_phase: str
    difference: Estimate

    @property
    def name(self) -> str:
        """The present name of the metric. Release 0.1.0 wrote `C1 residency_percent` and `rapl package-0 watts`."""
        of, _, quantity = self.metric.rpartition(" ")
        if quantity not in ("residency_percent", "watts") or self.metric.startswith(("residency_percent:", "watts:")):
            return self.metric
        # The names of states and of domains may contain blanks, those of sources do not.
        return metric_name(quantity, *(of.split(" ", 1) if quantity == "watts" else (of,))) if of else self.metric


class ToolCost(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that powerprof itself used, with its helpers (turbostat, ipmitool, the child that reads files).

    Attributes:
        cpu_s: CPU time in the windows without tracing.
        wakeups_hz: idle exits because of powerprof and its helpers in the traced windows. None without tracing.
        cpu_percent: `cpu_s` as a share of all CPUs.
        bpf_s: time in its BPF programs during traced windows. None if unknown.
        lost_count: events that did not fit into the buffer.
        memory_bytes: its largest resident set.
    """

    version: str
    cpu_s: float | None
    wakeups_hz: float | None
    cpu_percent: float | None = None
    bpf_s: float | None = None
    lost_count: int | None = None
    memory_bytes: int | None = None


class EnergySource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a run's joules: how it was chosen, and the reasons to doubt an estimate."""

    metered: bool
    why: str
    doubts: list[str] = []

    def notes(self) -> Notes:
        """Return all of it as notes."""
        # The reasons against each kind of meter fill half a page. doctor lists them, and the record contains them.
        why = self.why if self.metered else f"{self.why.partition(':')[0]} (powerprof doctor)"
        return [Note("energy", {"why": why}), *(Note("estimate", {"doubt": doubt}) for doubt in self.doubts)]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The database server of a run."""

    version: str
    private: bool
    pid: int | None = None
    settings: dict[str, str] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A saved run, `powerprof.run/1`, as `residency` saves it. Other commands save subtypes with more fields.

    `interrupted` runs ended early and contain the complete part. `failure` is the reason if it was not a signal.
    """

    id: str | None
    command: str
    started_at: str
    host: dict[str, Any]
    tool: ToolCost
    phases: list[Phase]
    server: ServerInfo | None = None
    energy_source: EnergySource | None = None
    notes: Notes = []
    interrupted: bool = False
    failure: str | None = None
    schema: Literal["powerprof.run/1"] = "powerprof.run/1"


# The record of `powerprof idle`: `powerprof.run/1` with the differences of its phases.


class IdleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `idle`."""

    clients_count: int | None = None
    duration_s: float | None = None
    repeat_count: int | None = None
    residency_source: str | None = None
    sysfs: str | None = None


class IdleRun(Run, frozen=True, kw_only=True):
    """The record of `idle`, with the differences of its phases and the drift of the baseline."""

    options: IdleOptions = IdleOptions()
    deltas: list[Delta] = msgspec.field(default_factory=list)
    drift: list[Delta] = msgspec.field(default_factory=list)


# One metric over the windows of one condition, as judged and as saved.


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one condition: one value per window, None if unknown."""

    name: str
    unit: str
    kind: Kind
    values: list[float | None]
    source: str | None = None

    @property
    def known(self) -> list[float]:
        """The known values."""
        return [value for value in self.values if value is not None]

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The smallest and the largest possible value."""
        # A value net of idle may fall below 0 by chance. No other value can.
        floor = None if self.name.endswith("_net") or self.name.startswith("watts:") else 0.0
        return floor, 100.0 if self.unit == "%" else None


class RunMetric(Figures, frozen=True, kw_only=True):
    """A metric of a run under load, with the mean of its values and the interval."""

    estimate: Estimate
