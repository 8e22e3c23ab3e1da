# SPDX-License-Identifier: Apache-2.0
"""The records of a run: frozen, with units in their names, the JSON of `powerprof.run/1`.

Measurements fill them, `runs` saves them, statistics and reports read them. An unknown value is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec

from powerprof.model.system_activity import OsRates
from powerprof.system.next_steps import command_line


def sum_known(amounts: Iterable[float | None]) -> float | None:
    """Return the sum. None if one of the amounts is unknown: a smaller sum would mislead."""
    known = list(amounts)
    return None if None in known else math.fsum(amount for amount in known if amount is not None)


class AchievedResidency(msgspec.Struct, frozen=True, kw_only=True):
    """Mean residency counted by the hardware; cpuidle counts requests."""

    scope: Literal["cpu", "core", "package"]
    name: str
    residency_percent: float


Kind = Literal["measured", "estimated"]
Mechanism = Literal["timer", "device", "ipi", "no_ipi", "tick", "unknown"]


class Note(msgspec.Struct, frozen=True):
    """A fact about a record for its reader, by name and figures. Reports word it before it is saved as a sentence."""

    name: str
    values: dict[str, int | float | str] = {}

    def __hash__(self) -> int:
        return hash((self.name, *self.values.items()))


Notes = Sequence[str | Note]


class StateResidency(msgspec.Struct, frozen=True, kw_only=True):
    """One idle state over all CPUs. Polling counts as C0 (`polling_percent`), so C0 and all residencies sum to 100.

    Attributes:
        residency_percent: of wall time, or of idle time (`percent_of`).
        average_residency_ms: time per entry.
        entries_count: without the exits that reading the counters caused.
        above_hz: exits before the target residency.
        below_hz: stays long enough for a deeper state.
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
    """The estimate: `idle_watts` if no CPU runs, plus `slope_watts` if all run. `odds_…`: interval of idle ÷ slope."""

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
    """The energy of one domain of a meter, or of a model.

    Attributes:
        contained_in: the domain that includes this one. Never add both.
        low_watts, high_watts: interval of an estimate.
        scope: part of the host. `device` and `other` are in no sum.
        unsummed: why the domains have no total.
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
    scope: Scope
    unsummed: str | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Idle exits by cause and thread.

    Attributes:
        mechanism: `no_ipi`: a flag woke a polling CPU.
        name: function of the timer, device, or kind of IPI.
        thread: performance_schema's name for server threads.
        percent: of the window's idle exits.
        c0_ms: running time of the thread, and of the kernel before it.
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
    """Classified + unknown + lost = idle exits, with an independent count.

    Attributes:
        checked_against: cpuidle's usage, or perf's count of the cpu_idle tracepoint.
        reference_count: the count of `checked_against`.
        idle_percent: of /proc/stat.
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
    """Idle exits that the server's threads caused in the traced window.

    Attributes:
        blocks_count: in equal parts of the window.
        wakings_hz: wake-ups of its threads, on idle and busy CPUs.
        most_woken, most_woken_hz: its most frequent thread.
    """

    count: int
    window_s: float
    wakeups_hz: Estimate
    blocks_count: list[float] = []
    wakings_hz: float | None = None
    most_woken: str | None = None
    most_woken_hz: float | None = None


class ProcessTime(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of one group: mysqld, client, powerprof or rest."""

    name: str
    cpu_s: float
    percent: float | None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One measured window.

    Attributes:
        unknown_cpus_count: CPUs with missing or impossible counters. They are in no figure.
        percent_of: `idle_time` for recordings without wall time: C0 is unknown.
        residual_percent: excess of the states over the wall time; 0 in a sound window.
        edge_exits_count: idle exits that reading the counters caused. They are in no other figure.
        tool_cpu_s, tool_wakeups_count: of powerprof's own process.
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
    """A mean over windows with its interval."""

    mean: float
    low: float | None
    high: float | None


class EnergyPart(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's joules above the idle floor. `residual_joules` is not explained by its children."""

    name: str
    joules: float
    percent: float | None
    c0_s: float
    wakeups_count: float
    children: list[EnergyPart] = []
    residual_joules: float | None = None


class EnergySplit(msgspec.Struct, frozen=True, kw_only=True):
    """Energy by consumer: `idle_joules` + Σ `parts` + `residual_joules` = `total_joules`.

    Attributes:
        idle_joules, active_joules: the idle floor, and the energy above it.
        active_low_joules, active_high_joules: interval, if the floor is modelled.
        rate_watts: one running CPU, above the floor.
        wakeup_joules: one wake-up.
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
    """The windows of one phase. Figures are means; causes come from a separate window of `traced_window_s`.

    Attributes:
        name: in `idle` `baseline`, `server`, `clients` or `baseline-after`.
        steal_percent: time that the hypervisor gave to other guests.
        intervals: by metric, such as `residency_percent:C1`.
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
    """The change of a figure between two phases."""

    metric: str
    from_phase: str
    to_phase: str
    difference: Estimate


class ToolCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of powerprof and its helpers.

    Attributes:
        cpu_s: CPU time in the windows without tracing.
        wakeups_hz: in the traced windows.
        cpu_percent: of all CPUs.
        bpf_s: in BPF programs, in the traced windows.
        entry_s: to enter these programs from their tracepoints.
        cost_percent: CPU time and programs with their entries, in percent of the CPU time that `max_cost_percent` is a
            share of.
        max_cost_percent: the bound that was set.
        lost_count: events that did not fit into the buffer.
        memory_bytes: largest resident set.
    """

    version: str
    cpu_s: float | None
    wakeups_hz: float | None = None
    cpu_percent: float | None = None
    bpf_s: float | None = None
    lost_count: int | None = None
    memory_bytes: int | None = None
    entry_s: float | None = None
    cost_percent: float | None = None
    max_cost_percent: float | None = None


class CostBound(msgspec.Struct, frozen=True, kw_only=True):
    """The bound on the cost of a window, its cost, and the traced part.

    Attributes:
        max_cost_percent: the bound; None without one.
        cost_percent: CPU time of powerprof and its programs with their entries, in percent of that of the target.
        programs_s: CPU time of the programs, with the entries.
        slices_count: 0 if the whole window was traced. Otherwise sums are estimates from slices, and `low_count` and
            `high_count` their 95 % interval.
        unseen_below_hz: the largest rate of events that no slice shows, with 95 % certainty.
        frequency_hz: of samples, if the bound lowered it.
    """

    max_cost_percent: float | None = None
    cost_percent: float | None = None
    programs_s: float | None = None
    slices_count: int = 0
    traced_percent: float = 100.0
    unseen_below_hz: float | None = None
    frequency_hz: float | None = None


class EnergySource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the joules: why it was chosen, and doubts."""

    metered: bool
    why: str
    doubts: list[str] = []

    def notes(self) -> Notes:
        """Return all of it as notes."""
        # The reasons against each kind of meter fill half a page. doctor lists them, and the record contains them.
        why = self.why if self.metered else f"{self.why.partition(':')[0]} ({command_line('doctor')})"
        return [Note("energy", {"why": why}), *(Note("estimate", {"doubt": doubt}) for doubt in self.doubts)]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a run. `version` is None if it has several."""

    version: str | None = None
    private: bool = False
    pid: int | None = None
    settings: dict[str, str] = {}


EndOfTarget = Literal["target_ended", "target_stopped", "target_frozen", "target_replaced", "target_restarted"]


class Ended(msgspec.Struct, frozen=True):
    """The early end of a measurement.

    Attributes:
        how: by a signal (`interrupted`), an error (`failed`), or the target: it ended, was stopped, was frozen by its
            control group, executed another program (`replaced`), or restarted all its processes.
        why: the reason in words.
        after_s: the time from the beginning of the window; None if several windows were measured.
        pid: the process of the target that ended, stopped or changed.
    """

    how: Literal["interrupted", "failed", EndOfTarget]
    why: str
    after_s: float | None = None
    pid: int | None = None

    @property
    def is_of_target(self) -> bool:
        """Whether the target ended the measurement, and not a signal to powerprof or an error."""
        return self.how in get_args(EndOfTarget)

    @property
    def resume_hint(self) -> str | None:
        """The way to resume a stopped target; None for other ends."""
        if self.how == "target_frozen":
            return "docker unpause, or 0 in the cgroup.freeze of its group, resumes it"
        return f"kill -CONT {self.pid} resumes it" if self.how == "target_stopped" else None

    @property
    def message(self) -> str:
        """The reason with its time."""
        if self.after_s is None:
            return self.why
        # The kernel reports only the end of processes at once.
        at = "at the latest " if self.how in ("target_stopped", "target_frozen", "target_replaced") else ""
        return f"{self.why} {at}{self.after_s:.{1 if self.after_s >= 1 else 2}f} s after the window began"


def ended_by_signal(is_interrupted: bool) -> Ended | None:
    """Return the end of a measurement that a signal may have ended early."""
    return Ended("interrupted", "by a signal") if is_interrupted else None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The head of every record. A kind gives `schema` its value, and other keys a narrower type.

    Attributes:
        id: of a saved record.
        started_at: start of the measurement; None if a recording does not contain it.
        ended: the early end; the record has the complete part. None if the measurement is complete.
    """

    schema: str
    command: str
    id: str | None = None
    started_at: str | None = None
    host: dict[str, Any] = {}
    server: ServerInfo | None = None
    tool: ToolCost | None = None
    options: dict[str, Any] = {}
    energy_source: EnergySource | None = None
    notes: Notes = []
    ended: Ended | None = None


class Run(Record, frozen=True, kw_only=True):
    """A saved run. Other commands save subtypes with more fields."""

    schema: Literal["powerprof.run/1"] = "powerprof.run/1"
    started_at: str
    tool: ToolCost
    phases: list[Phase]


class IdleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `idle`."""

    clients_count: int | None = None
    duration_s: float | None = None
    repeat_count: int | None = None
    residency_source: str | None = None
    sysfs: str | None = None


class IdleRun(Run, frozen=True, kw_only=True):
    """The record of `idle`: differences between the phases, and the drift of the baseline.

    `statements_hz`: statements of other clients in the windows of a given server, requests to a PostgreSQL; None
    if unknown.
    """

    options: IdleOptions = IdleOptions()  # type: ignore[assignment]
    deltas: list[Delta] = []
    drift: list[Delta] = []
    statements_hz: float | None = None


def limits_of(name: str, unit: str) -> tuple[float | None, float | None]:
    """Return the smallest and the largest possible value of a metric."""
    # A value net of idle may fall below 0 by chance. No other value can.
    floor = None if name.endswith("_net") or name.startswith("watts:") else 0.0
    return floor, 100.0 if unit == "%" else None


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
        return limits_of(self.name, self.unit)


class RunMetric(Figures, frozen=True, kw_only=True):
    """A metric of a run: value per window, and mean."""

    estimate: Estimate
