# SPDX-License-Identifier: Apache-2.0
"""What a run is made of: frozen records with units in their names, the JSON of `powerprof.run/1`.

Collecting fills them, `runs` saves them, statistics and reports read them. Unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

# What the system did in a window: disks, network, faults, interrupts, CPUs. Unknown is None, never 0.


class AchievedResidency(msgspec.Struct, frozen=True, kw_only=True):
    """What the hardware says it did, where a source knows: `cpuidle` counts requests only.

    The mean over all units of that scope.
    """

    scope: Literal["cpu", "core", "package"]
    name: str
    residency_percent: float


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """One block device. `service_ms` is the mean time of a request from its start to its end, the queue included
    (iostat's await; Solaris' svc_t), `read_ms` and `write_ms` that of reads and of writes alone; None without one.

    `queue_count` is the mean number of requests outstanding, `busy_percent` the share of time with at least one.
    `of_server`: the server's files lie on it.
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
    """Interrupts of one device, all its vectors and queues, on all CPUs."""

    device: str
    rate_hz: float


class PState(msgspec.Struct, frozen=True, kw_only=True):
    """One frequency that cpufreq can request, and the share of time in which it was requested, idle or not."""

    mhz: float
    residency_percent: float


class CpuFrequency(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: its P-states, and the mean frequency at which it really ran while it ran (APERF ÷ MPERF)."""

    cpu: int
    states: list[PState] = []
    busy_mhz: float | None = None


class FrequencyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Between what a driver may choose for these CPUs (the kernel's list: 0-3,8), and what the hardware could.

    `preference` is energy_performance_preference, where the hardware chooses by itself.
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
    """`states` are the mean over all CPUs, together 100 %; empty where no driver counts (intel_pstate, amd-pstate: the
    hardware chooses), whose mode is `status`. `busy_mhz` is the mean over the time in which CPUs ran."""

    states: list[PState] = []
    cpus: list[CpuFrequency] = []
    limits: list[FrequencyLimits] = []
    busy_mhz: float | None = None
    status: str | None = None
    turbo: bool | None = None


class CpuLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU: the share of accounted time in which it was not idle, and how many tasks waited for it on average."""

    cpu: int
    busy_percent: float
    waiting_tasks: float | None = None


class OsRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over one window. `disk_…` are of all whole disks, `disks` each of them and what holds the server's files.

    `waiting_tasks` is the mean number of tasks that were runnable and had no CPU, `cpu_pressure_percent` the share of
    time in which there was one (Documentation/accounting/psi.rst), `io_pressure_percent` the same of I/O, also of what
    a control group delays; `migrations_hz` how often a task moved to another CPU. None where a kernel counts it not.
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
    """What a reader has to know of a record, by its name and its figures: report words it before it is saved.

    In a saved record it is a sentence.
    """

    name: str
    values: dict[str, float | str] = {}

    def __hash__(self) -> int:
        return hash((self.name, *self.values.items()))


Notes = Sequence[str | Note]


class StateResidency(msgspec.Struct, frozen=True, kw_only=True):
    """One idle state over all CPUs of a window. `residency_percent` is of the CPUs' wall time, or of their
    idle time where the window says so (`Window.percent_of`).

    A polling state is a busy loop: its time is `polling_percent`, counted in C0, and its `residency_percent`
    is 0, so that C0 and the residencies sum to 100. `entries_count` is without the exits that reading the
    counters caused.
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
    """What an estimate of this host goes by, each with its interval: its watts are `idle_watts` where no CPU runs and
    `idle_watts + slope_watts` where all of them do. In a difference only the slope counts, in a ratio idle ÷ slope,
    whose interval are the odds (None: unknown, and in records before 2026-12)."""

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
    """What one domain of one meter drew in a window, or what a model says it drew.

    `contained_in` names the domain of the same host that already includes this one: never add both.
    `low_watts` and `high_watts` are the interval of an estimate, `range` what it goes by. `scope` is what the meter's
    reader knows it to measure; `device` and `other` are in no sum. None: recorded before 2026-12.
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


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits by what ended them and which thread ran because of it."""

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
    """classified + unknown + lost = idle exits, and what they were checked against.

    `checked_against` is the kernel's own counter of idle exits over the same windows, which says `reference_count`:
    cpuidle's Δusage, else perf's count of the cpu_idle tracepoint; None where nothing counts. `idle_percent` is
    /proc/stat's idle time in the window.
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

    `blocks_count` are the counts in equal parts of the window, one after the other. `wakings_hz`: how often its threads
    woke, whether or not a CPU idled, and `most_woken_hz` the thread that did most of it; None where that is unknown.
    """

    count: int
    window_s: float
    wakeups_hz: Estimate
    blocks_count: list[float] = []
    wakings_hz: float | None = None
    most_woken: str | None = None
    most_woken_hz: float | None = None


class ProcessTime(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time that one named group (mysqld, client, powerprof, rest) used in a window."""

    name: str
    cpu_s: float
    percent: float | None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of measuring. Percentages are over all CPUs' wall time; `wakeups_hz` sums all CPUs.

    `percent_of` is "idle_time" for recordings without wall time: there the states' percentages are shares of
    the idle time and C0 is unknown. `residual_percent` is what had to be added to C0 to bring it to 0 (states
    that sum to more than the wall time, where idle periods were open at an edge): 0 in a sound window. The
    idle exits that reading the counters caused are `edge_exits_count` and nowhere else.
    `tool_cpu_s` and `tool_wakeups_count` are what powerprof's own process used and how often it woke.
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
    achieved: list[AchievedResidency] = []
    tool_cpu_s: float | None = None
    tool_wakeups_count: int | None = None
    energy: list[EnergyReading] = []
    processes: list[ProcessTime] = []
    system: OsRates | None = None
    notes: Notes = []


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over repeated windows with its 95 % interval (None where one window cannot give one)."""

    mean: float
    low: float | None
    high: float | None


class EnergyPart(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's joules above the idle floor. `residual_joules`: what its children do not account for."""

    name: str
    joules: float
    percent: float | None
    c0_s: float
    wakeups_count: float
    children: list[EnergyPart] = []
    residual_joules: float | None = None


class EnergySplit(msgspec.Struct, frozen=True, kw_only=True):
    """idle_joules + Σ parts + residual_joules = total_joules. `rate_watts` is one running CPU above the floor.

    `active_low_joules` and `active_high_joules`: where the floor is a model's share of a measured total.
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
    """The windows of one phase of a run, put together. Intervals are 95 % over the repeated windows.

    The plain figures are means over `windows`. Causes and their conservation come from a traced window of its own
    (`traced_window_s`), so that tracing is not in any headline figure.
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
    """The name of a metric that there are several of: `residency_percent:C1`, `watts:rapl:package-0`."""
    return ":".join((quantity, *of))


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure changed from one phase to another, with its 95 % interval."""

    metric: str
    from_phase: str
    to_phase: str
    difference: Estimate

    @property
    def name(self) -> str:
        """The metric by its present name: release 0.1.0 wrote `C1 residency_percent` and `rapl package-0 watts`."""
        of, _, quantity = self.metric.rpartition(" ")
        if quantity not in ("residency_percent", "watts") or self.metric.startswith(("residency_percent:", "watts:")):
            return self.metric
        # The names of states and of domains may have blanks, those of sources have none.
        return metric_name(quantity, *(of.split(" ", 1) if quantity == "watts" else (of,))) if of else self.metric


class ToolCost(msgspec.Struct, frozen=True, kw_only=True):
    """What powerprof itself used. `bpf_s` is time in its BPF programs during traced windows, None if unknown."""

    version: str
    cpu_s: float | None
    wakeups_hz: float | None
    cpu_percent: float | None = None
    bpf_s: float | None = None
    lost_count: int | None = None
    memory_bytes: int | None = None


class EnergySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the joules of a run come from: how the source was chosen, and the reasons to doubt an estimate."""

    metered: bool
    why: str
    doubts: list[str] = []

    def notes(self) -> Notes:
        """All of it, for where notes are only listed."""
        # Why each kind of meter is missing fills half a page: doctor lists it, and the record has it.
        why = self.why if self.metered else f"{self.why.partition(':')[0]} (powerprof doctor)"
        return [Note("energy", {"why": why}), *(Note("estimate", {"doubt": doubt}) for doubt in self.doubts)]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The database server of a run."""

    version: str
    private: bool
    pid: int | None = None
    settings: dict[str, str] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A saved run: `powerprof.run/1`, as `residency` saves it. Other commands save more, in types of their own.

    `interrupted`: it ended early, and holds what was complete by then; `failure` says what broke it off, where that was
    no signal.
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


# What `powerprof idle` saves: `powerprof.run/1` with the differences of its phases.


class IdleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `idle` was asked for."""

    clients_count: int | None = None
    duration_s: float | None = None
    repeat_count: int | None = None
    residency_source: str | None = None
    sysfs: str | None = None


class IdleRun(Run, frozen=True, kw_only=True):
    """What `idle` saves: also how its phases differ, and how far the baseline moved meanwhile."""

    options: IdleOptions = IdleOptions()
    deltas: list[Delta] = msgspec.field(default_factory=list)
    drift: list[Delta] = msgspec.field(default_factory=list)


# One metric over the windows of one condition: what is judged, and what is saved of it.


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one condition: a value a window, None where unknown."""

    name: str
    unit: str
    kind: Kind
    values: list[float | None]
    source: str | None = None

    @property
    def known(self) -> list[float]:
        """The values that are known."""
        return [value for value in self.values if value is not None]

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The least and the most that it can be."""
        # What is net of idle may be below 0 by chance; nothing else can.
        floor = None if self.name.endswith("_net") or self.name.startswith("watts:") else 0.0
        return floor, 100.0 if self.unit == "%" else None


class RunMetric(Figures, frozen=True, kw_only=True):
    """A metric of a run under load, with the mean of its values and the interval of that."""

    estimate: Estimate
